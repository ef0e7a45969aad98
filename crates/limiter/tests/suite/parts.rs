//! Requests in several parts, and limits that requests state, with the embedded store and without the shared one.

use crate::conformance::parts::{decide, numbers_of_a_key_may_change, walk_algorithms, walk_parts};
use crate::conformance::setting::{SECOND_US, Setting, from, key};
use crate::ledger::FailingStore;
use std::sync::Arc;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::{LimitError, LimitSize};
use tollgate_core::rate::Rate;
use tollgate_core::rules;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};
use tollgate_limiter::{
    Clock, Door, Emergency, FailureSettings, InvalidRequest, Limiter, ManualClock, MemoryStore, Outcome,
    Request, RequestLimit, RequestPart, TokenOperation,
};

#[test]
fn parts_are_decided_as_the_model_says() {
    walk_parts(&Setting::new, 20_000);
}

#[test]
fn every_algorithm_looks_and_gives_back() {
    walk_algorithms(&Setting::new);
}

#[test]
fn tokens_stay_when_a_request_states_other_numbers() {
    numbers_of_a_key_may_change(&Setting::new);
}

fn limit(key: &str, capacity: u64) -> RequestLimit<'_> {
    let size = LimitSize { capacity: Some(capacity), rate: Rate::per(1, 3_600 * SECOND_US), window_us: None };
    RequestLimit { key, algorithm: Algorithm::TokenBucket, size }
}

fn take<'a>(limit: RequestLimit<'a>) -> RequestPart<'a> {
    let request = Request { door: Door::Resp, ..Request::default() };
    RequestPart { request, operation: TokenOperation::Take, limit: Some(limit) }
}

#[test]
fn numbers_that_cannot_be_counted_are_errors() {
    let setting = Setting::new("rules: [{ id: all, limit: 1/s }]");
    let check = |algorithm, size| {
        let limit = RequestLimit { key: "k", algorithm, size };
        setting.limiter.check_limit(&Request::default(), &limit).map(|_| ())
    };
    let rate = Rate::per(1, SECOND_US);
    let size = |capacity, rate| LimitSize { capacity, rate, window_us: None };
    let bucket = Algorithm::Gcra;
    assert_eq!(check(bucket, size(Some(0), rate)), Err(InvalidRequest::InvalidLimit(LimitError::RejectsAll)));
    for (algorithm, size) in [
        (bucket, size(None, rate)),
        (bucket, size(Some(1), None)),
        (bucket, size(Some(u64::MAX), rate)),
        (bucket, size(Some(1 << 31), Rate::per(1, u64::MAX / 4))),
        (Algorithm::SlidingWindowLog, size(Some(1), None)),
        (
            Algorithm::SlidingWindowLog,
            LimitSize { capacity: Some(5_000), rate: None, window_us: Some(SECOND_US) },
        ),
        (Algorithm::Concurrency, LimitSize { capacity: Some(5), rate: None, window_us: Some(SECOND_US) }),
    ] {
        let found = check(algorithm, size);
        assert!(matches!(found, Err(InvalidRequest::InvalidLimit(_))), "{algorithm:?} {size:?}: {found:?}");
    }
    assert_eq!(check(bucket, size(Some(2), rate)), Ok(()));
    let above = setting.limiter.check_limit(&Request { cost: 3, ..Request::default() }, &limit("k", 2));
    assert!(matches!(above.map(|_| ()), Err(InvalidRequest::CostAboveLimit { limit: 2, cost: 3, .. })));
    let none = setting.limiter.check_limit(&Request { cost: 0, ..Request::default() }, &limit("k", 2));
    assert_eq!(none.map(|_| ()), Err(InvalidRequest::ZeroCost));
}

fn count(limiter: &Limiter, rule: &str, outcome: &str) -> u64 {
    let samples = MetricSamples::of([limiter as &dyn MetricSource]);
    let of_rule = samples.of_metric(&catalog::DECISIONS).iter().filter(|sample| {
        let [own, _, _, _, _, result] = &sample.labels[..] else { panic!("six labels") };
        **own == *rule && **result == *outcome
    });
    of_rule.filter_map(|sample| sample.as_count()).sum()
}

#[test]
fn stated_limits_are_counted_under_one_rule() {
    let setting = Setting::new("rules: [{ id: all, key: api_key, limit: 3/h }]");
    for number in 0..600 {
        // Other numbers each time: still one series.
        let found = decide(&setting, &[take(limit("k", 1 + number))]).unwrap();
        let (terms, _) = found[0].standing().unwrap();
        assert_eq!((terms.names.rule.as_str(), u64::from(terms.quota)), ("request_limit", 1 + number));
    }
    // The first has the only token; each of the others finds none.
    assert_eq!(count(&setting.limiter, "request_limit", "allowed"), 1);
    assert_eq!(count(&setting.limiter, "request_limit", "limited"), 599);
    let samples = MetricSamples::of([&setting.limiter as &dyn MetricSource]);
    let series =
        samples.of_metric(&catalog::DECISIONS).iter().filter(|sample| *sample.labels[0] == *"request_limit");
    assert_eq!(series.count(), 3, "allowed, limited and degraded at one door");
    // New rules keep the series.
    setting.install("rules: [{ id: other, key: api_key, limit: 3/h }]");
    assert_eq!(count(&setting.limiter, "request_limit", "limited"), 599);
}

#[test]
fn parts_are_counted_once_each_and_only_if_they_decide() {
    let setting = Setting::new("rules: [{ id: plan, key: api_key, limit: 2/h }]");
    let part = |operation| RequestPart { request: key("a"), operation, limit: None };
    let parts = [part(TokenOperation::Take), take(limit("k", 1)), part(TokenOperation::Look)];
    assert!(decide(&setting, &parts).unwrap().iter().all(|found| found.allowed()));
    let counts = |rule| [count(&setting.limiter, rule, "allowed"), count(&setting.limiter, rule, "limited")];
    assert_eq!([counts("plan"), counts("request_limit")], [[2, 0], [1, 0]]);
    let found = decide(&setting, &parts).unwrap();
    let allowed: Vec<bool> = found.iter().map(|found| found.allowed()).collect();
    assert_eq!(allowed, [true, false, true], "one of them refuses the request");
    assert_eq!([counts("plan"), counts("request_limit")], [[2, 0], [1, 1]]);
    decide(&setting, &[part(TokenOperation::Refund)]).unwrap();
    assert_eq!(counts("plan"), [2, 0], "a refund decides nothing");
}

#[test]
fn lists_decide_before_limits() {
    let text = "
allow: [friend]
deny: [enemy]
rules: [{ id: plan, key: api_key, limit: 2/h }]
";
    let setting = Setting::new(text);
    let stated = |name: &'static str| RequestPart { request: key(name), ..take(limit("k", 1)) };
    let outcomes = |parts: &[RequestPart<'_>]| -> Vec<bool> {
        decide(&setting, parts).unwrap().iter().map(|found| found.allowed()).collect()
    };
    assert_eq!([outcomes(&[stated("friend")]), outcomes(&[stated("friend")])], [[true], [true]]);
    assert_eq!(outcomes(&[stated("enemy")]), [false]);
    let plan = RequestPart { request: key("a"), ..RequestPart::default() };
    for _ in 0..5 {
        assert_eq!(outcomes(&[plan, stated("enemy")]), [true, false], "nothing is taken");
    }
    assert_eq!(outcomes(&[plan, stated("friend")]), [true, true]);
    assert_eq!([outcomes(&[plan]), outcomes(&[plan])], [[true], [false]]);
}

#[test]
fn an_emergency_takes_one_token_of_an_address_for_all_parts() {
    let setting = Setting::new("rules: [{ id: plan, key: api_key, limit: 100/h }]");
    setting.limiter.set_emergency(Emergency::On);
    let request = Request { ip: from("192.0.2.1"), ..key("a") };
    let plan = RequestPart { request, ..RequestPart::default() };
    let empty = RequestPart { request, ..take(limit("k", 1)) };
    decide(&setting, &[take(limit("k", 1))]).unwrap();
    for _ in 0..30 {
        let found = decide(&setting, &[plan, plan, empty]).unwrap();
        assert!(
            !found[2].allowed() && found[0].allowed(),
            "refused by the stated limit, not by the emergency"
        );
    }
    let passes = |_: &u32| decide(&setting, &[plan, plan]).unwrap().iter().all(|found| found.allowed());
    assert_eq!((0..20).filter(passes).count(), 10);
}

#[tokio::test]
async fn without_the_store_the_default_policy_decides() {
    for (policy, passes) in [("allow", [true; 3]), ("deny", [false; 3]), ("local", [true, true, false])] {
        let text = format!(
            "defaults: {{ on_store_failure: {policy} }}\nrules: [{{ id: all, limit: 1/s, on_store_failure: allow }}]"
        );
        let loaded = rules::load("rules.yaml", &text).unwrap();
        let clock = Clock::Manual(ManualClock::new(rules::RULE_TEST_START.as_us()));
        let limiter = Limiter::new(MemoryStore::new(1 << 20), clock)
            .sharing(Arc::new(FailingStore), FailureSettings::default());
        limiter.install(loaded.rules, loaded.lists).unwrap();
        for (number, passes) in passes.into_iter().enumerate() {
            let found = limiter.check_limit(&Request::default(), &limit("k", 2)).unwrap().decision().await;
            assert_eq!((found.allowed(), found.degraded), (passes, true), "{policy} {number}");
            assert_eq!(found.store_unavailable, policy == "deny");
        }
        let plan = RequestPart { request: key("a"), ..RequestPart::default() };
        let parts = [plan, take(limit("other", 2))];
        let found = limiter.check_parts(&parts).unwrap().decisions().await;
        assert_eq!(found.iter().all(|found| found.allowed()), policy != "deny", "{policy}");
        assert!(found.iter().all(|found| found.degraded));
        let look = RequestPart { operation: TokenOperation::Look, ..take(limit("other", 2)) };
        let refund = RequestPart { operation: TokenOperation::Refund, ..plan };
        let found = limiter.check_parts(&[look, refund]).unwrap().decisions().await;
        assert_eq!(found[0].allowed(), policy != "deny");
        if policy == "local" {
            let Outcome::Admitted(status) = found[0].outcome else { panic!("{found:?}") };
            assert_eq!(status.remaining, 1);
        }
        assert!(found[1].allowed() && (policy == "deny" || found[1].degraded), "{found:?}");
        assert!(count(&limiter, "request_limit", "degraded") > 0);
    }
}
