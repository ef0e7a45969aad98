//! Times, one type for each clock, so that times of two clocks cannot be mixed up.
//!
//! | type | clock | used for |
//! |---|---|---|
//! | [`UnixTime`] | the wall clock of a node | decisions, entries with an expiry, rule tests, logs |
//! | [`BootTime`] | the clock of a node since its machine started, which never steps | deadlines of credit, timeouts |
//! | [`TimerTime`] | the clock of timers, since the process started | circuit breakers, log limits |
//! | [`StoreTime`] | the clock of the store that holds a state | the steps of algorithms |
//! | [`ServerTime`] | the clock of a Redis server, as the server shows it | heartbeats, and the correction of that clock |
//!
//! All count microseconds. A duration is an integer with the unit last in its name, such as `retry_after_us`. Additions and
//! differences saturate.

use std::ops::{Add, AddAssign};

macro_rules! times {
    ($($(#[$doc:meta])* pub struct $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Later than any other time.
            pub const MAX: Self = Self(u64::MAX);

            /// The time at which this clock shows `us` microseconds.
            #[inline]
            pub const fn from_us(us: u64) -> Self {
                Self(us)
            }

            /// What the clock shows, in microseconds.
            #[inline]
            pub const fn as_us(self) -> u64 {
                self.0
            }

            /// The microseconds from `earlier` to this time; 0 if `earlier` is later.
            #[inline]
            pub const fn since(self, earlier: Self) -> u64 {
                self.0.saturating_sub(earlier.0)
            }

            /// By how many microseconds this time is later than `other`; negative if it is earlier.
            #[inline]
            pub const fn ahead_of(self, other: Self) -> i64 {
                self.0 as i64 - other.0 as i64
            }

            /// This time, moved by `us` microseconds.
            #[inline]
            pub const fn shifted_by(self, us: i64) -> Self {
                Self(self.0.saturating_add_signed(us))
            }
        }

        /// So many microseconds later.
        impl Add<u64> for $name {
            type Output = Self;

            #[inline]
            fn add(self, us: u64) -> Self {
                Self(self.0.saturating_add(us))
            }
        }

        impl AddAssign<u64> for $name {
            #[inline]
            fn add_assign(&mut self, us: u64) {
                *self = *self + us;
            }
        }
    )*};
}

times! {
    /// A time by the wall clock of a node, since the Unix epoch.
    pub struct UnixTime;
    /// A time by the clock of a node that starts with its machine. It includes the time that the machine sleeps, and never
    /// steps.
    pub struct BootTime;
    /// A time by the clock of timers, since the process started. It stops while the machine sleeps.
    pub struct TimerTime;
    /// A time by the clock of the store that holds a state, since the Unix epoch. For the embedded store this is the wall
    /// clock of the node, see [`StoreTime::of_embedded_store`]; for a shared store the clock of the shard, corrected if
    /// it has stepped, see [`ClockCorrection::apply`](crate::heartbeat::ClockCorrection::apply).
    pub struct StoreTime;
    /// A time by the clock of a Redis server, since the Unix epoch, before any correction.
    pub struct ServerTime;
}

impl StoreTime {
    /// The time at the embedded store of a node whose wall clock shows `now`.
    #[inline]
    pub const fn of_embedded_store(now: UnixTime) -> Self {
        Self(now.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_saturate() {
        let at = StoreTime::from_us;
        assert_eq!(at(5) + 3, at(8));
        assert_eq!(at(8).since(at(5)), 3);
        assert_eq!(at(5).since(at(8)), 0);
        assert_eq!(at(u64::MAX - 1) + 3, StoreTime::MAX);
        assert_eq!(at(5).shifted_by(-8), at(0));
        assert_eq!(at(5).ahead_of(at(8)), -3);
    }
}
