//! What an answer says about limits.
//!
//! Read are `Retry-After` (seconds or a date), the IETF draft's `RateLimit` and `RateLimit-Policy` (structured fields),
//! and where these are absent `X-RateLimit-*`, or `RateLimit-Limit/-Remaining/-Reset` of an older draft, or its
//! `RateLimit: limit=…, remaining=…, reset=…`. What cannot be understood counts as absent.

use crate::fields::{self, Item};
use http::{HeaderMap, header};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nothing that is said is taken for longer than ten years, so that it can be added to any instant.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
/// A reset above this is an instant in unix seconds, one below a number of seconds from now.
const UNIX_FROM: u64 = 1_000_000_000;

/// What an answer says about limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Nothing is admitted before.
    pub retry_after: Option<Duration>,
    /// The limit of which the least is left.
    pub quota: Option<Quota>,
}

/// How things stand with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// What is left.
    pub remaining: u64,
    /// Until there is more.
    pub reset: Duration,
    /// How much there is in all, if that is said.
    pub limit: Option<u64>,
    /// Over how long, if that is said.
    pub window: Option<Duration>,
}

impl Advice {
    /// What the headers of an answer say. `now` counts only where they give dates without saying what day it is.
    pub fn read(headers: &HeaderMap, now: SystemTime) -> Self {
        let today =
            text(headers, header::DATE.as_str()).and_then(|date| httpdate::parse_http_date(date).ok());
        let now = today.unwrap_or(now);
        let quota = structured(headers).or_else(|| prefixed(headers, "x-ratelimit-", now));
        let quota = quota.or_else(|| prefixed(headers, "ratelimit-", now)).or_else(|| keyed(headers));
        Self { retry_after: retry_after(headers, now), quota }
    }
}

fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = text(headers, header::RETRY_AFTER.as_str())?;
    if let Some(seconds) = fields::number(value) {
        return Some(span(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    // A date that is over means now.
    Some(date.duration_since(now).unwrap_or_default().min(LONGEST))
}

/// `RateLimit: "name";r=17;t=13` and `RateLimit-Policy: "name";q=100;w=60`.
fn structured(headers: &HeaderMap) -> Option<Quota> {
    let policies: Vec<Item> = all(headers, "ratelimit-policy");
    let quotas = all(headers, "ratelimit").into_iter().filter_map(|item| {
        let policy = policies.iter().find(|policy| policy.name == item.name);
        let window = policy.and_then(|policy| policy.number("w")).map(span);
        Some(Quota {
            remaining: item.number("r")?,
            // Without a reset, what is left is good for a whole window.
            reset: item.number("t").map(span).or(window)?,
            limit: policy.and_then(|policy| policy.number("q")),
            window,
        })
    });
    quotas.min_by_key(|quota| (quota.remaining, std::cmp::Reverse(quota.reset)))
}

/// `X-RateLimit-Limit`, `-Remaining`, `-Reset`, and the same without the X.
fn prefixed(headers: &HeaderMap, prefix: &str, now: SystemTime) -> Option<Quota> {
    let number = |name: &str| fields::number(text(headers, &format!("{prefix}{name}"))?);
    let reset = match number("reset")? {
        unix if unix >= UNIX_FROM => {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            Duration::from_secs(unix).saturating_sub(since).min(LONGEST)
        }
        seconds => span(seconds),
    };
    Some(Quota { remaining: number("remaining")?, reset, limit: number("limit"), window: None })
}

/// `RateLimit: limit=100, remaining=50, reset=5`.
fn keyed(headers: &HeaderMap) -> Option<Quota> {
    let items = all(headers, "ratelimit");
    let number = |key: &str| {
        items.iter().find_map(|item| {
            let (name, value) = item.name.split_once('=')?;
            if name.trim().eq_ignore_ascii_case(key) { fields::number(value) } else { None }
        })
    };
    let (remaining, reset) = (number("remaining")?, number("reset").map(span)?);
    Some(Quota { remaining, reset, limit: number("limit"), window: None })
}

fn span(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(LONGEST)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn all(headers: &HeaderMap, name: &str) -> Vec<Item> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(fields::items).collect()
}
