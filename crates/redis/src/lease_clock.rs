//! The clock that credit expires by.

use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::time::{BootTime, UnixTime};

/// Less than this is the noise of reading two clocks.
const NOISE_US: u64 = 20_000;

/// Microseconds since the machine started, or since then by the wall clock, whichever is more. A virtual machine that was
/// paused may notice it by one of the two only.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    /// When the machine started, by the wall clock.
    started: UnixTime,
    /// How far the wall clock was ever ahead of the other.
    ahead_us: AtomicU64,
}

impl LeaseClock {
    /// The clock of a machine whose clocks now show `boot` and `wall`.
    pub(crate) fn new(boot: BootTime, wall: UnixTime) -> Self {
        let started_us = wall.as_us().saturating_sub(boot.as_us());
        Self { started: UnixTime::from_us(started_us), ahead_us: AtomicU64::new(0) }
    }

    /// The time when the clocks of the machine show `boot` and `wall`. Never goes back.
    pub(crate) fn at(&self, boot: BootTime, wall: UnixTime) -> BootTime {
        let ahead_us = self.ahead_us.load(Ordering::Relaxed);
        let found_us = wall.since(self.started).saturating_sub(boot.as_us());
        if found_us <= ahead_us + NOISE_US {
            return boot + ahead_us;
        }
        boot + self.ahead_us.fetch_max(found_us, Ordering::Relaxed).max(found_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP_US: u64 = 3_600_000_000;
    const NOON_US: u64 = 1_794_916_800_000_000;

    /// What the monotonic clock, the wall clock and the lease clock show, in milliseconds after the first reading.
    type Reading = (u64, i64, u64);

    const CASES: [(&str, &[Reading]); 10] = [
        ("both go on", &[(0, 0, 0), (1_000, 1_000, 1_000), (5_000, 5_000, 5_000)]),
        ("the wall clock is ahead by noise", &[(1_000, 1_020, 1_000), (2_000, 2_020, 2_000)]),
        ("the wall clock is ahead by more than noise", &[(1_000, 1_021, 1_021), (2_000, 2_021, 2_021)]),
        ("only the wall clock counts a pause", &[(1_000, 1_000, 1_000), (1_001, 61_000, 61_000)]),
        ("only the monotonic clock counts a pause", &[(1_000, 1_000, 1_000), (61_000, 1_001, 61_000)]),
        ("the wall clock is set back", &[(1_000, -3_599_000, 1_000), (2_000, -3_598_000, 2_000)]),
        ("the wall clock comes back from ahead", &[(1_000, 61_000, 61_000), (2_000, 2_000, 62_000)]),
        ("two pauses", &[(1_000, 11_000, 11_000), (2_000, 32_000, 32_000), (3_000, 33_000, 33_000)]),
        ("noise after a pause", &[(1_000, 11_000, 11_000), (2_000, 12_020, 12_000), (3_000, 12_980, 13_000)]),
        ("noise does not add up", &[(1_000, 1_019, 1_000), (2_000, 2_020, 2_000), (3_000, 3_021, 3_021)]),
    ];

    #[test]
    fn credit_expires_by_the_clock_that_runs_further() {
        for (what, readings) in CASES {
            let noon = UnixTime::from_us(NOON_US);
            let clock = LeaseClock::new(BootTime::from_us(UP_US), noon);
            for (monotonic_ms, wall_ms, shown_ms) in readings {
                let boot = BootTime::from_us(UP_US + monotonic_ms * 1_000);
                let shown = clock.at(boot, noon.shifted_by(wall_ms * 1_000));
                assert_eq!(shown.as_us(), UP_US + shown_ms * 1_000, "{what}, after {monotonic_ms} ms");
            }
        }
    }

    /// A machine whose wall clock was never set.
    #[test]
    fn a_wall_clock_that_shows_less_than_the_uptime_is_not_ahead() {
        let clock = LeaseClock::new(BootTime::from_us(UP_US), UnixTime::default());
        assert_eq!(clock.at(BootTime::from_us(UP_US + 1), UnixTime::from_us(1)).as_us(), UP_US + 1);
    }
}
