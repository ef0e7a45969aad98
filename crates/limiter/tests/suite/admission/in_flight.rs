//! Requests in flight, counted by one node.

use super::{admit, limiter, ms, ms_since, of, retry_ms, settle};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::{Instant, sleep};
use tollgate_limiter::{Invalid, Limiter, Outcome, Request};

const TEN: &str = "rules: [{ id: ten, algorithm: concurrency, limit: 10 }]";

#[tokio::test(start_paused = true)]
async fn a_place_is_free_when_its_request_has_ended() {
    let limiter = limiter(TEN);
    let mut held = Vec::new();
    for number in 0..10 {
        let admission = admit(&limiter, &of("one")).await;
        let Outcome::Admitted(standing) = admission.decision.outcome else { panic!("{admission:?}") };
        assert_eq!(standing.remaining, 9 - number);
        held.push(admission.permit.expect("it is in flight"));
    }
    let refused = admit(&limiter, &of("one")).await;
    assert_eq!((refused.decision.allowed(), retry_ms(&refused)), (false, 1_000));
    assert!(refused.permit.is_none());
    assert!(admit(&limiter, &of("another")).await.decision.allowed());
    held.pop();
    let eleventh = admit(&limiter, &of("one")).await;
    assert!(eleventh.decision.allowed());
    assert!(!admit(&limiter, &of("one")).await.decision.allowed());
    drop((held, eleventh));
    // Whatever it costs, a request is one request.
    assert!(admit(&limiter, &Request { cost: 50, ..of("one") }).await.decision.allowed());
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_never_given_back_runs_out() {
    let limiter = limiter("rules: [{ id: a, algorithm: concurrency, params: { limit: 1, timeout: 5s } }]");
    let held = admit(&limiter, &of("one")).await;
    sleep(ms(4_999)).await;
    let refused = admit(&limiter, &of("one")).await;
    assert_eq!(retry_ms(&refused), 1, "when the first runs out, if that is sooner than a second");
    sleep(ms(1)).await;
    let next = admit(&limiter, &of("one")).await;
    assert!(next.decision.allowed());
    // The first ends after all, and gives back nobody else's place.
    drop(held);
    assert!(!admit(&limiter, &of("one")).await.decision.allowed());
}

#[tokio::test(start_paused = true)]
async fn all_or_nothing_with_other_limits() {
    let rules = "
rules:
  - { id: two, algorithm: concurrency, limit: 2 }
  - { id: rate, limit: 3/day }
";
    let limiter = limiter(rules);
    let (one, two) = (admit(&limiter, &of("one")).await, admit(&limiter, &of("one")).await);
    assert!(one.decision.allowed() && two.decision.allowed());
    // No place: the rate is not spent.
    for _ in 0..5 {
        let refused = admit(&limiter, &of("one")).await;
        assert_eq!(refused.decision.terms.unwrap().names.rule, "two");
    }
    drop((one, two));
    let three = admit(&limiter, &of("one")).await;
    assert!(three.decision.allowed(), "the third of the day");
    drop(three);
    // Over the rate: no place is kept.
    for _ in 0..5 {
        let refused = admit(&limiter, &of("one")).await;
        assert_eq!(refused.decision.terms.unwrap().names.rule, "rate");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_place_gets_it_at_once() {
    let rules =
        "rules: [{ id: a, algorithm: concurrency, limit: 1, on_exceed: { queue: { max_wait: 10s } } }]";
    let (limiter, start) = (limiter(rules), Instant::now());
    let held = admit(&limiter, &of("one")).await;
    let mut all = Vec::new();
    for _ in 0..3 {
        let limiter: Arc<Limiter> = Arc::clone(&limiter);
        all.push(tokio::spawn(async move {
            let admission = admit(&limiter, &of("one")).await;
            assert!(admission.decision.allowed());
            let at = ms_since(start);
            sleep(ms(10)).await;
            at
        }));
        settle().await;
    }
    sleep(ms(250)).await;
    drop(held);
    let mut at = Vec::new();
    for one in all {
        at.push(one.await.unwrap());
    }
    assert_eq!(at, [250, 260, 270]);
}

#[test]
fn a_door_that_never_hears_of_the_end_refuses() {
    let limiter = limiter(TEN);
    match limiter.check(&of("one")) {
        Err(Invalid::NeverEnds { rule }) => assert_eq!(rule, "ten"),
        other => panic!("{other:?}"),
    }
}

/// Threads that come and go: never an eleventh.
#[test]
fn never_too_many_in_flight() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = limiter(TEN);
        let (in_flight, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all: Vec<_> = (0..64)
            .map(|_| {
                let (limiter, in_flight, most) =
                    (Arc::clone(&limiter), Arc::clone(&in_flight), Arc::clone(&most));
                tokio::spawn(async move {
                    let mut passed = 0;
                    for _ in 0..200 {
                        let admission = admit(&limiter, &of("one")).await;
                        if admission.decision.allowed() {
                            passed += 1;
                            most.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            tokio::task::yield_now().await;
                            in_flight.fetch_sub(1, Ordering::SeqCst);
                        }
                        drop(admission);
                        tokio::task::yield_now().await;
                    }
                    passed
                })
            })
            .collect();
        let mut passed = 0;
        for one in all {
            passed += one.await.unwrap();
        }
        assert!(passed > 200, "{passed} passed");
        assert_eq!(most.load(Ordering::SeqCst), 10);
    });
}
