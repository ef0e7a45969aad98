//! Reading limits from headers: tables, and arbitrary headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tollgate_client::{RemainingQuota, ResponseLimits};

/// 2026-11-16 05:00:00 UTC, a Monday.
const NOW: u64 = 1_794_805_200;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

fn read(lines: &[(&str, &str)]) -> ResponseLimits {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    ResponseLimits::read(&headers, now())
}

#[test]
fn retry_after_is_read_as_seconds_or_date() {
    let date = httpdate_text(NOW + 90);
    let past = httpdate_text(NOW - 90);
    for (value, expected) in [
        ("0", Some(0)),
        ("120", Some(120)),
        (" 7 ", Some(7)),
        ("1.5", Some(2)),
        (date.as_str(), Some(90)),
        (past.as_str(), Some(0)),
        ("Sunday, 06-Nov-94 08:49:37 GMT", Some(0)),
        ("99999999999999999999", Some(10 * 365 * 86_400)),
        ("-5", None),
        ("soon", None),
        ("", None),
    ] {
        let limits = read(&[("retry-after", value)]);
        assert_eq!(limits.retry_after, expected.map(Duration::from_secs), "{value}");
    }
    // The server's own date counts, not the local one.
    let date = httpdate_text(1_000_090);
    let limits = read(&[("date", &httpdate_text(1_000_000)), ("retry-after", &date)]);
    assert_eq!(limits.retry_after, Some(Duration::from_secs(90)));
}

fn httpdate_text(unix: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix))
}

#[test]
fn quotas_are_read_from_every_header_form() {
    let in_a_minute = (NOW + 60).to_string();
    type Expected = Option<(u64, u64, Option<u64>, Option<u64>)>;
    let rows: &[(&[(&str, &str)], Expected)] = &[
        (&[], None),
        (&[("ratelimit", r#""p";r=17;t=13"#)], Some((17, 13, None, None))),
        (
            &[("ratelimit-policy", r#""p";q=100;w=60"#), ("ratelimit", r#""p";r=17;t=13"#)],
            Some((17, 13, Some(100), Some(60))),
        ),
        // Of several limits, the one with the least remaining; the policy is found by name.
        (
            &[
                ("ratelimit-policy", r#""day";q=1000;w=86400, "second";q=10;w=1"#),
                ("ratelimit", r#""day";r=900;t=80000"#),
                ("ratelimit", r#""second";r=0;t=1"#),
            ],
            Some((0, 1, Some(10), Some(1))),
        ),
        (&[("ratelimit", r#""a";r=0;t=5, "b";r=0;t=50"#)], Some((0, 50, None, None))),
        // Without a reset, a whole window.
        (
            &[("ratelimit-policy", r#""p";q=5;w=9"#), ("ratelimit", r#""p";r=1"#)],
            Some((1, 9, Some(5), Some(9))),
        ),
        (&[("ratelimit", r#""p";r=1"#)], None),
        (&[("ratelimit", r#""p";t=1"#)], None),
        (
            &[
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "5"),
                ("x-ratelimit-reset", &in_a_minute),
            ],
            Some((5, 60, Some(100), None)),
        ),
        (&[("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "30")], Some((5, 30, None, None))),
        (&[("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "1500000000")], Some((5, 0, None, None))),
        // Degraded: the remaining quota is unknown.
        (&[("x-ratelimit-remaining", "-1"), ("x-ratelimit-reset", "30")], None),
        (&[("x-ratelimit-remaining", "5")], None),
        (
            &[("ratelimit-limit", "100"), ("ratelimit-remaining", "50"), ("ratelimit-reset", "5")],
            Some((50, 5, Some(100), None)),
        ),
        (&[("ratelimit", "limit=100, remaining=50, reset=5")], Some((50, 5, Some(100), None))),
        (&[("ratelimit", "nonsense"), ("x-ratelimit-remaining", "many")], None),
        // The newest draft wins.
        (
            &[("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "9"), ("ratelimit", r#""p";r=1;t=2"#)],
            Some((1, 2, None, None)),
        ),
    ];
    for (lines, expected) in rows {
        let expected = expected.map(|(remaining, reset, limit, window)| RemainingQuota {
            remaining,
            reset: Duration::from_secs(reset),
            limit,
            window: window.map(Duration::from_secs),
        });
        assert_eq!(read(lines).quota, expected, "{lines:?}");
    }
}

/// Any bytes can be read, and the durations read can be added to any instant.
#[test]
fn arbitrary_headers_yield_bounded_durations() {
    const NAMES: [&str; 9] = [
        "retry-after",
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "ratelimit-remaining",
        "ratelimit-reset",
        "date",
    ];
    bolero::check!().with_type::<Vec<(u8, Vec<u8>)>>().for_each(|lines| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_static(NAMES[usize::from(*name) % NAMES.len()]);
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(name, value);
            }
        }
        assert_bounded(&ResponseLimits::read(&headers, now()));
    });
}

/// The same for words that resemble real headers.
#[test]
fn arbitrary_words_yield_bounded_durations() {
    const WORDS: [&str; 22] = [
        "\"",
        "\\",
        ";",
        ",",
        "=",
        "r",
        "t",
        "q",
        "w",
        "r=5",
        ";t=10",
        "\"p\"",
        "99999999999999999999",
        "0",
        "-1",
        "1.5",
        "limit=",
        "remaining=3",
        "reset=4",
        " ",
        "p",
        "é",
    ];
    bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(limit, policy)| {
        let text = |words: &[u8]| -> String {
            words.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect()
        };
        let mut headers = HeaderMap::new();
        for (name, value) in [("ratelimit", text(limit)), ("ratelimit-policy", text(policy))] {
            headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        assert_bounded(&ResponseLimits::read(&headers, now()));
    });
}

fn assert_bounded(limits: &ResponseLimits) {
    let most = Duration::from_secs(10 * 365 * 86_400);
    assert!(limits.retry_after.is_none_or(|wait| wait <= most));
    if let Some(quota) = limits.quota {
        assert!(quota.reset <= most && quota.window.is_none_or(|window| window <= most));
    }
}
