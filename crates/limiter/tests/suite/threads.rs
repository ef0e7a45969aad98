//! Many threads: exactly the limit is admitted, and all limits or none are charged.

use crate::setting::{MINUTE_US, SECOND_US, Setting, key, rule};
use fastrand::Rng;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tollgate_core::algorithm::Algorithm;
use tollgate_limiter::{Outcome, Request};

/// Runs `body` with each number on a thread of its own, all at once.
fn at_once(threads: usize, body: impl Fn(usize) + Sync) {
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for number in 0..threads {
            let (start, body) = (&start, &body);
            scope.spawn(move || {
                start.wait();
                body(number);
            });
        }
    });
}

#[test]
fn exactly_the_capacity_is_admitted() {
    for algorithm in Algorithm::scripted().map(Algorithm::name) {
        let setting =
            Setting::new(&format!("rules:\n  - {{ id: one, algorithm: {algorithm}, limit: 300/h }}"));
        let passed = AtomicUsize::new(0);
        at_once(4, |_| {
            passed.fetch_add(setting.send(200, &key("hot")), Ordering::Relaxed);
        });
        assert_eq!(passed.into_inner(), 300, "{algorithm}");
    }
}

#[test]
fn costs_add_up_to_the_capacity() {
    let setting = Setting::new("rules:\n  - { id: one, limit: 997/h }");
    let spent = AtomicUsize::new(0);
    at_once(4, |number| {
        let mut rng = Rng::with_seed(number as u64);
        for _ in 0..400 {
            let cost = rng.usize(1..=5);
            if setting.check(&Request { cost: cost as u64, ..key("hot") }).allowed() {
                spent.fetch_add(cost, Ordering::Relaxed);
            }
        }
    });
    let rest = setting.send(10, &key("hot"));
    assert_eq!(spent.into_inner() + rest, 997, "spent and remaining tokens add up");
}

/// A request that the limit of a user refuses must not be charged to the limit of the tenant, and vice versa.
#[test]
fn all_limits_are_spent_or_none() {
    const THREADS: usize = 8;
    const USER: usize = 50;
    const TENANT: usize = 300;
    const WINDOW: &str = "algorithm: fixed_window, limit:";
    let rules = format!(
        "
rules:
  - {{ id: user, key: [tenant, user], {WINDOW} {USER}/min }}
  - {{ id: tenant, key: tenant, {WINDOW} {TENANT}/min }}
  - {{ id: log, key: [tenant, user], algorithm: sliding_window_log, limit: 60/min }}
"
    );
    let setting = Setting::new(&rules);
    let names: Vec<String> = (0..10).map(|user| format!("user-{user}")).collect();
    let ask = |user: usize| Request {
        user: Some(&names[user]),
        tenant: Some("north"),
        endpoint: "/",
        ..Request::default()
    };
    // (users, admitted requests): first the limits of users decide, then that of the tenant.
    for (users, expected) in [(4, 4 * USER), (10, TENANT)] {
        setting.clock.advance_us(2 * MINUTE_US);
        let passed: Vec<AtomicUsize> = names.iter().map(|_| AtomicUsize::new(0)).collect();
        at_once(THREADS, |number| {
            let mut rng = Rng::with_seed(number as u64);
            for _ in 0..600 {
                let user = rng.usize(..users);
                passed[user].fetch_add(usize::from(setting.check(&ask(user)).allowed()), Ordering::Relaxed);
            }
        });
        let passed: Vec<usize> = passed.into_iter().map(AtomicUsize::into_inner).collect();
        assert!(passed.iter().all(|passed| *passed <= USER), "{passed:?}");
        assert_eq!(passed.iter().sum::<usize>(), expected, "{passed:?}");
        // The limit of the tenant has counted exactly the admitted requests.
        let rest: usize = (4..10).map(|user| setting.send(USER, &ask(user))).sum();
        assert_eq!(rest, TENANT - expected);
        let refused = setting.check(&ask(9));
        assert!(matches!(refused.outcome, Outcome::Limited(_)));
        assert_eq!(rule(&refused), Some("tenant"));
    }
}

/// The clock moves during the checks, so that some use a time that is already past. That neither adds nor loses tokens.
#[test]
fn the_clock_moves_during_checks() {
    let setting = Setting::new("rules:\n  - { id: one, params: { capacity: 100, refill_rate: 1 } }");
    let passed = AtomicUsize::new(setting.send(60, &key("hot")));
    at_once(4, |number| {
        for step in 0..1_000 {
            if number == 0 && step % 20 == 0 {
                setting.clock.advance_us(SECOND_US);
            }
            passed.fetch_add(setting.send(1, &key("hot")), Ordering::Relaxed);
        }
    });
    let rest = setting.send(60, &key("hot"));
    assert_eq!(passed.into_inner() + rest, 100 + 50, "the capacity, and one for each second");
}
