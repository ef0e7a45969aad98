//! Requests in flight, counted by one node.

use super::{admit, limiter, ms, ms_since, of, retry_ms, settle};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::time::{Instant, sleep};
use tollgate_limiter::{InvalidRequest, Limiter, Outcome, Request};

const TEN: &str = "rules: [{ id: ten, algorithm: concurrency, limit: 10 }]";

#[tokio::test(start_paused = true)]
async fn a_slot_is_free_when_its_request_has_ended() {
    let limiter = limiter(TEN);
    let mut held = Vec::new();
    for number in 0..10 {
        let admission = admit(&limiter, &of("one")).await;
        let Outcome::Admitted(standing) = admission.decision.outcome else { panic!("{admission:?}") };
        assert_eq!(standing.remaining, 9 - number);
        held.push(admission.permit.expect("it is in flight"));
    }
    let refused = admit(&limiter, &of("one")).await;
    assert_eq!((refused.decision.allowed(), retry_ms(&refused)), (false, None), "there is no retry time");
    assert!(refused.permit.is_none());
    assert!(admit(&limiter, &of("another")).await.decision.allowed());
    held.pop();
    let eleventh = admit(&limiter, &of("one")).await;
    assert!(eleventh.decision.allowed());
    assert!(!admit(&limiter, &of("one")).await.decision.allowed());
    drop((held, eleventh));
    // A request takes one slot, whatever it costs.
    assert!(admit(&limiter, &Request { cost: 50, ..of("one") }).await.decision.allowed());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_never_returned_expires() {
    let limiter = limiter("rules: [{ id: a, algorithm: concurrency, params: { limit: 1, timeout: 5s } }]");
    let held = admit(&limiter, &of("one")).await;
    sleep(ms(4_999)).await;
    let refused = admit(&limiter, &of("one")).await;
    assert_eq!(retry_ms(&refused), None, "it may end at any time before");
    sleep(ms(1)).await;
    let next = admit(&limiter, &of("one")).await;
    assert!(next.decision.allowed());
    // When the first request ends after all, no other slot is returned.
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
    // Without a free slot the rate is not charged.
    for _ in 0..5 {
        let refused = admit(&limiter, &of("one")).await;
        assert_eq!(refused.decision.terms.unwrap().names.rule, "two");
    }
    drop((one, two));
    let three = admit(&limiter, &of("one")).await;
    assert!(three.decision.allowed(), "the third of the day");
    drop(three);
    // Over the rate no slot is kept.
    for _ in 0..5 {
        let refused = admit(&limiter, &of("one")).await;
        assert_eq!(refused.decision.terms.unwrap().names.rule, "rate");
    }
}

/// Without a free slot the wait is that of another limit, if that is known to refuse.
#[tokio::test(start_paused = true)]
async fn without_a_slot_the_longest_known_wait_is_used() {
    // The second rule; the wait of the third request, and its rule.
    for (other, expected) in [
        ("{ id: rate, limit: 2/min }", (Some(30_000), "rate")),
        ("{ id: rate, algorithm: fixed_window, limit: 2/h }", (Some(3_600_000), "rate")),
        ("{ id: rate, algorithm: sliding_window_log, limit: 2/min }", (Some(60_000), "rate")),
        ("{ id: rate, limit: 2/min }, { id: day, limit: 2/day }", (Some(43_200_000), "day")),
        ("{ id: rate, limit: 2/min, on_exceed: { tarpit: { delay: 1s } } }", (Some(29_000), "rate")),
        ("{ id: rate, limit: 3/min }", (None, "two")),
        // Rules that queue or admit do not refuse.
        ("{ id: rate, limit: 2/min, on_exceed: queue }", (None, "two")),
        ("{ id: rate, limit: 2/min, on_exceed: shed }", (None, "two")),
        ("{ id: rate, limit: 2/min, on_exceed: flag }", (None, "two")),
        ("{ id: rate, limit: 2/min, on_exceed: shadow }", (None, "two")),
    ] {
        let limiter = limiter(&format!("rules: [{{ id: two, algorithm: concurrency, limit: 2 }}, {other}]"));
        let held = [admit(&limiter, &of("one")).await, admit(&limiter, &of("one")).await];
        assert!(held.iter().all(|one| one.decision.allowed()), "{other}");
        let refused = admit(&limiter, &of("one")).await;
        let by = refused.decision.terms.unwrap().names.rule.as_str();
        assert_eq!((retry_ms(&refused), by), expected, "{other}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_of_other_limits_spends_nothing() {
    let rules = "
rules:
  - { id: two, algorithm: concurrency, limit: 2 }
  - { id: rate, limit: 4/day }
";
    let limiter = limiter(rules);
    let held = [admit(&limiter, &of("one")).await, admit(&limiter, &of("one")).await];
    for _ in 0..20 {
        assert_eq!(retry_ms(&admit(&limiter, &of("one")).await), None);
    }
    drop(held);
    for _ in 0..2 {
        assert!(admit(&limiter, &of("one")).await.decision.allowed(), "two are left of the day");
    }
    assert!(!admit(&limiter, &of("one")).await.decision.allowed());
}

/// Without a retry time there is no strike, and so no cooldown.
#[tokio::test(start_paused = true)]
async fn refusals_without_a_retry_time_cause_no_penalty() {
    let rules = "rules: [{ id: one, algorithm: concurrency, limit: 1, penalty: { after: 1, first: 10s } }]";
    let limiter = limiter(rules);
    let held = admit(&limiter, &of("one")).await;
    for _ in 0..100 {
        assert_eq!(retry_ms(&admit(&limiter, &of("one")).await), None);
        sleep(ms(50)).await;
    }
    assert_eq!(limiter.abuse_counts().cooldowns, 0);
    drop(held);
    assert!(admit(&limiter, &of("one")).await.decision.allowed());
}

/// A queued request waits for a slot for up to `max_wait`.
#[tokio::test(start_paused = true)]
async fn a_queued_request_waits_for_a_release_and_not_for_a_time() {
    // `max_wait`; when the slot is returned; when the request is decided, and whether it is admitted.
    for (max_wait, freed_ms, expected) in [
        ("10s", 7_350, (7_350, true)),
        ("300ms", 250, (250, true)),
        ("300ms", 5_000, (300, false)),
        ("10s", 60_000, (10_000, false)),
    ] {
        let queue = format!("{{ queue: {{ max_wait: {max_wait} }} }}");
        let limiter =
            limiter(&format!("rules: [{{ id: a, algorithm: concurrency, limit: 1, on_exceed: {queue} }}]"));
        let held = admit(&limiter, &of("one")).await;
        let start = Instant::now();
        tokio::spawn(async move {
            sleep(ms(freed_ms)).await;
            drop(held);
        });
        let admission = admit(&limiter, &of("one")).await;
        assert_eq!((ms_since(start), admission.decision.allowed()), expected, "{max_wait} {freed_ms}");
        if !admission.decision.allowed() {
            assert_eq!(retry_ms(&admission), None);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_gets_a_free_slot_at_once() {
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
fn a_door_that_does_not_know_the_end_refuses() {
    let limiter = limiter(TEN);
    match limiter.check(&of("one")) {
        Err(InvalidRequest::EndUnknown { rule }) => assert_eq!(rule, "ten"),
        other => panic!("{other:?}"),
    }
}

/// Many threads take and return slots: there are never more than ten.
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
