//! Wait queues: the order and the pace of admissions, refusals and cancellations.

use super::{admit, limiter, ms, ms_since, of, retry_ms, settle};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate_limiter::{Clock, Limiter, MemoryStore};

const SHAPER: &str = "
rules: [{ id: even, algorithm: leaky_bucket, limit: 10/s, on_exceed: { queue: { max_wait: 10s, length: 100 } } }]
";

/// The number and the time of each admitted request.
type Passed = Arc<Mutex<Vec<(usize, u128)>>>;

/// Sends a request that records when it is admitted.
fn send(limiter: &Arc<Limiter>, number: usize, start: Instant, passed: &Passed) -> JoinHandle<bool> {
    let (limiter, passed) = (Arc::clone(limiter), Arc::clone(passed));
    tokio::spawn(async move {
        let admission = admit(&limiter, &of("one")).await;
        if admission.decision.allowed() {
            passed.lock().push((number, ms_since(start)));
        }
        admission.decision.allowed()
    })
}

#[tokio::test(start_paused = true)]
async fn fifty_requests_at_once_are_admitted_at_the_pace_and_in_order() {
    let (limiter, start, passed) = (limiter(SHAPER), Instant::now(), Passed::default());
    let all: Vec<_> = (0..50).map(|number| send(&limiter, number, start, &passed)).collect();
    for one in all {
        assert!(one.await.unwrap());
    }
    let expected: Vec<(usize, u128)> = (0..50).map(|number| (number, number as u128 * 100)).collect();
    assert_eq!(*passed.lock(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_pace_below_the_timer_resolution_is_kept_on_average() {
    let rules = SHAPER.replace("10/s", "30/s");
    let (limiter, start, passed) = (limiter(&rules), Instant::now(), Passed::default());
    let all: Vec<_> = (0..61).map(|number| send(&limiter, number, start, &passed)).collect();
    for one in all {
        assert!(one.await.unwrap());
    }
    let last = passed.lock().last().unwrap().1;
    assert!((2_000..=2_002).contains(&last), "sixty at 30/s take {last} ms");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_too_long_is_refused_at_once_with_its_wait() {
    let rules = SHAPER.replace("max_wait: 10s", "max_wait: 1s");
    let (limiter, start, passed) = (limiter(&rules), Instant::now(), Passed::default());
    for number in 0..11 {
        send(&limiter, number, start, &passed);
    }
    settle().await;
    let refused = admit(&limiter, &of("one")).await;
    assert_eq!((ms_since(start), refused.decision.allowed()), (0, false));
    assert_eq!(retry_ms(&refused), Some(1_100), "ten are before it");
    // Other keys do not wait.
    assert!(admit(&limiter, &of("another")).await.decision.allowed());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_requests() {
    let rules = SHAPER.replace("length: 100", "length: 3");
    let (limiter, start, passed) = (limiter(&rules), Instant::now(), Passed::default());
    for number in 0..4 {
        send(&limiter, number, start, &passed);
    }
    settle().await;
    let refused = admit(&limiter, &of("one")).await;
    assert_eq!((ms_since(start), retry_ms(&refused)), (0, Some(400)));
    sleep(ms(1_000)).await;
    assert_eq!(*passed.lock(), [(0, 0), (1, 100), (2, 200), (3, 300)], "the refused request used no turn");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_leaves_its_turn_to_the_next() {
    let (limiter, start, passed) = (limiter(SHAPER), Instant::now(), Passed::default());
    let all: Vec<_> = (0..6).map(|number| send(&limiter, number, start, &passed)).collect();
    sleep(ms(50)).await;
    // The first of the queue, which has a timer, and one in the middle.
    all[1].abort();
    all[3].abort();
    sleep(ms(2_000)).await;
    assert_eq!(*passed.lock(), [(0, 0), (2, 100), (4, 200), (5, 300)]);
    assert!(admit(&limiter, &of("one")).await.decision.allowed(), "and the queue is empty");
}

#[tokio::test(start_paused = true)]
async fn requests_can_wait_under_every_algorithm() {
    // The requests admitted at once, and when the last of all is admitted.
    for (rule, at_once, sent, last_ms) in [
        ("limit: 5/s", 5, 10, 1_000),
        ("algorithm: gcra, params: { limit: 5/s, burst: 0 }", 1, 6, 1_000),
        ("algorithm: leaky_bucket, params: { capacity: 2, leak_rate: 5 }", 2, 7, 1_000),
        ("algorithm: fixed_window, limit: 5/s", 5, 12, 2_000),
        ("algorithm: sliding_window_log, limit: 5/s", 5, 10, 1_000),
        ("algorithm: sliding_window_counter, limit: 5/s", 5, 10, 2_000),
    ] {
        let rules = format!("rules: [{{ id: a, {rule}, on_exceed: queue }}]");
        let (limiter, start, passed) = (limiter(&rules), Instant::now(), Passed::default());
        let all: Vec<_> = (0..sent).map(|number| send(&limiter, number, start, &passed)).collect();
        settle().await;
        assert_eq!(passed.lock().len(), at_once, "{rule}");
        for one in all {
            assert!(one.await.unwrap(), "{rule}");
        }
        let passed = passed.lock();
        assert!(passed.iter().map(|(number, _)| *number).eq(0..sent), "{rule}: in order, {passed:?}");
        assert_eq!(passed.last().unwrap().1, last_ms, "{rule}: {passed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_a_rule_without_a_queue() {
    let rules = "
rules:
  - { id: even, algorithm: leaky_bucket, limit: 10/s, on_exceed: queue }
  - { id: day, limit: 3/day }
";
    let (limiter, start, passed) = (limiter(rules), Instant::now(), Passed::default());
    let all: Vec<_> = (0..5).map(|number| send(&limiter, number, start, &passed)).collect();
    let mut allowed = Vec::new();
    for one in all {
        allowed.push(one.await.unwrap());
    }
    assert_eq!(allowed, [true, true, true, false, false]);
    assert!(ms_since(start) < 1_000, "the other requests did not wait for a day");
}

#[tokio::test(start_paused = true)]
async fn a_door_that_cannot_wait_refuses_with_the_wait() {
    let limiter = limiter(SHAPER);
    assert!(limiter.check(&of("one")).unwrap().now().unwrap().allowed());
    let refused = limiter.check(&of("one")).unwrap().now().unwrap();
    let (terms, standing) = refused.standing().unwrap();
    assert_eq!(standing.wait_us(), Some(100_000));
    // The headers have the numbers of the rule.
    assert_eq!((terms.quota, terms.window_seconds), (10, 1));
}

/// On the real clock, with threads: no request is lost, and the pace is kept.
#[test]
fn queues_work_in_real_time() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
        let loaded = crate::setting::load(
            "rules: [{ id: a, algorithm: leaky_bucket, limit: 50/s, on_exceed: { queue: { max_wait: 60s } } }]",
        );
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let (limiter, start) = (Arc::new(limiter), Instant::now());
        let done = Arc::new(AtomicUsize::new(0));
        let all: Vec<_> = (0..26)
            .map(|_| {
                let (limiter, done) = (Arc::clone(&limiter), Arc::clone(&done));
                tokio::spawn(async move {
                    assert!(admit(&limiter, &of("one")).await.decision.allowed());
                    // Never more than the pace allows, and the 20 ms by which a timer may be late.
                    let before = done.fetch_add(1, Ordering::SeqCst) as u128;
                    assert!(start.elapsed().as_millis() + 25 >= before * 20, "{before} at {:?}", start.elapsed());
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
        println!("26 at 50/s took {:?}", start.elapsed());
        assert!(start.elapsed().as_millis() >= 475);
    });
}
