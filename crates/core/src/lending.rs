//! What a shared store does with the state of a key: the twin of the script that runs in Redis.
//!
//! A node may take tokens ahead for a busy key and spend them without asking. Tokens taken ahead have left the
//! bucket, but are not spent yet: if the bucket refilled to the brim meanwhile, the brim *and* the tokens held
//! elsewhere could be spent at one moment. So a [`StoredState`] remembers what is [`LentTokens`], and the refill stops
//! short by that much: level and lent together never exceed the capacity.
//!
//! A *held* take is lent as well. A request with limits in several calls does not know yet whether it passes:
//! another limit may refuse it. Its tokens are lent until the node reports them as spent, or returns them. Were
//! they debited and refunded instead, the bucket would refill in between, and the refund would lift it above its
//! due.
//!
//! Lent tokens are counted by the *epoch*, two seconds, in which they were lent, for the current epoch and the one
//! before. Credit expires with the epoch after its own: whatever is older has been spent, returned, or was held by
//! a node that crashed, and counts as spent. Epochs have the same length under every limit, so that nodes with
//! different versions of a rule read the same account alike.
//!
//! A worked example, capacity 100, 5 a second. The bucket is full. A node takes 1 and 20 ahead: the level is 79,
//! 20 are lent. Four seconds later the level would be 99, but the refill stops at 80: a burst of 80 at the store and
//! 20 at the node are 100. Once the node reports that it spent the 20, the refill goes on to 100.
//!
//! Windows lend too, but remember nothing of it: what is taken counts in its window whether it is spent or
//! not, and credit expires with its window.
//!
//! This file and `script/*.lua` say the same in two languages; tests hold them against each other step by
//! step. The simulation runs this one.

use crate::algorithm::{LimitStep, StateCell};
use crate::limit::Meter;
use crate::rate::SECOND_US;

/// How long an epoch is. The script has the same number.
pub const EPOCH_US: u64 = 2 * SECOND_US;
/// How many epochs lent tokens are remembered: the one in which they were lent, and the next.
pub(crate) const EPOCHS: u32 = 2;

/// What is lent of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentTokens {
    /// The epoch in which `current` was lent, counted from 1970.
    pub epoch: u32,
    /// Lent in that epoch.
    pub current: u32,
    /// Lent in the epoch before.
    pub previous: u32,
}

impl LentTokens {
    /// All of it.
    #[inline]
    pub fn total(&self) -> u32 {
        self.current.saturating_add(self.previous)
    }

    /// Forgets what was lent two epochs ago. A clock that stepped back keeps it until it has caught up.
    pub(crate) fn roll(&mut self, now_us: u64) {
        let epoch = epoch_at(now_us);
        if self.epoch < epoch {
            let previous = if epoch - self.epoch == 1 { self.current } else { 0 };
            *self = Self { epoch, current: 0, previous };
        } else if self.total() == 0 || self.lies_ahead(now_us) {
            self.epoch = epoch;
        }
    }

    /// Whether the clock has jumped back further than credit lives: by the time it caught up, all would be dead.
    fn lies_ahead(&self, now_us: u64) -> bool {
        self.total() > 0 && self.epoch > epoch_at(now_us).saturating_add(EPOCHS)
    }

    /// What was lent in `epoch`, if that is still remembered.
    pub(crate) fn of(&mut self, epoch: u32) -> Option<&mut u32> {
        if epoch == self.epoch {
            Some(&mut self.current)
        } else if epoch.checked_add(1) == Some(self.epoch) {
            Some(&mut self.previous)
        } else {
            None
        }
    }

    /// The instants at which less is lent, and how much is left from then on.
    pub(crate) fn ends(&self) -> [(u64, u32); 2] {
        let end = |epochs: u64| (u64::from(self.epoch) + epochs) * EPOCH_US;
        [(end(1), self.current), (end(2), 0)]
    }
}

/// The epoch in which `now_us` lies.
pub(crate) fn epoch_at(now_us: u64) -> u32 {
    (now_us / EPOCH_US) as u32
}

/// The state of one key under one limit, as a shared store keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredState {
    /// The state; none is a fresh one.
    pub cell: Option<StateCell>,
    /// What is lent. Always nothing for windows.
    pub lent: LentTokens,
}

/// What a node reports of tokens that it has taken in one epoch, see [`Meter::epoch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// When they were taken.
    pub epoch: u32,
    /// Lent, and spent since.
    pub spent: u32,
    /// Not spent, and returned.
    pub returned: u32,
}

/// How many tokens a node would like to take ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// So many,
    pub want: u32,
    /// at most one in so many of those that are left,
    pub share: u32,
    /// and no more than keep all that is lent of a bucket at or below this.
    pub lent_limit: u32,
}

impl Prefetch {
    /// Nothing.
    pub const NONE: Self = Self::new(0, 1);

    /// However much is lent already.
    pub const fn new(want: u32, share: u32) -> Self {
        Self { want, share, lent_limit: u32::MAX }
    }
}

impl StoredState {
    /// Brings the account to `now_us` and applies the reports of nodes.
    pub fn apply_reports(&mut self, meter: &Meter, now_us: u64, reports: &[LeaseReport]) {
        meter.apply_reports(self, now_us, reports);
    }

    /// How a request of `cost` stands at `now_us`; [`StoredState::apply_reports`] comes first. The wait also knows when
    /// what is lent lets go of the refill.
    pub fn step(&self, meter: &Meter, now_us: u64, cost: u32) -> LimitStep {
        let mut step = meter.step(self.cell, now_us, cost);
        if step.admitted || self.lent.total() == 0 {
            return step;
        }
        let mut then = *self;
        let mut then_us = now_us;
        let mut at_then = step;
        for (end_us, _) in self.lent.ends() {
            let fits = u64::from(then.lent.total()) + u64::from(cost) <= u64::from(meter.quota());
            if at_then.admitted || (fits && then_us + at_then.retry_after_us <= end_us) {
                break;
            }
            if end_us > then_us {
                // With nothing reported, settling only moves the account on.
                then.apply_reports(meter, end_us, &[]);
                then_us = end_us;
                at_then = meter.step(then.cell, then_us, cost);
            }
        }
        step.retry_after_us = then_us + at_then.retry_after_us - now_us;
        step
    }

    /// How many whole tokens are there at `now_us`.
    pub fn available(&self, meter: &Meter, now_us: u64) -> u32 {
        self.remaining_and_reset(meter, now_us).0
    }

    /// What is left at `now_us`, and until nothing is used.
    pub fn remaining_and_reset(&self, meter: &Meter, now_us: u64) -> (u32, u64) {
        let quota = meter.quota();
        let all = meter.step(self.cell, now_us, quota);
        if all.admitted { (quota, 0) } else { (all.remaining, all.reset_after_us) }
    }

    /// Takes `tokens`, which must be available.
    pub fn take(&mut self, meter: &Meter, now_us: u64, tokens: u32) {
        if tokens > 0
            && let Some(cell) = meter.step(self.cell, now_us, tokens).next
        {
            self.cell = Some(cell);
        }
    }

    /// Takes `tokens`, which must be available, as lent. [`StoredState::apply_reports`] comes first: they are counted in the
    /// epoch to which it has brought the account.
    pub fn take_as_lent(&mut self, meter: &Meter, now_us: u64, tokens: u32) {
        self.take(meter, now_us, tokens);
        if meter.bucket().is_some() {
            self.lent.current = self.lent.current.saturating_add(tokens);
        }
    }

    /// Lends tokens as `prefetch` asks for, and returns how many. [`StoredState::apply_reports`] comes first.
    pub fn lend(&mut self, meter: &Meter, now_us: u64, prefetch: &Prefetch) -> u32 {
        let Prefetch { want, share, lent_limit } = *prefetch;
        let room = lent_limit.saturating_sub(self.lent.total());
        let lends = want.min(self.available(meter, now_us) / share.max(1)).min(room);
        self.take_as_lent(meter, now_us, lends);
        lends
    }

    /// Re-anchors a state that lies so far ahead that the clock must have jumped. Tells whether it has to be
    /// kept, also if nothing is taken: it did, or [`StoredState::apply_reports`] will re-anchor what is lent.
    pub fn re_anchor(&mut self, meter: &Meter, now_us: u64) -> bool {
        let lent_ahead = self.lent.lies_ahead(now_us);
        let ahead = self.cell.filter(|cell| cell.instant_us > now_us);
        let anchored = ahead.and_then(|cell| meter.re_anchor(cell, now_us));
        self.cell = anchored.or(self.cell);
        anchored.is_some() || lent_ahead
    }
}
