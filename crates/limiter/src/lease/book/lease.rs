//! One limit of one client: what is held of it, what is known of it, and what follows from both.

use super::Settings;
use crate::lease::credit::Credit;
use crate::lease::memory::{Memory, Recalled};
use crate::lease::pace::Pace;
use std::num::NonZeroU32;
use std::sync::Arc;
use tollgate_core::algorithm::Step;
use tollgate_core::lending::Account;
use tollgate_core::limit::Meter;
use tollgate_core::place::Field;
use tollgate_core::rules::Leasing;
use tollgate_core::script::{Answer, AnsweredState, Ask, ChargeAnswer, ChargeAsk};

/// A node that has been alone with a key for so long is thought to stay so.
const ALONE_AFTER_US: u64 = 500_000;
/// One part in so many of a capacity is too little to call for,
const SLACK: u32 = 100;
/// as long as it is one in so many of what comes in while it could be held: what dies unused comes back then.
const SLACK_OF_FLOW: u32 = 16;
/// What a key that has hardly been seen may need before its tokens die.
const A_FEW: u64 = 16;
/// A key that takes tokens ahead for some time has gone quiet if none came in one part of so many of it.
const PAUSES: u64 = 3;
/// Of what a token lives, so much is left unused: clocks may run apart by a thousandth.
const CLOCKS_APART: u64 = 1_000;

/// What is known of one limit of one client.
///
/// What a check that is decided here looks at comes first: there are many leases, and most are far away in memory.
#[derive(Debug)]
pub(super) struct Lease {
    /// When somebody last asked here.
    pub(super) used_us: u64,
    pub(super) pace: Pace,
    /// The number of the rules, and the place in them, at which `meter` was last seen: while they are the same,
    /// it is.
    pub(super) known_as: (u32, usize),
    pub(super) credit: Credit,
    pub(super) memory: Option<Memory>,
    /// The state when it was last answered, whether it is still believed or not; and when that was asked.
    pub(super) last: Option<(Account, u64)>,
    /// For how long nobody else has touched the state, as far as the answers tell.
    pub(super) alone_us: u64,
    /// When the store was last asked.
    pub(super) asked_us: u64,
    /// Whether anything was refused since.
    pub(super) was_refused: bool,
    /// Whether the next tick has to look at it.
    pub(super) is_busy: bool,
    /// Where the state stands; known since it was first asked for.
    pub(super) place: Option<(Arc<str>, u64, Field)>,
    pub(super) timing: Timing,
    pub(super) meter: Meter,
}

/// How often a lease is looked at, and how far ahead it takes tokens: as its rule says, else as the node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timing {
    // Small, for there are many leases; ten seconds are the most that can be asked for.
    pub(super) interval_us: u32,
    horizon_us: u32,
}

impl Timing {
    pub(super) fn new(leasing: Leasing, settings: &Settings) -> Self {
        let own = |us: u64| u32::try_from(us).unwrap_or(u32::MAX);
        Self {
            interval_us: leasing.interval_us.map_or(own(settings.interval_us), NonZeroU32::get),
            horizon_us: leasing.horizon_us.map_or(own(settings.horizon_us), NonZeroU32::get),
        }
    }

    pub(super) fn interval_us(&self) -> u64 {
        self.interval_us.into()
    }

    fn horizon_us(&self) -> u64 {
        self.horizon_us.into()
    }
}

/// What can be said about a request without asking.
#[derive(Clone, Copy, Debug)]
pub(super) enum Local {
    /// There is credit for it.
    Spend(Step),
    /// The store would refuse it.
    Refuse(Step),
    /// The store has to say.
    Ask,
}

impl Local {
    pub(super) fn step(&self) -> Option<Step> {
        match self {
            Self::Spend(step) | Self::Refuse(step) => Some(*step),
            Self::Ask => None,
        }
    }
}

impl Lease {
    pub(super) fn new(meter: &Meter, timing: Timing, now_us: u64) -> Self {
        Self {
            used_us: now_us,
            pace: Pace::default(),
            known_as: (0, 0),
            credit: Credit::default(),
            memory: None,
            last: None,
            alone_us: 0,
            asked_us: 0,
            was_refused: false,
            is_busy: false,
            place: None,
            timing,
            meter: *meter,
        }
    }

    /// The numbers of the limit are now `meter`: what was believed and held under others is void.
    pub(super) fn adopt(&mut self, meter: &Meter) {
        if meter.epoch_seconds() == self.meter.epoch_seconds() {
            self.credit.bring_back(u64::MAX);
        } else {
            // The store has given it another place among what is lent, and forgets it in time.
            self.credit = Credit::default();
        }
        self.meter = *meter;
        self.memory = None;
    }

    /// What can be said about a request of `cost`. `meter` is that of the lease, wherever it is at hand.
    #[inline]
    pub(super) fn look(&mut self, meter: &Meter, cost: u32, now_us: u64, settings: &Settings) -> Local {
        let left = self.credit.left(now_us);
        if left >= cost {
            return Local::Spend(self.admitted(meter, left - cost, now_us));
        }
        let recalled = match &self.memory {
            // With something in hand, the store and it together may be enough.
            Some(memory) if left == 0 => memory.recall(meter, cost, now_us),
            _ => Recalled::Unknown,
        };
        let gate_us = (self.asked_us + settings.gate_us).saturating_sub(now_us);
        match recalled {
            Recalled::Unknown => Local::Ask,
            Recalled::Refused(mut step) => {
                step.retry_after_us = step.retry_after_us.max(gate_us);
                self.was_refused = true;
                Local::Refuse(step)
            }
            Recalled::WasRefused(mut step) if self.was_refused && gate_us > 0 => {
                step.retry_after_us = gate_us;
                Local::Refuse(step)
            }
            Recalled::WasRefused(_) => Local::Ask,
        }
    }

    /// How an admitted request stands with `left` in hand.
    fn admitted(&self, meter: &Meter, left: u32, now_us: u64) -> Step {
        let (at_store, reset_after_us) = match &self.memory {
            Some(memory) => memory.look(meter, now_us),
            None => (0, 0),
        };
        let remaining = at_store.saturating_add(left).min(meter.quota());
        Step { admitted: true, next: None, remaining, retry_after_us: 0, reset_after_us }
    }

    /// Whether no other node has used the key for a while, as where a balancer sends a client to one node.
    pub(super) fn is_alone(&self) -> bool {
        self.alone_us >= ALONE_AFTER_US
    }

    /// How long nobody may come before what is in hand goes back: a key that should have been asked for
    /// several times by now has gone quiet.
    pub(super) fn patience_us(&self, now_us: u64, settings: &Settings) -> u64 {
        let (interval_us, horizon_us) = (self.timing.interval_us(), self.timing.horizon_us());
        if self.is_alone() {
            return settings.lone_horizon_us.max(horizon_us);
        }
        // What was taken for long is not brought back at the first pause.
        let pause_us = interval_us.max(horizon_us / PAUSES);
        let arrivals = self.pace.per_second(now_us) * pause_us / 1_000_000;
        if arrivals >= 1 { pause_us } else { horizon_us }
    }

    /// How many tokens to take ahead, and at most one in how many of those that are left. What a busy key will
    /// need soon; or, for any key, so little that nobody misses it while it lives, however quiet the key is.
    pub(super) fn ahead(&self, nodes: u32, now_us: u64, settings: &Settings) -> (u32, u32) {
        let per_second = self.pace.per_second(now_us);
        let is_alone = self.is_alone();
        let nodes = if is_alone { 1 } else { nodes };
        // What would not be spent while it lives is not worth taking.
        let store_us = self.memory.as_ref().map(|memory| memory.store_us(now_us));
        let life_us = self.meter.credit_us(store_us.unwrap_or_default());
        let horizon_us = match per_second >= settings.busy_per_second {
            true => self.timing.horizon_us().min(life_us),
            false => 0,
        };
        let horizon_us = match is_alone {
            // What dies before the next tick but one would be brought back.
            true => horizon_us
                .max(settings.lone_horizon_us.min(life_us.saturating_sub(2 * self.timing.interval_us()))),
            false => horizon_us,
        };
        let tokens = |us: u64| (per_second * us).div_ceil(1_000_000);
        let soon = u32::try_from(tokens(horizon_us)).unwrap_or(u32::MAX);
        // Where something was refused, every node is waiting for its part of what trickles in.
        let share = if self.was_refused { nodes } else { nodes.saturating_mul(4) };
        // Enough for a client that comes twice as often as it did.
        let change = tokens(2 * life_us).max(A_FEW).min(u64::from(self.slack(nodes))) as u32;
        let change_share = nodes.saturating_mul(SLACK);
        let there = match (&self.memory, store_us) {
            (Some(memory), Some(_)) => memory.look(&self.meter, now_us).0,
            _ => self.meter.quota(),
        };
        if change.min(there / change_share) > soon.min(there / share) {
            (change, change_share)
        } else {
            (soon, share)
        }
    }

    /// Until when tokens may be spent that were taken with a call of `sent_us`, at the time `store_us` there.
    pub(super) fn deadline_us(meter: &Meter, sent_us: u64, store_us: u64) -> u64 {
        let life_us = meter.credit_us(store_us);
        sent_us + life_us - life_us / CLOCKS_APART
    }

    /// How many tokens need no word: what all nodes together keep to themselves is lost in the capacity.
    pub(super) fn slack(&self, nodes: u32) -> u32 {
        let nodes = if self.is_alone() { 1 } else { nodes };
        (self.meter.quota() / SLACK).min(self.meter.epoch_flow() / SLACK_OF_FLOW) / nodes
    }

    /// How many tokens are missing at the store, see [`Memory::missing`].
    pub(super) fn missing(&self, now_us: u64) -> Option<u32> {
        self.memory.as_ref()?.missing(&self.meter, now_us)
    }

    /// Whether the store has to be told what was spent without being asked. While it is not full it need not:
    /// the refill goes on all the same.
    pub(super) fn has_news(&self, nodes: u32, now_us: u64) -> bool {
        self.credit.brings_back()
            || (self.credit.untold(now_us) > self.slack(nodes)
                && self.missing(now_us).is_none_or(|missing| missing == 0))
    }

    /// Whether what is in hand may as well die: so little that a bucket that is nearly full does not miss it, or
    /// so little beside what is left.
    pub(super) fn may_die(&self, nodes: u32, now_us: u64) -> bool {
        let (left, slack) = (self.credit.left(now_us), self.slack(nodes));
        left <= slack
            && self.memory.as_ref().is_some_and(|memory| {
                let there = memory.look(&self.meter, now_us).0;
                left <= there / SLACK / if self.is_alone() { 1 } else { nodes }
                    || memory.missing(&self.meter, now_us).is_some_and(|missing| missing <= slack)
            })
    }

    /// Whether a tick has to look at it: it may have something to bring back, or to tell.
    pub(super) fn is_due(&self, nodes: u32, now_us: u64) -> bool {
        let held = self.credit.left(now_us).saturating_add(self.credit.untold(now_us));
        self.credit.brings_back() || (held > 0 && (held > self.slack(nodes) || !self.may_die(nodes, now_us)))
    }

    /// Lets go of what is idle or about to die, if anybody could miss it.
    pub(super) fn let_go(&mut self, nodes: u32, now_us: u64, settings: &Settings) {
        let is_idle = self.used_us + self.patience_us(now_us, settings) <= now_us;
        // What dies before the next tick but one goes back while there is time.
        let dies_us = if is_idle { u64::MAX } else { now_us + 2 * self.timing.interval_us() };
        if self.credit.holds(dies_us) && !self.may_die(nodes, now_us) {
            self.credit.bring_back(dies_us);
            self.memory = None;
        }
    }

    /// Whether `cost` tokens that were taken just now will surely still be missing when they come back with the
    /// next tick. If the bucket is full by then, its refill has replaced them, and they would be on top.
    pub(super) fn misses(&self, cost: u32, now_us: u64) -> bool {
        let Some(bucket) = self.meter.bucket() else { return true };
        let ticks = 2 * self.timing.interval_us() / bucket.tick_us + 1;
        let refilled = ticks * u64::from(bucket.amount) / u64::from(bucket.period) + 2;
        let others = self.credit.refunded();
        self.missing(now_us).is_some_and(|missing| u64::from(missing) > refilled + u64::from(cost) + others)
    }

    /// Takes in what the store says after `ask`: how things stand, and whether anybody else was there since it
    /// last said something.
    pub(super) fn hear(
        &mut self,
        ask: &Ask,
        charge: &ChargeAsk,
        answer: &Answer,
        told: &ChargeAnswer,
        sent_us: u64,
    ) {
        let AnsweredState::Account(now) = &told.state else { return };
        let was_alone = self.last.is_some_and(|(mut account, _)| {
            account.settle(&charge.meter, answer.now_us, &charge.reports);
            let counted = if charge.enforced { &answer.passing } else { &told.counted };
            for (run, passed) in ask.runs.iter().zip(counted) {
                account.take(
                    &charge.meter,
                    answer.now_us,
                    run.cost.saturating_mul(*passed).min(charge.meter.quota()),
                );
            }
            account.lend(&charge.meter, answer.now_us, told.lends, 1);
            account.lent.total() == now.lent.total()
                && account.available(&charge.meter, answer.now_us)
                    == now.available(&charge.meter, answer.now_us)
        });
        let before_us = self.last.map_or(sent_us, |(_, before_us)| before_us);
        self.alone_us = if was_alone { self.alone_us + sent_us.saturating_sub(before_us) } else { 0 };
        self.last = Some((*now, sent_us));
    }
}
