//! The headers of a decision, and every header name that Tollgate writes or looks at.
//!
//! Three families say the same thing. `X-RateLimit-*` is what most clients read, `RateLimit` and
//! `RateLimit-Policy` are the IETF draft (structured fields), and `RateLimit-Limit/-Remaining/-Reset` is
//! an older draft that some clients still want. `Retry-After` belongs to none and is always written.

use bytes::BytesMut;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use tollgate_core::limit::Limit;
use tollgate_core::rate::SECOND_US;
use tollgate_limiter::{Decision, Outcome, Standing};

pub(crate) use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, RETRY_AFTER};

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_POLICY: HeaderName = HeaderName::from_static("x-ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

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
}

impl Default for HeaderOptions {
    fn default() -> Self {
        Self { x_ratelimit: true, ratelimit: true, legacy: false, reset: Reset::Unix }
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
        let Some((limit, standing)) = decision.standing() else { return };
        let seconds = Seconds::of(&standing, decision.now_us);
        let mut values = Values::new();
        if matches!(decision.outcome, Outcome::Limited(_)) {
            headers.reserve(7);
            headers.insert(RETRY_AFTER, values.number(seconds.retry_after));
        }
        if self.x_ratelimit {
            headers.insert(X_LIMIT, values.number(limit.quota.into()));
            if decision.degraded {
                headers.insert(X_REMAINING, UNKNOWN_REMAINING);
                headers.insert(X_POLICY, DEGRADED);
            } else {
                headers.insert(X_REMAINING, values.number(standing.remaining.into()));
            }
            let reset = match self.reset {
                Reset::Unix => seconds.reset_at,
                Reset::Delta => seconds.reset_after,
            };
            headers.insert(X_RESET, values.number(reset));
        }
        if self.ratelimit {
            headers.insert(RATELIMIT_POLICY, values.policy(limit));
            // What is left is not known of a degraded decision, and this field has no word for that.
            if !decision.degraded {
                headers.insert(RATELIMIT, values.standing(limit, &standing, seconds.reset_after));
            }
        }
        if self.legacy {
            headers.insert(LEGACY_LIMIT, values.number(limit.quota.into()));
            if !decision.degraded {
                headers.insert(LEGACY_REMAINING, values.number(standing.remaining.into()));
            }
            headers.insert(LEGACY_RESET, values.number(seconds.reset_after));
        }
    }
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

impl Seconds {
    pub(crate) fn of(standing: &Standing, now_us: u64) -> Self {
        Self {
            retry_after: standing.retry_after_us.div_ceil(SECOND_US).max(1),
            reset_after: standing.reset_after_us.div_ceil(SECOND_US),
            reset_at: now_us.saturating_add(standing.reset_after_us).div_ceil(SECOND_US),
        }
    }
}

/// Header values cut from one buffer: two allocations for all of them rather than one for each.
struct Values {
    text: BytesMut,
    digits: itoa::Buffer,
}

impl Values {
    /// Enough for all default headers of a limit with a name of ordinary length.
    const USUAL_BYTES: usize = 160;

    fn new() -> Self {
        Self { text: BytesMut::with_capacity(Self::USUAL_BYTES), digits: itoa::Buffer::new() }
    }

    fn number(&mut self, number: u64) -> HeaderValue {
        self.push_number(number);
        self.cut()
    }

    /// `"name";q=100;w=60`
    fn policy(&mut self, limit: &Limit) -> HeaderValue {
        self.push_name(&limit.policy);
        self.push(b";q=");
        self.push_number(limit.quota.into());
        self.push(b";w=");
        self.push_number(limit.window_seconds);
        self.cut()
    }

    /// `"name";r=17;t=13`
    fn standing(&mut self, limit: &Limit, standing: &Standing, reset_after: u64) -> HeaderValue {
        self.push_name(&limit.policy);
        self.push(b";r=");
        self.push_number(standing.remaining.into());
        self.push(b";t=");
        self.push_number(reset_after);
        self.cut()
    }

    /// The name as a string of a structured field, which takes printable ASCII and nothing else.
    fn push_name(&mut self, name: &str) {
        let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        self.push(b"\"");
        if name.bytes().all(plain) {
            self.push(name.as_bytes());
        } else {
            // Names are plain, but a period below a millisecond is written with a µ.
            for letter in name.chars() {
                match u8::try_from(letter) {
                    Ok(byte) if plain(byte) => self.push(&[byte]),
                    Ok(b'\xb5') => self.push(b"u"),
                    _ => self.push(b"_"),
                }
            }
        }
        self.push(b"\"");
    }

    fn push(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
    }

    fn push_number(&mut self, number: u64) {
        self.text.extend_from_slice(self.digits.format(number).as_bytes());
    }

    fn cut(&mut self) -> HeaderValue {
        HeaderValue::from_maybe_shared(self.text.split().freeze())
            .expect("digits, punctuation and printable names are header text")
    }
}
