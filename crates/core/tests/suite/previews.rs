//! Replays of sampled traffic under two rule sets.

use tollgate_core::rules::short_forms::AddressText;
use tollgate_core::rules::written::RuleTestRequest;
use tollgate_core::rules::{
    LoadedRules, PreviewCounts, PreviewTotals, RULE_TEST_START, SampledRequest, load, preview,
};

fn rules(text: &str) -> LoadedRules {
    load("x", text).unwrap_or_else(|report| panic!("{report}"))
}

fn sample(at_us: u64, weight: u32, key: &str, endpoint: &str) -> SampledRequest {
    let fields = RuleTestRequest {
        key: Some(key.to_owned()),
        ip: Some(AddressText([203, 0, 113, 9].into())),
        endpoint: Some(endpoint.to_owned()),
        ..RuleTestRequest::default()
    };
    SampledRequest { at: RULE_TEST_START + at_us, weight, fields }
}

const SECOND_US: u64 = 1_000_000;

/// 60 s of two clients: one sends one request a second, the other ten.
fn two_clients() -> Vec<SampledRequest> {
    let mut samples: Vec<_> =
        (0..600).map(|n| sample(n * SECOND_US / 10, 1, "sk_busy_1234567890", "/a")).collect();
    samples.extend((0..60).map(|n| sample(n * SECOND_US, 1, "calm", "/b")));
    samples.sort_by_key(|sample| sample.at);
    samples
}

#[test]
fn a_lower_limit_shows_the_clients_that_it_hits() {
    let (before, after) =
        (rules("rules: [{ id: api, limit: 20/s }]"), rules("rules: [{ id: api, limit: 120/min }]"));
    let preview = preview(&two_clients(), &before, &after, |_| String::new(), || true);
    assert!(preview.exact && !preview.partial);
    assert_eq!((preview.requests, preview.samples), (660, 660));
    assert_eq!(preview.window_seconds, 59.9);
    assert_eq!(preview.before, PreviewTotals { admitted: 660, ..PreviewTotals::default() });
    // 120 at once and 2 a second: 59.9 s give 119 more.
    assert_eq!(preview.after, PreviewTotals { admitted: 299, limited: 361, ..PreviewTotals::default() });
    let [rule] = preview.rules.as_slice() else { panic!("{:?}", preview.rules) };
    assert_eq!(
        (rule.id.as_str(), rule.before, rule.after),
        ("api", PreviewCounts { admitted: 660, limited: 0 }, PreviewCounts { admitted: 299, limited: 361 })
    );
    let [key] = preview.keys.as_slice() else { panic!("{:?}", preview.keys) };
    assert_eq!((key.kind.as_str(), key.key.as_str()), ("api_key", "sk_busy_…"));
    assert_eq!((key.requests, key.refused_before, key.refused_after), (600, 0, 361));
    let json = serde_json::to_string(&preview).unwrap();
    assert!(!json.contains("sk_busy_1234567890"), "{json}");
}

#[test]
fn lists_and_other_rules_are_replayed() {
    let before =
        rules("rules: [{ id: a, endpoint: /a, limit: 1/s }, { id: busy, algorithm: concurrency, limit: 1 }]");
    let after = rules("rules: [{ id: b, endpoint: /b, limit: 1/s, on_exceed: shadow }]\ndeny: [sk_busy_*]");
    let preview = preview(&two_clients(), &before, &after, |_| String::new(), || true);
    assert_eq!(preview.ignored, ["busy"]);
    assert_eq!((preview.before.admitted, preview.before.unlimited, preview.before.limited), (60, 60, 540));
    assert_eq!((preview.after.denied, preview.after.admitted + preview.after.unlimited), (600, 60));
    assert_eq!(preview.rules[0].before, PreviewCounts { admitted: 60, limited: 540 });
}

/// A tenth of the requests with a weight of ten gives what all of them give; a client that was sampled once is not one
/// with ten requests.
#[test]
fn weights_stand_for_requests() {
    let (before, after) =
        (rules("rules: [{ id: api, limit: 20/s }]"), rules("rules: [{ id: api, limit: 5/s }]"));
    let mut samples: Vec<_> = (1..=60).map(|n| sample(n * SECOND_US, 10, "busy", "/a")).collect();
    samples.extend((0..100).map(|n| sample(n * SECOND_US / 2, 10, &format!("rare{n}"), "/a")));
    samples.sort_by_key(|sample| sample.at);
    let weighted = preview(&samples, &before, &after, |_| String::new(), || true);
    assert!(!weighted.exact);
    assert_eq!((weighted.requests, weighted.samples), (1_600, 160));
    assert_eq!((weighted.before.limited, weighted.before.admitted), (0, 1_600));
    assert!((290..=300).contains(&weighted.after.limited), "{weighted:?}");
    assert_eq!(weighted.keys.len(), 1);

    // A client far above its limit costs no more than what it is admitted.
    let heavy: Vec<_> = (1..=300).map(|n| sample(n * SECOND_US, 1_000_000, "storm", "/a")).collect();
    let mut checks = 0;
    let storm = preview(
        &heavy,
        &before,
        &after,
        |_| String::new(),
        || {
            checks += 1;
            true
        },
    );
    assert!(!storm.partial && storm.requests > 298_000_000, "{storm:?}");
    assert!((5_900..=6_100).contains(&storm.before.admitted), "{storm:?}");
    assert!((1_480..=1_520).contains(&storm.after.admitted), "{storm:?}");
    assert!(checks < 100, "{checks}");
}

/// Both rule sets are cut off at the same time.
#[test]
fn an_interrupted_replay_is_partial() {
    let (before, after) =
        (rules("rules: [{ id: api, limit: 20/s }]"), rules("rules: [{ id: api, limit: 1/day }]"));
    let samples: Vec<_> = (0..3_000).map(|n| sample(n * 10_000, 1, &format!("k{n}"), "/a")).collect();
    for most in [0, 1, 5, 10] {
        let mut left = most;
        let preview = preview(
            &samples,
            &before,
            &after,
            |_| String::new(),
            || {
                left -= 1;
                left >= 0
            },
        );
        assert!(preview.partial);
        let sum = |totals: PreviewTotals| totals.admitted + totals.limited;
        assert_eq!(sum(preview.before), sum(preview.after));
        assert_eq!(preview.requests, sum(preview.before));
        assert!(preview.requests >= u64::try_from(most).unwrap() * 100, "{preview:?}");
    }
    let none = preview(&[], &before, &after, |_| String::new(), || true);
    assert!(none.exact && !none.partial && none.requests == 0);
}
