//! The answer to a request over its limit as HTTP/1.1 sends it, for who is refused so often that it matters.

use super::RefusalContent;
use crate::headers::{
    self, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderOptions, HeaderSink, LimitSeconds,
};
use http::HeaderValue;
use std::time::{Duration, UNIX_EPOCH};
use tollgate_core::rate::SECOND_US;
use tollgate_limiter::{Decision, Terms};

/// The last second of the year 9999, after which there is no date.
const LAST: u64 = 253_402_300_799;

/// The last answer. Answers count in seconds: what is said again within one is mostly the same.
#[derive(Debug)]
pub(crate) struct WrittenRefusal {
    about: RefusalFacts,
    text: Vec<u8>,
    body_bytes: usize,
}

/// All that an answer depends on, but what is the same for all requests that a connection repeats.
#[derive(Debug, PartialEq, Eq)]
struct RefusalFacts {
    terms: Terms,
    seconds: LimitSeconds,
    remaining: u32,
    degraded: bool,
    is_last: bool,
    now: u64,
}

/// Appends the answer to `text`, and answers the length of its body. `is_last` says that the connection ends with it.
pub(crate) fn write(
    decision: &Decision,
    options: &HeaderOptions,
    prefers_problem: bool,
    is_last: bool,
    said: &mut Option<WrittenRefusal>,
    text: &mut Vec<u8>,
) -> usize {
    let Some((terms, standing)) = decision.standing() else { return 0 };
    let about = RefusalFacts {
        terms,
        seconds: options.seconds(decision, &terms, &standing),
        remaining: standing.remaining,
        degraded: decision.degraded,
        is_last,
        now: (decision.now_us / SECOND_US).min(LAST),
    };
    let said = match said {
        Some(said) if said.about == about => said,
        _ => said.insert(WrittenRefusal::new(about, decision, options, prefers_problem)),
    };
    text.extend_from_slice(&said.text);
    said.body_bytes
}

impl WrittenRefusal {
    fn new(about: RefusalFacts, decision: &Decision, options: &HeaderOptions, prefers_problem: bool) -> Self {
        let RefusalContent { media_type, body, .. } = RefusalContent::of(decision, options, prefers_problem);
        let mut text = b"HTTP/1.1 429 Too Many Requests\r\n".to_vec();
        options.write_lines(decision, &mut text);
        text.line(&CONTENT_TYPE, HeaderValue::from_static(media_type));
        text.line(&CONTENT_LENGTH, headers::number(body.len() as u64));
        if about.is_last {
            text.line(&CONNECTION, HeaderValue::from_static("close"));
        }
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(about.now));
        text.line(&DATE, HeaderValue::try_from(date).expect("a date is header text"));
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(&body);
        Self { about, text, body_bytes: body.len() }
    }
}
