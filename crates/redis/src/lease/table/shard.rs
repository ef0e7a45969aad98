//! A part of the lease table under one lock: the leases of some clients, and their pending groups.
//!
//! Decisions without a call are made here; [`calls`] makes calls, [`replies`] applies replies, [`tick`] is periodic work.

#[cfg(test)]
mod audit;
mod calls;
mod replies;
mod tick;

use super::lease::{Lease, LeasePace, LocalStep, have_same_epochs};
use super::pending_group::PendingGroup;
use super::tick_schedule::TickSchedule;
use super::{LeaseSettings, StoreCall};
use crate::lease::credit::Reservation;
use crate::metrics::LeaseCounts;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::key::StateKey;
use tollgate_core::lending::LeaseReport;
use tollgate_core::limit::Meter;
use tollgate_core::state_address::StateAddress;
use tollgate_core::time::BootTime;
use tollgate_limiter::{OwnedCharge, Passed, is_request_limit};

/// A map by keyed hashes.
pub(super) type HashedMap<K, T> = HashMap<K, T, rapidhash::fast::RandomState>;

#[derive(Debug)]
pub(super) struct LeaseShard<W> {
    leases: HashedMap<StateKey, Lease>,
    /// Leases with credit worth returning, or tokens to report: a tick examines no others.
    busy: TickSchedule,
    /// When unused leases are searched for again.
    next_sweep: BootTime,
    pending: HashedMap<u64, PendingGroup<W>>,
    /// How often the addresses of all states have changed: what a call from before that returns is not used.
    pub(super) addresses: u32,
    most_leases: usize,
    /// How checks were decided.
    pub(super) counts: LeaseCounts,
}

impl<W> LeaseShard<W> {
    pub(super) fn new(most_leases: usize) -> Self {
        Self {
            leases: HashedMap::default(),
            busy: TickSchedule::default(),
            next_sweep: BootTime::default(),
            pending: HashedMap::default(),
            addresses: 0,
            most_leases,
            counts: LeaseCounts::default(),
        }
    }

    pub(super) fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// The tokens that can be spent at `now`.
    pub(super) fn credit(&self, now: BootTime) -> u64 {
        self.leases.values().map(|lease| u64::from(lease.credit.left(now))).sum()
    }

    /// What can be said about `charge` under the rules of this number; and notes that it was asked for.
    pub(super) fn look(
        &mut self,
        charge: &OwnedCharge,
        cost: u32,
        rules: u32,
        now: BootTime,
        settings: &LeaseSettings,
    ) -> LocalStep {
        let Some(lease) = self.lease_for(charge, cost, rules, now, settings) else {
            return LocalStep::Ask;
        };
        lease.look(&charge.meter, cost, now, settings)
    }

    /// The same, and pays for it if there is credit.
    #[inline]
    pub(super) fn look_and_spend(
        &mut self,
        charge: &OwnedCharge,
        cost: u32,
        rules: u32,
        now: BootTime,
        settings: &LeaseSettings,
    ) -> LocalStep {
        let Some(lease) = self.lease_for(charge, cost, rules, now, settings) else {
            return LocalStep::Ask;
        };
        let local = lease.look(&charge.meter, cost, now, settings);
        if let LocalStep::Spend(_) = local {
            lease.credit.spend(cost, now);
        }
        local
    }

    /// The lease that `charge` is about, if there is room for it.
    #[inline]
    fn lease_for(
        &mut self,
        charge: &OwnedCharge,
        cost: u32,
        rules: u32,
        now: BootTime,
        settings: &LeaseSettings,
    ) -> Option<&mut Lease> {
        let room = self.leases.len() < self.most_leases;
        let lease = match self.leases.entry(charge.key) {
            Entry::Occupied(lease) => lease.into_mut(),
            Entry::Vacant(free) if room => {
                free.insert(Lease::new(&charge.meter, LeasePace::new(charge.leasing, settings), now))
            }
            Entry::Vacant(_) => return None,
        };
        let seen_in = (rules, charge.id.index());
        // Requests that state a limit may state other numbers for the same key.
        if lease.seen_in != seen_in || is_request_limit(rules) && lease.meter != charge.meter {
            lease.seen_in = seen_in;
            follow(&mut self.busy, lease, charge, settings);
        }
        lease.rate.note(cost, now);
        lease.last_used = now;
        Some(lease)
    }

    pub(super) fn spend(&mut self, key: StateKey, cost: u32, now: BootTime) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.credit.spend(cost, now);
        }
    }

    pub(super) fn reserve(&mut self, key: StateKey, cost: u32, now: BootTime) -> Reservation {
        let lease = self.leases.get_mut(&key);
        lease.map_or(Reservation::default(), |lease| lease.credit.reserve(cost, now))
    }

    /// The request for which `reservation` was made has `passed`, or not. Returns what is to be sent at once: tokens
    /// that may not be kept as credit, or of a key that is not in the table.
    pub(super) fn resolve(
        &mut self,
        charge: &OwnedCharge,
        reservation: Reservation,
        passed: Passed,
        now: BootTime,
        address: impl FnOnce() -> Option<StateAddress>,
    ) -> Option<StoreCall<W>> {
        let Some(lease) = ledger_of(&mut self.leases, charge) else {
            let reports = reservation.reports(passed);
            return address()
                .and_then(|address| StoreCall::report(charge, address, reports, self.addresses, now));
        };
        match passed {
            Passed::Yes => lease.credit.commit(reservation),
            Passed::No if lease.meter.is_log() => lease.credit.add_returns(reservation),
            Passed::No => lease.credit.release(reservation),
        }
        if !charge.leased {
            // Nothing is kept as credit, and the store is told at once.
            lease.credit.give_back(BootTime::MAX);
            if passed == Passed::No {
                lease.last_reply = None;
            }
            if let Some((key, _, field)) = &lease.address {
                let address = StateAddress { key: key.to_string(), field: *field };
                return StoreCall::report(charge, address, lease.credit.reports(now), self.addresses, now);
            }
        }
        if lease.meter != charge.meter {
            lease.credit.give_back(BootTime::MAX);
        }
        mark_busy(&mut self.busy, charge.key, lease);
        None
    }

    /// See [`super::LeaseTable::forget_states`].
    pub(super) fn forget_states(&mut self) -> Vec<W> {
        self.addresses = self.addresses.wrapping_add(1);
        self.leases.clear();
        self.busy = TickSchedule::default();
        let queues = self.pending.drain().flat_map(|(_, pending)| pending.queue);
        queues.map(|queued| queued.waiter).collect()
    }

    /// See [`super::LeaseTable::pending_reports`].
    pub(super) fn pending_reports(
        &self,
        key: StateKey,
        meter: &Meter,
        now: BootTime,
    ) -> SmallVec<[LeaseReport; 2]> {
        let Some(lease) = self.leases.get(&key).filter(|lease| lease.meter == *meter) else {
            return SmallVec::new();
        };
        let mut credit = lease.credit.clone();
        credit.give_back(BootTime::MAX);
        credit.reports(now)
    }

    /// See [`super::LeaseTable::unspend`].
    pub(super) fn unspend(&mut self, key: StateKey, meter: &Meter, tokens: u32, now: BootTime) -> u32 {
        let Some(lease) = self.leases.get_mut(&key) else { return 0 };
        lease.forget_reply();
        if lease.meter != *meter {
            return 0;
        }
        let unspent = lease.credit.unspend(tokens, now);
        mark_busy(&mut self.busy, key, lease);
        unspent
    }

    /// See [`super::LeaseTable::forget`].
    pub(super) fn forget(&mut self, key: StateKey) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.forget();
        }
    }

    /// See [`super::LeaseTable::recall_refusal`].
    pub(super) fn recall_refusal(&self, charge: &OwnedCharge, cost: u32, now: BootTime) -> Option<LimitStep> {
        let lease = self.leases.get(&charge.key).filter(|lease| lease.meter == charge.meter)?;
        lease.recall_refusal(cost, now)
    }
}

/// The lease in which tokens are counted that were taken under the limit of `charge`. It may have other numbers meanwhile, as
/// long as their epochs are the same.
fn ledger_of<'l>(leases: &'l mut HashedMap<StateKey, Lease>, charge: &OwnedCharge) -> Option<&'l mut Lease> {
    leases.get_mut(&charge.key).filter(|lease| have_same_epochs(&lease.meter, &charge.meter))
}

/// The rules have changed: the limit of this lease may have other numbers, and its rule may lease otherwise.
#[cold]
#[inline(never)]
fn follow(busy: &mut TickSchedule, lease: &mut Lease, charge: &OwnedCharge, settings: &LeaseSettings) {
    let timing = LeasePace::new(charge.leasing, settings);
    if lease.is_busy && timing.interval_us != lease.timing.interval_us {
        busy.leave(charge.key, lease.timing.interval_us());
        busy.join(charge.key, timing.interval_us());
    }
    lease.timing = timing;
    if lease.meter != charge.meter {
        lease.adopt(&charge.meter);
        mark_busy(busy, charge.key, lease);
    }
}

/// Has the next tick examine this lease.
fn mark_busy(busy: &mut TickSchedule, key: StateKey, lease: &mut Lease) {
    if !lease.is_busy {
        lease.is_busy = true;
        busy.join(key, lease.timing.interval_us());
    }
}
