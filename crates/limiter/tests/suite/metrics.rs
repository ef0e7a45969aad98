//! The counters of decisions: every decision once, under the right labels, and no label for clients.

use crate::admission::{admit, limiter, of};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use tollgate_core::rules;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, MetricValue, catalog};
use tollgate_limiter::{Counting, Door, Limiter, Request};

fn samples(limiter: &Limiter) -> MetricSamples {
    MetricSamples::of([limiter as &dyn MetricSource])
}

/// The decisions by `rule/tier/route/door/outcome`, without those that were not met.
fn decisions(limiter: &Limiter) -> BTreeMap<String, u64> {
    let samples = samples(limiter);
    let counted = samples.of_metric(&catalog::DECISIONS).iter().map(|sample| {
        let [rule, _, tier, route, door, outcome] = &sample.labels[..] else { panic!("six labels") };
        (format!("{rule}/{tier}/{route}/{door}/{outcome}"), sample.as_count().unwrap())
    });
    counted.filter(|(_, count)| *count > 0).collect()
}

fn map<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(labels, count)| (labels.to_owned(), count)).collect()
}

fn check(limiter: &Limiter, request: &Request<'_>) {
    let _ = limiter.check(request).map(|check| check.now().unwrap());
}

#[tokio::test(start_paused = true)]
async fn every_outcome_is_counted_once_under_its_rule() {
    let rules = "
deny: [bad]
allow: [good]
rules:
  - { id: plain, match: { api_key_pattern: a* }, limit: 2/min }
  - { id: shadow, match: { api_key_pattern: s* }, limit: 2/min, on_exceed: shadow }
  - { id: flag, match: { api_key_pattern: f* }, limit: 2/min, on_exceed: flag }
  - { id: slow, match: { api_key_pattern: t* }, limit: 2/min, on_exceed: { tarpit: { delay: 1s, most: 10 } } }
  - { id: line, match: { api_key_pattern: q* }, limit: 2/min, on_exceed: { queue: { max_wait: 40s, length: 1 } } }
  - { id: shed, match: { api_key_pattern: h* }, limit: 2/min, on_exceed: { shed: { in_flight: 1 } } }
";
    let limiter = limiter(rules);
    for key in ["a", "s", "f", "t", "bad", "good", "unmatched"] {
        for _ in 0..5 {
            admit(&limiter, &of(key)).await;
        }
    }
    let first = admit(&limiter, &of("h")).await;
    let second = admit(&limiter, &of("h")).await;
    admit(&limiter, &of("h")).await;
    drop((first, second));
    for _ in 0..3 {
        admit(&limiter, &of("q")).await;
    }
    let expected = map([
        ("plain///library/allowed", 2),
        ("plain///library/limited", 3),
        ("shadow///library/allowed", 2),
        ("shadow///library/shadow_limited", 3),
        ("flag///library/allowed", 2),
        ("flag///library/flagged", 3),
        ("slow///library/allowed", 2),
        ("slow///library/tarpitted", 3),
        ("///library/denied", 5),
        ("///library/allowed", 10),
        ("shed///library/allowed", 2),
        ("shed///library/shed", 1),
        ("line///library/allowed", 2),
        ("line///library/queued", 1),
    ]);
    assert_eq!(decisions(&limiter), expected);
}

#[test]
fn tiers_routes_and_doors_are_labels() {
    let rules = "
tiers:
  pro: { api_key_pattern: \"pro_*\", limit: 3/min }
  free: { api_key_pattern: \"free_*\", limit: 2/min }
routes: [\"/users/{id}\"]
rules:
  - { id: api, key: api_key }
";
    let limiter = limiter(rules);
    for (key, endpoint, door) in [
        ("pro_1", "/users/1", Door::Check),
        ("pro_1", "/users/2", Door::Gateway),
        ("free_1", "/users/3", Door::Check),
        ("free_2", "/other", Door::Check),
        ("free_3", "/another", Door::Check),
    ] {
        check(&limiter, &Request { api_key: Some(key), endpoint, door, ..Request::default() });
    }
    let expected = map([
        ("api/pro//users/{id}/check/allowed", 1),
        ("api/pro//users/{id}/gateway/allowed", 1),
        ("api/free//users/{id}/check/allowed", 1),
        ("api/free//check/allowed", 2),
    ]);
    assert_eq!(decisions(&limiter), expected);
}

#[test]
fn threads_add_up_and_threads_that_ended_are_not_forgotten() {
    let limiter = limiter("rules: [{ id: api, limit: 1000/h }]");
    let send = |count: usize| (0..count).for_each(|_| check(&limiter, &of("one")));
    for round in 1..=3 {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| send(100));
            }
        });
        let total: u64 = decisions(&limiter).values().sum();
        assert_eq!(total, round * 400);
    }
    let expected = map([("api///library/allowed", 1000), ("api///library/limited", 200)]);
    assert_eq!(decisions(&limiter), expected);
}

#[test]
fn clients_and_paths_add_no_series() {
    let limiter = limiter(
        "rules: [{ id: api, key: api_key, limit: 1000/h }, { id: users, endpoint: \"/users/{id}\", limit: 10/h }]",
    );
    let request = |number: usize| {
        let (key, endpoint) = (format!("key{number}"), format!("/{number}/{}", number % 7));
        check(&limiter, &Request { api_key: Some(&key), endpoint: &endpoint, ..Request::default() });
    };
    let count = || samples(&limiter).families().iter().map(|family| family.samples.len()).sum::<usize>();
    request(0);
    let before = count();
    (1..20_000).for_each(request);
    assert_eq!(count(), before);
    assert_eq!(decisions(&limiter), map([("api///library/allowed", 20_000)]));
}

#[test]
fn counts_survive_a_change_of_the_rules_and_end_with_their_rule() {
    let limiter = limiter("rules: [{ id: kept, limit: 5/h }, { id: removed, limit: 3/h }]");
    (0..4).for_each(|_| check(&limiter, &of("one")));
    let install = |text: &str| {
        let loaded = rules::load("rules.yaml", text).unwrap();
        limiter.install(loaded.rules, loaded.lists).unwrap();
    };
    let before = map([("removed///library/allowed", 3), ("removed///library/limited", 1)]);
    assert_eq!(decisions(&limiter), before);
    install("rules: [{ id: kept, limit: 9/h }]");
    assert_eq!(decisions(&limiter), BTreeMap::new());
    for _ in 0..20 {
        install("rules: [{ id: kept, limit: 100/h }]");
        check(&limiter, &of("two"));
    }
    assert_eq!(decisions(&limiter), map([("kept///library/allowed", 20)]));
}

/// A shadow rule beside an enforced one: the decision is counted once, and what is left of both is known.
#[test]
fn what_is_left_of_a_shadow_rule_is_known() {
    let limiter = limiter("rules: [{ id: hard, limit: 10/h }, { id: tried, limit: 4/h, on_exceed: shadow }]");
    (0..6).for_each(|_| check(&limiter, &of("one")));
    let expected = map([("hard///library/allowed", 4), ("tried///library/shadow_limited", 2)]);
    assert_eq!(decisions(&limiter), expected);
    let remaining: Vec<(String, u64)> = samples(&limiter)
        .of_metric(&catalog::REMAINING)
        .iter()
        .map(|sample| match &sample.value {
            MetricValue::Histogram(histogram) => (sample.labels[0].to_string(), histogram.count()),
            _ => panic!("a histogram"),
        })
        .collect();
    assert_eq!(remaining, [("hard".to_owned(), 4), ("tried".to_owned(), 4)]);
}

#[test]
fn invalid_requests_are_no_decisions() {
    let limiter = limiter("rules: [{ id: api, limit: 5/h }]");
    check(&limiter, &Request { cost: 9, ..of("one") });
    check(&limiter, &Request { cost: 0, door: Door::Check, ..of("one") });
    assert!(Arc::clone(&limiter).admit(&Request { cost: 9, door: Door::Gateway, ..of("one") }).is_err());
    assert_eq!(decisions(&limiter), BTreeMap::new());
    let samples = samples(&limiter);
    let invalid = samples.of_metric(&catalog::INVALID_REQUESTS).iter();
    let invalid: Vec<_> = invalid.map(|sample| (sample.labels[0].to_string(), sample.as_count())).collect();
    let expected =
        [("library", 1), ("layer", 0), ("check", 1), ("gateway", 1), ("resp", 0), ("auth", 0), ("rls", 0)];
    let expected = expected.map(|(door, count)| (door.to_owned(), Some(count)));
    assert_eq!(invalid, expected);
}

#[test]
fn a_limiter_that_does_not_count_decides_the_same() {
    let limiter =
        Arc::into_inner(limiter("rules: [{ id: api, limit: 2/h }]")).unwrap().counting(Counting::Off);
    let allowed = || limiter.check(&of("one")).unwrap().now().unwrap().allowed();
    assert_eq!([allowed(), allowed(), allowed()], [true, true, false]);
    assert_eq!(decisions(&limiter), BTreeMap::new());
}
