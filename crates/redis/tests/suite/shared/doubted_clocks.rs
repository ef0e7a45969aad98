//! A node that finds its clock and that of the store apart does not know which is wrong: it drops the credit that it holds.

use super::fleet::{Node, logged_campaign};
use super::node::{know_each_other, patient};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::{Clock, ManualClock, Request};
use tollgate_redis::{RedisSettings, StoreErrorKind};
use tollgate_testbed::judging::could_not_judge;
use tollgate_testbed::{RedisServer, eventually};
use tracing::Level;

const RULES: &str = "
defaults: { key: api_key, on_store_failure: deny }
rules:
  - { id: leased, endpoint: /leased, params: { capacity: 100000, refill_rate: 10 } }
  - { id: strict, endpoint: /strict, consistency: strict, params: { capacity: 100000, refill_rate: 10 } }
";
const ENOUGH: u64 = 20;
/// Credit lives at least that long, but for a thousandth.
const LIFE: Duration = Duration::from_millis(1_990);
const STEP_US: u64 = 60_000_000;

async fn check(node: &Node, endpoint: &str) -> (bool, bool) {
    node.check(&Request { api_key: Some("alice"), endpoint, ..Request::default() }).await
}

/// No credit is returned because it is idle: that is looked for once in this time.
fn settings() -> RedisSettings {
    RedisSettings { lease_interval: Duration::from_secs(10), ..patient() }
}

/// Makes `node` so busy that it takes tokens ahead.
async fn hold_credit(node: &Node) {
    eventually("the node holds credit", async || {
        assert_eq!(check(node, "/leased").await, (true, false));
        node.store.observer().credit_tokens() >= ENOUGH
    })
    .await;
}

/// A call of `node` was refused: it holds nothing, and the next request of its busy client needs a call.
async fn assert_dropped(node: &Node) {
    assert_eq!(node.store.observer().credit_tokens(), 0);
    let calls = node.store.calls();
    let decision = check(node, "/leased").await;
    assert!(node.store.calls() > calls, "{decision:?} without a call");
}

#[test]
fn credit_is_dropped_when_the_clock_of_the_store_has_stepped() {
    logged_campaign(async |_| {
        for step_ms in [60_000, -20_000] {
            let server = RedisServer::start_with_clock(&[]);
            let node = Node::start_with(&server.url(), RULES, settings()).await;
            let begin = Instant::now();
            hold_credit(&node).await;
            server.step_clock(step_ms);
            let decision = check(&node, "/strict").await;
            if node.store.errors(StoreErrorKind::ClockStep) == 0 {
                could_not_judge("a heartbeat has noticed the step before a call".to_owned());
            }
            assert_eq!(decision, (false, true), "{step_ms} ms");
            if begin.elapsed() >= LIFE {
                could_not_judge(format!("credit may have expired after {:?}", begin.elapsed()));
            }
            assert_dropped(&node).await;
        }
    });
}

/// As on a virtual machine that was paused and notices it by its wall clock only: no call and no heartbeat finds anything wrong.
#[test]
fn credit_expires_when_only_the_wall_clock_of_the_node_advances() {
    logged_campaign(async |log| {
        let server = RedisServer::start(&[]);
        let clock = ManualClock::following_tokio(Clock::system().now().as_us());
        let node = Node::start_on(&server.url(), RULES, settings(), Clock::Manual(clock.clone())).await;
        let begin = Instant::now();
        hold_credit(&node).await;
        let calls = node.store.calls();
        // Set back, it tells nothing.
        clock.step_wall_us(-STEP_US.cast_signed());
        let spent = (check(&node, "/leased").await, node.store.calls() - calls);
        if begin.elapsed() >= LIFE {
            could_not_judge(format!("credit may have expired after {:?}", begin.elapsed()));
        }
        assert_eq!(spent, ((true, false), 0));
        clock.step_wall_us(STEP_US.cast_signed());
        assert_dropped(&node).await;
        assert_eq!((node.store.errors(StoreErrorKind::ClockStep), log.errors()), (0, Vec::new()));
    });
}

/// Whether the node that stood still is used while it has not noticed that.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Traffic {
    Busy,
    Idle,
}

/// By its own clock the credit of this node would live for another minute.
#[test]
fn credit_is_dropped_by_a_node_whose_own_clock_is_wrong() {
    logged_campaign(async |log| {
        for traffic in [Traffic::Busy, Traffic::Idle] {
            let server = RedisServer::start(&[]);
            let start_us = Clock::system().now().as_us();
            let clock = ManualClock::following_tokio(start_us);
            let alone = Node::start_on(&server.url(), RULES, settings(), Clock::Manual(clock.clone())).await;
            let mut nodes = vec![Arc::clone(&alone)];
            for _ in 0..2 {
                nodes.push(Node::start_with(&server.url(), RULES, settings()).await);
            }
            know_each_other(&nodes).await;
            hold_credit(&alone).await;
            log.clear();
            // Its machine stood still for a minute, and its clock with it.
            clock.set_us(start_us - STEP_US);
            if alone.store.observer().credit_tokens() == 0 {
                could_not_judge("credit has expired before the step".to_owned());
            }
            let gives_in = || log.lines(Level::ERROR, &["clock of this node has stepped or stopped"]).len();
            if traffic == Traffic::Busy {
                let decision = check(&alone, "/strict").await;
                if gives_in() > 0 {
                    could_not_judge("the node has given in before its first call".to_owned());
                }
                assert_eq!(decision, (false, true));
                assert_dropped(&alone).await;
                continue;
            }
            eventually("a heartbeat has found the clocks apart", async || {
                alone.store.observer().credit_tokens() == 0
            })
            .await;
            assert_eq!(gives_in(), 0, "credit is dropped before it is known which clock is wrong");
            assert_eq!(alone.store.errors(StoreErrorKind::ClockStep), 0, "nothing was called");
            eventually("the node uses the time of the others", async || gives_in() == 1).await;
            assert_dropped(&alone).await;
        }
    });
}
