//! What an observer and the top keys see of decisions: made at once, after a wait in a queue, or after the shared store.

use crate::admission::{admit, limiter, of};
use crate::ledger::FailingStore;
use crate::setting::{PLENTY, START_US, load};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_limiter::metrics::{
    DecisionObserver, DecisionOutcome, DecisionRecord, MetricSamples, MetricSource, MetricValue, catalog,
};
use tollgate_limiter::{
    Clock, Counting, FailureSettings, Limiter, ManualClock, MemoryStore, ObservationSettings, Request, TopKey,
};

/// Keeps all records.
#[derive(Debug, Default)]
struct Records {
    all: Mutex<Vec<DecisionRecord>>,
    dropped: AtomicU64,
}

impl DecisionObserver for Records {
    fn record(&self, record: DecisionRecord) {
        self.all.lock().push(record);
    }

    fn record_dropped(&self, records: u64) {
        self.dropped.fetch_add(records, Ordering::Relaxed);
    }
}

impl Records {
    /// `outcome rule key` of each record, which are removed.
    fn take(&self) -> Vec<String> {
        let shown = |record: DecisionRecord| {
            let key: Vec<String> =
                record.key.iter().map(|part| format!("{}:{}", part.kind, part.value)).collect();
            format!("{} {} {}", record.outcome.name(), record.rule, key.join(","))
        };
        self.all.lock().drain(..).map(shown).collect()
    }
}

fn observed(text: &str, clock: ManualClock, settings: ObservationSettings) -> (Arc<Limiter>, Arc<Records>) {
    let records = Arc::new(Records::default());
    let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock));
    let limiter = limiter.observed_by(Arc::clone(&records) as Arc<dyn DecisionObserver>, settings);
    let loaded = load(text);
    limiter.install(loaded.rules, loaded.lists).unwrap();
    (Arc::new(limiter), records)
}

fn at_start() -> ManualClock {
    ManualClock::new(START_US)
}

fn all() -> ObservationSettings {
    ObservationSettings { admitted_share: 1.0, ..ObservationSettings::default() }
}

fn check(limiter: &Limiter, request: &Request<'_>) {
    limiter.check(request).unwrap().now().unwrap();
}

fn counts(keys: &[TopKey]) -> Vec<(&str, &str, u64)> {
    keys.iter().map(|key| (key.kind, key.name.as_str(), key.count)).collect()
}

fn keys_at_zero(limiter: &Limiter) -> f64 {
    let samples = MetricSamples::of([limiter as &dyn MetricSource]);
    match samples.of_metric(&catalog::KEYS_AT_ZERO)[0].value {
        MetricValue::Number(number) => number,
        _ => panic!("a gauge"),
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_of_all_kinds_are_recorded_and_admissions_by_their_share() {
    let rules = "
deny: [bad]
rules:
  - { id: plain, match: { api_key_pattern: a* }, limit: 1/min }
  - { id: shadow, match: { api_key_pattern: s* }, limit: 1/min, on_exceed: shadow }
  - { id: slow, match: { api_key_pattern: t* }, limit: 1/min, on_exceed: { tarpit: { delay: 1s, most: 10 } } }
  - { id: line, match: { api_key_pattern: q* }, limit: 1/min, on_exceed: { queue: { max_wait: 90s, length: 1 } } }
  - { id: shed, match: { api_key_pattern: h* }, limit: 1/min, on_exceed: { shed: { in_flight: 1 } } }
  - { id: pair, key: [tenant, user], match: { user_pattern: u* }, limit: 1/min }
";
    let clock = ManualClock::following_tokio(START_US);
    let share = |admitted_share| ObservationSettings { admitted_share, ..ObservationSettings::default() };
    for (admitted_share, admitted) in [(0.0, 0), (1.0, 1)] {
        let (limiter, records) = observed(rules, clock.clone(), share(admitted_share));
        for (key, refusal) in [
            ("a", "limited plain api_key:a"),
            ("s", "shadow_limited shadow api_key:s"),
            ("t", "tarpitted slow api_key:t"),
            ("bad", "denied  api_key:bad"),
        ] {
            admit(&limiter, &of(key)).await;
            let first = records.take().len();
            assert_eq!(first, if key == "bad" { 1 } else { admitted }, "{key}");
            admit(&limiter, &of(key)).await;
            assert_eq!(records.take(), [refusal]);
        }
        let held = admit(&limiter, &of("h")).await;
        records.take();
        admit(&limiter, &of("h")).await;
        assert_eq!(records.take(), ["shed shed api_key:h"]);
        drop(held);
        admit(&limiter, &of("q")).await;
        records.take();
        admit(&limiter, &of("q")).await;
        assert_eq!(records.take(), vec!["queued line api_key:q"; admitted]);
        let pair = Request { user: Some("u"), tenant: Some("t"), ..Request::default() };
        admit(&limiter, &pair).await;
        records.take();
        admit(&limiter, &pair).await;
        assert_eq!(records.take(), ["limited pair tenant:t,user:u"]);
    }
}

#[test]
fn a_record_has_the_numbers_of_its_limit() {
    let rules = "
tiers: { pro: { api_key_pattern: \"pro_*\", limit: 2/min } }
routes: [\"/users/{id}\"]
rules: [{ id: api, key: api_key }]
";
    let (limiter, records) = observed(rules, at_start(), all());
    let request = Request { api_key: Some("pro_1"), endpoint: "/users/7", cost: 2, ..Request::default() };
    (0..2).for_each(|_| check(&limiter, &request));
    let all = records.all.lock();
    let [first, second] = all.as_slice() else { panic!("two: {all:?}") };
    assert_eq!(
        (first.outcome, first.remaining, first.retry_after_us),
        (DecisionOutcome::Allowed, Some(0), None)
    );
    assert_eq!((second.outcome, second.limit, second.cost), (DecisionOutcome::Limited, Some(2), 2));
    assert_eq!(second.retry_after_us, Some(60_000_000));
    assert_eq!(
        (second.rule.as_str(), second.algorithm, second.tier.as_str(), second.route.as_str()),
        ("api", "token_bucket", "pro", "/users/{id}")
    );
    assert!(second.key[0].is_credential);
}

#[test]
fn refusals_over_the_rate_are_dropped_and_counted() {
    let clock = at_start();
    let settings = ObservationSettings { refusals_per_second: 10, ..ObservationSettings::default() };
    let (limiter, records) = observed("rules: [{ id: api, limit: 1/h }]", clock.clone(), settings);
    (0..1_001).for_each(|_| check(&limiter, &of("a")));
    clock.advance_us(1_000_000);
    check(&limiter, &of("a"));
    let refused = |record: &DecisionRecord| record.outcome == DecisionOutcome::Limited;
    assert_eq!(records.all.lock().iter().filter(|record| refused(record)).count(), 11);
    assert_eq!(records.dropped.load(Ordering::Relaxed), 990);
}

#[test]
fn the_share_of_admissions_is_right_at_all_rates() {
    let settings = ObservationSettings { admitted_share: 0.02, ..ObservationSettings::default() };
    let clock = at_start();
    let (limiter, records) = observed("rules: [{ id: api, limit: 10000000/h }]", clock.clone(), settings);
    // First slowly, where every decision is observed, then fast.
    for (checks, step_us, expected) in [(20_000, 5_000, 400), (500_000, 100, 10_000)] {
        for _ in 0..checks {
            clock.advance_us(step_us);
            check(&limiter, &of("a"));
        }
        let found = records.take().len();
        assert!((expected * 7 / 10..=expected * 13 / 10).contains(&found), "{found} of {expected}");
    }
}

#[test]
fn decisions_are_timed_and_counted_by_weight() {
    let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::system());
    let loaded = load("rules: [{ id: api, limit: 10000000/h }]");
    limiter.install(loaded.rules, loaded.lists).unwrap();
    (0..50_000).for_each(|_| check(&limiter, &of("a")));
    let samples = MetricSamples::of([&limiter as &dyn MetricSource]);
    let local =
        samples.of_metric(&catalog::DECISION_DURATION).iter().find(|sample| &*sample.labels[0] == "local");
    let MetricValue::Histogram(local) = &local.unwrap().value else { panic!("a histogram") };
    assert!((30_000..80_000).contains(&local.count()), "{}", local.count());
    assert!(local.quantile(0.5).unwrap() <= 1e-5);
    let [top] = &limiter.top(5).allowed[..] else { panic!("one key") };
    assert_eq!(top.count, local.count());
}

#[test]
fn top_keys_and_routes() {
    let rules = "
allow: [good]
routes: [\"/users/{id}\", \"/orders\"]
rules:
  - { id: api, key: api_key, limit: 2/h }
  - { id: pair, key: [tenant, user], match: { user_pattern: u* }, limit: 1/h }
";
    let limiter = limiter_at(rules, at_start());
    let send = |times: usize, request: Request<'_>| (0..times).for_each(|_| check(&limiter, &request));
    let key = |key, endpoint| Request { api_key: Some(key), endpoint, ..Request::default() };
    send(5, key("sk_live_0123456789abcdef", "/users/1"));
    send(3, key("b", "/users/2"));
    send(4, key("good", "/orders"));
    send(
        3,
        Request { tenant: Some("t"), user: Some("u"), ip: Some([192, 0, 2, 1].into()), ..Request::default() },
    );
    let top = limiter.top(3);
    assert_eq!(
        counts(&top.limited),
        [("api_key", "sk_live_…", 3), ("composite", "tenant=t user=u", 2), ("api_key", "…", 1)],
    );
    assert_eq!(counts(&top.allowed)[0], ("api_key", "go…", 4));
    assert_eq!(top.routes.len(), 1, "lists decide before the route is known");
    assert_eq!((top.routes[0].route.as_str(), top.routes[0].count), ("/users/{id}", 8));
    assert!(top.limited.iter().all(|key| key.fingerprint.len() == 8));
    assert_eq!(limiter.top(1).limited.len(), 1);
}

fn limiter_at(text: &str, clock: ManualClock) -> Limiter {
    let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock));
    let loaded = load(text);
    limiter.install(loaded.rules, loaded.lists).unwrap();
    limiter
}

#[test]
fn a_key_is_at_zero_after_five_minutes_without_a_break() {
    let clock = at_start();
    let limiter = limiter_at("rules: [{ id: api, key: api_key, limit: 1/h }]", clock.clone());
    for second in 0..=306 {
        // `quiet` pauses once for longer than ten seconds.
        if second % 3 == 0 {
            check(&limiter, &of("zero"));
            if !(120..145).contains(&second) {
                check(&limiter, &of("quiet"));
            }
        }
        assert_eq!(keys_at_zero(&limiter), if second >= 303 { 1.0 } else { 0.0 }, "{second}");
        clock.advance_us(1_000_000);
    }
    clock.advance_us(3_600_000_000);
    check(&limiter, &of("zero"));
    assert_eq!(keys_at_zero(&limiter), 0.0);
}

#[test]
fn a_limiter_that_does_not_count_observes_nothing() {
    let records = Arc::new(Records::default());
    let limiter = limiter_at("rules: [{ id: api, limit: 1/h }]", at_start())
        .observed_by(Arc::clone(&records) as Arc<dyn DecisionObserver>, all())
        .counting(Counting::Off);
    (0..3).for_each(|_| check(&limiter, &of("a")));
    assert!(records.take().is_empty() && limiter.top(9).limited.is_empty());
}

#[tokio::test]
async fn decisions_that_waited_for_the_store_are_observed() {
    let rules = "
rules:
  - { id: open, key: api_key, match: { api_key_pattern: a* }, limit: 5/h, on_store_failure: allow }
  - { id: shut, key: user, match: { user_pattern: \"*\" }, limit: 5/h, on_store_failure: deny }
";
    let long = "u".repeat(200);
    for has_observer in [true, false] {
        let records = Arc::new(Records::default());
        let mut limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(at_start()))
            .sharing(Arc::new(FailingStore), FailureSettings::default());
        if has_observer {
            limiter = limiter.observed_by(Arc::clone(&records) as Arc<dyn DecisionObserver>, all());
        }
        let loaded = load(rules);
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let by_user = |user| Request { user: Some(user), ..Request::default() };
        for request in [of("a"), by_user("ann"), by_user(&long)] {
            limiter.check(&request).unwrap().decision().await;
        }
        let top = limiter.top(9);
        assert_eq!(counts(&top.allowed), [("api_key", "…", 1)]);
        assert_eq!(top.limited.len(), 2, "{top:?}");
        if has_observer {
            let expected = [
                "degraded open api_key:a".to_owned(),
                "degraded shut user:ann".to_owned(),
                format!("degraded shut user:{long}"),
            ];
            assert_eq!(records.take(), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waits_are_observed_without_an_observer() {
    let limiter =
        limiter("rules: [{ id: line, limit: 1/s, on_exceed: { queue: { max_wait: 9s, length: 1 } } }]");
    for _ in 0..2 {
        admit(&limiter, &of("queued")).await;
    }
    assert_eq!(counts(&limiter.top(9).allowed), [("api_key", "que…", 2)]);
}
