//! The headers of a decision, and every header name that Tollgate writes or looks at.
//!
//! Three families say the same thing. `X-RateLimit-*` is what most clients read, `RateLimit` and
//! `RateLimit-Policy` are the IETF draft (structured fields), and `RateLimit-Limit/-Remaining/-Reset` is
//! an older draft that some clients still want. `Retry-After` belongs to none and is always written.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use smallvec::SmallVec;
use tollgate_core::rate::SECOND_US;
use tollgate_core::rules::spelling::DurationText;
use tollgate_limiter::{Decision, Flagged, Outcome, Standing, Terms};

pub(crate) use http::header::{ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, COOKIE, FORWARDED};

pub(crate) static X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
pub(crate) static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
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

/// Which families of headers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeaderOptions {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// `RateLimit-Policy` and `RateLimit`, the IETF draft.
    pub ratelimit: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, an older draft.
    pub legacy: bool,
    /// What `X-RateLimit-Reset` counts from.
    pub reset: Reset,
    /// At most this much is added to `Retry-After`, more or less of it at random, so that those who were
    /// refused together do not return together. None by default.
    pub retry_jitter: Option<DurationText>,
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self { x_ratelimit: true, ratelimit: true, legacy: false, reset: Reset::Unix, retry_jitter: None }
    }
}

/// What `X-RateLimit-Reset` counts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    /// The epoch: it is an instant in unix seconds.
    #[default]
    Unix,
    /// Now: it is a number of seconds to wait.
    Delta,
}

impl HeaderOptions {
    /// Writes what the caller is told about `decision`. If no limit decided, that is nothing.
    pub fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        let Some((terms, standing)) = decision.standing() else { return };
        let seconds = self.seconds(&standing, decision.now_us);
        let mut values = Values::new();
        if matches!(decision.outcome, Outcome::Limited(_)) {
            values.number(&RETRY_AFTER, seconds.retry_after);
        }
        if self.x_ratelimit {
            values.number(&X_LIMIT, terms.quota.into());
            if decision.degraded {
                headers.insert(&X_REMAINING, UNKNOWN_REMAINING);
                headers.insert(&X_POLICY, DEGRADED);
            } else {
                values.number(&X_REMAINING, standing.remaining.into());
            }
            let reset = match self.reset {
                Reset::Unix => seconds.reset_at,
                Reset::Delta => seconds.reset_after,
            };
            values.number(&X_RESET, reset);
        }
        if self.ratelimit {
            values.policy(&terms);
            // What is left is not known of a degraded decision, and this field has no word for that.
            if !decision.degraded {
                let remaining = standing.remaining.into();
                values.item(&RATELIMIT, &terms, [(b";r=", remaining), (b";t=", seconds.reset_after)]);
            }
        }
        if self.legacy {
            values.number(&LEGACY_LIMIT, terms.quota.into());
            if !decision.degraded {
                values.number(&LEGACY_REMAINING, standing.remaining.into());
            }
            values.number(&LEGACY_RESET, seconds.reset_after);
        }
        values.put(headers);
    }
}

/// Tells the upstream of a request.
pub(crate) fn write_flag(flag: &Flagged, headers: &mut HeaderMap) {
    let (Ok(name), Ok(value)) = (HeaderName::try_from(flag.header), HeaderValue::try_from(&*flag.value()))
    else {
        // Both are checked when rules are read.
        return;
    };
    headers.insert(name, value);
}

impl HeaderOptions {
    /// How long the caller is told to wait.
    pub(crate) fn wait_us(&self, standing: &Standing, now_us: u64) -> u64 {
        let jitter_us = match self.retry_jitter {
            // The microsecond of a decision is as good as a die, and the same for header and body.
            Some(most) => mixed(now_us ^ standing.reset_after_us.rotate_left(32)) % (most.us + 1),
            None => 0,
        };
        standing.retry_after_us.saturating_add(jitter_us)
    }

    pub(crate) fn seconds(&self, standing: &Standing, now_us: u64) -> Seconds {
        Seconds {
            retry_after: self.wait_us(standing, now_us).div_ceil(SECOND_US).max(1),
            reset_after: standing.reset_after_us.div_ceil(SECOND_US),
            reset_at: now_us.saturating_add(standing.reset_after_us).div_ceil(SECOND_US),
        }
    }
}

/// Neighbouring numbers become unlike ones (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A standing in the whole seconds that HTTP counts in. All are rounded up: a client that believes them
/// never comes too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds {
    /// At least 1.
    pub(crate) retry_after: u64,
    pub(crate) reset_after: u64,
    /// Since the epoch.
    pub(crate) reset_at: u64,
}

/// Header values that share one buffer: one allocation for all of them rather than one for each.
struct Values {
    text: Vec<u8>,
    /// The names, each with the place where its value ends.
    ends: SmallVec<[(&'static HeaderName, usize); 9]>,
    digits: itoa::Buffer,
}

impl Values {
    /// Enough for all default headers of a limit with a name of ordinary length.
    const USUAL_BYTES: usize = 160;

    fn new() -> Self {
        let text = Vec::with_capacity(Self::USUAL_BYTES);
        Self { text, ends: SmallVec::new(), digits: itoa::Buffer::new() }
    }

    fn number(&mut self, name: &'static HeaderName, number: u64) {
        self.push_number(number);
        self.ends.push((name, self.text.len()));
    }

    /// `"policy";q=100;w=60`, or of requests in flight `"policy";q=100;qu="concurrent-requests"`
    fn policy(&mut self, terms: &Terms) {
        if terms.window_seconds > 0 {
            let numbers = [(b";q=", terms.quota.into()), (b";w=", terms.window_seconds.into())];
            return self.item(&RATELIMIT_POLICY, terms, numbers);
        }
        self.push_policy(&terms.names.policy);
        self.text.extend_from_slice(b";q=");
        self.push_number(terms.quota.into());
        self.text.extend_from_slice(br#";qu="concurrent-requests""#);
        self.ends.push((&RATELIMIT_POLICY, self.text.len()));
    }

    /// `"policy";r=17;t=13`
    fn item(&mut self, name: &'static HeaderName, terms: &Terms, parameters: [(&[u8; 3], u64); 2]) {
        self.push_policy(&terms.names.policy);
        for (parameter, number) in parameters {
            self.text.extend_from_slice(parameter);
            self.push_number(number);
        }
        self.ends.push((name, self.text.len()));
    }

    /// The policy as a string of a structured field, which takes printable ASCII and nothing else.
    fn push_policy(&mut self, policy: &str) {
        let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        self.text.push(b'"');
        if policy.bytes().all(plain) {
            self.text.extend_from_slice(policy.as_bytes());
        } else {
            // Names are plain, but a period below a millisecond is written with a µ.
            self.text.extend(policy.chars().map(|letter| match u8::try_from(letter) {
                Ok(byte) if plain(byte) => byte,
                Ok(b'\xb5') => b'u',
                _ => b'_',
            }));
        }
        self.text.push(b'"');
    }

    fn push_number(&mut self, number: u64) {
        self.text.extend_from_slice(self.digits.format(number).as_bytes());
    }

    fn put(self, headers: &mut HeaderMap) {
        let text = Bytes::from(self.text);
        let mut start = 0;
        // A map that grows while it is filled is built more than once.
        headers.reserve(self.ends.len());
        for (name, end) in self.ends {
            let value = HeaderValue::from_maybe_shared(text.slice(start..end))
                .expect("digits, punctuation and printable names are header text");
            headers.insert(name, value);
            start = end;
        }
    }
}
