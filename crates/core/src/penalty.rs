//! Penalties: growing cooldowns for clients that ignore `Retry-After`.
//!
//! A refused client is told when to retry. A client that keeps sending requests gets a cooldown: a time in which it is
//! refused without a look at its limit. Each further cooldown is twice as long, up to a maximum, and all is forgotten
//! after a time without early requests. A cooldown is never extended, so the retry time given during it is exact. For the
//! same reason no cooldown starts that would end before the limit admits again.
//!
//! A *wait* starts with the first refusal and lasts as long as its `Retry-After`, in whole seconds. A request refused
//! during the wait is a *strike*, with two exceptions that protect clients which wait as told:
//! - The first second, or the first half of a wait shorter than two seconds: the request may have been sent before the
//!   refusal arrived.
//! - The last tenth of the wait, at least a tenth of a second: clocks differ.
//!
//! A client that is refused again after its wait starts a new wait and loses one strike.
//!
//! Example with `after: 3, first: 10s` and a limit that refuses for 12 s at 0 s: a request at 0.2 s is no strike, requests
//! at 2 s, 3 s and 4 s are three, and the refusal at 4 s says to retry in 10 s. If the client ignores that one too, the
//! next cooldown is 20 s.

use crate::rate::SECOND_US;
use crate::time::UnixTime;

/// Requests this soon after the first refusal may have been sent before it arrived.
const GRACE_US: u64 = SECOND_US;
/// The clock error that every client is granted.
const TOLERANCE_US: u64 = SECOND_US / 10;

/// The penalty of a rule for clients that ignore `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The number of strikes that starts a cooldown.
    pub after: u32,
    /// The length of the first cooldown; each further one is twice as long.
    pub first_us: u64,
    /// The longest cooldown.
    pub longest_us: u64,
    /// The time after the last wait or cooldown when the record of a client expires.
    pub forget_us: u64,
    /// Distinguishes the records of this rule from those of others.
    pub record_id: u64,
}

/// The record of a client under a rule with a penalty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PenaltyRecord {
    /// The start of the current wait or cooldown.
    pub since: UnixTime,
    /// The end of the current wait or cooldown.
    pub until: UnixTime,
    /// The requests that ignored it.
    pub strikes: u32,
    /// The number of cooldowns so far.
    pub level: u32,
}

impl PenaltyRecord {
    /// The time from which the record is ignored.
    pub fn expiry(&self, penalty: &Penalty) -> UnixTime {
        self.until + penalty.forget_us
    }
}

impl Penalty {
    /// Records a refusal at `now` with a retry time of `retry_us`. Returns the new record, and the length of the
    /// cooldown if one starts.
    pub fn record_refusal(
        &self,
        known: Option<PenaltyRecord>,
        now: UnixTime,
        retry_us: u64,
    ) -> (PenaltyRecord, Option<u64>) {
        let wait_us = retry_us.div_ceil(SECOND_US).max(1).saturating_mul(SECOND_US);
        // A record from the future, after a step of the clock, would be a wait that never ends.
        let known = known.filter(|known| known.since <= now && now < known.expiry(self));
        let known = known.unwrap_or_default();
        if !is_early(&known, now) {
            let until = now + wait_us;
            let strikes = known.strikes.saturating_sub(1);
            return (PenaltyRecord { since: now, until, strikes, ..known }, None);
        }
        let length_us = known.until.since(known.since);
        if now < known.since + GRACE_US.min(length_us / 2) {
            return (known, None);
        }
        let strikes = self.after.min(known.strikes + 1);
        let cooldown_us = self.cooldown_us(known.level);
        if strikes < self.after || cooldown_us <= retry_us {
            return (PenaltyRecord { strikes, ..known }, None);
        }
        let until = now + cooldown_us;
        let level = known.level.saturating_add(1);
        (PenaltyRecord { since: now, until, strikes: 0, level }, Some(cooldown_us))
    }

    /// The length of the cooldown after `level` others.
    pub fn cooldown_us(&self, level: u32) -> u64 {
        let factor = 1_u64.checked_shl(level).unwrap_or(u64::MAX);
        self.first_us.saturating_mul(factor).min(self.longest_us)
    }
}

/// Whether `now` is too far before the end of the wait to be explained by a clock error.
fn is_early(record: &PenaltyRecord, now: UnixTime) -> bool {
    let length_us = record.until.since(record.since);
    let tolerance_us = TOLERANCE_US.max(length_us / 10);
    now + tolerance_us < record.until
}
