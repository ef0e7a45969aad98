//! The clock of a store steps, as after a failover to a server with another time: clients get what is due to them by the
//! time that has really passed, no more and no less.

use super::fleet::{Node, logged_campaign};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_limiter::Request;
use tollgate_redis::StoreErrorKind;
use tollgate_testbed::judging::could_not_judge;
use tollgate_testbed::{RedisServer, StallMonitor, eventually};
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

/// What passes at `nodes` within `time`, and when a decision was degraded.
async fn hammer(nodes: &[Arc<Node>], endpoint: &str, time: Duration) -> (u32, Vec<Instant>) {
    let end = Instant::now() + time;
    let (mut passed, mut degraded) = (0, Vec::new());
    while Instant::now() < end {
        for node in nodes {
            let (is_allowed, is_degraded) = node.check(&request(endpoint)).await;
            passed += u32::from(is_allowed);
            degraded.extend(is_degraded.then(Instant::now));
        }
        sleep(Duration::from_millis(10)).await;
    }
    (passed, degraded)
}

/// By how much the clock steps, how many of two nodes have traffic then, and for how long their decisions may be degraded.
const STEPS: [(i64, usize, Duration); 3] = [
    (60_000, 2, Duration::from_millis(700)),
    (-20_000, 2, Duration::from_millis(700)),
    (60_000, 1, Duration::from_secs(2)),
];

/// The machine may have stood still for some of that time: a run with more stalls than half of it is not judged.
fn assert_degraded_for(degraded: Duration, most: Duration, stalls: &StallMonitor) {
    let stalled: Duration = stalls.stalls().into_iter().map(|stall| stall.end - stall.start).sum();
    if stalled > most / 2 {
        could_not_judge(format!("stalled for {stalled:?} while degraded for {degraded:?}"));
    }
    assert!(
        degraded <= most + stalled,
        "degraded for {degraded:?}, at most {most:?}, stalled for {stalled:?}"
    );
}

#[test]
fn a_step_gives_nothing_away_and_takes_nothing() {
    logged_campaign(async |log| {
        for (step_ms, busy, most_degraded) in STEPS {
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
            let (begin, stalls) = (Instant::now(), StallMonitor::start());
            server.step_clock(step_ms);
            // A call that comes before the next heartbeat finds out, and changes nothing.
            let bob = Request { api_key: Some("bob"), endpoint: ENDPOINTS[0], ..Request::default() };
            let (_, is_degraded) = nodes[0].check(&bob).await;
            let stepped = || log.lines(Level::ERROR, &["clock of a shard has stepped"]);
            assert!(is_degraded || !stepped().is_empty(), "{:?}", log.errors());
            assert_eq!(is_degraded, nodes[0].store.errors(StoreErrorKind::ClockStep) > 0);
            let (mut passed, mut last_degraded) = ([0; ENDPOINTS.len()], Instant::now());
            // A node without traffic hears of the correction from its own heartbeats.
            for nodes in [&nodes[..busy], &nodes] {
                eventually("decisions are the store's again", async || {
                    let (during, degraded) = hammer(nodes, ENDPOINTS[0], Duration::from_millis(100)).await;
                    passed[0] += during;
                    last_degraded = degraded.last().copied().unwrap_or(last_degraded);
                    degraded.is_empty()
                })
                .await;
            }
            let degraded_for = last_degraded - begin;
            assert_degraded_for(degraded_for, most_degraded, &stalls);
            // A node that comes now has the same time as the others.
            nodes.push(Node::start(&server.url(), RULES).await);
            for (index, endpoint) in ENDPOINTS.into_iter().enumerate() {
                let (during, degraded) = hammer(&nodes, endpoint, Duration::from_secs(1)).await;
                passed[index] += during;
                assert_eq!(degraded, [], "{endpoint}");
            }
            let seconds = begin.elapsed().as_secs_f64();
            println!("{step_ms} ms: {passed:?} in {seconds:.1} s, degraded for {degraded_for:?}");
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
