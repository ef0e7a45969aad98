//! The rate of requests of a key at this node.

const WINDOW_US: u64 = 1_000_000;

/// Tokens requested in the current second and in the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestRate {
    since_us: u64,
    now: u32,
    before: u32,
}

impl RequestRate {
    /// Notes a request.
    #[inline]
    pub(super) fn note(&mut self, cost: u32, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.since_us);
        if elapsed_us >= WINDOW_US {
            self.before = if elapsed_us < 2 * WINDOW_US { self.now } else { 0 };
            self.now = 0;
            self.since_us = now_us;
        }
        self.now = self.now.saturating_add(cost);
    }

    /// Tokens a second: this second's, and of the one before what this one has not replaced yet.
    pub(super) fn per_second(&self, now_us: u64) -> u64 {
        let elapsed_us = now_us.saturating_sub(self.since_us).min(WINDOW_US);
        u64::from(self.now) + u64::from(self.before) * (WINDOW_US - elapsed_us) / WINDOW_US
    }
}
