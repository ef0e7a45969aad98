//! Longer and longer waits for those who do not wait.
//!
//! A refused client is told when to come back. One that keeps asking all the same costs more than it is worth,
//! and gets a cooldown: a time in which it is refused without a look at its limit. The next one is twice as long,
//! up to a longest, and all is forgotten once it has behaved for a while. A cooldown is never prolonged, so
//! the wait that is told in it is true; for the same reason none begins that would end before the limit admits again.
//!
//! A *wait* begins with the first refusal and lasts as long as that one said, in whole seconds as `Retry-After`
//! counts. What is refused within it is a *strike*, with two exceptions, so that nobody is struck who waits as told:
//! - In the first second (or the first half of a wait that is shorter than two) nothing is: what comes then may
//!   have been on its way before the answer was heard.
//! - In the last tenth, and at least the last tenth of a second, nothing is: clocks differ.
//!
//! Who comes after the wait begins a new one if he is refused again, and one strike less.
//!
//! An example with `after: 3, first: 10s`, and a limit that refuses for 12 s at 0 s: asking at 0.2 s is no
//! strike, asking at 2 s, 3 s and 4 s are three, and the answer at 4 s is to come back in 10 s. Whoever asks
//! from then on, and again ignores what it is told, waits 20 s.

use crate::rate::SECOND_US;

/// What may have been on its way when the first refusal was answered.
const GRACE_US: u64 = SECOND_US;
/// The least by which a client's clock may be ahead.
const TOLERANCE_US: u64 = SECOND_US / 10;

/// What a rule does about clients that ignore `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// How many strikes make a cooldown.
    pub after: u32,
    /// How long the first cooldown is; each further one is twice as long.
    pub first_us: u64,
    /// How long a cooldown is at most.
    pub longest_us: u64,
    /// How long after its last wait or cooldown a client's conduct is forgotten.
    pub forget_us: u64,
    /// Tells the rule's clients from those of others.
    pub identity: u64,
}

/// How a client behaved under a rule so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PenaltyRecord {
    /// When the current wait or cooldown began.
    pub since_us: u64,
    /// When it ends.
    pub until_us: u64,
    /// How often it was ignored lately.
    pub strikes: u32,
    /// How many cooldowns there were.
    pub level: u32,
}

impl PenaltyRecord {
    /// From when on it says nothing any more.
    pub fn forgotten_us(&self, penalty: &Penalty) -> u64 {
        self.until_us.saturating_add(penalty.forget_us)
    }
}

impl Penalty {
    /// A request is refused at `now_us` for `retry_us` more. Answers the conduct from then on, and if it has
    /// become a cooldown, how long that is.
    pub fn refused(
        &self,
        known: Option<PenaltyRecord>,
        now_us: u64,
        retry_us: u64,
    ) -> (PenaltyRecord, Option<u64>) {
        let told_us = retry_us.div_ceil(SECOND_US).max(1).saturating_mul(SECOND_US);
        // A clock that went back would make a wait of what was long over.
        let known = known.filter(|known| known.since_us <= now_us && now_us < known.forgotten_us(self));
        let known = known.unwrap_or_default();
        if !is_within(&known, now_us) {
            let until_us = now_us.saturating_add(told_us);
            let strikes = known.strikes.saturating_sub(1);
            return (PenaltyRecord { since_us: now_us, until_us, strikes, ..known }, None);
        }
        let length_us = known.until_us - known.since_us;
        if now_us < known.since_us + GRACE_US.min(length_us / 2) {
            return (known, None);
        }
        let strikes = self.after.min(known.strikes + 1);
        let cooldown_us = self.cooldown_us(known.level);
        if strikes < self.after || cooldown_us <= retry_us {
            return (PenaltyRecord { strikes, ..known }, None);
        }
        let until_us = now_us + cooldown_us;
        let level = known.level.saturating_add(1);
        (PenaltyRecord { since_us: now_us, until_us, strikes: 0, level }, Some(cooldown_us))
    }

    /// How long the cooldown after `level` others is.
    pub fn cooldown_us(&self, level: u32) -> u64 {
        let factor = 1_u64.checked_shl(level).unwrap_or(u64::MAX);
        self.first_us.saturating_mul(factor).min(self.longest_us)
    }
}

/// Whether `now_us` is so far from the end of the wait that a clock's error does not explain it.
fn is_within(conduct: &PenaltyRecord, now_us: u64) -> bool {
    let length_us = conduct.until_us.saturating_sub(conduct.since_us);
    let tolerance_us = TOLERANCE_US.max(length_us / 10);
    now_us.saturating_add(tolerance_us) < conduct.until_us
}
