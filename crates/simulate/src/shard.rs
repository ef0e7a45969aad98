//! A store shard: serves one call after the other, each for a while.

use super::charge_clock::ChargeClock;
use super::clock_votes::{ClockVotes, NodeId};
use super::refill_clock::RefillClock;
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::sync::Arc;
use tollgate_core::algorithm::{MeterNumbers, Window};
use tollgate_core::heartbeat::{self, ClockCorrection};
use tollgate_core::lending::Prefetch;
use tollgate_core::limit::Meter;
use tollgate_core::script::{
    CLOCK_TOLERANCE_US, CallTime, ChargeCall, ReplyState, RequestRun, ScriptCall, ScriptReply,
};
use tollgate_core::state_address::{StateAddress, StateField};
use tollgate_core::time::{ServerTime, StoreTime};
use tollgate_core::virtual_store::VirtualStore;

/// Midnight some day: windows of whole divisors of a day begin when the run does.
const START: StoreTime = StoreTime::from_us(20_000 * 86_400 * 1_000_000);

/// What an exact clock of a shard shows `us` microseconds after the start of the run.
pub(super) fn true_time(us: u64) -> StoreTime {
    START + us
}

/// How far the corrected time of the served calls was from the true time.
#[derive(Clone, Copy, Debug, Default)]
struct ClockErrors {
    least_us: Option<i64>,
    gain_us: u64,
}

impl ClockErrors {
    fn record(&mut self, error_us: i64) {
        let least_us = self.least_us.map_or(error_us, |us| us.min(error_us));
        self.least_us = Some(least_us);
        self.gain_us = self.gain_us.max(error_us.abs_diff(least_us));
    }
}

/// One shard.
#[derive(Debug)]
pub(super) struct SimulatedShard {
    store: VirtualStore<Arc<str>>,
    /// When it has done all that it has begun, in nanoseconds.
    free_ns: u64,
    unavailable_until_us: u64,
    unavailable_since_us: u64,
    /// How far its clock is from the true time.
    clock_us: i64,
    clock_errors: ClockErrors,
    refill_clocks: HashMap<(Arc<str>, StateField), RefillClock>,
    charge_clocks: HashMap<(Arc<str>, StateField), ChargeClock>,
    votes: ClockVotes,
    pub(super) losses_us: Vec<u64>,
    pub(super) charges: u64,
    pub(super) busy_ns: u64,
}

impl SimulatedShard {
    pub(super) fn new() -> Self {
        Self {
            store: VirtualStore::default(),
            free_ns: 0,
            unavailable_until_us: 0,
            unavailable_since_us: 0,
            clock_us: 0,
            clock_errors: ClockErrors::default(),
            refill_clocks: HashMap::new(),
            charge_clocks: HashMap::new(),
            votes: ClockVotes::default(),
            losses_us: Vec::new(),
            charges: 0,
            busy_ns: 0,
        }
    }

    /// Makes the shard unavailable for a while.
    pub(super) fn stop_for(&mut self, now_us: u64, length_us: u64) {
        self.unavailable_since_us = now_us;
        self.unavailable_until_us = now_us + length_us;
    }

    /// What it has written so far.
    pub(super) fn snapshot(&self) -> VirtualStore<Arc<str>> {
        self.store.clone()
    }

    /// Goes on with other data, which was written until `written_until_us`. What the nodes have told of the time is lost.
    pub(super) fn restore(&mut self, store: VirtualStore<Arc<str>>, written_until_us: u64, now_us: u64) {
        // Calls that have reached it were charged by the time at which it is done with them.
        self.losses_us.push(now_us.max(self.free_ns / 1_000));
        self.votes = ClockVotes::default();
        let (mut restored, mut lost) = (store.clone(), std::mem::replace(&mut self.store, store));
        for ((key, field), clock) in &mut self.refill_clocks {
            clock.forget_state(lost.remove_state(key, *field), restored.remove_state(key, *field));
        }
        for ((key, field), clock) in &mut self.charge_clocks {
            match clock.meter() {
                Some(meter) if meter.is_log() => {
                    clock.forget_entries(written_until_us, |window, now| {
                        used(&mut lost, key, *field, window, now)
                    });
                }
                _ => {
                    let (lost, restored) =
                        (lost.remove_state(key, *field), restored.remove_state(key, *field));
                    clock.forget_counts(lost, restored, START);
                }
            }
        }
    }

    pub(super) fn step_clock(&mut self, by_us: i64) {
        self.clock_us += by_us;
    }

    pub(super) fn is_unavailable(&self, now_us: u64) -> bool {
        (self.unavailable_since_us..self.unavailable_until_us).contains(&now_us)
    }

    /// Whether it has been unavailable for so long that the breakers of the nodes are open.
    pub(super) fn is_breaker_open(&self, now_us: u64) -> bool {
        self.is_unavailable(now_us) && now_us >= self.unavailable_since_us + 200_000
    }

    /// Serves `ask` that arrives at `now_us`; returns the reply, and when it is done. No reply: the clock is not where the
    /// node expects it, and nothing was charged.
    pub(super) fn serve(
        &mut self,
        key: &Arc<str>,
        ask: &ScriptCall,
        time: CallTime,
        now_us: u64,
        charge_ns: u64,
    ) -> (Option<ScriptReply>, u64) {
        let work_ns = charge_ns * ask.charges.len() as u64;
        let begins_ns = self.free_ns.max(now_us * 1_000);
        self.free_ns = begins_ns + work_ns;
        self.busy_ns += work_ns;
        self.charges += ask.charges.len() as u64;
        let server = self.server_time(begins_ns / 1_000);
        let store_time = match time {
            CallTime::Corrected { correction, expected } => {
                let corrected = correction.apply(server);
                let off_us = expected.map_or(0, |expected| corrected.ahead_of(expected));
                (off_us.unsigned_abs() <= CLOCK_TOLERANCE_US).then_some(corrected)
            }
            CallTime::Server => Some(ClockCorrection::default().apply(server)),
            CallTime::Given(now) => Some(now),
        };
        let answer = store_time.map(|store_time| {
            self.record_time(key, ask, store_time, begins_ns / 1_000);
            self.store.charge(key, ask, store_time)
        });
        (answer, self.free_ns.div_ceil(1_000))
    }

    fn record_time(&mut self, key: &Arc<str>, ask: &ScriptCall, store_time: StoreTime, at_us: u64) {
        let off_us = store_time.ahead_of(true_time(at_us));
        self.clock_errors.record(off_us);
        for charge in &ask.charges {
            let state = (Arc::clone(key), charge.field);
            match charge.meter.numbers() {
                MeterNumbers::Bucket(_) => {
                    let (clock, store) = (self.refill_clocks.entry(state).or_default(), &mut self.store);
                    let lent = |meter: &Meter, now| lent(store, key, charge.field, meter, now);
                    clock.record(&charge.meter, store_time, at_us, lent);
                }
                MeterNumbers::Window(_) => {
                    let clock = self.charge_clocks.entry(state).or_default();
                    clock.record(&charge.meter, store_time, off_us, at_us);
                }
            }
        }
    }

    /// The most by which the time of served calls advanced more than the true time.
    pub(super) fn clock_gain_us(&self) -> u64 {
        self.clock_errors.gain_us
    }

    /// The clock of a state, if it was refilled for another time than the one that has passed, or was lost.
    pub(super) fn refill_clock(&self, address: &StateAddress) -> Option<&RefillClock> {
        let clock = self.refill_clocks.get(&(Arc::from(address.key.as_str()), address.field))?;
        clock.has_changed().then_some(clock)
    }

    /// The clock of a window or log, if it was charged by another time than the true one, or was lost.
    pub(super) fn charge_clock(&self, address: &StateAddress) -> Option<&ChargeClock> {
        let clock = self.charge_clocks.get(&(Arc::from(address.key.as_str()), address.field))?;
        clock.has_changed().then_some(clock)
    }

    /// Replies the heartbeat of a node that votes for the correction `vote_us`.
    pub(super) fn heartbeat(
        &mut self,
        node: NodeId,
        vote_us: Option<i64>,
        now_us: u64,
    ) -> heartbeat::HeartbeatReply {
        let server = self.server_time(now_us);
        self.votes.heartbeat(node, vote_us, server)
    }

    /// What its clock shows.
    fn server_time(&self, now_us: u64) -> ServerTime {
        ServerTime::from_us(true_time(now_us).as_us()).shifted_by(self.clock_us)
    }
}

/// How many tokens of a bucket are lent at the time `now`.
fn lent(
    store: &mut VirtualStore<Arc<str>>,
    key: &Arc<str>,
    field: StateField,
    meter: &Meter,
    now: StoreTime,
) -> u32 {
    match &store.charge(key, &reading(*meter, field), now).charges[0].state {
        ReplyState::Stored(state) => state.lent.total(),
        ReplyState::Log(_) => 0,
    }
}

/// How many tokens a log counts in the span before `now` that `window` has.
fn used(
    store: &mut VirtualStore<Arc<str>>,
    key: &Arc<str>,
    field: StateField,
    window: &Window,
    now: StoreTime,
) -> u32 {
    let reply = store.charge(key, &reading(Meter::SlidingWindowLog(*window), field), now);
    match &reply.charges[0].state {
        ReplyState::Stored(_) => 0,
        ReplyState::Log(statuses) => window.limit - statuses[0].remaining,
    }
}

/// A call that reads a state.
fn reading(meter: Meter, field: StateField) -> ScriptCall {
    let (prefetch, reports) = (Prefetch::NONE, SmallVec::new());
    let charge = ChargeCall { meter, field, enforced: true, as_lent: false, prefetch, reports };
    ScriptCall { runs: smallvec![RequestRun { repeats: 0, cost: 1 }], charges: smallvec![charge] }
}
