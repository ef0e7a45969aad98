//! The clock. No other file reads the time.
//!
//! Reading the system clock takes as long as half a decision. So each thread reads it at most once a millisecond, and
//! adds the processor's counter: within a millisecond the two cannot drift apart by a microsecond.

use quanta::Clock as Counter;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_core::time::{BootTime, UnixTime};

/// How long a thread uses one reading of the system clock.
const TRUSTED_US: u64 = 1_000;

/// The clock of a node.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system clock.
    System(SystemClock),
    /// A clock that a test sets.
    Manual(ManualClock),
}

impl Clock {
    /// The system clock.
    pub fn system() -> Self {
        Self::System(SystemClock::new())
    }

    /// The time since the machine started. It includes sleep: leases expire also while the machine sleeps.
    pub fn boot(&self) -> BootTime {
        match self {
            Self::System(_) => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                BootTime::from_us(now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000)
            }
            Self::Manual(clock) => BootTime::from_us(clock.shown_us()),
        }
    }

    /// Nanoseconds of a counter that never goes back, to measure durations. Its start is arbitrary.
    pub(crate) fn counter_ns(&self) -> u64 {
        match self {
            Self::System(clock) => clock.counter.delta_as_nanos(0, clock.counter.raw()),
            Self::Manual(clock) => clock.shown_us().saturating_mul(1_000),
        }
    }

    /// The wall-clock time.
    #[inline]
    pub fn now(&self) -> UnixTime {
        match self {
            Self::System(clock) => UnixTime::from_us(clock.now_us()),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// The wall-clock time, read from the system although this thread has read it within the last millisecond: that time is
    /// from before a step that another thread has noticed.
    pub fn reread(&self) -> UnixTime {
        match self {
            Self::System(clock) => UnixTime::from_us(clock.read(clock.counter.raw())),
            Self::Manual(clock) => clock.now(),
        }
    }
}

/// See [`Clock::System`].
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: Counter,
    /// The length of one tick of the counter: microseconds with 32 fractional bits.
    tick_us: u64,
    /// [`TRUSTED_US`] in ticks of the counter.
    trusted: u64,
}

thread_local! {
    /// The last reading: (counter, microseconds since the epoch).
    static READING: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl SystemClock {
    fn new() -> Self {
        let counter = Counter::new();
        let tick_us = (counter.delta_as_nanos(0, 1 << 32) / 1_000).max(1);
        Self { counter, tick_us, trusted: (TRUSTED_US << 32) / tick_us }
    }

    #[inline]
    fn now_us(&self) -> u64 {
        let raw = self.counter.raw();
        let (then, unix_us) = READING.get();
        // If the counter has gone back, this is a large number.
        let elapsed = raw.wrapping_sub(then);
        if elapsed < self.trusted { unix_us + ((elapsed * self.tick_us) >> 32) } else { self.read(raw) }
    }

    #[cold]
    fn read(&self, raw: u64) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let now = SystemTime::now();
        let unix_us = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        READING.set((raw, unix_us));
        unix_us
    }
}

/// A clock that stands still until it is set. Its wall-clock time is its boot time until it [steps](ManualClock::step_wall_us).
#[derive(Clone, Debug)]
pub struct ManualClock {
    shown_us: Arc<AtomicU64>,
    /// How far the wall clock is ahead of the boot time.
    wall_ahead_us: Arc<AtomicI64>,
    /// The start of tokio's time, if the clock follows it.
    follows: Option<tokio::time::Instant>,
}

impl ManualClock {
    /// A clock that shows `now_us` microseconds.
    pub fn new(now_us: u64) -> Self {
        Self { shown_us: Arc::new(AtomicU64::new(now_us)), wall_ahead_us: Arc::default(), follows: None }
    }

    /// A clock that shows `now_us` microseconds and follows tokio's time, which a test can pause.
    pub fn following_tokio(now_us: u64) -> Self {
        Self { follows: Some(tokio::time::Instant::now()), ..Self::new(now_us) }
    }

    /// The wall-clock time that it shows.
    pub fn now(&self) -> UnixTime {
        UnixTime::from_us(self.shown_us()).shifted_by(self.wall_ahead_us.load(Ordering::Relaxed))
    }

    /// The boot time.
    fn shown_us(&self) -> u64 {
        let elapsed_us = self.follows.map_or(0, |since| since.elapsed().as_micros() as u64);
        self.shown_us.load(Ordering::Relaxed) + elapsed_us
    }

    /// Sets it to `now_us` microseconds, which may be earlier.
    pub fn set_us(&self, now_us: u64) {
        self.shown_us.store(now_us, Ordering::Relaxed);
    }

    /// Moves it forward.
    pub fn advance_us(&self, us: u64) {
        self.shown_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Moves only the wall clock, which a negative number sets back.
    pub fn step_wall_us(&self, us: i64) {
        self.wall_ahead_us.fetch_add(us, Ordering::Relaxed);
    }
}
