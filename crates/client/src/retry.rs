//! Which requests are retried, how often, and when.

use http::request::Parts;
use http::{Method, StatusCode};
use std::time::Duration;

/// Which requests are retried, how often, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// How often a request is sent in all; 1 disables retries.
    pub attempts: u32,
    /// No retry starts later than this after the first attempt.
    pub total: Duration,
    /// The first backoff is at most this long; the maximum doubles with each further one.
    pub first_backoff: Duration,
    /// A backoff is at most this long.
    pub max_backoff: Duration,
    /// The percentage of requests that may be retries in the long run. It keeps a server that is down from getting
    /// several times its load.
    pub budget_percent: u32,
    /// How many unused retries are saved up.
    pub budget_reserve: u32,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: 4,
            total: Duration::from_secs(60),
            first_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(10),
            budget_percent: 20,
            budget_reserve: 10,
        }
    }
}

impl RetrySettings {
    /// How long to wait before attempt `next` (2 is the first retry): the server's `Retry-After`, and a random share
    /// of the exponential backoff on top.
    pub(crate) fn backoff(&self, next: u32, retry_after: Option<Duration>) -> Duration {
        let doubled = 1_u32.checked_shl(next.saturating_sub(2)).unwrap_or(u32::MAX);
        let max = self.first_backoff.saturating_mul(doubled).min(self.max_backoff);
        retry_after.unwrap_or_default().saturating_add(max.mul_f64(fastrand::f64()))
    }
}

/// What a server did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerOutcome {
    Served,
    /// Refused with 429 or 503: it may be retried.
    Refused,
}

impl ServerOutcome {
    pub(crate) fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Self::Refused,
            _ => Self::Served,
        }
    }
}

/// Whether sending a request twice has the effect of sending it once. Other methods need a key by which the server
/// can tell.
pub(crate) fn is_idempotent(parts: &Parts) -> bool {
    const IDEMPOTENT: [Method; 6] =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];
    let key = parts.headers.get("idempotency-key");
    IDEMPOTENT.contains(&parts.method) || key.is_some_and(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn idempotent_requests_are_repeated() {
        for (method, key, expected) in [
            ("GET", None, true),
            ("HEAD", None, true),
            ("OPTIONS", None, true),
            ("TRACE", None, true),
            ("PUT", None, true),
            ("DELETE", None, true),
            ("POST", None, false),
            ("PATCH", None, false),
            ("CONNECT", None, false),
            ("BREW", None, false),
            ("POST", Some(""), false),
            ("POST", Some("8e03978e"), true),
            ("PATCH", Some("8e03978e"), true),
        ] {
            let mut request = Request::builder().method(method).uri("http://a/");
            if let Some(key) = key {
                request = request.header("Idempotency-Key", key);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(is_idempotent(&parts), expected, "{method} {key:?}");
        }
    }

    #[test]
    fn backoffs_double_up_to_the_maximum_and_never_undercut_the_server() {
        let settings = RetrySettings::default();
        for (next, max_ms) in [(2, 200), (3, 400), (4, 800), (8, 10_000), (100, 10_000)] {
            let waits: Vec<Duration> = (0..1_000).map(|_| settings.backoff(next, None)).collect();
            let max = Duration::from_millis(max_ms);
            assert!(waits.iter().all(|wait| *wait <= max));
            assert!(waits.iter().any(|wait| *wait > max / 2) && waits.iter().any(|wait| *wait < max / 2));
            let stated = Duration::from_secs(7);
            assert!((0..1_000).all(|_| settings.backoff(next, Some(stated)) >= stated));
        }
        assert!(settings.backoff(2, Some(Duration::MAX)) == Duration::MAX);
    }
}
