//! A request that is refused for several reasons gets the longest wait of them, and that wait is exact.

use crate::setting::{HOUR_US, MINUTE_US, PLENTY, SECOND_US, START_US, Setting, from, key, load, told};
use fastrand::Rng;
use std::time::Duration;
use tollgate_core::rules::VirtualNode;
use tollgate_limiter::{
    AbuseSettings, Clock, Decision, Limiter, ManualClock, MemoryStore, Outcome, Request, TemporaryDeny,
};

/// A limiter with a key that has just been denied for `lasts` seconds.
struct Denied {
    limiter: Limiter,
    clock: ManualClock,
    request: Request<'static>,
}

impl Denied {
    fn new(rules: &str, lasts: u64) -> Self {
        let deny = TemporaryDeny { after: Duration::from_secs(1), lasts: Duration::from_secs(lasts) };
        let clock = ManualClock::new(START_US);
        let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock.clone()))
            .watching(AbuseSettings { deny: Some(deny), ..AbuseSettings::default() });
        let loaded = load(rules);
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let denied = Self { limiter, clock, request: key("hot") };
        for _ in 0..100 {
            if denied.limiter.abuse_counts().denials > 0 {
                return denied;
            }
            for _ in 0..2_000 {
                denied.check();
            }
            denied.clock.advance_us(SECOND_US / 10);
            denied.limiter.tidy();
        }
        panic!("the key was never denied")
    }

    fn check(&self) -> Decision {
        self.limiter.check(&self.request).unwrap().now().unwrap()
    }
}

/// A hot key is refused one microsecond before its retry time, and admitted at that time.
#[test]
fn a_denied_key_gets_the_longer_wait_of_its_denial_and_its_limits() {
    let several = "{ id: m, algorithm: fixed_window, limits: [1000/s, 50/min, 60/h] }";
    for (rules, lasts, expected) in [
        ("{ id: m, algorithm: fixed_window, limit: 5/min }", 2, "m"),
        ("{ id: m, algorithm: sliding_window_log, limit: 5/min }", 2, "m"),
        ("{ id: m, algorithm: sliding_window_counter, limit: 5/min }", 2, "m"),
        ("{ id: m, limit: 1/min }", 2, "m"),
        ("{ id: m, algorithm: gcra, limit: 1/min, burst: 0 }", 2, "m"),
        (several, 2, "m"),
        ("{ id: m, algorithm: fixed_window, limit: 5/min }", 90, "hot_key"),
        ("{ id: m, limit: 100/s }", 2, "hot_key"),
        // Limits that are not enforced do not refuse.
        (
            "{ id: m, algorithm: fixed_window, limit: 5/s }, { id: s, limit: 5/h, on_exceed: shadow }",
            2,
            "hot_key",
        ),
        (
            "{ id: m, algorithm: fixed_window, limit: 5/s }, { id: s, limit: 5/h, on_exceed: flag }",
            2,
            "hot_key",
        ),
    ] {
        let denied = Denied::new(&format!("rules: [{rules}]"), lasts);
        let refused_first = denied.limiter.refuse(&denied.request).unwrap();
        let (wait_us, by) = told(&denied.check()).unwrap();
        assert_eq!(by, expected, "{rules}");
        assert!(wait_us >= lasts * SECOND_US - SECOND_US, "{rules}: {wait_us}");
        assert_eq!(told(&refused_first), Some((wait_us, by)), "{rules}: as the fast path says");
        let end_us = denied.clock.now().as_us() + wait_us;
        denied.clock.set_us(end_us - 1);
        assert_eq!(told(&denied.check()).unwrap().0, 1, "{rules}");
        denied.clock.set_us(end_us);
        assert!(denied.check().allowed(), "{rules}: {:?}", denied.check());
    }
}

const BOTH: &str = "
rules:
  - id: api
    limit: 5/min
    penalty: { after: 3, first: 10s, longest: 1m }
  - { id: hour, key: ip, algorithm: fixed_window, limit: 7/h }
";

fn a() -> Request<'static> {
    Request { ip: from("203.0.113.9"), ..key("a") }
}

fn b() -> Request<'static> {
    Request { ip: from("203.0.113.9"), ..key("b") }
}

/// Sends a request every 100 ms until there is a cooldown.
fn hammer(setting: &Setting, request: &Request<'_>) {
    while setting.limiter.abuse_counts().cooldowns == 0 {
        setting.check(request);
        setting.clock.advance_us(SECOND_US / 10);
    }
}

#[test]
fn a_cooldown_is_no_shorter_than_the_other_limits_say() {
    for setting in [Setting::new(BOTH), Setting::refusing_first(BOTH)] {
        hammer(&setting, &a());
        let (wait_us, by) = told(&setting.check(&a())).unwrap();
        assert!(wait_us <= 10 * SECOND_US && by == "api", "{wait_us} by {by}: the hour has two left");
        // Another key from the same address takes them.
        assert_eq!(setting.send(3, &b()), 2);
        let left_us = START_US + HOUR_US - setting.clock.now().as_us();
        for _ in 0..100 {
            assert_eq!(told(&setting.check(&a())), Some((left_us, "hour".to_owned())));
        }
        assert_eq!(setting.limiter.abuse_counts().cooldowns, 1, "requests in a cooldown are no strikes");
        setting.clock.advance_us(left_us - 1);
        assert_eq!(told(&setting.check(&a())), Some((1, "hour".to_owned())));
        setting.clock.advance_us(1);
        assert!(setting.check(&a()).allowed());
    }
}

/// Looking up the wait of a limit spends nothing of it.
#[test]
fn a_held_client_spends_nothing_of_the_limits_it_is_held_against() {
    let setting = Setting::new(BOTH);
    hammer(&setting, &a());
    for _ in 0..1_000 {
        assert!(!setting.check(&a()).allowed());
    }
    assert_eq!(setting.remaining(&b()), 1, "of seven an hour, the first five passed");
}

/// The longest wait of a denial, a cooldown and a limit is used.
#[test]
fn of_a_denial_and_a_cooldown_the_longer_wait_is_used() {
    for (first, lasts, expected) in [("5s", 60, "hot_key"), ("2m", 30, "m")] {
        let rules = format!(
            "rules: [{{ id: m, limit: 1/s, penalty: {{ after: 1, first: {first}, longest: 10m }} }}]"
        );
        let denied = Denied::new(&rules, lasts);
        let (wait_us, by) = told(&denied.check()).unwrap();
        assert_eq!(by, expected, "{wait_us} µs, cooldowns of {first} and a denial of {lasts} s");
    }
}

/// A cost above the limit is invalid, also while the client is held. A slot is one whatever the cost.
#[tokio::test]
async fn a_cost_above_the_limit_is_invalid_during_a_denial() {
    let denied = Denied::new("rules: [{ id: m, algorithm: fixed_window, limit: 5/min }]", 60);
    let costly = Request { cost: 6, ..denied.request };
    assert!(denied.limiter.check(&costly).is_err());

    let rules = "
rules:
  - { id: m, algorithm: fixed_window, limit: 50/min }
  - { id: busy, algorithm: concurrency, limit: 2, endpoint: /busy }
";
    let Denied { limiter, request, .. } = Denied::new(rules, 600);
    let limiter = std::sync::Arc::new(limiter);
    let costly = Request { cost: 3, endpoint: "/busy", ..request };
    let admission = limiter.admit(&costly).unwrap().admission().await;
    assert_eq!(told(&admission.decision).map(|(_, by)| by).as_deref(), Some("hot_key"));
}

/// The engine and the virtual node agree on every wait, also of clients in a cooldown.
#[test]
fn the_virtual_node_has_the_same_waits() {
    let rules = "
rules:
  - { id: api, limit: 5/min, penalty: { after: 2, first: 7s, longest: 1m, forget: 5m } }
  - { id: burst, limit: 3/2s, penalty: { after: 3, first: 3s, longest: 20s, forget: 1m } }
  - { id: shared, key: ip, algorithm: fixed_window, limit: 12/min }
  - { id: told, limit: 4/min, on_exceed: flag }
";
    let (setting, loaded) = (Setting::new(rules), load(rules));
    let mut node = VirtualNode::default();
    let mut rng = Rng::with_seed(11);
    let mut limited = 0;
    for _ in 0..50_000 {
        let pause_us = if rng.u8(..) == 0 { 3 * MINUTE_US } else { SECOND_US };
        setting.clock.advance_us(rng.u64(..pause_us));
        let request = [a(), b(), key("c")][rng.usize(..3)];
        let expected = node.check(&loaded, &request, setting.clock.now()).unwrap();
        assert_eq!(setting.check(&request).outcome, expected);
        limited += usize::from(matches!(expected, Outcome::Limited(_)));
    }
    assert!(limited > 10_000 && setting.limiter.abuse_counts().cooldowns > 100, "{limited}");
}
