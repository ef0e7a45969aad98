//! Leased tokens at a shared store: the state of a key with what is lent of it. The script in Redis does the same.
//!
//! A node may lease tokens of a busy key and spend them locally. Leased tokens have left the bucket but are not
//! spent yet: if the bucket were refilled to its capacity meanwhile, the capacity *and* the credit of the nodes could
//! be spent at one moment. So a [`StoredState`] counts [`LentTokens`], and the refill stops short by that number:
//! level and lent together never exceed the capacity.
//!
//! Tokens are also taken as lent for a request whose limits are charged by several calls, any of which may refuse it.
//! They stay lent until the node reports them as spent, or returns them. If they were debited and refunded instead, the
//! bucket would be refilled in between, and the refund would raise it too high.
//!
//! Lent tokens are counted by the *epoch* of two seconds in which they were lent, for the current epoch and the one
//! before. Credit expires with the epoch after its own: tokens of older epochs were spent, returned, or lost with a
//! node that crashed, and count as spent. Epochs have the same length under every limit, so that nodes with
//! different versions of a rule read the same state alike.
//!
//! A worked example, capacity 100, 5 a second. The bucket is full. A node takes 1 and leases 20: the level is 79,
//! 20 are lent. Four seconds later the level would be 99, but the refill stops at 80: a burst of 80 at the store and
//! 20 at the node are 100. Once the node reports that it has spent the 20, the refill goes on to 100.
//!
//! Windows lend too, but need no count of it: what is taken counts in its window whether it is spent or
//! not, and credit expires with its window.
//!
//! Tests compare this file with the script step by step. The simulation runs this one.

use crate::algorithm::{LimitStep, StateCell};
use crate::limit::Meter;
use crate::rate::SECOND_US;
use crate::time::StoreTime;

/// The length of an epoch.
pub const EPOCH_US: u64 = 2 * SECOND_US;
/// For how many epochs tokens count as lent: the one in which they were lent, and the next.
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
    /// In both epochs.
    #[inline]
    pub fn total(&self) -> u32 {
        self.current.saturating_add(self.previous)
    }

    /// Drops what was lent two epochs ago. After a step back of the clock it is kept until the clock has caught up.
    pub(crate) fn roll(&mut self, now: StoreTime) {
        let epoch = epoch_at(now);
        if self.epoch < epoch {
            let previous = if epoch - self.epoch == 1 { self.current } else { 0 };
            *self = Self { epoch, current: 0, previous };
        } else if self.total() == 0 || self.lies_ahead(now) {
            self.epoch = epoch;
        }
    }

    /// Whether the clock has jumped back by more than the lifetime of credit, so that all of it expires before the clock
    /// has caught up.
    fn lies_ahead(&self, now: StoreTime) -> bool {
        self.total() > 0 && self.epoch > epoch_at(now).saturating_add(EPOCHS)
    }

    /// What was lent in `epoch`, if it still counts as lent.
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
    pub(crate) fn ends(&self) -> [(StoreTime, u32); 2] {
        let end = |epochs: u64| StoreTime::from_us((u64::from(self.epoch) + epochs) * EPOCH_US);
        [(end(1), self.current), (end(2), 0)]
    }
}

/// The epoch in which `now` lies.
pub(crate) fn epoch_at(now: StoreTime) -> u32 {
    (now.as_us() / EPOCH_US) as u32
}

/// The state of one key under one limit, as a shared store keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredState {
    /// The state; none is a fresh one.
    pub cell: Option<StateCell>,
    /// What is lent. Always nothing for windows.
    pub lent: LentTokens,
}

/// A report of a node on tokens that it has taken in one epoch, see [`Meter::epoch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// The epoch.
    pub epoch: u32,
    /// Lent, and spent since.
    pub spent: u32,
    /// Not spent, and returned.
    pub returned: u32,
}

/// How many tokens a node asks to lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// At most this many,
    pub want: u32,
    /// at most one in this many of those that are available,
    pub share: u32,
    /// and only as long as all that is lent of a bucket stays at or below this.
    pub lent_limit: u32,
}

impl Prefetch {
    /// None.
    pub const NONE: Self = Self::new(0, 1);

    /// Without a `lent_limit`.
    pub const fn new(want: u32, share: u32) -> Self {
        Self { want, share, lent_limit: u32::MAX }
    }
}

impl StoredState {
    /// Brings the state to `now` and applies the reports of nodes.
    pub fn apply_reports(&mut self, meter: &Meter, now: StoreTime, reports: &[LeaseReport]) {
        meter.apply_reports(self, now, reports);
    }

    /// The step of a request of `cost` at `now`. [`StoredState::apply_reports`] comes first. The wait is that after a report now
    /// that all lent tokens are spent. If the refill waits for tokens at all, they are those of requests that other limits have
    /// yet to decide, which are reported within a round trip; to wait until they expire would be seconds too long.
    pub fn step(&self, meter: &Meter, now: StoreTime, cost: u32) -> LimitStep {
        meter.step(self.cell, now, cost)
    }

    /// How many whole tokens are available at `now`.
    pub fn available(&self, meter: &Meter, now: StoreTime) -> u32 {
        self.remaining_and_reset(meter, now).0
    }

    /// What is left at `now`, and the time until nothing is used.
    pub fn remaining_and_reset(&self, meter: &Meter, now: StoreTime) -> (u32, u64) {
        let quota = meter.quota();
        let all = meter.step(self.cell, now, quota);
        if all.admitted { (quota, 0) } else { (all.remaining, all.reset_after_us) }
    }

    /// Takes `tokens`, which must be available.
    pub fn take(&mut self, meter: &Meter, now: StoreTime, tokens: u32) {
        if tokens > 0
            && let Some(cell) = meter.step(self.cell, now, tokens).next
        {
            self.cell = Some(cell);
        }
    }

    /// Takes `tokens`, which must be available, as lent. [`StoredState::apply_reports`] comes first: they are counted in the
    /// epoch to which it has brought the state.
    pub fn take_as_lent(&mut self, meter: &Meter, now: StoreTime, tokens: u32) {
        self.take(meter, now, tokens);
        if meter.bucket().is_some() {
            self.lent.current = self.lent.current.saturating_add(tokens);
        }
    }

    /// Gives `tokens` back that were spent: never more than fit into a bucket beside what is lent, and never more than a
    /// window has counted.
    pub fn refund(&mut self, meter: &Meter, now: StoreTime, tokens: u32) {
        self.apply_reports(meter, now, &[]);
        let mut epoch = meter.epoch(now);
        if meter.bucket().is_some() {
            // As if they had been lent just now, and were returned: the level rises by them, up to the capacity.
            epoch = self.lent.epoch;
            self.lent.current = self.lent.current.saturating_add(tokens);
        }
        self.apply_reports(meter, now, &[LeaseReport { epoch, spent: 0, returned: tokens }]);
    }

    /// Lends as many tokens as `prefetch` allows, and returns how many. [`StoredState::apply_reports`] comes first.
    pub fn lend(&mut self, meter: &Meter, now: StoreTime, prefetch: &Prefetch) -> u32 {
        let Prefetch { want, share, lent_limit } = *prefetch;
        let room = lent_limit.saturating_sub(self.lent.total());
        let lends = want.min(self.available(meter, now) / share.max(1)).min(room);
        self.take_as_lent(meter, now, lends);
        lends
    }

    /// Re-anchors a state that lies so far ahead that the clock must have jumped. Returns whether the state has to be
    /// written even if nothing is taken: it was re-anchored, or [`StoredState::apply_reports`] will re-anchor what is lent.
    pub fn re_anchor(&mut self, meter: &Meter, now: StoreTime) -> bool {
        let lent_ahead = self.lent.lies_ahead(now);
        let ahead = self.cell.filter(|cell| cell.instant > now);
        let anchored = ahead.and_then(|cell| meter.re_anchor(cell, now));
        self.cell = anchored.or(self.cell);
        anchored.is_some() || lent_ahead
    }
}
