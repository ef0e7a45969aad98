//! Fifty changes under a steady load: no check fails, each is in force within two seconds, and tokens are kept.

use crate::followed_file::FollowedFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::{Check, Outcome, Request};
use tollgate_testbed::{StallMonitor, eventually};

const RELOADS: u32 = 50;
const LIVE_WITHIN: Duration = Duration::from_secs(2);
/// The threads that a change passes through, each of which may wait for a busy machine.
const THREADS: u32 = 4;

/// `one` shows which change is in force, `kept` has spent tokens before the first change, `steady` is for the load.
fn rules(capacity: u32) -> String {
    format!(
        "
rules:
  - {{ id: one, match: {{ api_key_pattern: watcher }}, params: {{ capacity: {capacity}, refill_rate: 1000 }} }}
  - {{ id: kept, endpoint: /kept, params: {{ capacity: {capacity}, refill_rate: 1 }} }}
  - {{ id: steady, endpoint: '/steady/{{*rest}}', params: {{ capacity: {}, refill_rate: 1 }} }}
",
        4_000_000 + capacity
    )
}

/// Stops the load when it is dropped, even if the test fails.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_reloads_under_load() {
    let mut file = FollowedFile::with_rules(&rules(100));
    let saver = Request { api_key: Some("saver"), endpoint: "/kept", cost: 1, ..Request::default() };
    let first = file.limiter.check(&Request { cost: 30, ..saver }).unwrap().now().unwrap();
    assert!(matches!(first.outcome, Outcome::Admitted(standing) if standing.remaining == 70));

    let (stop, checks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = std::thread::spawn({
        let (stop, checks, limiter) = (Arc::clone(&stop), Arc::clone(&checks), Arc::clone(&file.limiter));
        move || {
            let mut failed = 0;
            while !stop.load(Ordering::Relaxed) {
                for name in ["a", "b", "c", "d"] {
                    let request =
                        Request { api_key: Some(name), endpoint: "/steady/state", ..Request::default() };
                    // No check may fail, go without its limit, or be refused.
                    let decision = limiter.check(&request).ok().and_then(Check::now);
                    let good = decision.is_some_and(|decision| {
                        decision.allowed() && decision.terms.is_some_and(|terms| terms.quota >= 4_000_000)
                    });
                    failed += u64::from(!good);
                    checks.fetch_add(1, Ordering::Relaxed);
                }
                // A steady load, not a measurement: it leaves the processor to others.
                std::thread::yield_now();
            }
            failed
        }
    });

    let stopped = StopOnDrop(stop);
    let witness = StallMonitor::start();
    for reload in 1..=RELOADS {
        let before = checks.load(Ordering::Relaxed);
        let changed = Instant::now();
        let capacity = 100 + reload;
        if reload % 2 == 0 {
            file.write(rules(capacity))
        } else {
            file.replace(&rules(capacity))
        }
        file.until_quota(capacity).await;
        let took = changed.elapsed();
        let allowed = LIVE_WITHIN + witness.longest() * THREADS;
        assert!(took < allowed, "change {reload} was in force after {took:?}, allowed {allowed:?}");
        match file.limiter.check(&saver).unwrap().now().unwrap().outcome {
            Outcome::Admitted(standing) => assert_eq!(standing.remaining, 70 - reload, "tokens are kept"),
            other => panic!("change {reload}: {other:?}"),
        }
        // On a busy machine a whole reload may happen while the thread of the load waits for a core.
        eventually("the load goes on", async || checks.load(Ordering::Relaxed) > before).await;
    }
    drop(stopped);
    assert_eq!(load.join().unwrap(), 0, "of {} checks", checks.load(Ordering::Relaxed));
    assert!(file.error().is_none());
    assert!(file.revision() > u64::from(RELOADS));
}
