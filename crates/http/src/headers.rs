//! The headers of a decision, and every header name that Tollgate writes or reads.
//!
//! There are three families with the same content: `X-RateLimit-*`, which most clients read; `RateLimit` and
//! `RateLimit-Policy`, the IETF draft (structured fields); and `RateLimit-Limit/-Remaining/-Reset`, an older draft that some
//! clients still read. `Retry-After` is written whenever a retry time is known.
//!
//! A limit on requests in flight has neither a `Retry-After` nor a reset: it is not known when a request will end, and a client would
//! wait for the time that it is told.

pub(crate) mod limit_text;

use crate::body::ErrorCode;
use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use tollgate_core::rate::SECOND_US;
use tollgate_core::rules::short_forms::DurationText;
use tollgate_core::time::UnixTime;
use tollgate_limiter::{Decision, Flagged, LimitStatus, LimitTerms, Outcome};

pub use http::header::ACCEPT;
pub(crate) use http::header::{ALLOW, AUTHORIZATION, COOKIE, FORWARDED, ORIGIN};

pub(crate) static CONNECTION: HeaderName = http::header::CONNECTION;
pub(crate) static CONTENT_TYPE: HeaderName = http::header::CONTENT_TYPE;

pub(crate) static X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The addresses that a request was forwarded by.
pub static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The scheme that the client used.
pub static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The host that the client sent.
pub static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) static X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
pub(crate) static X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
pub(crate) static X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
pub(crate) static X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
pub(crate) static X_ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");
pub(crate) static X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// The status for the client, in a refusal that has another one for the proxy.
pub(crate) static X_TOLLGATE_STATUS: HeaderName = HeaderName::from_static("x-tollgate-status");
pub(crate) static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) static GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

static RETRY_AFTER: HeaderName = http::header::RETRY_AFTER;
static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static X_POLICY: HeaderName = HeaderName::from_static("x-ratelimit-policy");
static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static LEGACY_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
static LEGACY_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
static LEGACY_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

const UNKNOWN_REMAINING: HeaderValue = HeaderValue::from_static("-1");
const DEGRADED: HeaderValue = HeaderValue::from_static("degraded");

/// Which headers are written: the `headers:` section of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeaderOptions {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// `RateLimit-Policy` and `RateLimit`, the IETF draft.
    pub ratelimit: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, an older draft.
    pub legacy: bool,
    /// The form of `X-RateLimit-Reset`.
    pub reset: ResetFormat,
    /// Up to this time is added to `Retry-After` at random, so that clients that were refused together do not retry together. None by
    /// default.
    pub retry_jitter: Option<DurationText>,
    /// The status of a refusal because the store is unavailable.
    pub store_unavailable: UnavailableStatus,
}

/// The status of a refusal because the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u16")]
pub enum UnavailableStatus {
    /// 503: the client has exceeded nothing.
    #[default]
    ServiceUnavailable,
    /// 429, for clients that retry nothing else.
    TooManyRequests,
}

impl TryFrom<u16> for UnavailableStatus {
    type Error = UnsupportedStatus;

    fn try_from(status: u16) -> Result<Self, UnsupportedStatus> {
        match status {
            503 => Ok(Self::ServiceUnavailable),
            429 => Ok(Self::TooManyRequests),
            other => Err(UnsupportedStatus(other)),
        }
    }
}

/// A status that is no [`UnavailableStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not supported here; write 503 or 429")]
pub struct UnsupportedStatus(u16);

impl UnavailableStatus {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::ServiceUnavailable => ErrorCode::StoreUnavailable.status(),
            Self::TooManyRequests => ErrorCode::RateLimitExceeded.status(),
        }
    }
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self {
            x_ratelimit: true,
            ratelimit: true,
            legacy: false,
            reset: ResetFormat::Unix,
            retry_jitter: None,
            store_unavailable: UnavailableStatus::default(),
        }
    }
}

/// The form of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetFormat {
    /// An instant in Unix seconds.
    #[default]
    Unix,
    /// Seconds from now.
    Delta,
}

impl HeaderOptions {
    /// Writes the headers of `decision`. If no limit decided, there are none.
    pub fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        // A map that grows while it is filled is built several times.
        headers.reserve(self.count() + usize::from(matches!(decision.outcome, Outcome::Limited(_))));
        let Some((terms, standing)) = decision.standing() else { return };
        let seconds = self.seconds(decision, &terms, &standing);
        if let Some(retry_after) = seconds.retry_after {
            headers.insert(&RETRY_AFTER, number(retry_after));
        }
        limit_text::with(&terms, |text| {
            if self.x_ratelimit {
                headers.insert(&X_LIMIT, text.limit.clone());
                if decision.degraded {
                    headers.insert(&X_REMAINING, UNKNOWN_REMAINING);
                    headers.insert(&X_POLICY, DEGRADED);
                } else {
                    headers.insert(&X_REMAINING, number(standing.remaining.into()));
                }
                match (seconds.reset, self.reset) {
                    (Some(reset), ResetFormat::Unix) => drop(headers.insert(&X_RESET, number(reset.at))),
                    (Some(reset), ResetFormat::Delta) => drop(headers.insert(&X_RESET, number(reset.after))),
                    (None, _) => drop(headers.remove(&X_RESET)),
                }
            }
            if self.ratelimit {
                headers.insert(&RATELIMIT_POLICY, text.policy.clone());
                // What remains is not known of a degraded decision, and this field cannot say so.
                if !decision.degraded {
                    let reset_after = seconds.reset.map(|reset| reset.after);
                    let item = standing_item(&text.name, standing.remaining.into(), reset_after);
                    headers.insert(&RATELIMIT, item);
                }
            }
            if self.legacy {
                headers.insert(&LEGACY_LIMIT, text.limit.clone());
                if !decision.degraded {
                    headers.insert(&LEGACY_REMAINING, number(standing.remaining.into()));
                }
                match seconds.reset {
                    Some(reset) => drop(headers.insert(&LEGACY_RESET, number(reset.after))),
                    None => drop(headers.remove(&LEGACY_RESET)),
                }
            }
        });
    }

    /// The number of headers of the families that are written; one more if degraded.
    fn count(&self) -> usize {
        3 * usize::from(self.x_ratelimit) + 2 * usize::from(self.ratelimit) + 3 * usize::from(self.legacy)
    }
}

/// The numbers below 100 in two digits each. Most numbers in headers are that small, and need no allocation.
static PAIRS: &str = "00010203040506070809101112131415161718192021222324252627282930313233343536373839\
                      40414243444546474849505152535455565758596061626364656667686970717273747576777879\
                      8081828384858687888990919293949596979899";

fn number(number: u64) -> HeaderValue {
    let end = number.saturating_mul(2).saturating_add(2);
    match usize::try_from(end).ok().and_then(|end| PAIRS.get(end - if number < 10 { 1 } else { 2 }..end)) {
        Some(digits) => HeaderValue::from_static(digits),
        None => value(itoa::Buffer::new().format(number).as_bytes().to_vec()),
    }
}

/// `"policy";r=17;t=13`, or without a reset `"policy";r=17`.
fn standing_item(name: &[u8], remaining: u64, reset_after: Option<u64>) -> HeaderValue {
    let mut digits = [itoa::Buffer::new(), itoa::Buffer::new()];
    let [one, two] = &mut digits;
    let remaining = one.format(remaining).as_bytes();
    let (before_reset, reset_after): (&[u8], &[u8]) = match reset_after {
        Some(reset_after) => (b";t=", two.format(reset_after).as_bytes()),
        None => (b"", b""),
    };
    let parts = [name, b";r=", remaining, before_reset, reset_after];
    let mut item = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| item.extend_from_slice(part));
    value(item)
}

/// Without a copy if the capacity of `text` is its length.
fn value(text: Vec<u8>) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text))
        .expect("digits, punctuation and printable names are valid in headers")
}

/// Writes a flag for the upstream.
pub(crate) fn write_flag(flag: &Flagged, headers: &mut HeaderMap) {
    let (Ok(name), Ok(value)) = (HeaderName::try_from(flag.header), HeaderValue::try_from(&*flag.value()))
    else {
        // Both are validated with the rules.
        return;
    };
    headers.insert(name, value);
}

impl HeaderOptions {
    /// The retry time with its jitter, if there is one.
    pub(crate) fn wait_us(&self, standing: &LimitStatus, now: UnixTime) -> Option<u64> {
        let wait_us = standing.wait_us()?;
        let jitter_us = match self.retry_jitter {
            // Pseudo-random, and the same for the headers and the body of one decision.
            Some(most) => mixed(now.as_us() ^ standing.reset_after_us.rotate_left(32)) % (most.us + 1),
            None => 0,
        };
        Some(wait_us.saturating_add(jitter_us))
    }

    /// What the headers and the body say of a decision, in whole seconds.
    pub fn seconds(&self, decision: &Decision, terms: &LimitTerms, standing: &LimitStatus) -> LimitSeconds {
        // Without the store only the quota of the limit is known.
        let has_reset = !terms.counts_in_flight() && !decision.store_unavailable;
        let reset_after_us = Some(standing.reset_after_us).filter(|_| has_reset);
        LimitSeconds {
            retry_after: self.wait_us(standing, decision.now).map(|wait_us| wait_us.div_ceil(SECOND_US)),
            reset: reset_after_us.map(|reset_after_us| ResetSeconds {
                after: reset_after_us.div_ceil(SECOND_US),
                at: (decision.now + reset_after_us).as_us().div_ceil(SECOND_US),
            }),
        }
    }
}

/// A mixing function (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The times of a decision in whole seconds, rounded up: a client that waits for them is never too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSeconds {
    /// At least 1; none if the request was admitted, or if no retry time is known.
    pub retry_after: Option<u64>,
    /// None for a limit on requests in flight, or if the store is unavailable.
    pub reset: Option<ResetSeconds>,
}

/// When a limit is unused again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetSeconds {
    /// From now.
    pub after: u64,
    /// In Unix time.
    pub at: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal() {
        for value in (0..1_000).chain([u64::MAX / 2, u64::MAX - 1, u64::MAX]) {
            assert_eq!(number(value), value.to_string());
        }
    }
}
