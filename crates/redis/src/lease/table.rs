//! The leases of a node: decides checks from credit and last replies, makes calls, and applies their replies.

#[cfg(test)]
mod fuzz;
mod lease;
mod locked_shards;
mod pending_group;
mod reports;
mod shard;
#[cfg(test)]
mod tests;
mod tick_schedule;

use super::credit::Reservation;
use crate::metrics::LeaseCounts;
use lease::LocalStep;
use locked_shards::{LockedShards, SHARDS, refused, shard_of};
use parking_lot::Mutex;
use pending_group::{PendingGroup, QueuedRequest, TakeMode};
use shard::LeaseShard;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tollgate_core::algorithm::{LimitStep, MeterNumbers};
use tollgate_core::key::StateKey;
use tollgate_core::lending::LeaseReport;
use tollgate_core::limit::Meter;
use tollgate_core::rules::RuleSet;
use tollgate_core::script::{ScriptCall, ScriptReply};
use tollgate_core::state_address::StateAddress;
use tollgate_core::time::BootTime;
use tollgate_limiter::{OwnedCharge, Passed, Steps};

/// How leases are dealt with. A rule may have a horizon and an interval of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// How far ahead of its use a busy key takes tokens.
    pub horizon_us: u64,
    /// How often credit is reported and idle credit returned.
    pub interval_us: u64,
    /// While a client sends more than its limit: how long after a call the next may come.
    pub gate_us: u64,
    /// From how many tokens a second a key is busy.
    pub busy_per_second: u64,
    /// How many keys are kept at most.
    pub most_leases: usize,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            horizon_us: 2_000_000,
            interval_us: 100_000,
            gate_us: 100_000,
            busy_per_second: 2,
            most_leases: 200_000,
        }
    }
}

/// All leases of a node. `W` receives the verdict on a request.
#[derive(Debug)]
pub struct LeaseTable<W> {
    shards: Box<[Mutex<LeaseShard<W>>]>,
    settings: LeaseSettings,
    /// How many nodes share the store, this one included.
    nodes: AtomicU32,
    /// From one tick to the next.
    tick_us: AtomicU64,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum LeaseCheck<W> {
    /// It is decided: none of the steps refuses, and all are spent; or one does, and nothing is.
    Decided,
    /// The store has to be asked about some limits; the waiters that were handed over receive the verdicts.
    Pending(Box<PendingLeaseCheck<W>>),
}

/// See [`LeaseCheck::Pending`].
#[derive(Debug)]
pub struct PendingLeaseCheck<W> {
    /// What is decided so far.
    pub steps: Steps,
    /// What is reserved for it, see [`LeaseTable::resolve`].
    pub reserved: ReservedTokens,
    /// For each waiter, in order: the charges that its verdict is about.
    pub groups: SmallVec<[SmallVec<[usize; 2]>; 1]>,
    /// To be sent now.
    pub calls: SmallVec<[StoreCall<W>; 1]>,
}

/// What is reserved, by the index of the charge.
pub type ReservedTokens = SmallVec<[(usize, Reservation); 2]>;

/// Receives the verdict on its request.
pub trait Waiter {
    /// Returns whether the verdict was received.
    fn deliver(self, verdict: Verdict) -> bool;
}

/// What a waiter receives.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// How its request stands with each limit of its group. All enforced ones admit it, and its tokens are taken; or
    /// one does not, and nothing was taken. If other groups may still refuse the request, its tokens are reserved:
    /// what for each limit that counted it.
    Served {
        /// The step of each limit of the group.
        steps: SmallVec<[LimitStep; 2]>,
        /// The reservation of each limit that counted the request; empty if nothing is reserved.
        reserved: SmallVec<[Option<Reservation>; 2]>,
    },
    /// The store did not reply in time, or could not.
    Failed,
}

/// Whether the store may have executed a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// Certainly not: what the call was to report is reported again.
    No,
    /// It is not known: nothing of the call is sent again.
    Maybe,
}

/// A call to the store for one client.
#[derive(Debug)]
pub struct StoreCall<W> {
    /// The client's key at the store.
    pub key: Arc<str>,
    /// The arguments of the script.
    pub ask: ScriptCall,
    /// When it was made; at least as early as it is sent.
    pub sent: BootTime,
    client: u64,
    group: u64,
    /// See [`LeaseShard::addresses`].
    addresses: u32,
    charges: Arc<[OwnedCharge]>,
    /// In the order of the runs of `ask`.
    waiters: Vec<CallWaiter<W>>,
}

/// A request that a call is about.
#[derive(Debug)]
struct CallWaiter<W> {
    cost: u32,
    take: TakeMode,
    /// None once the failure policy has decided.
    waiter: Option<W>,
}

/// Which requests a call is for, and which wait behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingGroupId {
    client: u64,
    group: u64,
}

impl<W> StoreCall<W> {
    /// The group that the call is for.
    pub fn group_id(&self) -> PendingGroupId {
        PendingGroupId { client: self.client, group: self.group }
    }

    /// The waiters, in the order of their requests.
    pub fn waiters(&self) -> impl Iterator<Item = &W> {
        self.waiters.iter().filter_map(|waiting| waiting.waiter.as_ref())
    }
}

impl<W: Waiter> LeaseTable<W> {
    /// An empty table.
    pub fn new(settings: LeaseSettings) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(LeaseShard::new(settings.most_leases / SHARDS))).collect(),
            settings,
            nodes: AtomicU32::new(1),
            tick_us: AtomicU64::new(settings.interval_us),
        }
    }

    /// Decides what can be decided here and asks for the rest. `address` tells where the state of a charge
    /// is kept (none: it is not known, and the verdict is a failure), `waiter` makes a waiter; `rules` is the number of the rule set.
    /// If it is decided, `steps` has the steps.
    #[expect(clippy::too_many_arguments, reason = "all that a decision depends on, and room for its steps")]
    pub fn check(
        &self,
        charges: &[OwnedCharge],
        cost: u32,
        rules: u32,
        now: BootTime,
        address: impl Fn(usize) -> Option<StateAddress>,
        waiter: impl FnMut() -> W,
        steps: &mut Steps,
    ) -> LeaseCheck<W> {
        if let [only] = charges {
            let mut shard = self.shard(only.client).lock();
            let local = shard.look_and_spend(only, cost, rules, now, &self.settings);
            match local {
                LocalStep::Spend(step) => {
                    shard.counts.from_credit += 1;
                    steps.push((0, step));
                    return LeaseCheck::Decided;
                }
                LocalStep::Refuse(step) => {
                    shard.counts.refused += 1;
                    steps.push((0, step));
                    return LeaseCheck::Decided;
                }
                LocalStep::Ask => {}
            }
            let mut shards = LockedShards::of_one(only.client, shard);
            let take = TakeMode::Final;
            return self.ask(&mut shards, charges, &[local], cost, take, rules, now, address, waiter, steps);
        }
        let mut shards = LockedShards::lock(&self.shards, charges);
        let locals = shards.look(charges, cost, rules, now, &self.settings);
        match refused(charges, &locals) {
            Some(refused) => {
                shards.of(charges[0].client).counts.refused += 1;
                *steps = refused;
                LeaseCheck::Decided
            }
            None => {
                let take = TakeMode::Final;
                self.ask(&mut shards, charges, &locals, cost, take, rules, now, address, waiter, steps)
            }
        }
    }

    /// The same for a request that other requests may still undo: nothing is spent before [`LeaseTable::resolve`].
    pub fn reserve(
        &self,
        charges: &[OwnedCharge],
        cost: u32,
        rules: u32,
        now: BootTime,
        address: impl Fn(usize) -> Option<StateAddress>,
        waiter: impl FnMut() -> W,
    ) -> PendingLeaseCheck<W> {
        let mut shards = LockedShards::lock(&self.shards, charges);
        let locals = shards.look(charges, cost, rules, now, &self.settings);
        let mut steps = Steps::new();
        let asked = match refused(charges, &locals) {
            Some(refused) => {
                shards.of(charges[0].client).counts.refused += 1;
                steps = refused;
                LeaseCheck::Decided
            }
            None => {
                let (take, steps) = (TakeMode::Tentative, &mut steps);
                self.ask(&mut shards, charges, &locals, cost, take, rules, now, address, waiter, steps)
            }
        };
        match asked {
            LeaseCheck::Pending(asked) => *asked,
            LeaseCheck::Decided => PendingLeaseCheck {
                steps,
                reserved: ReservedTokens::new(),
                groups: SmallVec::new(),
                calls: SmallVec::new(),
            },
        }
    }

    /// The steps of a request that is known to be refused. Spends nothing and makes no call.
    pub fn refuse(&self, charges: &[OwnedCharge], cost: u32, rules: u32, now: BootTime) -> Option<Steps> {
        refused(
            charges,
            &LockedShards::lock(&self.shards, charges).look(charges, cost, rules, now, &self.settings),
        )
    }

    /// Nothing is known that refuses: takes credit where there is some, and asks for the rest.
    #[expect(clippy::too_many_arguments, reason = "they are those of `check`, and what it has found")]
    fn ask(
        &self,
        shards: &mut LockedShards<'_, W>,
        charges: &[OwnedCharge],
        locals: &[LocalStep],
        cost: u32,
        take: TakeMode,
        rules: u32,
        now: BootTime,
        address: impl Fn(usize) -> Option<StateAddress>,
        mut waiter: impl FnMut() -> W,
        steps: &mut Steps,
    ) -> LeaseCheck<W> {
        let mut groups: SmallVec<[SmallVec<[usize; 2]>; 1]> = SmallVec::new();
        for (index, charge) in charges.iter().enumerate().filter(|(index, _)| locals[*index].is_unknown()) {
            match groups.iter_mut().find(|group| charges[group[0]].client == charge.client) {
                Some(group) => group.push(index),
                None => groups.push(SmallVec::from_slice(&[index])),
            }
        }
        let spends = groups.is_empty() && take == TakeMode::Final;
        let mut reserved = ReservedTokens::new();
        for (index, (charge, local)) in charges.iter().zip(locals).enumerate() {
            steps.extend(local.step().map(|step| (index, step)));
            if !matches!(local, LocalStep::Spend(_)) {
                continue;
            }
            let shard = shards.of(charge.client);
            match spends {
                true => shard.spend(charge.key, cost, now),
                false => reserved.push((index, shard.reserve(charge.key, cost, now))),
            }
        }
        let counts = &mut shards.of(charges[0].client).counts;
        *if groups.is_empty() { &mut counts.from_credit } else { &mut counts.remote } += 1;
        if spends {
            return LeaseCheck::Decided;
        }
        let steps = std::mem::take(steps);
        let take = if groups.len() > 1 { TakeMode::Tentative } else { take };
        let mut calls = SmallVec::new();
        for group in &groups {
            let client = charges[group[0]].client;
            let group_charges = || {
                let addresses: Option<SmallVec<[StateAddress; 2]>> =
                    group.iter().map(|index| address(*index)).collect();
                let addresses = addresses?;
                let fields = addresses.iter().map(|address| address.field).collect();
                let group_charges = group.iter().map(|index| charges[*index]).collect();
                Some(PendingGroup::new(addresses.first()?.key.as_str().into(), group_charges, fields))
            };
            let name = group.iter().fold(u64::from(rules), |name, index| {
                let charge = &charges[*index];
                // Requests for one key may differ in what the call says of it: an override has other numbers, a rule that is
                // relaxed for a grant or a shed class does not refuse.
                let name = name ^ charge.key.as_bits() ^ digest(charge);
                name.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            let shard = shards.of(client);
            match shard.join(name, group_charges, QueuedRequest { cost, take, waiter: waiter() }) {
                Ok(()) => {}
                Err(QueuedRequest { waiter, .. }) => {
                    waiter.deliver(Verdict::Failed);
                    continue;
                }
            }
            calls.extend(shard.next_call(client, name, now, self.nodes(), &self.settings));
        }
        LeaseCheck::Pending(Box::new(PendingLeaseCheck { steps, reserved, groups, calls }))
    }

    /// Applies the reply to `call`. Returns the call to send next.
    pub fn apply_reply(
        &self,
        mut call: StoreCall<W>,
        answer: &ScriptReply,
        now: BootTime,
    ) -> Option<StoreCall<W>> {
        let (client, group) = (call.client, call.group);
        let mut shard = self.shard(client).lock();
        if shard.addresses != call.addresses {
            drop(shard);
            self.time_out(&mut call);
            return None;
        }
        let is_late = call.waiters.iter().any(|waiting| waiting.waiter.is_none());
        shard.apply_reply(&call, answer, self.nodes(), now);
        shard.serve(call, answer, now, &self.settings);
        if is_late {
            return None;
        }
        shard.serve_queue(group, now, &self.settings);
        shard.next_call(client, group, now, self.nodes(), &self.settings)
    }

    /// The store has not answered in time: the failure policy decides all requests of this call, and those behind
    /// it. The call itself goes on.
    pub fn time_out(&self, call: &mut StoreCall<W>) {
        let waiters = call.waiters.iter_mut().filter_map(|waiting| waiting.waiter.take());
        let waiters: Vec<W> = waiters.collect();
        if waiters.is_empty() {
            // They have their verdict, or there never were any. Another call of the same group may be in flight.
            return;
        }
        let mut shard = self.shard(call.client).lock();
        // Else the group of this name is another, which waits for a call of its own.
        let queued = (shard.addresses == call.addresses).then(|| shard.remove_group(call.group));
        drop(shard);
        let queued = queued.unwrap_or_default();
        for waiter in waiters.into_iter().chain(queued) {
            waiter.deliver(Verdict::Failed);
        }
    }

    /// The call has failed. What it was to report is kept if the store certainly has not seen it.
    pub fn fail(&self, mut call: StoreCall<W>, executed: Executed) {
        self.time_out(&mut call);
        if executed == Executed::No {
            self.shard(call.client).lock().restore_reports(&call);
        }
    }

    /// Fails the requests that wait behind a lost call.
    pub fn fail_group(&self, group: PendingGroupId) {
        for waiter in self.shard(group.client).lock().remove_group(group.group) {
            waiter.deliver(Verdict::Failed);
        }
    }

    /// All limits of a request are decided: its reserved tokens are spent if it `passed`, else they are free again.
    /// Returns what is to be sent at once. `address` returns the address of the state of a charge.
    pub fn resolve(
        &self,
        charges: &[OwnedCharge],
        reserved: &ReservedTokens,
        passed: Passed,
        now: BootTime,
        address: impl Fn(usize) -> Option<StateAddress>,
    ) -> SmallVec<[StoreCall<W>; 1]> {
        let calls = reserved.iter().filter_map(|(index, reservation)| {
            let charge = &charges[*index];
            let mut shard = self.shard(charge.client).lock();
            shard.resolve(charge, *reservation, passed, now, || address(*index))
        });
        calls.collect()
    }

    /// What the store last refused holds until its retry time while the store cannot be asked.
    pub fn recall_refusal(&self, charge: &OwnedCharge, cost: u32, now: BootTime) -> Option<LimitStep> {
        self.shard(charge.client).lock().recall_refusal(charge, cost, now)
    }

    /// Reports spent tokens, returns credit that is idle or about to expire, evicts unused leases. To be called
    /// every [`LeaseTable::tick_us`].
    pub fn tick(&self, now: BootTime, mut send: impl FnMut(StoreCall<W>)) {
        let (nodes, tick_us) = (self.nodes(), self.tick_us());
        for shard in &self.shards {
            let calls = shard.lock().tick(now, tick_us, nodes);
            calls.into_iter().for_each(&mut send);
        }
    }

    /// What the next call would report of the state `key` if it returned all credit.
    pub(crate) fn pending_reports(
        &self,
        client: u64,
        key: StateKey,
        meter: &Meter,
        now: BootTime,
    ) -> SmallVec<[LeaseReport; 2]> {
        self.shard(client).lock().pending_reports(key, meter, now)
    }

    /// Takes back up to `tokens` of the state `key` that were spent from credit and are not reported yet: they are credit
    /// again. The last reply is not used any more, because more is given back to the store. Returns how many they were.
    pub(crate) fn unspend(
        &self,
        client: u64,
        key: StateKey,
        meter: &Meter,
        tokens: u32,
        now: BootTime,
    ) -> u32 {
        self.shard(client).lock().unspend(key, meter, tokens, now)
    }

    /// The states of `charges` were reset: their last replies are not used any more. Credit of buckets stays, because the
    /// store counts it as lent; that of windows is dropped.
    pub(crate) fn forget(&self, charges: &[OwnedCharge]) {
        charges.iter().for_each(|charge| self.shard(charge.client).lock().forget(charge.key));
    }

    /// All states have other addresses from now on, and start full. What is known of the old ones is not used any more, and requests
    /// that wait for them fail.
    pub(crate) fn forget_states(&self) {
        for shard in &self.shards {
            let waiters = shard.lock().forget_states();
            waiters.into_iter().for_each(|waiter| _ = waiter.deliver(Verdict::Failed));
        }
    }

    /// Drops the credit of the keys that `is_doubtful` selects: this node's clock may be wrong. The store counts it as spent
    /// when it expires.
    pub fn drop_credit(&self, is_doubtful: impl Fn(&str) -> bool) {
        self.shards.iter().for_each(|shard| shard.lock().drop_credit(&is_doubtful));
    }

    /// Returns everything, for a shutdown.
    pub fn return_all(&self, now: BootTime, mut send: impl FnMut(StoreCall<W>)) {
        for shard in &self.shards {
            let calls = shard.lock().return_all(now);
            calls.into_iter().for_each(&mut send);
        }
    }

    /// How many nodes share the store, this one included.
    pub fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// The number set last.
    pub fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Takes the shortest interval of `rules` as that of the ticks. Returns whether it is shorter than before.
    pub fn follow_interval_of(&self, rules: &RuleSet) -> bool {
        let shortest_us = rules.shortest_interval_us().map_or(u64::MAX, |us| us.get().into());
        let tick_us = shortest_us.min(self.settings.interval_us);
        self.tick_us.swap(tick_us, Ordering::Relaxed) > tick_us
    }

    /// How often it has to be called for a tick: at the shortest interval in force.
    pub fn tick_us(&self) -> u64 {
        self.tick_us.load(Ordering::Relaxed)
    }

    /// How checks were decided so far, and the credit that can be spent at `now`.
    pub(crate) fn usage(&self, now: BootTime) -> (LeaseCounts, u64) {
        let (mut counts, mut credit) = (LeaseCounts::default(), 0);
        for shard in &self.shards {
            let shard = shard.lock();
            counts.from_credit += shard.counts.from_credit;
            counts.refused += shard.counts.refused;
            counts.remote += shard.counts.remote;
            counts.coalesced += shard.counts.coalesced;
            credit += shard.credit(now);
        }
        (counts, credit)
    }

    /// The credit that can be spent at `now`.
    pub fn credit(&self, now: BootTime) -> u64 {
        self.usage(now).1
    }

    /// How many keys are kept.
    pub fn lease_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().lease_count()).sum()
    }

    fn shard(&self, client: u64) -> &Mutex<LeaseShard<W>> {
        &self.shards[shard_of(client)]
    }
}

/// Distinguishes in the names of groups what requests for one key may differ in.
fn digest(charge: &OwnedCharge) -> u64 {
    let mut hasher = rapidhash::fast::RapidHasher::default_const();
    let numbers = match charge.meter.numbers() {
        MeterNumbers::Bucket(bucket) => {
            [bucket.capacity.into(), bucket.amount.into(), bucket.period.into(), bucket.tick_us]
        }
        MeterNumbers::Window(window) => [window.limit.into(), window.span_us(), 0, 0],
    };
    (charge.meter.algorithm(), numbers, charge.enforced, charge.leased).hash(&mut hasher);
    hasher.finish()
}
