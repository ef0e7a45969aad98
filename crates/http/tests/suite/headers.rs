//! The headers of a decision, byte for byte.

use crate::decisions::{START_US, TestLimiter};
use http::HeaderMap;
use tollgate_http::{HeaderOptions, ResetFormat, UnavailableStatus, response};
use tollgate_limiter::Decision;
use tollgate_testbed::limit_headers;

const ALL: HeaderOptions = HeaderOptions {
    x_ratelimit: true,
    ratelimit: true,
    legacy: true,
    reset: ResetFormat::Unix,
    retry_jitter: None,
    store_unavailable: UnavailableStatus::ServiceUnavailable,
};
const NONE: HeaderOptions = HeaderOptions {
    x_ratelimit: false,
    ratelimit: false,
    legacy: false,
    reset: ResetFormat::Unix,
    retry_jitter: None,
    store_unavailable: UnavailableStatus::ServiceUnavailable,
};

fn written(options: HeaderOptions, decision: &Decision) -> Vec<String> {
    let mut headers = HeaderMap::new();
    options.write(decision, &mut headers);
    limit_headers(&headers)
}

#[test]
fn headers_of_an_admitted_request() {
    let decision = TestLimiter::orders().check("sk_1", 60);
    let expected = [
        "ratelimit-policy: \"orders\";q=100;w=60",
        "ratelimit: \"orders\";r=40;t=36",
        "x-ratelimit-limit: 100",
        "x-ratelimit-remaining: 40",
        "x-ratelimit-reset: 1800000036",
    ];
    assert_eq!(written(HeaderOptions::default(), &decision), expected);
}

#[test]
fn headers_of_a_limited_request() {
    let limiter = TestLimiter::orders();
    limiter.check("sk_1", 100);
    let expected = [
        "ratelimit-policy: \"orders\";q=100;w=60",
        "ratelimit: \"orders\";r=0;t=60",
        "retry-after: 36",
        "x-ratelimit-limit: 100",
        "x-ratelimit-remaining: 0",
        "x-ratelimit-reset: 1800000060",
    ];
    assert_eq!(written(HeaderOptions::default(), &limiter.check("sk_1", 60)), expected);
}

#[test]
fn each_family_can_be_switched_on_alone() {
    let limiter = TestLimiter::orders();
    limiter.check("sk_1", 100);
    let decision = limiter.check("sk_1", 1);
    let table: [(HeaderOptions, &[&str]); 5] = [
        (NONE, &["retry-after: 1"]),
        (
            HeaderOptions { x_ratelimit: true, ..NONE },
            &[
                "retry-after: 1",
                "x-ratelimit-limit: 100",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 1800000060",
            ],
        ),
        (
            HeaderOptions { x_ratelimit: true, reset: ResetFormat::Delta, ..NONE },
            &[
                "retry-after: 1",
                "x-ratelimit-limit: 100",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 60",
            ],
        ),
        (
            HeaderOptions { ratelimit: true, ..NONE },
            &["ratelimit-policy: \"orders\";q=100;w=60", "ratelimit: \"orders\";r=0;t=60", "retry-after: 1"],
        ),
        (
            HeaderOptions { legacy: true, ..NONE },
            &["ratelimit-limit: 100", "ratelimit-remaining: 0", "ratelimit-reset: 60", "retry-after: 1"],
        ),
    ];
    for (options, expected) in table {
        assert_eq!(written(options, &decision), expected, "{options:?}");
    }
}

#[test]
fn seconds_are_rounded_up_and_a_wait_is_at_least_one() {
    // One token is refilled each second. (sent after, Retry-After, seconds to the reset)
    let limiter = TestLimiter::new(
        "rules: [{ id: one, algorithm: token_bucket, params: { capacity: 2, refill_rate: 1 } }]",
    );
    limiter.check("sk_1", 2);
    let table = [(0, "1", "2"), (400_000, "1", "2"), (999_999, "1", "2"), (999_998, "1", "2"), (1, "1", "2")];
    for (after_us, retry_after, reset) in table {
        limiter.clock.set_us(START_US + after_us);
        let options = HeaderOptions { x_ratelimit: true, reset: ResetFormat::Delta, ..NONE };
        let lines = written(options, &limiter.check("sk_1", 1));
        assert_eq!(lines[0], format!("retry-after: {retry_after}"), "{after_us}");
        assert_eq!(lines[3], format!("x-ratelimit-reset: {reset}"), "{after_us}");
    }
    // Two tokens after 0.4 s: 1.6 s are 2.
    limiter.clock.set_us(START_US + 400_000);
    assert_eq!(written(NONE, &limiter.check("sk_1", 2)), ["retry-after: 2"]);
    // An instant is rounded up as a whole, not its parts: 0.4 s + 1.6 s are 2 s after the start.
    let options = HeaderOptions { x_ratelimit: true, ..NONE };
    assert_eq!(written(options, &limiter.check("sk_1", 2))[3], "x-ratelimit-reset: 1800000002");
}

#[test]
fn unlimited_requests_have_no_headers() {
    let limiter = TestLimiter::orders();
    let unmatched = TestLimiter::new("rules: [{ id: orders, endpoint: /v1/orders, limit: 1/s }]");
    for decision in
        [limiter.check("sk_internal_1", 1), limiter.check("sk_bad", 1), unmatched.check("sk_1", 1)]
    {
        assert_eq!(written(ALL, &decision), [""; 0], "{decision:?}");
    }
}

#[test]
fn headers_of_a_degraded_decision() {
    let mut decision = TestLimiter::orders().check("sk_1", 1);
    decision.degraded = true;
    let expected = [
        "ratelimit-limit: 100",
        "ratelimit-policy: \"orders\";q=100;w=60",
        "ratelimit-reset: 1",
        "x-ratelimit-limit: 100",
        "x-ratelimit-policy: degraded",
        "x-ratelimit-remaining: -1",
        "x-ratelimit-reset: 1800000001",
    ];
    assert_eq!(written(ALL, &decision), expected);
}

#[test]
fn every_policy_name_is_valid_in_headers() {
    let limiter = TestLimiter::new("rules: [{ id: fine, algorithm: gcra, limits: [1/500us, 250/day] }]");
    let decision = limiter.check("sk_1", 1);
    let lines = written(HeaderOptions { ratelimit: true, ..NONE }, &decision);
    assert_eq!(lines[0], "ratelimit-policy: \"fine.500us\";q=1;w=1");
}

#[test]
fn options_are_read_from_a_document() {
    let read = |json: &str| serde_json::from_str::<HeaderOptions>(json);
    assert_eq!(read("{}").unwrap(), HeaderOptions::default());
    let options =
        read(r#"{"x_ratelimit":false,"legacy":true,"reset":"delta","store_unavailable":429}"#).unwrap();
    let expected = HeaderOptions {
        x_ratelimit: false,
        ratelimit: true,
        legacy: true,
        reset: ResetFormat::Delta,
        retry_jitter: None,
        store_unavailable: UnavailableStatus::TooManyRequests,
    };
    assert_eq!(options, expected);
    assert!(read(r#"{"store_unavailable":500}"#).is_err());
    assert!(read(r#"{"x_rate_limit":true}"#).is_err());
    assert!(read(r#"{"reset":"never"}"#).is_err());
}

#[test]
fn jitter_only_lengthens_the_retry_time_and_body_and_header_agree() {
    let limiter = TestLimiter::orders();
    let options: HeaderOptions = serde_json::from_str(r#"{"retry_jitter":"9s"}"#).unwrap();
    limiter.check("k", 100);
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let decision = limiter.check("k", 1);
        let answer = response::refusal(&decision, &options, &HeaderMap::new()).unwrap();
        let wait: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        let body = format!("{:?}", answer.body());
        assert!(body.contains(&format!("retry_after_seconds\\\":{wait}")), "{body}");
        assert!((1..=10).contains(&wait), "{wait}");
        waits.insert(wait);
        limiter.clock.advance_us(1);
    }
    assert!(waits.len() >= 9, "{waits:?}");
}
