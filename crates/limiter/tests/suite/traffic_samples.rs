//! The sample of recent requests: what it holds, and that a replay of it decides as the limiter did.

use crate::setting::{PLENTY, START_US, key, load};
use fastrand::Rng;
use tollgate_core::request::Method;
use tollgate_core::rules::preview;
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore, Request};

const RULES: &str = "
rules:
  - { id: plan, limit: 5/s }
  - { id: writes, endpoint: '/v1/{*rest}', methods: POST, key: ip, algorithm: fixed_window, limit: 5/s }
deny: [bad]
allow: [good]
";

fn limiter(clock: &ManualClock) -> Limiter {
    let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock.clone())).keeping_samples();
    let loaded = load(RULES);
    limiter.install(loaded.rules, loaded.lists).unwrap();
    limiter
}

#[test]
fn a_replay_of_all_requests_decides_as_the_limiter_did() {
    let clock = ManualClock::new(START_US);
    let limiter = limiter(&clock);
    let mut rng = Rng::with_seed(4);
    let (mut limited, mut denied) = (0, 0);
    let mut sent = 0;
    // At 40 requests a second all are kept.
    for _ in 0..400 {
        let name = ["a", "b", "bad", "good"][rng.usize(..4)];
        for _ in 0..rng.u64(..5) {
            let request = Request {
                endpoint: ["/v1/orders?id=7", "/v2"][rng.usize(..2)],
                method: Some(if rng.bool() { Method::Post } else { Method::Get }),
                ip: Some([192, 0, 2, rng.u8(..2)].into()),
                cost: rng.u64(1..4),
                ..key(name)
            };
            let decision = limiter.check(&request).unwrap().now().unwrap();
            sent += 1;
            limited += u64::from(!decision.allowed() && name != "bad");
            denied += u64::from(name == "bad");
        }
        clock.advance_us(60_000);
    }
    let samples = limiter.recent_requests();
    assert_eq!(samples.len(), sent);
    let (before, after) = (load(RULES), load("rules: [{ id: plan, limit: 1000/s }]"));
    let preview = preview(&samples, &before, &after, |identity| limiter.fingerprint(identity), || true);
    assert!(preview.exact && limited > 50, "{limited}");
    assert_eq!((preview.before.limited, preview.before.denied), (limited, denied));
    assert_eq!((preview.after.limited, preview.after.denied), (0, 0));
    // A key is found again among the top keys.
    let top = limiter.top(100).limited;
    for key in preview.keys.iter().filter(|key| key.refused_before > denied) {
        assert!(top.iter().any(|top| top.fingerprint == key.fingerprint), "{key:?} {top:?}");
    }
}

#[test]
fn samples_are_kept_only_where_they_are_wanted_and_for_five_minutes() {
    let clock = ManualClock::new(START_US);
    let limiter = limiter(&clock);
    limiter.check(&key("a")).unwrap();
    assert_eq!(limiter.recent_requests().len(), 1);
    clock.advance_us(299_000_000);
    assert_eq!(limiter.recent_requests().len(), 1);
    clock.advance_us(1_000_000);
    assert_eq!(limiter.recent_requests().len(), 0);
    let without = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock));
    without.check(&key("a")).unwrap();
    assert_eq!(without.recent_requests().len(), 0);
}

#[test]
fn keeping_samples_allocates_nothing() {
    let clock = ManualClock::new(START_US);
    let limiter = limiter(&clock);
    let request = Request { endpoint: "/v1/orders", ip: Some([192, 0, 2, 1].into()), ..key("a") };
    let send = |count| {
        for _ in 0..count {
            limiter.check(&request).unwrap();
            clock.advance_us(1_000);
        }
    };
    send(1_000);
    let measured = allocation_counter::measure(|| send(1_000));
    assert_eq!(measured.count_total, 0);
    assert!(limiter.recent_requests().len() > 100);
}
