//! Calls to the store: the requests of one client that ask for the same go together.

use super::LeaseShard;
use crate::lease::table::pending_group::{PendingGroup, QueuedRequest, TakeMode};
use crate::lease::table::reports::needed_reports;
use crate::lease::table::{CallWaiter, LeaseSettings, StoreCall};
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tollgate_core::lending::Prefetch;
use tollgate_core::script::{ChargeCall, RequestRun, ScriptCall, work};
use tollgate_core::state_address::StateField;
use tollgate_core::time::BootTime;
use tollgate_limiter::OwnedCharge;

impl<W> LeaseShard<W> {
    /// Adds a request to the queue of its group. Returns it if the addresses of its states are not known.
    pub(in crate::lease::table) fn join(
        &mut self,
        group: u64,
        new_group: impl FnOnce() -> Option<PendingGroup<W>>,
        request: QueuedRequest<W>,
    ) -> Result<(), QueuedRequest<W>> {
        let pending = match self.pending.entry(group) {
            Entry::Occupied(pending) => {
                self.counts.coalesced += 1;
                pending.into_mut()
            }
            Entry::Vacant(free) => match new_group() {
                Some(pending) => free.insert(pending),
                None => return Err(request),
            },
        };
        pending.queue.push(request);
        Ok(())
    }

    /// The next call of a group, if a request waits and no call is in flight.
    pub(in crate::lease::table) fn next_call(
        &mut self,
        client: u64,
        group: u64,
        now: BootTime,
        nodes: u32,
        settings: &LeaseSettings,
    ) -> Option<StoreCall<W>> {
        let pending = self.pending.get_mut(&group)?;
        if pending.has_call {
            return None;
        }
        if pending.queue.is_empty() {
            self.pending.remove(&group);
            return None;
        }
        pending.has_call = true;
        let (key, charges) = (Arc::clone(&pending.key), Arc::clone(&pending.charges));
        let fields = pending.fields.clone();
        let asks = charges.iter().zip(fields);
        let asks =
            asks.map(|(charge, field)| self.charge_call(charge, field, &key, client, now, nodes, settings));
        let mut asks: SmallVec<_> = asks.collect();

        let pending = self.pending.get_mut(&group)?;
        let most_runs = work::most_runs(&asks);
        let mut runs: SmallVec<[RequestRun; 2]> = SmallVec::new();
        let mut count = 0;
        for QueuedRequest { cost, .. } in &pending.queue {
            let is_full = runs.len() == most_runs;
            match runs.last_mut() {
                Some(run) if run.cost == *cost => run.repeats += 1,
                _ if is_full => break,
                _ => runs.push(RequestRun { repeats: 1, cost: *cost }),
            }
            count += 1;
        }
        let queued = pending.queue.drain(..count);
        let waiters: Vec<CallWaiter<W>> = queued
            .map(|QueuedRequest { cost, take, waiter }| CallWaiter { cost, take, waiter: Some(waiter) })
            .collect();
        // One that may be undone makes all of them lent: the others are reported as spent later.
        let as_lent = waiters.iter().any(|waiting| waiting.take == TakeMode::Tentative);
        asks.iter_mut().for_each(|ask: &mut ChargeCall| ask.as_lent = as_lent);
        let ask = ScriptCall { runs, charges: asks };
        Some(StoreCall { key, ask, sent: now, client, group, addresses: self.addresses, charges, waiters })
    }

    /// The part of a call about one limit. The credit left was not enough: it is returned with the same call.
    #[expect(clippy::too_many_arguments, reason = "a charge, its address, and what a prefetch depends on")]
    fn charge_call(
        &mut self,
        charge: &OwnedCharge,
        field: StateField,
        key: &Arc<str>,
        client: u64,
        now: BootTime,
        nodes: u32,
        settings: &LeaseSettings,
    ) -> ChargeCall {
        let mut ask = ChargeCall {
            meter: charge.meter,
            field,
            enforced: charge.enforced,
            as_lent: false,
            prefetch: Prefetch::NONE,
            reports: SmallVec::new(),
        };
        if let Some(lease) = self.leases.get_mut(&charge.key) {
            // Requests with other numbers have changed the lease: what its clients need says nothing about this call.
            if charge.leased && lease.meter == charge.meter && !lease.is_prefetching(now) {
                ask.prefetch = lease.prefetch(nodes, now, settings);
                lease.prefetched = (ask.prefetch.want > 0).then_some(now);
            }
            lease.credit.give_back(BootTime::MAX);
            ask.reports = needed_reports(lease.credit.reports(now), &lease.meter);
            lease.last_asked = now;
            lease.address.get_or_insert_with(|| (Arc::clone(key), client, field));
        }
        ask
    }

    /// Removes a group, and returns the waiters in its queue.
    pub(in crate::lease::table) fn remove_group(&mut self, group: u64) -> Vec<W> {
        let pending = self.pending.remove(&group);
        pending.map_or(Vec::new(), |pending| pending.queue.into_iter().map(|queued| queued.waiter).collect())
    }
}
