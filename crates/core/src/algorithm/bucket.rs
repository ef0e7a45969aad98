//! Buckets: limits with a capacity and a steady rate, and what flows into them. `bucket.lua` is the same in the script.

use super::{Algorithm, Divisor, StateCell, start_of, tick_of};
use crate::lending::LentTokens;
use crate::limit::{EXACT, LONGEST_US, LimitError, LimitNumber, LimitSize, TICKS_US, too_fine};
use crate::rate::Rate;

/// The shared functions of buckets in the script.
pub(crate) const SCRIPT: &str = include_str!("bucket.lua");

/// The numbers of a limit with a capacity and a rate: `amount` tokens every `period` ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Tokens that fit.
    pub capacity: u32,
    /// Tokens gained (or leaked) per period.
    pub amount: u32,
    /// The period, in ticks. A fraction of a token is counted in 1/period.
    pub period: u32,
    /// Microseconds per tick.
    pub tick_us: u64,
    /// The mark of this limit's fractions, see [`StateCell::grain`].
    pub grain: u16,
    /// Ticks from empty to full: the capacity over the rate, rounded up.
    pub span: u64,
    by_amount: Divisor,
    by_period: Divisor,
}

impl Bucket {
    pub(super) const COUNTS_WINDOWS: bool = false;

    /// The bucket of a limit of this size, and the window that headers show.
    pub(super) fn new(_: Algorithm, capacity: u32, size: &LimitSize) -> Result<(Self, u64), LimitError> {
        let rate = match (size.rate, size.window_us) {
            (Some(rate), _) => rate,
            (None, Some(window_us)) => {
                Rate::per(u64::from(capacity), window_us).ok_or(LimitError::RejectsAll)?
            }
            (None, None) => return Err(LimitError::Missing(LimitNumber::Rate)),
        };
        let fills_us = rate.time_for_us(u64::from(capacity));
        if fills_us > LONGEST_US {
            return Err(LimitError::out_of_range(
                "at this rate it takes more than 366 days to fill the capacity",
                "raise the rate, or lower the capacity",
            ));
        }
        let bucket = TICKS_US.into_iter().find_map(|tick_us| Self::in_ticks(capacity, rate, tick_us));
        Ok((bucket.ok_or_else(|| too_fine(capacity))?, size.window_us.unwrap_or(fills_us)))
    }

    /// The bucket in ticks of `tick_us`, if its numbers fit.
    fn in_ticks(capacity: u32, rate: Rate, tick_us: u64) -> Option<Self> {
        let (amount, period) = rate.per_ticks(tick_us);
        let amount = u32::try_from(amount).ok()?;
        let period = u32::try_from(period).ok()?;
        let full = u128::from(capacity) * u128::from(period);
        // A level and what flows into it are two capacities.
        if 4 * full + 2 * u128::from(amount) >= EXACT {
            return None;
        }
        Some(Self {
            capacity,
            amount,
            period,
            tick_us,
            grain: grain(period, tick_us),
            span: (full as u64).div_ceil(u64::from(amount)),
            by_amount: Divisor::new(amount),
            by_period: Divisor::new(period),
        })
    }

    /// The time from empty to full, in microseconds.
    pub fn span_us(&self) -> u64 {
        self.span * self.tick_us
    }

    /// The capacity in fractions of a token.
    #[inline]
    pub(super) fn full(&self) -> u64 {
        u64::from(self.capacity) * u64::from(self.period)
    }

    /// Ticks until `fractions` have flowed.
    #[inline]
    pub(super) fn ticks_for(&self, fractions: u64) -> u64 {
        self.by_amount.divide(fractions + u64::from(self.amount - 1))
    }

    /// `level` fractions at the tick `at`, as they are kept: whole tokens and the rest apart.
    #[inline]
    pub(super) fn cell(&self, level: u64, at: u64) -> StateCell {
        let major = self.by_period.divide(level);
        StateCell {
            instant: start_of(at, self.tick_us),
            grain: self.grain,
            major: major as u32,
            minor: (level - major * u64::from(self.period)) as u32,
        }
    }

    /// What flows in the ticks from `last` to `now`, and the tick that the new state speaks of.
    #[inline]
    pub(super) fn flow(&self, last: u64, now: u64) -> BucketFlow {
        if now >= last {
            let elapsed = (now - last).min(self.span);
            BucketFlow { fractions: elapsed * u64::from(self.amount), at: now, jumped: false }
        } else if last - now > self.span {
            BucketFlow { fractions: 0, at: now, jumped: true }
        } else {
            BucketFlow { fractions: 0, at: last, jumped: false }
        }
    }

    /// What is available at the tick `at` if it was `available` at the tick `last`, while some of it is lent: each tick
    /// adds `amount`, up to the capacity less what was lent at the time.
    pub(super) fn refill(&self, mut available: i64, mut last: u64, at: u64, lent: &LentTokens) -> i64 {
        // A lowered capacity may be below what is lent: then nothing is refilled, but nothing is owed either.
        let most = |lent: u32| i64::from(self.capacity.saturating_sub(lent)) * i64::from(self.period);
        let gain = |ticks: u64| (ticks.min(self.span) * u64::from(self.amount)) as i64;
        let mut still_lent = lent.total();
        if still_lent > 0 {
            for (end, left) in lent.ends() {
                let end = tick_of(end, self.tick_us);
                if end > at {
                    break;
                }
                if end >= last {
                    available = most(still_lent).min(available + gain(end - last));
                    last = end;
                }
                still_lent = left;
            }
        }
        most(still_lent).min(available + gain(at.saturating_sub(last)))
    }
}

/// See [`Bucket::flow`].
pub(super) struct BucketFlow {
    pub(super) fractions: u64,
    pub(super) at: u64,
    /// The clock went back so far that the state has to be re-anchored.
    pub(super) jumped: bool,
}

/// A bucket at one tick: what is available, in fractions of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketLevel {
    /// Below nothing if more is owed than can be.
    pub(crate) available: i64,
    /// The tick that it speaks of.
    pub(crate) at: u64,
}

/// A mark for "fractions of 1/unit in this tick". Two units with the same mark (one pair in 65,536) cost at
/// most a fraction of a token, once, when a rule changes from the one to the other.
fn grain(unit: u32, tick_us: u64) -> u16 {
    let mixed = (u64::from(unit) ^ tick_us.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}
