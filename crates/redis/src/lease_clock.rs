//! The clock that credit expires by.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use tollgate_core::time::{BootTime, UnixTime};

/// Less than this is the noise of reading two clocks.
const NOISE_US: u64 = 20_000;

/// A reading of the monotonic and of the wall clock.
type Readings = (BootTime, UnixTime);

/// Microseconds since the machine started, and those that only the wall clock has counted since the process started. A virtual
/// machine that was paused may notice it by one of the two only.
#[derive(Debug)]
pub(crate) struct LeaseClock {
    /// How far the wall clock was ahead of the monotonic one, after its last step.
    offset_us: AtomicI64,
    /// The sum of all steps ahead.
    stepped_us: AtomicU64,
    /// Held while a step is counted: threads that notice it together count it once.
    counting: Mutex<()>,
}

impl LeaseClock {
    /// The clock of a machine whose clocks now show `readings`.
    pub(crate) fn new(readings: Readings) -> Self {
        Self {
            offset_us: AtomicI64::new(offset_us(readings)),
            stepped_us: AtomicU64::new(0),
            counting: Mutex::new(()),
        }
    }

    /// The time when the clocks of the machine show `readings`. Never goes back. The wall clock may be one that the thread has
    /// remembered; `reread` reads it anew.
    pub(crate) fn now(&self, mut readings: Readings, reread: impl FnOnce() -> Readings) -> BootTime {
        if self.has_stepped(readings) {
            readings = self.count_step(reread);
        }
        readings.0 + self.stepped_us.load(Ordering::Relaxed)
    }

    fn has_stepped(&self, readings: Readings) -> bool {
        self.offset_us.load(Ordering::Acquire).abs_diff(offset_us(readings)) > NOISE_US
    }

    /// Reads the clocks again, and counts the step if there is one.
    #[cold]
    fn count_step(&self, reread: impl FnOnce() -> Readings) -> Readings {
        let _counting = self.counting.lock();
        // The thread may have been preempted between the two clocks, or another has counted the step, and this one remembers a
        // time from before it. That it is preempted twice in a row is unlikely, and costs credit some of its life.
        let readings = reread();
        if self.has_stepped(readings) {
            let (known_us, found_us) = (self.offset_us.load(Ordering::Relaxed), offset_us(readings));
            if found_us > known_us {
                self.stepped_us.fetch_add(found_us.abs_diff(known_us), Ordering::Relaxed);
            }
            // After the sum: a thread that sees the new offset sees the step counted.
            self.offset_us.store(found_us, Ordering::Release);
        }
        readings
    }
}

fn offset_us((boot, wall): Readings) -> i64 {
    wall.as_us().cast_signed().saturating_sub_unsigned(boot.as_us())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    const UP_US: u64 = 3_600_000_000;
    const NOON_US: u64 = 1_794_916_800_000_000;

    /// What the monotonic clock, the wall clock and the lease clock show, in milliseconds after the first reading.
    type Reading = (u64, i64, u64);

    const CASES: [(&str, &[Reading]); 12] = [
        ("both go on", &[(0, 0, 0), (1_000, 1_000, 1_000), (5_000, 5_000, 5_000)]),
        ("the wall clock is ahead by noise", &[(1_000, 1_020, 1_000), (2_000, 2_020, 2_000)]),
        ("the wall clock is ahead by more than noise", &[(1_000, 1_021, 1_021), (2_000, 2_021, 2_021)]),
        ("only the wall clock counts a pause", &[(1_000, 1_000, 1_000), (1_001, 61_000, 61_000)]),
        ("only the monotonic clock counts a pause", &[(1_000, 1_000, 1_000), (61_000, 1_001, 61_000)]),
        ("the wall clock is set back", &[(1_000, -3_599_000, 1_000), (2_000, -3_598_000, 2_000)]),
        ("a pause after the wall clock was set back", &[(1_000, -4_000, 1_000), (1_001, 55_000, 60_000)]),
        ("the wall clock comes back from ahead", &[(1_000, 61_000, 61_000), (2_000, 2_000, 62_000)]),
        (
            "a pause after the wall clock came back from ahead",
            &[(1_000, 61_000, 61_000), (2_000, 2_000, 62_000), (2_001, 9_001, 69_001)],
        ),
        ("two pauses", &[(1_000, 11_000, 11_000), (2_000, 32_000, 32_000), (3_000, 33_000, 33_000)]),
        ("noise after a pause", &[(1_000, 11_000, 11_000), (2_000, 12_020, 12_000), (3_000, 12_980, 13_000)]),
        ("noise does not add up", &[(1_000, 1_019, 1_000), (2_000, 2_020, 2_000), (3_000, 3_021, 3_021)]),
    ];

    #[test]
    fn credit_expires_by_the_clock_that_runs_further() {
        for (what, readings) in CASES {
            let noon = UnixTime::from_us(NOON_US);
            let clock = LeaseClock::new((BootTime::from_us(UP_US), noon));
            for (monotonic_ms, wall_ms, shown_ms) in readings {
                let boot = BootTime::from_us(UP_US + monotonic_ms * 1_000);
                let readings = (boot, noon.shifted_by(wall_ms * 1_000));
                let shown = clock.now(readings, || readings);
                assert_eq!(shown.as_us(), UP_US + shown_ms * 1_000, "{what}, after {monotonic_ms} ms");
            }
        }
    }

    #[test]
    fn a_thread_that_is_preempted_between_the_clocks_reads_them_again() {
        let (boot, noon) = (BootTime::from_us(UP_US), UnixTime::from_us(NOON_US));
        let clock = LeaseClock::new((boot, noon));
        for _ in 0..100 {
            assert_eq!(clock.now((boot, noon + 500_000), || (boot, noon)), boot);
        }
    }

    /// Each thread remembers the wall clock for a millisecond: after a step, some still show the time before it.
    #[test]
    fn a_step_is_counted_once_although_threads_remember_the_time_before_it() {
        let (boot, noon) = (BootTime::from_us(UP_US), UnixTime::from_us(NOON_US));
        for (step_us, counted_us) in [(60_000_000, 60_000_000), (-60_000_000, 0)] {
            let clock = LeaseClock::new((boot, noon));
            let stepped = (boot, noon.shifted_by(step_us));
            for _ in 0..100 {
                for readings in [stepped, (boot, noon)] {
                    assert_eq!(clock.now(readings, || stepped), boot + counted_us);
                }
            }
        }
    }

    #[test]
    fn a_step_is_counted_once_by_threads_that_notice_it_together() {
        let (boot, noon) = (BootTime::from_us(UP_US), UnixTime::from_us(NOON_US));
        for _ in 0..200 {
            let clock = LeaseClock::new((boot, noon));
            let together = Barrier::new(4);
            let notice = || {
                together.wait();
                clock.now((boot, noon + 60_000_000), || (boot, noon + 60_000_000))
            };
            let shown: Vec<BootTime> = thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(notice));
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(shown, [boot + 60_000_000; 4]);
        }
    }

    /// A machine whose wall clock was never set.
    #[test]
    fn a_wall_clock_that_shows_less_than_the_uptime_is_not_ahead() {
        let clock = LeaseClock::new((BootTime::from_us(UP_US), UnixTime::default()));
        let readings = (BootTime::from_us(UP_US + 1), UnixTime::from_us(1));
        let shown = clock.now(readings, || readings);
        assert_eq!(shown.as_us(), UP_US + 1);
    }
}
