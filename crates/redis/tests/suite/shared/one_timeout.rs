//! A decision that needs several calls waits for one timeout, not for one after the other.

use super::fleet::{Node, alone};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::LimitSize;
use tollgate_core::rate::{Rate, SECOND_US};
use tollgate_limiter::{
    Decision, Outcome, PartDecisions, Request, RequestLimit, RequestPart, TokenOperation,
};
use tollgate_redis::RedisSettings;
use tollgate_testbed::{NetworkMode, NetworkProxy, RedisServer, eventually};

/// A slot, and limits that are decided at the store.
const RULES: &str = "
rules:
  - { id: slots, endpoint: /slots, algorithm: concurrency, limit: 10 }
  - { id: users, endpoint: /slots, key: api_key, limit: 1000/day, consistency: strict }
";
const CLIENTS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const CAPACITY: u64 = 50;
/// One way.
const DELAY: Duration = Duration::from_millis(150);

/// The limit of `key`, which hardly refills.
fn part(key: &str, operation: TokenOperation) -> RequestPart<'_> {
    let rate = Rate::per(1, 86_400 * SECOND_US);
    let size = LimitSize { capacity: Some(CAPACITY), rate, window_us: None };
    let limit = Some(RequestLimit { key, algorithm: Algorithm::TokenBucket, size });
    RequestPart { request: Request { cost: 5, ..Request::default() }, operation, limit }
}

async fn decide(node: &Node, operations: &[(&str, TokenOperation)]) -> (PartDecisions, Duration) {
    let parts: Vec<RequestPart<'_>> =
        operations.iter().map(|(key, operation)| part(key, *operation)).collect();
    let start = Instant::now();
    let decisions = node.limiter.check_parts(&parts).unwrap().decisions().await;
    (decisions, start.elapsed())
}

/// None if the store has not said.
fn remaining(decision: &Decision) -> Option<u32> {
    match decision.outcome {
        Outcome::Admitted(status) | Outcome::Limited(status) if !decision.degraded => Some(status.remaining),
        _ => None,
    }
}

fn all_remaining(decisions: &PartDecisions) -> Vec<Option<u32>> {
    decisions.iter().map(remaining).collect()
}

/// A node on a slow link, and one beside the server.
async fn fleet(timeout: Duration) -> (RedisServer, NetworkProxy, Arc<Node>, Arc<Node>) {
    let server = RedisServer::start(&[]);
    let link = NetworkProxy::start(&server.address()).await;
    let settings = RedisSettings { secret: Some([7; 16]), timeout, ..RedisSettings::default() };
    let far = Node::start_with(&link.url(), RULES, settings.clone()).await;
    let near = Node::start_with(&server.url(), RULES, settings).await;
    eventually("the nodes know each other", async || {
        far.store.node_count() == 2 && near.store.node_count() == 2
    })
    .await;
    (server, link, far, near)
}

#[test]
fn clients_are_looked_at_and_given_back_to_at_the_same_time() {
    use TokenOperation::{Look, Refund, Take};
    alone(async || {
        let (_server, link, far, _near) = fleet(Duration::from_secs(2)).await;
        link.set(NetworkMode::Delay(DELAY));
        for (operation, round_trips, left) in [(Take, 1, 45), (Look, 1, 45), (Refund, 1, 50), (Look, 1, 50)] {
            let (found, took) = decide(&far, &CLIENTS.map(|client| (client, operation))).await;
            println!("{operation:?}: {took:?}");
            assert_eq!(all_remaining(&found), [Some(left); 8], "{operation:?}");
            // One client after the other would take eight times as long.
            assert!(took < (round_trips * 2 + 4) * DELAY, "{operation:?} {took:?}");
        }
    });
}

/// The answer would come after the timeout. The decision does not wait for it, and the tokens are there.
#[test]
fn what_is_given_back_after_the_timeout_is_given_back() {
    use TokenOperation::{Look, Refund, Take};
    alone(async || {
        let (_server, link, far, near) = fleet(3 * DELAY).await;
        let (found, _) = decide(&near, &[("b", Take), ("c", Take)]).await;
        assert_eq!(all_remaining(&found), [Some(45), Some(45)]);
        link.set(NetworkMode::Delay(DELAY));
        let (found, took) = decide(&far, &[("a", Take), ("b", Refund), ("c", Refund)]).await;
        assert!(found.iter().all(|decision| decision.allowed()), "{found:?}");
        assert_eq!(all_remaining(&found), [Some(45), None, None], "{took:?}");
        assert!(took < 4 * DELAY, "{took:?}, the second round trip was waited for");
        eventually("the tokens are back", async || {
            let (found, _) = decide(&near, &[("b", Look), ("c", Look)]).await;
            all_remaining(&found) == [Some(50), Some(50)]
        })
        .await;
    });
}

#[test]
fn a_slot_and_tokens_wait_for_one_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(1_500);
    alone(async || {
        let (_server, link, far, near) = fleet(TIMEOUT).await;
        let request = Request { api_key: Some("a"), endpoint: "/slots", ..Request::default() };
        let admit = async |node: &Node| node.limiter.admit(&request).unwrap().admission().await;
        assert!(!admit(&far).await.decision.degraded);
        link.set(NetworkMode::BlackHole);
        let start = Instant::now();
        let admission = admit(&far).await;
        let took = start.elapsed();
        assert!(admission.decision.allowed() && admission.decision.degraded, "{:?}", admission.decision);
        assert!((TIMEOUT..TIMEOUT * 4 / 3).contains(&took), "{took:?}");
        // Both are taken without the store, and the slot is counted as soon as it can be reached.
        link.set(NetworkMode::Pass);
        eventually("the slot is counted", async || {
            let admission = admit(&near).await;
            remaining(&admission.decision) == Some(8)
        })
        .await;
    });
}
