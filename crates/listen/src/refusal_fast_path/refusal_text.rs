//! A refusal as HTTP/1.1 sends it.

use super::RefusalAction;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use http_body_util::BodyExt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};
use tollgate_core::rate::SECOND_US;
use tollgate_http::headers::LimitSeconds;
use tollgate_http::{FullResponse, HeaderOptions, response};
use tollgate_limiter::{Decision, LimitTerms};

/// The last second of the year 9999, after which HTTP has no date.
const LAST_SECOND: u64 = 253_402_300_799;

/// The last response, which is mostly the next one too: its numbers are whole seconds.
#[derive(Debug, Default)]
pub(super) struct RefusalText {
    facts: Option<RefusalFacts>,
    bytes: Vec<u8>,
    body_bytes: usize,
    /// A header that is the same in all responses.
    added: Option<(HeaderName, HeaderValue)>,
}

/// Everything that the response to a repeat depends on.
#[derive(Debug, PartialEq, Eq)]
struct RefusalFacts {
    terms: LimitTerms,
    seconds: LimitSeconds,
    remaining: u32,
    degraded: bool,
    action: RefusalAction,
    now: u64,
}

impl RefusalText {
    pub(super) fn add_header(&mut self, name: HeaderName, value: HeaderValue) {
        self.added = Some((name, value));
    }

    /// Appends the response to `out`, and returns the length of its body. `headers` are those of the request.
    pub(super) fn write(
        &mut self,
        decision: &Decision,
        options: &HeaderOptions,
        headers: &HeaderMap,
        action: RefusalAction,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some((terms, standing)) = decision.standing() else { return 0 };
        let facts = RefusalFacts {
            terms,
            seconds: options.seconds(decision, &terms, &standing),
            remaining: standing.remaining,
            degraded: decision.degraded,
            action,
            now: (decision.now.as_us() / SECOND_US).min(LAST_SECOND),
        };
        if self.facts.as_ref() != Some(&facts)
            && let Some(response) = response::refusal(decision, options, headers)
        {
            self.serialize(response, action, facts.now);
            self.facts = Some(facts);
        }
        out.extend_from_slice(&self.bytes);
        self.body_bytes
    }

    /// Writes `response` in the order in which hyper does.
    fn serialize(&mut self, response: FullResponse, action: RefusalAction, now: u64) {
        let (parts, body) = response.into_parts();
        let body = match pin!(body.collect()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(body)) => body.to_bytes(),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => Default::default(),
        };
        self.bytes.clear();
        let status = format!("{:?} {}\r\n", Version::HTTP_11, parts.status);
        self.bytes.extend_from_slice(status.as_bytes());
        for (name, value) in &parts.headers {
            self.line(name, value.as_bytes());
        }
        if let Some((name, value)) = self.added.clone() {
            self.line(&name, value.as_bytes());
        }
        if action == RefusalAction::RefuseAndClose {
            self.line(&CONNECTION, b"close");
        }
        self.line(&CONTENT_LENGTH, body.len().to_string().as_bytes());
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now));
        self.line(&DATE, date.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes.extend_from_slice(&body);
        self.body_bytes = body.len();
    }

    fn line(&mut self, name: &HeaderName, value: &[u8]) {
        for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
            self.bytes.extend_from_slice(part);
        }
    }
}
