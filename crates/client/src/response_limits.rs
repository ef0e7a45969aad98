//! What a response states about limits.
//!
//! The headers read are `Retry-After` (seconds or a date), the IETF draft's `RateLimit` and `RateLimit-Policy`
//! (structured fields), and where these are absent `X-RateLimit-*`, `RateLimit-Limit/-Remaining/-Reset` of an older
//! draft, or its `RateLimit: limit=…, remaining=…, reset=…`. A header that cannot be parsed counts as absent.

use crate::structured_fields::{self, StructuredItem};
use http::{HeaderMap, header};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Every duration is capped at ten years, so that it can be added to any instant.
const MAX_SPAN: Duration = Duration::from_secs(10 * 365 * 86_400);
/// A reset from this on is a time in Unix seconds; a smaller one is a number of seconds from now.
const UNIX_FROM: u64 = 1_000_000_000;

/// What a response states about limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseLimits {
    /// No request is admitted before.
    pub retry_after: Option<Duration>,
    /// The limit with the least remaining.
    pub quota: Option<RemainingQuota>,
}

/// The state of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingQuota {
    /// How many requests are left.
    pub remaining: u64,
    /// The time until there are more.
    pub reset: Duration,
    /// The size of the limit, if it is stated.
    pub limit: Option<u64>,
    /// The window of the limit, if it is stated.
    pub window: Option<Duration>,
}

impl ResponseLimits {
    /// Reads the headers of a response. `now` is used only for dates in responses without a `Date`.
    pub fn read(headers: &HeaderMap, now: SystemTime) -> Self {
        let date = header_text(headers, header::DATE.as_str());
        let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
        let quota = from_structured(headers).or_else(|| from_prefixed(headers, "x-ratelimit-", now));
        let quota =
            quota.or_else(|| from_prefixed(headers, "ratelimit-", now)).or_else(|| from_key_values(headers));
        Self { retry_after: retry_after(headers, now), quota }
    }
}

fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = header_text(headers, header::RETRY_AFTER.as_str())?;
    if let Some(seconds) = structured_fields::number(value) {
        return Some(span(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    // A date in the past means now.
    Some(date.duration_since(now).unwrap_or_default().min(MAX_SPAN))
}

/// `RateLimit: "name";r=17;t=13` and `RateLimit-Policy: "name";q=100;w=60`.
fn from_structured(headers: &HeaderMap) -> Option<RemainingQuota> {
    let policies: Vec<StructuredItem> = header_items(headers, "ratelimit-policy");
    let quotas = header_items(headers, "ratelimit").into_iter().filter_map(|item| {
        let policy = policies.iter().find(|policy| policy.name == item.name);
        let window = policy.and_then(|policy| policy.number("w")).map(span);
        Some(RemainingQuota {
            remaining: item.number("r")?,
            // Without a reset, the remaining requests must last for a whole window.
            reset: item.number("t").map(span).or(window)?,
            limit: policy.and_then(|policy| policy.number("q")),
            window,
        })
    });
    quotas.min_by_key(|quota| (quota.remaining, std::cmp::Reverse(quota.reset)))
}

/// `X-RateLimit-Limit`, `-Remaining`, `-Reset`, and the same without the X.
fn from_prefixed(headers: &HeaderMap, prefix: &str, now: SystemTime) -> Option<RemainingQuota> {
    let number = |name: &str| structured_fields::number(header_text(headers, &format!("{prefix}{name}"))?);
    let reset = match number("reset")? {
        unix if unix >= UNIX_FROM => {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            Duration::from_secs(unix).saturating_sub(since).min(MAX_SPAN)
        }
        seconds => span(seconds),
    };
    Some(RemainingQuota { remaining: number("remaining")?, reset, limit: number("limit"), window: None })
}

/// `RateLimit: limit=100, remaining=50, reset=5`.
fn from_key_values(headers: &HeaderMap) -> Option<RemainingQuota> {
    let items = header_items(headers, "ratelimit");
    let number = |key: &str| {
        items.iter().find_map(|item| {
            let (name, value) = item.name.split_once('=')?;
            if name.trim().eq_ignore_ascii_case(key) { structured_fields::number(value) } else { None }
        })
    };
    let (remaining, reset) = (number("remaining")?, number("reset").map(span)?);
    Some(RemainingQuota { remaining, reset, limit: number("limit"), window: None })
}

fn span(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(MAX_SPAN)
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn header_items(headers: &HeaderMap, name: &str) -> Vec<StructuredItem> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(structured_fields::items).collect()
}
