//! Requests in several parts, limits that requests state, and refunds, on nodes that share a Redis.

use super::fleet::{Node, alone, patient_nodes};
use crate::setting::{from, key};
use std::sync::Arc;
use tokio::task::JoinSet;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::LimitSize;
use tollgate_core::rate::{Rate, SECOND_US};
use tollgate_limiter::{
    EndpointScope, LimitStatus, Outcome, PartDecisions, Request, RequestLimit, RequestPart, TokenOperation,
};
use tollgate_testbed::{RedisServer, eventually};

const RULES: &str = "
rules:
  - { id: plan, endpoint: /, key: api_key, limit: 1000/day }
  - { id: addresses, endpoint: /, key: ip, limit: 600/day }
";

fn limit(key: &str, capacity: u64) -> RequestLimit<'_> {
    let rate = Rate::per(1, 3_600 * SECOND_US);
    let size = LimitSize { capacity: Some(capacity), rate, window_us: None };
    RequestLimit { key, algorithm: Algorithm::Gcra, size }
}

fn stated(key: &str, capacity: u64, operation: TokenOperation, cost: u64) -> RequestPart<'_> {
    let request = Request { cost, ..Request::default() };
    RequestPart { request, operation, limit: Some(limit(key, capacity)) }
}

async fn decide(node: &Node, parts: &[RequestPart<'_>]) -> PartDecisions {
    let decisions = node.limiter.check_parts(parts).unwrap().decisions().await;
    assert!(decisions.iter().all(|decision| !decision.degraded), "{decisions:?}");
    decisions
}

async fn passes(node: &Node, parts: &[RequestPart<'_>]) -> bool {
    decide(node, parts).await.iter().all(|decision| decision.allowed())
}

fn status(decisions: &PartDecisions) -> LimitStatus {
    match decisions[0].outcome {
        Outcome::Admitted(status) | Outcome::Limited(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Requests at once on two nodes: none passes beyond a limit, and those that are refused leave the other limits unspent.
#[test]
fn parts_are_charged_all_or_nothing_by_all_nodes() {
    use TokenOperation::{Look, Take};
    alone(async || {
        let server = RedisServer::start(&[]);
        let nodes = patient_nodes(&server.url(), RULES, 2).await;
        let parts = || [stated("wide", 90, Take, 2), stated("narrow", 30, Take, 1)];
        let mut senders = JoinSet::new();
        for sender in 0..16 {
            let node = Arc::clone(&nodes[sender % 2]);
            senders.spawn(async move {
                let mut passed = 0;
                for _ in 0..10 {
                    passed += u64::from(passes(&node, &parts()).await);
                }
                passed
            });
        }
        let mut passed: u64 = senders.join_all().await.into_iter().sum();
        assert!(passed <= 30, "{passed}");
        // What undecided requests had reserved is back at the store: the rest is found, and not one more.
        eventually("all tokens of the narrow limit are taken", async || {
            passed += u64::from(passes(&nodes[0], &parts()).await);
            passed >= 30
        })
        .await;
        for node in &nodes {
            assert!(!passes(node, &parts()).await);
        }
        assert_eq!(passed, 30);
        eventually("nothing of the wide limit is reserved any more", async || {
            status(&decide(&nodes[1], &[stated("wide", 90, Look, 1)]).await).remaining == 30
        })
        .await;
        let mut rest = 0;
        while passes(&nodes[rest % 2], &[stated("wide", 90, Take, 1)]).await {
            rest += 1;
        }
        assert_eq!(rest, 30, "two tokens for each that passed, and none for the others");
    });
}

/// The limits of rules are leased: parts spend credit where there is some, and a refused request returns it.
#[test]
fn leased_limits_are_exact_under_parts() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let nodes = patient_nodes(&server.url(), RULES, 2).await;
        let request = Request { ip: from("192.0.2.1"), endpoint: "/", ..key("a") };
        // Busy on both nodes, so that both take tokens ahead.
        for _ in 0..100 {
            for node in &nodes {
                assert!(node.check(&request).await.0);
            }
        }
        let part = RequestPart { request, ..RequestPart::default() };
        let both = |narrow| [part, stated(narrow, 1, TokenOperation::Take, 1)];
        assert!(passes(&nodes[0], &both("once")).await);
        for _ in 0..50 {
            for node in &nodes {
                assert!(!passes(node, &both("once")).await);
            }
        }
        // 201 were spent of 600 and of 1000.
        let mut rest = 0;
        eventually("all tokens are spent", async || {
            let mut any = false;
            for node in &nodes {
                while node.check(&request).await.0 {
                    rest += 1;
                    any = true;
                }
            }
            !any && rest >= 399
        })
        .await;
        assert_eq!(rest, 399);
        // The other limit was charged for the same requests, once idle credit is back.
        eventually("400 of the plan remain", async || {
            let readings = nodes[0].limiter.peek(&request, EndpointScope::Request).await;
            readings.iter().any(|reading| {
                reading.rule == "plan" && reading.state.is_some_and(|state| state.status.remaining == 400)
            })
        })
        .await;
    });
}

/// What is given back on one node is found on all, and never more than that.
#[test]
fn refunds_are_found_by_all_nodes_and_never_exceed_the_limit() {
    use TokenOperation::{Refund, Take};
    alone(async || {
        let server = RedisServer::start(&[]);
        for algorithm in Algorithm::scripted() {
            let name = algorithm.name();
            let burst = if algorithm == Algorithm::Gcra { ", burst: 299" } else { "" };
            let text =
                format!("rules: [{{ id: {name}, key: api_key, algorithm: {name}, limit: 300/day{burst} }}]");
            let nodes = patient_nodes(&server.url(), &text, 2).await;
            let part = |operation, cost| RequestPart {
                request: Request { cost, ..key("a") },
                operation,
                limit: None,
            };
            let exhaust = async || {
                let (mut admitted, mut refused) = (0, 0);
                while refused < 3 {
                    let mut any = false;
                    for node in &nodes {
                        while passes(node, &[part(Take, 1)]).await {
                            admitted += 1;
                            any = true;
                        }
                    }
                    refused += u32::from(!any);
                }
                admitted
            };
            // A node may remember its refusal for a moment.
            let exhaust_all = async |expected: u64| {
                let mut found = 0;
                eventually("what there is is found", async || {
                    found += exhaust().await;
                    found >= expected
                })
                .await;
                found
            };
            assert_eq!(exhaust_all(300).await, 300, "{name}");
            assert!(passes(&nodes[0], &[part(Refund, 20)]).await);
            assert_eq!(exhaust_all(20).await, 20, "{name}");
            assert!(passes(&nodes[1], &[part(Refund, 1_000_000)]).await);
            // What the other node has spent and not reported yet counts as lent: so much less is given back.
            let found = exhaust_all(290).await;
            assert!(found <= 300, "{name}: {found}, never above the limit");
            for node in &nodes {
                node.store.close().await;
            }
        }
    });
}

/// The numbers of a key change between requests that wait for one call.
#[test]
fn numbers_may_differ_between_requests_at_once() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let nodes = patient_nodes(&server.url(), RULES, 1).await;
        let mut senders = JoinSet::new();
        for number in 0..200_u64 {
            let node = Arc::clone(&nodes[0]);
            senders.spawn(async move {
                let part = [stated("k", 100 + number % 7, TokenOperation::Take, 1)];
                passes(&node, &part).await
            });
        }
        let admitted = senders.join_all().await.into_iter().filter(|passed| *passed).count();
        // The first numbers decide how full the bucket is at first; no later ones add tokens.
        assert!((100..=106).contains(&admitted), "{admitted}");
    });
}
