//! The clock of a store steps, as after a failover to a server with another time: clients get what is due to them by the
//! time that has really passed, no more and no less.

use super::fleet::Node;
use crate::log::logged;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_limiter::Request;
use tollgate_redis::StoreErrorKind;
use tollgate_testbed::{RedisServer, eventually};
use tracing::Level;

/// What was granted by a wrong time would be many times what is due in a few seconds.
const RULES: &str = "
rules:
  - { id: strict, endpoint: /strict, key: api_key, consistency: strict, on_store_failure: deny, params: { capacity: 600, refill_rate: 10 } }
  - { id: leased, endpoint: /leased, key: api_key, on_store_failure: deny, params: { capacity: 600, refill_rate: 10 } }
  - { id: gcra, endpoint: /gcra, key: api_key, algorithm: gcra, on_store_failure: deny, params: { capacity: 600, refill_rate: 10 } }
  - { id: window, endpoint: /window, key: api_key, algorithm: fixed_window, on_store_failure: deny, params: { limit: 600, window: 1h } }
";
const ENDPOINTS: [&str; 4] = ["/strict", "/leased", "/gcra", "/window"];

fn request(endpoint: &str) -> Request<'_> {
    Request { api_key: Some("alice"), endpoint, ..Request::default() }
}

/// Takes all there is, and says how much that was.
async fn drain(nodes: &[Arc<Node>], endpoint: &str) -> u32 {
    let mut taken = 0;
    for node in nodes.iter().cycle() {
        match node.check(&request(endpoint)).await {
            (true, _) => taken += 1,
            (false, _) => return taken,
        }
    }
    taken
}

/// What passes at `nodes` within `time`, and what is degraded.
async fn hammer(nodes: &[Arc<Node>], endpoint: &str, time: Duration) -> (u32, u32) {
    let end = Instant::now() + time;
    let (mut passed, mut degraded) = (0, 0);
    while Instant::now() < end {
        for node in nodes {
            let (is_allowed, is_degraded) = node.check(&request(endpoint)).await;
            passed += u32::from(is_allowed);
            degraded += u32::from(is_degraded);
        }
        sleep(Duration::from_millis(10)).await;
    }
    (passed, degraded)
}

#[test]
fn a_step_gives_nothing_away_and_takes_nothing() {
    logged(async |log| {
        for step_ms in [60_000, -20_000] {
            let server = RedisServer::start_with_clock(&[]);
            let mut nodes = Vec::new();
            for _ in 0..2 {
                nodes.push(Node::start(&server.url(), RULES).await);
            }
            eventually("they know each other", async || {
                nodes.iter().all(|node| node.store.node_count() == 2)
            })
            .await;
            for endpoint in ENDPOINTS {
                let taken = drain(&nodes, endpoint).await;
                assert!((600..=650).contains(&taken), "{taken} at {endpoint}");
            }
            log.clear();
            let begin = Instant::now();
            server.step_clock(step_ms);
            // A call that comes before the next heartbeat finds out, and changes nothing.
            let bob = Request { api_key: Some("bob"), endpoint: ENDPOINTS[0], ..Request::default() };
            let (_, is_degraded) = nodes[0].check(&bob).await;
            let stepped = || log.lines(Level::ERROR, &["clock of a shard has stepped"]);
            assert!(is_degraded || !stepped().is_empty(), "{:?}", log.errors());
            assert_eq!(is_degraded, nodes[0].store.errors(StoreErrorKind::ClockStep) > 0);
            let mut passed = [0; ENDPOINTS.len()];
            eventually("decisions are the store's again", async || {
                let (during, degraded) = hammer(&nodes, ENDPOINTS[0], Duration::from_millis(100)).await;
                passed[0] += during;
                degraded == 0
            })
            .await;
            let back = begin.elapsed();
            // A node that comes now has the same time as the others.
            nodes.push(Node::start(&server.url(), RULES).await);
            for (index, endpoint) in ENDPOINTS.into_iter().enumerate() {
                let (during, degraded) = hammer(&nodes, endpoint, Duration::from_secs(1)).await;
                passed[index] += during;
                assert_eq!(degraded, 0, "{endpoint}");
            }
            let seconds = begin.elapsed().as_secs_f64();
            println!("{step_ms} ms: {passed:?} in {seconds:.1} s, degraded for {back:?}");
            // A little more than its rate, for the correction shrinks by 1 % of the time that passes.
            let most = (10.0 * seconds * 1.02) as u32 + 1;
            for (index, endpoint) in ENDPOINTS.into_iter().enumerate().take(3) {
                assert!(passed[index] <= most, "{} of {most} at {endpoint}", passed[index]);
                // What came in before this endpoint had its turn, and during it.
                assert!(passed[index] >= 8, "{} at {endpoint}", passed[index]);
            }
            assert_eq!(passed[3], 0, "the window has not ended");
            let lines = stepped();
            assert_eq!(lines.len(), 3, "one at each node: {:?}", log.errors());
        }
    });
}
