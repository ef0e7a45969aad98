//! Replies of the store: credit and states are kept, and the waiters receive their verdicts.

use super::{LeaseShard, ledger_of, mark_busy};
use crate::lease::credit::{Reservation, StoreForgets};
use crate::lease::last_reply::{CallTimes, LastReply};
use crate::lease::table::lease::{Lease, LocalStep, have_same_epochs};
use crate::lease::table::pending_group::{QueuedRequest, TakeMode};
use crate::lease::table::{CallWaiter, LeaseSettings, StoreCall, Verdict, Waiter};
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::lending::LeaseReport;
use tollgate_core::script::{ChargeReply, ReplyState, ScriptReply};
use tollgate_core::time::{BootTime, StoreTime};
use tollgate_limiter::OwnedCharge;

/// Tokens that a call has taken of one limit.
#[derive(Clone, Copy)]
struct TakenTokens {
    epoch: u32,
    deadline: BootTime,
    /// Whether they can be returned: the store counts them as lent, or in their window.
    is_returnable: bool,
}

impl TakenTokens {
    fn new<W>(call: &StoreCall<W>, answer: &ScriptReply, index: usize) -> Self {
        let (item, charge) = (&call.charges[index], &answer.charges[index]);
        Self {
            epoch: epoch_of(item, charge, answer),
            deadline: Lease::credit_deadline(&item.meter, call.sent, answer.now),
            is_returnable: call.ask.charges[index].as_lent || item.meter.bucket().is_none(),
        }
    }
}

/// The epoch under which the store has counted what it lent. After a step back of its clock that is not the present
/// one.
fn epoch_of(item: &OwnedCharge, charge: &ChargeReply, answer: &ScriptReply) -> u32 {
    match &charge.state {
        ReplyState::Stored(account) if account.lent.total() > 0 => account.lent.epoch,
        _ => item.meter.epoch(answer.now),
    }
}

impl<W> LeaseShard<W> {
    /// Keeps the credit and the states of `answer`.
    pub(in crate::lease::table) fn apply_reply(
        &mut self,
        call: &StoreCall<W>,
        answer: &ScriptReply,
        nodes: u32,
        now: BootTime,
    ) {
        let times = CallTimes { sent: call.sent, received: now };
        for ((item, ask), charge) in call.charges.iter().zip(&call.ask.charges).zip(&answer.charges) {
            let Some(lease) = self.leases.get_mut(&item.key) else { continue };
            // It has none if it was evicted meanwhile, and made again.
            lease.address.get_or_insert_with(|| (Arc::clone(&call.key), call.client, ask.field));
            lease.end_prefetch(call.sent, ask);
            let epoch = epoch_of(item, charge, answer);
            let deadline = Lease::credit_deadline(&item.meter, call.sent, answer.now);
            if lease.meter != item.meter {
                // The rule has changed meanwhile.
                if have_same_epochs(&lease.meter, &item.meter) {
                    lease.credit.grant(epoch, charge.lent, deadline);
                    lease.credit.give_back(BootTime::MAX);
                    mark_busy(&mut self.busy, item.key, lease);
                }
                continue;
            }
            lease.credit.grant(epoch, charge.lent, deadline);
            if lease.last_reply.is_some_and(|reply| !reply.is_replaced_by(answer.now, call.sent)) {
                if charge.lent > 0 {
                    mark_busy(&mut self.busy, item.key, lease);
                }
                continue;
            }
            lease.last_reply = match &charge.state {
                ReplyState::Stored(account) => Some(LastReply::of_account(*account, answer.now, times)),
                ReplyState::Log(standings) => {
                    let refused = call.ask.runs.iter().zip(standings).zip(&answer.admitted);
                    let refused = refused.filter(|((run, _), passing)| **passing < run.repeats);
                    let refused = refused.filter(|((_, standing), _)| standing.retry_after_us > 0);
                    let least = refused.min_by_key(|((run, _), _)| run.cost);
                    least
                        .map(|((run, standing), _)| LastReply::of_log(run.cost, *standing, answer.now, times))
                }
            };
            if charge.lent > 0 && lease.is_due(nodes, now) {
                mark_busy(&mut self.busy, item.key, lease);
            }
        }
    }

    /// Restores the reports of a call that was not executed.
    pub(in crate::lease::table) fn restore_reports(&mut self, call: &StoreCall<W>) {
        if call.addresses != self.addresses {
            return;
        }
        for (item, ask) in call.charges.iter().zip(&call.ask.charges) {
            if let Some(lease) = self.leases.get_mut(&item.key) {
                lease.end_prefetch(call.sent, ask);
                let forgets = match item.meter.bucket() {
                    Some(_) => StoreForgets::Returned,
                    None => StoreForgets::Spent,
                };
                ask.reports.iter().for_each(|report| lease.credit.restore_report(*report, forgets));
                mark_busy(&mut self.busy, item.key, lease);
            }
        }
    }

    /// The lease of `item`, if its limit has not changed meanwhile.
    fn lease_of(&mut self, item: &OwnedCharge) -> Option<&mut Lease> {
        self.leases.get_mut(&item.key).filter(|lease| lease.meter == item.meter)
    }

    /// A request that passed here may still be refused by another call: its tokens are reserved.
    fn reserve_taken(&mut self, item: &OwnedCharge, cost: u32, taken: TakenTokens) -> Reservation {
        match ledger_of(&mut self.leases, item) {
            Some(lease) if !item.meter.is_log() => {
                lease.credit.grant_reserved(taken.epoch, cost, taken.deadline)
            }
            _ => Reservation::of(taken.epoch, cost),
        }
    }

    /// A request has passed for which the store counts tokens as lent: they are reported as spent later.
    fn spend_taken(&mut self, item: &OwnedCharge, cost: u32, taken: TakenTokens) {
        if item.meter.bucket().is_none() {
            return;
        }
        if let Some(lease) = ledger_of(&mut self.leases, item) {
            lease.credit.grant_spent(taken.epoch, cost, taken.deadline);
            mark_busy(&mut self.busy, item.key, lease);
        }
    }

    /// A request does not use the tokens that were taken for it: they are credit, or go back. Without a lease they
    /// count as spent.
    fn free_taken(&mut self, item: &OwnedCharge, cost: u32, taken: TakenTokens) {
        if let Some(lease) = ledger_of(&mut self.leases, item) {
            match item.leased && !item.meter.is_log() && lease.meter == item.meter {
                true => lease.credit.grant(taken.epoch, cost, taken.deadline),
                false => lease.credit.add(LeaseReport { epoch: taken.epoch, spent: 0, returned: cost }),
            }
            lease.last_reply = None;
            mark_busy(&mut self.busy, item.key, lease);
        }
    }
}

impl<W: Waiter> LeaseShard<W> {
    /// Delivers the verdicts of `call`.
    pub(in crate::lease::table) fn serve(
        &mut self,
        mut call: StoreCall<W>,
        answer: &ScriptReply,
        now: BootTime,
        settings: &LeaseSettings,
    ) {
        let mut waiters = std::mem::take(&mut call.waiters).into_iter();
        let items = Arc::clone(&call.charges);
        let taken: SmallVec<[TakenTokens; 2]> =
            (0..items.len()).map(|index| TakenTokens::new(&call, answer, index)).collect();
        // The same for all requests that this reply refuses.
        let next_call_us: SmallVec<[u64; 2]> = items
            .iter()
            .map(|item| self.lease_of(item).map_or(0, |lease| lease.next_call_us(now, settings)))
            .collect();
        for (number, run) in call.ask.runs.iter().enumerate() {
            for position in 0..run.repeats {
                let Some(CallWaiter { cost, take, waiter }) = waiters.next() else { return };
                let passes = position < answer.admitted[number];
                let steps = items.iter().zip(&answer.charges).map(|(item, charge)| {
                    let counted = charge.counted.get(number).is_none_or(|counted| position < *counted);
                    self.step(item, &charge.state, number, cost, passes && counted, answer.now, now)
                });
                let mut steps: SmallVec<[LimitStep; 2]> = steps.collect();
                for (index, step) in steps.iter_mut().enumerate().filter(|(_, step)| !step.admitted) {
                    step.retry_after_us = step.retry_after_us.max(next_call_us[index]);
                    if let Some(lease) = self.lease_of(&items[index]) {
                        lease.note_refusal(step, now);
                    }
                }
                if !passes {
                    if let Some(waiter) = waiter {
                        waiter.deliver(Verdict::Served { steps, reserved: SmallVec::new() });
                    }
                    continue;
                }
                let counted: SmallVec<[usize; 2]> =
                    (0..items.len()).filter(|index| steps[*index].admitted).collect();
                self.serve_passing(&items, &taken, &counted, steps, cost, take, waiter);
            }
        }
    }

    /// Delivers the verdict of a request that passed. `counted` are the limits that have taken its tokens.
    #[expect(clippy::too_many_arguments, reason = "a request, its limits, and what was taken of them")]
    fn serve_passing(
        &mut self,
        items: &[OwnedCharge],
        taken: &[TakenTokens],
        counted: &[usize],
        steps: SmallVec<[LimitStep; 2]>,
        cost: u32,
        take: TakeMode,
        waiter: Option<W>,
    ) {
        let is_used = match waiter {
            Some(waiter) if take == TakeMode::Tentative => {
                let mut reserved: SmallVec<[Option<Reservation>; 2]> = SmallVec::from_elem(None, items.len());
                for index in counted {
                    reserved[*index] = Some(self.reserve_taken(&items[*index], cost, taken[*index]));
                }
                if !waiter.deliver(Verdict::Served { steps, reserved: reserved.clone() }) {
                    for (item, reservation) in items.iter().zip(reserved) {
                        self.free_reserved(item, reservation.unwrap_or_default());
                    }
                }
                return;
            }
            Some(waiter) => waiter.deliver(Verdict::Served { steps, reserved: SmallVec::new() }),
            // The failure policy let it pass, unless one of the limits denies.
            None => !items.iter().any(|item| item.enforced && item.denies_on_failure),
        };
        for index in counted.iter().filter(|index| taken[**index].is_returnable) {
            match is_used {
                true => self.spend_taken(&items[*index], cost, taken[*index]),
                false => self.free_taken(&items[*index], cost, taken[*index]),
            }
        }
    }

    fn free_reserved(&mut self, item: &OwnedCharge, reservation: Reservation) {
        if let Some(lease) = ledger_of(&mut self.leases, item) {
            match item.meter.is_log() {
                true => lease.credit.add_returns(reservation),
                false => lease.credit.release(reservation),
            }
            if !item.leased || lease.meter != item.meter {
                lease.credit.give_back(BootTime::MAX);
            }
            lease.last_reply = None;
            mark_busy(&mut self.busy, item.key, lease);
        }
    }

    /// How a request stands with one limit after the call.
    #[expect(clippy::too_many_arguments, reason = "all that a step depends on")]
    fn step(
        &self,
        item: &OwnedCharge,
        state: &ReplyState,
        run: usize,
        cost: u32,
        admitted: bool,
        store_time: StoreTime,
        now: BootTime,
    ) -> LimitStep {
        match state {
            ReplyState::Stored(account) if admitted => {
                let (at_store, reset_after_us) = account.remaining_and_reset(&item.meter, store_time);
                let in_hand = self.leases.get(&item.key).map_or(0, |lease| lease.credit.left(now));
                let remaining = at_store.saturating_add(in_hand).min(item.meter.quota());
                LimitStep { admitted, next: None, remaining, retry_after_us: 0, reset_after_us }
            }
            ReplyState::Stored(account) => account.step(&item.meter, store_time, cost),
            ReplyState::Log(standings) => {
                let standing = standings.get(run).copied().unwrap_or_default();
                let retry_after_us = if admitted { 0 } else { standing.retry_after_us };
                LimitStep {
                    // One that has room although another limit refuses.
                    admitted: admitted || standing.retry_after_us == 0,
                    next: None,
                    remaining: standing.remaining,
                    retry_after_us,
                    reset_after_us: standing.reset_after_us,
                }
            }
        }
    }

    /// Decides queued requests for which the reply is enough.
    pub(in crate::lease::table) fn serve_queue(
        &mut self,
        group: u64,
        now: BootTime,
        settings: &LeaseSettings,
    ) {
        let Some(pending) = self.pending.get_mut(&group) else { return };
        pending.has_call = false;
        let items = Arc::clone(&pending.charges);
        let queue = std::mem::take(&mut pending.queue);
        let mut still_waiting = Vec::new();
        for QueuedRequest { cost, take, waiter } in queue {
            let locals: SmallVec<[LocalStep; 2]> = items
                .iter()
                .map(|item| match self.lease_of(item) {
                    Some(lease) => lease.look(&item.meter, cost, now, settings),
                    None => LocalStep::Ask,
                })
                .collect();
            let is_refused = items
                .iter()
                .zip(&locals)
                .any(|(item, local)| item.enforced && matches!(local, LocalStep::Refuse(_)));
            if !is_refused && locals.iter().any(LocalStep::is_unknown) {
                still_waiting.push(QueuedRequest { cost, take, waiter });
                continue;
            }
            // A limit of which nothing is known does not refuse: another one does.
            let open =
                LimitStep { admitted: true, next: None, remaining: 0, retry_after_us: 0, reset_after_us: 0 };
            let steps = locals.iter().map(|local| local.step().unwrap_or(open)).collect();
            let mut reserved: SmallVec<[Option<Reservation>; 2]> = SmallVec::new();
            if !is_refused {
                reserved.extend(items.iter().zip(&locals).map(|(item, local)| {
                    matches!(local, LocalStep::Spend(_)).then(|| self.reserve(item.key, cost, now))
                }));
            }
            let delivered = if take == TakeMode::Tentative { reserved.clone() } else { SmallVec::new() };
            let was_received = waiter.deliver(Verdict::Served { steps, reserved: delivered });
            if was_received && take == TakeMode::Tentative {
                continue;
            }
            for (item, reservation) in items.iter().zip(reserved) {
                match (reservation, was_received) {
                    (Some(reservation), true) => {
                        if let Some(lease) = self.lease_of(item) {
                            lease.credit.commit(reservation);
                        }
                    }
                    (Some(reservation), false) => self.free_reserved(item, reservation),
                    (None, _) => {}
                }
            }
        }
        if let Some(pending) = self.pending.get_mut(&group) {
            pending.queue = still_waiting;
        }
    }
}
