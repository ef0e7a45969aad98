//! The lease of one limit of one client: its credit, the last reply, and the decisions that follow from both.

use super::LeaseSettings;
use crate::lease::credit::Credit;
use crate::lease::last_reply::{LastReply, RecalledVerdict};
use crate::lease::request_rate::RequestRate;
use std::num::NonZeroU32;
use std::sync::Arc;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::lending::Prefetch;
use tollgate_core::limit::Meter;
use tollgate_core::rules::LeaseTiming;
use tollgate_core::script::ChargeCall;
use tollgate_core::state_address::StateField;
use tollgate_core::time::{BootTime, StoreTime};

/// Nodes hold at most one part in so many of a capacity: a client that moves to another node misses no more.
const PART_IN_HAND: u32 = 100;
/// One part in so many of a capacity, for all nodes together, is not worth a call: it expires unused.
const PART_TO_EXPIRE: u32 = 500;
/// Credit goes back when no request came for so many intervals,
const IDLE_INTERVALS: u64 = 2;
/// or so many times the mean time between two requests,
const IDLE_GAPS: u64 = 4;
/// but not later than this.
const LONGEST_IDLE_US: u64 = 700_000;
/// A client sends more than its limit as long as its last refusal is not older.
const OVER_LIMIT_US: u64 = 250_000;
/// A call that takes tokens ahead holds back others for no longer than this: its reply may be lost.
const PREFETCH_US: u64 = 1_000_000;
/// Of the time that a token lives, so much is left unused: clocks may run apart by a thousandth.
const CLOCKS_APART: u64 = 1_000;

/// What is known of one limit of one client.
///
/// What a check that is decided here looks at comes first: there are many leases, and most are far away in memory.
#[derive(Debug)]
pub(super) struct Lease {
    /// When a request last came.
    pub(super) last_used: BootTime,
    pub(super) rate: RequestRate,
    /// The number of the rules, and the index in them, with which `meter` was last compared: while they are the same,
    /// it is.
    pub(super) seen_in: (u32, usize),
    pub(super) credit: Credit,
    pub(super) last_reply: Option<LastReply>,
    /// When the store was last asked.
    pub(super) last_asked: BootTime,
    /// When a call was made that takes tokens ahead, if its reply has not come.
    pub(super) prefetched: Option<BootTime>,
    /// When a request was last refused.
    last_refused: BootTime,
    /// Until when the last refused request was told to wait.
    pub(super) refused_until: BootTime,
    /// Whether the next tick has to examine it.
    pub(super) is_busy: bool,
    /// The key, client and field of the state; known since the first call.
    pub(super) address: Option<(Arc<str>, u64, StateField)>,
    pub(super) timing: LeasePace,
    pub(super) meter: Meter,
}

/// How often a lease is looked at, and how far ahead it takes tokens: as its rule says, else as the node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeasePace {
    // Small, for there are many leases; ten seconds are the most that can be asked for.
    pub(super) interval_us: u32,
    horizon_us: u32,
}

impl LeasePace {
    pub(super) fn new(leasing: LeaseTiming, settings: &LeaseSettings) -> Self {
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

/// The decision on a request without a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum LocalStep {
    /// There is credit for it.
    Spend(LimitStep),
    /// The store would refuse it.
    Refuse(LimitStep),
    /// The store has to be called.
    Ask,
}

impl LocalStep {
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, Self::Ask)
    }

    pub(super) fn step(&self) -> Option<LimitStep> {
        match self {
            Self::Spend(step) | Self::Refuse(step) => Some(*step),
            Self::Ask => None,
        }
    }
}

impl Lease {
    pub(super) fn new(meter: &Meter, timing: LeasePace, now: BootTime) -> Self {
        Self {
            last_used: now,
            rate: RequestRate::default(),
            seen_in: (0, 0),
            credit: Credit::default(),
            last_reply: None,
            last_asked: BootTime::default(),
            prefetched: None,
            last_refused: BootTime::default(),
            refused_until: BootTime::default(),
            is_busy: false,
            address: None,
            timing,
            meter: *meter,
        }
    }

    /// The numbers of the limit are now `meter`: the last reply is dropped, and credit is
    /// returned. Windows of another length have other epochs, so that their credit cannot be returned.
    pub(super) fn adopt(&mut self, meter: &Meter) {
        if have_same_epochs(&self.meter, meter) {
            self.credit.give_back(BootTime::MAX);
        } else {
            self.credit = Credit::default();
        }
        self.meter = *meter;
        self.last_reply = None;
        self.refused_until = BootTime::default();
    }

    /// The state was reset. The store still counts credit of a bucket as lent, so that it may be spent; what was taken from
    /// a window is not counted any more.
    pub(super) fn forget(&mut self) {
        if self.meter.window().is_some() {
            self.credit = Credit::default();
        }
        self.forget_reply();
    }

    /// The state at the store has changed by other means than calls of this lease: nothing is concluded from the last reply.
    pub(super) fn forget_reply(&mut self) {
        self.last_reply = None;
        self.last_refused = BootTime::default();
        self.refused_until = BootTime::default();
    }

    /// What can be said about a request of `cost`. `meter` is that of the lease, wherever it is at hand.
    #[inline]
    pub(super) fn look(
        &mut self,
        meter: &Meter,
        cost: u32,
        now: BootTime,
        settings: &LeaseSettings,
    ) -> LocalStep {
        let left = self.credit.left(now);
        if left >= cost {
            return LocalStep::Spend(self.admitted(meter, left - cost, now));
        }
        let recalled = match &self.last_reply {
            // Credit and the tokens at the store together may be enough.
            Some(reply) if left == 0 => reply.recall(meter, cost, now),
            _ => RecalledVerdict::Unknown,
        };
        let gate_us = (self.last_asked + self.gate_us(settings)).since(now);
        let mut step = match recalled {
            RecalledVerdict::Unknown => return LocalStep::Ask,
            RecalledVerdict::Refused(step) => step,
            RecalledVerdict::WasRefused(mut step)
                if self.is_over_limit(now) && gate_us > 0 && !self.has_waited(now) =>
            {
                step.retry_after_us = 0;
                step
            }
            RecalledVerdict::WasRefused(_) => return LocalStep::Ask,
        };
        step.retry_after_us = step.retry_after_us.max(gate_us);
        self.note_refusal(&step, now);
        LocalStep::Refuse(step)
    }

    /// The refusal of a request of `cost` that the store cannot be asked about, if the store refused it before and
    /// its retry time has not come.
    pub(super) fn recall_refusal(&self, cost: u32, now: BootTime) -> Option<LimitStep> {
        match self.last_reply.as_ref()?.recall_at_any_age(&self.meter, cost, now) {
            RecalledVerdict::Refused(step) => Some(step),
            RecalledVerdict::WasRefused(_) | RecalledVerdict::Unknown => None,
        }
    }

    /// A request was refused as `step` says.
    pub(super) fn note_refusal(&mut self, step: &LimitStep, now: BootTime) {
        self.last_refused = now;
        self.refused_until = now + step.retry_after_us;
    }

    /// Whether the last call was refused, and the client has waited as it was told since.
    fn has_waited(&self, now: BootTime) -> bool {
        self.last_refused >= self.last_asked && now >= self.refused_until
    }

    /// In how many microseconds the store is asked again at the earliest, if the client sends more than its limit at
    /// present; one that is refused for the first time in a while is asked about when it has waited as it was told.
    pub(super) fn next_call_us(&self, now: BootTime, settings: &LeaseSettings) -> u64 {
        match self.is_over_limit(now) {
            true => (self.last_asked + self.gate_us(settings)).since(now),
            false => 0,
        }
    }

    /// Whether the client sends more than its limit at present.
    fn is_over_limit(&self, now: BootTime) -> bool {
        self.last_refused > BootTime::default() && now.since(self.last_refused) < OVER_LIMIT_US
    }

    /// How long after a call the next may come while the client sends more than its limit. Shorter where the limit
    /// would be full before: then tokens would be lost.
    fn gate_us(&self, settings: &LeaseSettings) -> u64 {
        settings.gate_us.min(self.meter.lifetime_us() / 2)
    }

    /// How an admitted request stands with `left` in hand.
    fn admitted(&self, meter: &Meter, left: u32, now: BootTime) -> LimitStep {
        let (at_store, reset_after_us) = match &self.last_reply {
            Some(reply) => reply.look(meter, now),
            None => (0, 0),
        };
        let remaining = at_store.saturating_add(left).min(meter.quota());
        LimitStep { admitted: true, next: None, remaining, retry_after_us: 0, reset_after_us }
    }

    /// Whether a call that takes tokens ahead is in flight. Calls together with different limits are made beside one another:
    /// each of them would take the same again.
    pub(super) fn is_prefetching(&self, now: BootTime) -> bool {
        self.prefetched.is_some_and(|since| now.since(since) < PREFETCH_US)
    }

    /// A call of `sent` that asked for `ask` is answered, or was not executed.
    pub(super) fn end_prefetch(&mut self, sent: BootTime, ask: &ChargeCall) {
        if ask.prefetch.want > 0 && self.prefetched == Some(sent) {
            self.prefetched = None;
        }
    }

    /// What to take ahead: what the client's rate at this node needs within the horizon. All nodes together hold at
    /// most a hundredth of the capacity, and a node leaves half of that to the others.
    pub(super) fn prefetch(&self, nodes: u32, now: BootTime, settings: &LeaseSettings) -> Prefetch {
        let per_second = self.rate.per_second(now);
        let needed = |us: u64| {
            let tokens = (u128::from(per_second) * u128::from(us)).div_ceil(1_000_000);
            u32::try_from(tokens).unwrap_or(u32::MAX)
        };
        let lent_limit = self.meter.quota() / PART_IN_HAND;
        if self.is_over_limit(now) {
            // The bucket is empty but for what came in since the last call, and the client takes all it gets: one
            // call in a while takes it all.
            let gate_us = self.gate_us(settings);
            return Prefetch::new(needed(gate_us).min(lent_limit.max(self.meter.inflow(gate_us))), 1);
        }
        let most = match (nodes, self.meter.bucket()) {
            (0 | 1, _) => lent_limit,
            // A bucket counts what is lent to others, a window does not.
            (_, Some(_)) => lent_limit.div_ceil(2),
            (_, None) => lent_limit / nodes,
        };
        let most = match per_second < settings.busy_per_second {
            true => most.min(self.negligible(nodes)),
            false => most,
        };
        let last_reply = self.last_reply.as_ref();
        let store_time = last_reply.map_or_else(StoreTime::default, |reply| reply.store_time(now));
        let horizon_us = self.timing.horizon_us().min(self.meter.credit_lifetime_us(store_time));
        Prefetch { want: needed(horizon_us).min(most), share: nodes.saturating_mul(4), lent_limit }
    }

    /// Until when tokens may be spent that were taken with a call of `sent`, at the time `store_time` there.
    pub(super) fn credit_deadline(meter: &Meter, sent: BootTime, store_time: StoreTime) -> BootTime {
        let life_us = meter.credit_lifetime_us(store_time);
        sent + (life_us - life_us / CLOCKS_APART)
    }

    /// How many tokens may expire at this node without a call.
    fn negligible(&self, nodes: u32) -> u32 {
        self.meter.quota() / PART_TO_EXPIRE / nodes.max(1)
    }

    /// Whether no request came for so long that the client is elsewhere: for two intervals, or a few times its mean gap, and for less than a second.
    fn is_idle(&self, now: BootTime) -> bool {
        let interval_us = IDLE_INTERVALS * self.timing.interval_us();
        let gap_us = IDLE_GAPS * 1_000_000 / self.rate.per_second(self.last_used).max(1);
        let idle_us = gap_us.min(LONGEST_IDLE_US).max(interval_us);
        self.last_used + idle_us <= now
    }

    /// Whether the bucket is full but for what is lent, so that its refill waits.
    fn refill_waits(&self, now: BootTime) -> bool {
        let missing = self.last_reply.as_ref().and_then(|reply| reply.missing(&self.meter, now));
        missing.is_none_or(|missing| missing == 0)
    }

    /// Whether a call has to be made just to report. What was spent is reported with the next question; without one,
    /// only if the refill waits for more than this node's part of what nodes may hold.
    pub(super) fn must_report(&self, nodes: u32, now: BootTime) -> bool {
        let is_quiet = self.last_used + self.timing.interval_us() <= now;
        self.credit.has_returns()
            || (is_quiet
                && self.credit.unreported(now) > self.meter.quota() / PART_IN_HAND / nodes.max(1)
                && self.refill_waits(now))
    }

    /// Whether a tick has to look at it: it may have something to return, or to report.
    pub(super) fn is_due(&self, nodes: u32, now: BootTime) -> bool {
        let held = self.credit.left(now).saturating_add(self.credit.unreported(now));
        self.credit.has_returns() || held > self.negligible(nodes)
    }

    /// Returns what is idle or about to expire, unless it is negligible.
    pub(super) fn return_unused(&mut self, nodes: u32, now: BootTime) {
        // Credit that expires before the next tick but one is returned while there is time.
        let expires = match self.is_idle(now) {
            true => BootTime::MAX,
            false => now + 2 * self.timing.interval_us(),
        };
        if self.credit.has_left(expires) && self.credit.left(now) > self.negligible(nodes) {
            self.credit.give_back(expires);
            self.last_reply = None;
        }
    }
}

/// Whether tokens taken under one of the two can be told apart under the other.
pub(super) fn have_same_epochs(one: &Meter, other: &Meter) -> bool {
    match (one.window(), other.window()) {
        (None, None) => one.bucket().is_some() && other.bucket().is_some(),
        (Some(one), Some(other)) => one.span_us() == other.span_us(),
        _ => false,
    }
}
