//! What is sent again, how often, and when.

use http::request::Parts;
use http::{Method, StatusCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A retry, in the thousandths that the budget counts in.
const RETRY: u64 = 1_000;

/// What is sent again, how often, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// How often a request is sent in all; 1 for never again.
    pub attempts: u32,
    /// No retry is begun later than this after the first attempt.
    pub total: Duration,
    /// The first backoff is at most so long; each further one up to twice as long.
    pub first_backoff: Duration,
    /// A backoff is at most so long.
    pub longest_backoff: Duration,
    /// Of all requests, so many in a hundred may be retries in the long run. It keeps a server that is down from
    /// getting several times its load.
    pub budget_percent: u32,
    /// So many retries are free at any time, if they were not used lately.
    pub budget_reserve: u32,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: 4,
            total: Duration::from_secs(60),
            first_backoff: Duration::from_millis(200),
            longest_backoff: Duration::from_secs(10),
            budget_percent: 20,
            budget_reserve: 10,
        }
    }
}

impl RetrySettings {
    /// How long to wait before attempt `next` (2 is the first retry): never less than what the server asks for, and
    /// beyond that a random share of what has doubled with every attempt.
    pub(crate) fn wait(&self, next: u32, retry_after: Option<Duration>) -> Duration {
        let doubled = 1_u32.checked_shl(next.saturating_sub(2)).unwrap_or(u32::MAX);
        let most = self.first_backoff.saturating_mul(doubled).min(self.longest_backoff);
        retry_after.unwrap_or_default().saturating_add(most.mul_f64(fastrand::f64()))
    }
}

/// Whether an answer asks for a retry.
pub(crate) fn asks_for_retry(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE
}

/// Whether sending a request twice does no more than sending it once. Of writes that add something, the
/// server has to be able to tell.
pub(crate) fn is_repeatable(parts: &Parts) -> bool {
    const IDEMPOTENT: [Method; 6] =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];
    let key = parts.headers.get("idempotency-key");
    IDEMPOTENT.contains(&parts.method) || key.is_some_and(|key| !key.is_empty())
}

/// What is left for retries.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicU64,
    most: u64,
    per_request: u64,
}

impl Budget {
    pub(crate) fn new(settings: &RetrySettings) -> Self {
        let most = u64::from(settings.budget_reserve) * RETRY;
        Self {
            left: AtomicU64::new(most),
            most,
            per_request: u64::from(settings.budget_percent) * RETRY / 100,
        }
    }

    /// A request pays in.
    pub(crate) fn earn(&self) {
        let add = |left: u64| Some(left.saturating_add(self.per_request).min(self.most));
        // It always succeeds: there is always a next value.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// A retry takes out, if there is enough.
    pub(crate) fn spend(&self) -> bool {
        let take = |left: u64| left.checked_sub(RETRY);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn only_what_may_come_twice_is_repeated() {
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
            assert_eq!(is_repeatable(&parts), expected, "{method} {key:?}");
        }
    }

    #[test]
    fn backoffs_double_up_to_the_longest_and_never_undercut_the_server() {
        let settings = RetrySettings::default();
        for (next, most_ms) in [(2, 200), (3, 400), (4, 800), (8, 10_000), (100, 10_000)] {
            let waits: Vec<Duration> = (0..1_000).map(|_| settings.wait(next, None)).collect();
            let most = Duration::from_millis(most_ms);
            assert!(waits.iter().all(|wait| *wait <= most));
            assert!(waits.iter().any(|wait| *wait > most / 2) && waits.iter().any(|wait| *wait < most / 2));
            let told = Duration::from_secs(7);
            assert!((0..1_000).all(|_| settings.wait(next, Some(told)) >= told));
        }
        assert!(settings.wait(2, Some(Duration::MAX)) == Duration::MAX);
    }

    #[test]
    fn a_budget_is_used_up_and_earned_again() {
        let budget = Budget::new(&RetrySettings { budget_reserve: 3, ..RetrySettings::default() });
        assert_eq!((0..10).filter(|_| budget.spend()).count(), 3);
        (0..4).for_each(|_| budget.earn());
        assert!(!budget.spend());
        budget.earn();
        assert!(budget.spend() && !budget.spend());
        (0..1_000).for_each(|_| budget.earn());
        assert_eq!((0..10).filter(|_| budget.spend()).count(), 3, "no more is saved than the reserve");
    }
}
