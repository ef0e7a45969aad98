//! What a shared store does with the state of a key: the twin of the script that runs in Redis.
//!
//! A node may take tokens ahead for a busy key and spend them without asking. What is taken ahead has left
//! the bucket, but nobody has used it yet: if the bucket refilled to the brim meanwhile, the brim *and* what
//! is held elsewhere could be spent at one moment. So an [`Account`] remembers what is [`Lent`], and the
//! refill stops short by that much: level and credit together never exceed the capacity.
//!
//! What is lent is kept by the *epoch* in which it was lent, for the current one and the one before. Credit
//! dies with the epoch after its own, so what is older has been spent, brought back, or belonged to a node that
//! died. A bucket that takes a minute to fill has epochs of eight seconds, one that fills within a few has epochs
//! of one: what is held for a while is missed the less, the longer the bucket takes anyway. The lengths are
//! powers of two, so that the ends of long epochs are ends of short ones too, and an epoch is called by the second
//! in which it began. When a rule changes and the length with it, what is lent is never forgotten sooner than
//! under the length that it was lent under.
//!
//! A worked example, capacity 100, 10 a second, epochs of one second. The bucket is full. A node takes 1 and 20
//! ahead: the level is 79, 20 are lent. Two seconds later the level would be 99, but the refill stops at 80: a
//! burst of 80 at the store and 20 at the node are 100. Once the node tells that it spent the 20, the refill goes
//! on to 100.
//!
//! Windows lend too, but remember nothing of it: what is taken counts in its window whether it is spent or
//! not, and credit dies with its window.
//!
//! This file and `script/*.lua` say the same in two languages; tests hold them against each other step by
//! step. The simulation runs this one.

use crate::algorithm::{Bucket, Cell, Step, Window};
use crate::limit::Meter;
use crate::rate::SECOND_US;

/// The longest epoch, in seconds.
const LONGEST_EPOCH: u32 = 8;

/// What is lent of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// The first second, since 1970, of the epoch in which `current` was lent.
    pub epoch: u32,
    /// How many seconds that epoch has, and the one before.
    pub length: u32,
    /// Lent in that epoch.
    pub current: u32,
    /// Lent in the epoch before.
    pub previous: u32,
}

impl Lent {
    /// All of it.
    #[inline]
    pub fn total(&self) -> u32 {
        self.current.saturating_add(self.previous)
    }

    /// Goes on in the epochs of `meter`, and remembers everything at least as long as before; no longer, at most,
    /// than tokens can live that were taken just now. A capacity that was lowered far below what is lent is not
    /// blocked for that time: a quarter of it stays free.
    fn fit(&mut self, meter: &Meter, now_us: u64) {
        let length = meter.epoch_seconds();
        if self.length != length && self.total() > 0 && !self.lies_ahead(now_us) {
            if self.length < length {
                *self = Self {
                    epoch: self.epoch - self.epoch % length,
                    length,
                    current: self.total(),
                    previous: 0,
                };
            } else {
                // An epoch that lies ahead, so that it ends when the longer one would have.
                let latest = epoch_at(now_us, length) + 2 * LONGEST_EPOCH;
                self.epoch = latest.min(self.epoch + 2 * (self.length - length));
            }
            let most = meter.quota() - meter.quota() / 4;
            self.previous = self.previous.min(most);
            self.current = self.current.min(most - self.previous);
        }
        self.length = length;
    }

    /// Lets go of what was lent two epochs ago. A clock that stepped back keeps it until it has caught up.
    fn roll(&mut self, meter: &Meter, now_us: u64) {
        self.fit(meter, now_us);
        let length = self.length;
        let epoch = epoch_at(now_us, length);
        if self.epoch < epoch {
            let previous = if self.epoch + length >= epoch { self.current } else { 0 };
            *self = Self { epoch, length, current: 0, previous };
        } else if self.total() == 0 || self.lies_ahead(now_us) {
            self.epoch = epoch;
        }
    }

    /// Whether the clock has jumped back by so much that it would take long to catch up.
    fn lies_ahead(&self, now_us: u64) -> bool {
        self.total() > 0 && u64::from(self.epoch) > now_us / SECOND_US + 2 * u64::from(LONGEST_EPOCH)
    }

    /// What was lent in `epoch`, if that is still remembered.
    fn of(&mut self, epoch: u32) -> Option<&mut u32> {
        if epoch == self.epoch {
            Some(&mut self.current)
        } else if epoch.checked_add(self.length) == Some(self.epoch) {
            Some(&mut self.previous)
        } else {
            None
        }
    }

    /// The instants at which less is lent, and how much is left from then on.
    pub(crate) fn ends(&self) -> [(u64, u32); 2] {
        let end = |epochs: u32| (u64::from(self.epoch) + u64::from(epochs * self.length)) * SECOND_US;
        [(end(1), self.current), (end(2), 0)]
    }
}

/// The first second of the epoch in which `now_us` lies.
fn epoch_at(now_us: u64, length: u32) -> u32 {
    let second = (now_us / SECOND_US) as u32;
    second - second % length
}

/// A bucket at one tick: what is available, in fractions of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    /// Below nothing if more is owed than can be.
    pub(crate) available: i64,
    /// The tick that it speaks of.
    pub(crate) at: u64,
}

/// What is available of `bucket` at the tick `at` if it was `available` at the tick `last`.
pub(crate) fn refill(bucket: &Bucket, lent: &Lent, mut available: i64, mut last: u64, at: u64) -> i64 {
    // A lowered capacity may lie below what is lent: then nothing is refilled, but nothing is owed either.
    let most = |held: u32| i64::from(bucket.capacity.saturating_sub(held)) * i64::from(bucket.period);
    let gain = |ticks: u64| (ticks.min(bucket.span) * u64::from(bucket.amount)) as i64;
    let mut held = lent.total();
    if held > 0 {
        for (end_us, left) in lent.ends() {
            let end = end_us / bucket.tick_us;
            if end > at {
                break;
            }
            if end >= last {
                available = most(held).min(available + gain(end - last));
                last = end;
            }
            held = left;
        }
    }
    most(held).min(available + gain(at.saturating_sub(last)))
}

/// The state of one key under one limit, as a shared store keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The state; none is a fresh one.
    pub cell: Option<Cell>,
    /// What is lent. Always nothing for windows.
    pub lent: Lent,
}

/// What a node tells of tokens that it has taken in one epoch, see [`Meter::epoch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When they were taken.
    pub epoch: u32,
    /// Taken ahead, and spent since.
    pub spent: u32,
    /// Taken ahead, and brought back.
    pub returned: u32,
    /// Taken for a request that came to nothing, and brought back.
    pub refunded: u32,
}

impl Account {
    /// Brings the account to `now_us` and takes in what nodes report.
    pub fn settle(&mut self, meter: &Meter, now_us: u64, reports: &[Report]) {
        let was_lent = self.lent.total() > 0;
        if let Some(bucket) = meter.bucket() {
            if !was_lent && reports.is_empty() {
                self.lent.roll(meter, now_us);
                return;
            }
            self.lent.fit(meter, now_us);
            let mut opened = meter.open(bucket, self.cell, now_us, &self.lent);
            self.lent.roll(meter, now_us);
            for report in reports {
                // What comes back later than that would come on top of what was refilled in its stead.
                let Some(lent) = self.lent.of(report.epoch) else { continue };
                let returned = report.returned.min(*lent);
                *lent -= (*lent).min(report.spent.saturating_add(returned));
                let back = report.refunded.saturating_add(returned).min(bucket.capacity);
                let period = i64::from(bucket.period);
                let most = i64::from(bucket.capacity.saturating_sub(self.lent.total())) * period;
                let with_back = opened.available + i64::from(back) * period;
                opened.available = opened.available.max(most.min(with_back));
            }
            self.cell = Some(meter.close(bucket, opened));
        } else if let Some(window) = meter.window() {
            for report in reports {
                let back = report.returned.saturating_add(report.refunded);
                self.cell = Some(meter.give_back(window, self.cell, now_us, report.epoch, back));
            }
        }
    }

    /// How a request of `cost` stands at `now_us`; [`Account::settle`] comes first. The wait also knows when
    /// what is lent lets go of the refill.
    pub fn step(&self, meter: &Meter, now_us: u64, cost: u32) -> Step {
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
                then.settle(meter, end_us, &[]);
                then_us = end_us;
                at_then = meter.step(then.cell, then_us, cost);
            }
        }
        step.retry_after_us = then_us + at_then.retry_after_us - now_us;
        step
    }

    /// How many whole tokens are there at `now_us`.
    pub fn available(&self, meter: &Meter, now_us: u64) -> u32 {
        self.look(meter, now_us).0
    }

    /// What is left at `now_us`, and until nothing is used.
    pub fn look(&self, meter: &Meter, now_us: u64) -> (u32, u64) {
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

    /// Lends up to `want` tokens, at most one in `share` of those available, and tells how many.
    /// [`Account::settle`] comes first: what is lent is written to the epoch that it has come to.
    pub fn lend(&mut self, meter: &Meter, now_us: u64, want: u32, share: u32) -> u32 {
        let lends = want.min(self.available(meter, now_us) / share.max(1));
        self.take(meter, now_us, lends);
        if meter.bucket().is_some() {
            self.lent.current = self.lent.current.saturating_add(lends);
        }
        lends
    }

    /// Re-anchors a state that lies so far ahead that the clock must have jumped. Tells whether it has to be
    /// kept, also if nothing is taken: it did, or [`Account::settle`] will re-anchor what is lent.
    pub fn anchor(&mut self, meter: &Meter, now_us: u64) -> bool {
        let lent_ahead = self.lent.lies_ahead(now_us);
        self.lent.fit(meter, now_us);
        let Some(cell) = self.cell.filter(|cell| cell.instant_us > now_us) else { return lent_ahead };
        let anchored = if let Some(bucket) = meter.bucket() {
            // A theoretical arrival time may lie twice as far ahead, see gcra.rs.
            let furthest = if matches!(meter, Meter::Gcra(_)) { 2 * bucket.span } else { bucket.span };
            let ahead = cell.instant_us.div_ceil(bucket.tick_us) - now_us / bucket.tick_us;
            let nothing = Lent::default();
            (ahead > furthest).then(|| meter.close(bucket, meter.open(bucket, Some(cell), now_us, &nothing)))
        } else if let Some(window) = meter.window() {
            let ahead = cell.instant_us / window.tick_us - now_us / window.tick_us;
            (ahead > window.length).then(|| meter.cell_at(window, Some(cell), now_us))
        } else {
            None
        };
        self.cell = anchored.or(Some(cell));
        anchored.is_some() || lent_ahead
    }
}

impl Meter {
    fn open(&self, bucket: &Bucket, cell: Option<Cell>, now_us: u64, lent: &Lent) -> Opened {
        use crate::algorithm::{gcra, leaky_bucket, token_bucket};
        match self {
            Self::LeakyBucket(_) => leaky_bucket::open(bucket, cell, now_us, lent),
            Self::Gcra(_) => gcra::open(bucket, cell, now_us, lent),
            _ => token_bucket::open(bucket, cell, now_us, lent),
        }
    }

    fn close(&self, bucket: &Bucket, opened: Opened) -> Cell {
        use crate::algorithm::{gcra, leaky_bucket, token_bucket};
        match self {
            Self::LeakyBucket(_) => leaky_bucket::close(bucket, opened),
            Self::Gcra(_) => gcra::close(bucket, opened),
            _ => token_bucket::close(bucket, opened),
        }
    }

    fn cell_at(&self, window: &Window, cell: Option<Cell>, now_us: u64) -> Cell {
        use crate::algorithm::{fixed_window, sliding_window_counter};
        match self {
            Self::FixedWindow(_) => fixed_window::at(window, cell, now_us),
            _ => sliding_window_counter::at(window, cell, now_us),
        }
    }

    /// The state after `back` tokens come back that were taken in the window `epoch`.
    fn give_back(&self, window: &Window, cell: Option<Cell>, now_us: u64, epoch: u32, back: u32) -> Cell {
        let mut cell = self.cell_at(window, cell, now_us);
        if window_number(window, cell.instant_us) == epoch {
            cell.major = cell.major.saturating_sub(back);
        }
        cell
    }

    /// How many seconds an epoch has in which tokens are taken ahead: 8, 4, 2 or 1, about an eighth of the time
    /// to full. The script reads the same from the class of the lifetime that stands in each state: 104, 100 and
    /// 96 quarters of a power of two of microseconds.
    #[inline]
    pub fn epoch_seconds(&self) -> u32 {
        match self.lifetime_us() {
            ..=14_107_900 => 1,
            14_107_901..=28_215_801 => 2,
            28_215_802..=56_431_603 => 4,
            _ => LONGEST_EPOCH,
        }
    }

    /// How many tokens an epoch brings.
    pub fn epoch_flow(&self) -> u32 {
        let epoch_us = u64::from(self.epoch_seconds()) * SECOND_US;
        let tokens = match (self.bucket(), self.window()) {
            (Some(bucket), _) => {
                epoch_us / bucket.tick_us * u64::from(bucket.amount) / u64::from(bucket.period)
            }
            (None, Some(window)) => u64::from(window.limit) * epoch_us / (window.length * window.tick_us),
            (None, None) => 0,
        };
        tokens.min(self.quota().into()) as u32
    }

    /// What names the time in which tokens are taken, so that they can be brought back to where they came
    /// from: for buckets the first second of the epoch, for windows the number of the window.
    pub fn epoch(&self, now_us: u64) -> u32 {
        match self.window() {
            Some(window) => window_number(window, now_us),
            None => epoch_at(now_us, self.epoch_seconds()),
        }
    }

    /// How long after `now_us` tokens taken then may be spent without asking: as long as the account
    /// remembers them, or until their window ends.
    pub fn credit_us(&self, now_us: u64) -> u64 {
        let epoch_us = u64::from(self.epoch_seconds()) * SECOND_US;
        match self.window() {
            Some(window) => {
                let length_us = window.length * window.tick_us;
                (length_us - now_us % length_us).min(epoch_us)
            }
            None => 2 * epoch_us - now_us % epoch_us,
        }
    }
}

pub(crate) fn window_number(window: &Window, at_us: u64) -> u32 {
    (at_us / window.tick_us / window.length) as u32
}
