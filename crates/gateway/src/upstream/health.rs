//! Whether a server is well: by what happens to requests, and by asking.
//!
//! Some failures in a row, and the server is left alone for a while; the next request after that is the
//! probe, and if it fails too, the while is twice as long. A health check that fails keeps the server out
//! until one succeeds.

use crate::settings;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const LONGEST_EJECTION: Duration = Duration::from_secs(60);

/// What is known about one server.
#[derive(Debug)]
pub(crate) struct Health {
    /// Failures in a row.
    failures: AtomicU32,
    /// How often it was left alone since it was last well.
    ejections: AtomicU32,
    /// Milliseconds after `start` until which it is left alone; 0 if it is not.
    until_ms: AtomicU64,
    /// What the last health check said.
    checked_down: AtomicBool,
    start: Instant,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            until_ms: AtomicU64::new(0),
            checked_down: AtomicBool::new(false),
            start: Instant::now(),
        }
    }
}

impl Health {
    /// Whether requests may go there.
    pub(crate) fn is_up(&self) -> bool {
        if self.checked_down.load(Ordering::Relaxed) {
            return false;
        }
        // No clock is read for a server that is well.
        let until = self.until_ms.load(Ordering::Relaxed);
        until == 0 || self.now_ms() >= until
    }

    /// A request was answered.
    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.ejections.store(0, Ordering::Relaxed);
            self.until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// A request could not be sent, or was not answered. Says whether that ejected the server.
    pub(crate) fn failed(&self, settings: &settings::Upstream) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < settings.most_failures || !self.is_up() {
            return false;
        }
        let ejections = self.ejections.fetch_add(1, Ordering::Relaxed).min(16);
        let length = settings.first_ejection.saturating_mul(1 << ejections).min(LONGEST_EJECTION);
        self.until_ms.store(self.now_ms() + length.as_millis().max(1) as u64, Ordering::Relaxed);
        true
    }

    /// A health check was answered, or not. Says whether that changed anything.
    pub(crate) fn checked(&self, well: bool) -> bool {
        if well {
            self.succeeded();
        }
        self.checked_down.swap(!well, Ordering::Relaxed) == well
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_eject_for_a_growing_while() {
        let settings = settings::Upstream::new("u", Vec::new());
        let health = Health::default();
        for _ in 0..4 {
            assert!(!health.failed(&settings));
        }
        health.succeeded();
        for _ in 0..4 {
            assert!(!health.failed(&settings));
        }
        assert!(health.is_up());
        assert!(health.failed(&settings));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!health.is_up(), "{seconds}");
            tokio::time::advance(Duration::from_millis(seconds * 1_000 - 1)).await;
            assert!(!health.is_up(), "{seconds}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(health.is_up(), "the next request is the probe");
            assert!(health.failed(&settings), "{seconds}");
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        health.succeeded();
        assert!(health.is_up());
        assert!(!health.failed(&settings), "all is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_check_keeps_it_out_until_one_succeeds() {
        let health = Health::default();
        assert!(!health.checked(true));
        assert!(health.checked(false));
        assert!(!health.checked(false));
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(!health.is_up());
        assert!(health.checked(true));
        assert!(health.is_up());
    }
}
