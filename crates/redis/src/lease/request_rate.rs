//! The rate of requests of a key at this node.

use tollgate_core::time::BootTime;

const WINDOW_US: u64 = 1_000_000;

/// Tokens requested in the current second and in the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestRate {
    since: BootTime,
    current: u32,
    previous: u32,
}

impl RequestRate {
    /// Notes a request.
    #[inline]
    pub(super) fn note(&mut self, cost: u32, now: BootTime) {
        let elapsed_us = now.since(self.since);
        if elapsed_us >= WINDOW_US {
            self.previous = if elapsed_us < 2 * WINDOW_US { self.current } else { 0 };
            self.current = 0;
            self.since = now;
        }
        self.current = self.current.saturating_add(cost);
    }

    /// Tokens a second: this second's, and of the one before what this one has not replaced yet.
    pub(super) fn per_second(&self, now: BootTime) -> u64 {
        let elapsed_us = now.since(self.since).min(WINDOW_US);
        u64::from(self.current) + u64::from(self.previous) * (WINDOW_US - elapsed_us) / WINDOW_US
    }
}
