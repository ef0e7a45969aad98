//! Hot keys: found, reported, and denied for a time if that is set.

use crate::setting::{MINUTE_US, PLENTY, SECOND_US, START_US, from, key, load, rule};
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::time::UnixTime;
use tollgate_limiter::{
    AbuseSettings, Clock, Limiter, ManualClock, MemoryStore, Outcome, Request, TemporaryDeny,
};

const RULES: &str = "
rules: [{ id: api, limit: 100/s }]
allow: [sk_internal_*]
";

struct Watch {
    limiter: Limiter,
    clock: ManualClock,
    /// Refusals are made by [`Limiter::refuse`].
    refuses_first: bool,
}

impl Watch {
    fn new(deny: Option<TemporaryDeny>) -> Self {
        let clock = ManualClock::new(START_US);
        let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock.clone()))
            .watching(AbuseSettings { deny, ..AbuseSettings::default() });
        let loaded = load(RULES);
        limiter.install(loaded.rules, loaded.lists).unwrap();
        Self { limiter, clock, refuses_first: false }
    }

    /// A second in which each of `requests` is sent so many times. Returns how many of the first were admitted.
    fn second(&self, requests: &[(Request<'_>, usize)]) -> usize {
        let mut passed = 0;
        for tick in 0..10 {
            for (index, (request, count)) in requests.iter().enumerate() {
                for _ in 0..count / 10 + usize::from(tick < count % 10) {
                    passed += usize::from(self.allowed(request) && index == 0);
                }
            }
            self.clock.advance_us(SECOND_US / 10);
            self.limiter.tidy();
        }
        passed
    }

    fn allowed(&self, request: &Request<'_>) -> bool {
        if self.refuses_first && self.limiter.refuse(request).is_some() {
            return false;
        }
        self.limiter.check(request).unwrap().now().unwrap().allowed()
    }

    fn wait_us(&self, request: &Request<'_>) -> Option<(u64, String)> {
        let decision = self.limiter.check(request).unwrap().now().unwrap();
        match decision.outcome {
            Outcome::Limited(standing) => {
                Some((standing.wait_us()?, rule(&decision).unwrap_or_default().to_owned()))
            }
            _ => None,
        }
    }
}

fn deny(after: u64, lasts: u64) -> Option<TemporaryDeny> {
    Some(TemporaryDeny { after: Duration::from_secs(after), lasts: Duration::from_secs(lasts) })
}

#[test]
fn keys_above_the_rate_are_listed_and_those_below_are_not() {
    lists_those_above(&Watch::new(None));
    lists_those_above(&Watch { refuses_first: true, ..Watch::new(None) });
}

fn lists_those_above(watch: &Watch) {
    let hot = key("sk_live_0123456789");
    let address = Request { ip: from("203.0.113.9"), ..Request::default() };
    let names: Vec<String> = (0..1_000).map(|number| format!("quiet-{number}")).collect();
    let mut requests = vec![(hot, 20_000), (address, 40_000), (key("busy"), 5_000)];
    requests.extend(names.iter().map(|name| (key(name), 20)));
    watch.second(&requests);
    let found = watch.limiter.hot_keys();
    let shown: Vec<(&str, &str)> = found.iter().map(|key| (key.kind, key.name.as_str())).collect();
    assert_eq!(shown, [("ip", "203.0.113.9"), ("api_key", "sk_live_…")]);
    assert!((30_000..50_000).contains(&found[0].per_second), "{}", found[0].per_second);
    assert!((14_000..26_000).contains(&found[1].per_second), "{}", found[1].per_second);
    assert!(found[1].refused_percent >= 95 && found[1].fingerprint.len() == 8);
    assert_eq!(watch.limiter.hot_key(&hot).as_ref(), Some(&found[1]));
    assert_eq!(watch.limiter.hot_key(&key("busy")), None);
    assert_eq!(watch.limiter.abuse_counts().hot_keys, 2);
    // Without requests the list is empty.
    watch.second(&[(hot, 10)]);
    assert_eq!(watch.limiter.hot_keys(), []);
}

#[test]
fn without_the_option_no_key_is_denied() {
    let watch = Watch::new(None);
    // A full bucket at first, then its refill.
    let passed: Vec<usize> = (0..20).map(|_| watch.second(&[(key("a"), 15_000)])).collect();
    assert_eq!(passed[0], 190);
    assert_eq!(passed[1..], [100; 19], "the limit, and nothing else, decides");
    assert_eq!(watch.limiter.abuse_counts().denials, 0);
}

#[test]
fn a_denial_starts_after_sustained_abuse_and_always_ends() {
    let watch = Watch::new(deny(5, 30));
    let request = key("a");
    for round in 1..=3 {
        let mut seconds = 0;
        while watch.limiter.abuse_counts().denials < round {
            watch.second(&[(request, 20_000)]);
            seconds += 1;
            assert!(seconds <= 10, "round {round}");
        }
        assert!(seconds >= 5, "{seconds} s in round {round}");
        let denied_at_us = watch.clock.now().as_us();
        let (wait_us, rule) = watch.wait_us(&request).unwrap();
        assert_eq!((wait_us, rule.as_str()), (30 * SECOND_US, "hot_key"));
        let listed = watch.limiter.hot_key(&request).unwrap();
        assert_eq!(listed.denied_until, Some(UnixTime::from_us(denied_at_us + wait_us)));
        // Further requests, with and without a break, do not extend it.
        for second in 1..30 {
            let count = if second == 10 { 0 } else { 20_000 };
            assert_eq!(watch.second(&[(request, count)]), 0);
            assert_eq!(watch.wait_us(&request).unwrap().0, wait_us - second * SECOND_US);
        }
        assert!(watch.allowed(&key("b")), "other keys are not denied");
        watch.clock.set_us(denied_at_us + wait_us - 1);
        assert_eq!(watch.wait_us(&request).unwrap().0, 1);
        watch.clock.set_us(denied_at_us + wait_us);
        assert!(watch.allowed(&request), "it ends at its retry time");
        watch.limiter.tidy();
    }
    watch.clock.advance_us(MINUTE_US);
    watch.limiter.tidy();
    assert_eq!(watch.limiter.abuse_counts().held, 0);
}

#[test]
fn keys_within_limits_or_abusive_for_a_short_time_are_not_denied() {
    let watch = Watch::new(deny(3, 30));
    let (internal, burst) = (key("sk_internal_1"), key("burst"));
    for second in 0..30 {
        let count = if second % 3 == 0 { 0 } else { 20_000 };
        watch.second(&[(internal, 20_000), (burst, count)]);
    }
    assert!(watch.limiter.abuse_counts().hot_keys >= 30);
    assert_eq!(watch.limiter.abuse_counts().denials, 0);
}

#[test]
fn a_pardon_ends_a_denial() {
    let watch = Watch::new(deny(2, 600));
    while watch.limiter.abuse_counts().denials == 0 {
        watch.second(&[(key("a"), 20_000)]);
    }
    assert!(watch.limiter.pardon(&key("a")));
    watch.clock.advance_us(SECOND_US);
    assert!(watch.allowed(&key("a")));
    assert_eq!(watch.limiter.hot_key(&key("a")).and_then(|hot| hot.denied_until), None);
}

#[test]
fn sampling_allocates_nothing() {
    let watch = Watch::new(deny(2, 600));
    watch.second(&[(key("a"), 1_000)]);
    let measured = allocation_counter::measure(|| {
        for _ in 0..20_000 {
            watch.allowed(&key("a"));
        }
    });
    assert_eq!(measured.count_total, 0);
}

#[tokio::test]
async fn requests_that_wait_are_sampled_too() {
    let clock = ManualClock::new(START_US);
    let limiter = Arc::new(Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock.clone())));
    let loaded = load("rules: [{ id: busy, algorithm: concurrency, limit: 1 }]");
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let request = key("sk_live_0123456789");
    let held = limiter.admit(&request).unwrap().admission().await;
    assert!(held.permit.is_some());
    for _ in 0..20_000 {
        assert!(!limiter.admit(&request).unwrap().admission().await.decision.allowed());
    }
    clock.advance_us(SECOND_US);
    limiter.tidy();
    let found = limiter.hot_key(&request).expect("it is hot");
    assert!((14_000..26_000).contains(&found.per_second), "{}", found.per_second);
    assert!(found.refused_percent >= 95, "{}", found.refused_percent);
}
