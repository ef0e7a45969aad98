//! What comes back from the store: what it lends and says is kept, and who waits is told.

use super::{Page, note_busy};
use crate::lease::book::flight::Item;
use crate::lease::book::lease::{Lease, Local};
use crate::lease::book::{Call, Settings, Verdict, Waiter};
use crate::lease::credit::Paid;
use crate::lease::memory::Memory;
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::algorithm::Step;
use tollgate_core::lending::Report;
use tollgate_core::script::{Answer, AnsweredState};

impl<W> Page<W> {
    /// Keeps what `answer` lends, and what it says.
    pub(in crate::lease::book) fn take_in(
        &mut self,
        call: &Call<W>,
        answer: &Answer,
        nodes: u32,
        now_us: u64,
    ) {
        let all_passed =
            answer.passing.iter().zip(&call.ask.runs).all(|(passing, run)| *passing == run.repeats);
        for ((item, charge), asked) in call.items.iter().zip(&answer.charges).zip(&call.ask.charges) {
            let Some(lease) = self.leases.get_mut(&item.key) else { continue };
            let epoch = match &charge.state {
                // The one under which they were noted. After a step back of the clock, or a change of the rule,
                // that is not the present one.
                AnsweredState::Account(account) if account.lent.total() > 0 => account.lent.epoch,
                _ => item.meter.epoch(answer.now_us),
            };
            let deadline_us = Lease::deadline_us(&item.meter, call.sent_us, answer.now_us);
            if lease.meter != item.meter {
                // The rule has changed meanwhile. If its epochs have as well, the tokens could not be told apart.
                if lease.meter.epoch_seconds() == item.meter.epoch_seconds() {
                    lease.credit.grant(epoch, charge.lends, deadline_us);
                    lease.credit.bring_back(u64::MAX);
                    note_busy(&mut self.busy, item.key, lease);
                }
                continue;
            }
            lease.credit.grant(epoch, charge.lends, deadline_us);
            lease.was_refused |= !all_passed;
            lease.hear(&call.ask, asked, answer, charge, call.sent_us);
            if lease.memory.is_some_and(|memory| !memory.is_older_than(answer.now_us)) {
                if charge.lends > 0 {
                    note_busy(&mut self.busy, item.key, lease);
                }
                continue;
            }
            lease.memory = match &charge.state {
                AnsweredState::Account(account) => {
                    Some(Memory::of_account(*account, answer.now_us, call.sent_us))
                }
                AnsweredState::Log(standings) => {
                    let refused = call.ask.runs.iter().zip(standings).zip(&answer.passing);
                    let refused = refused.filter(|((run, _), passing)| **passing < run.repeats);
                    let refused = refused.filter(|((_, standing), _)| standing.retry_after_us > 0);
                    let least = refused.min_by_key(|((run, _), _)| run.cost);
                    least.map(|((run, standing), _)| {
                        Memory::of_log(run.cost, *standing, answer.now_us, call.sent_us)
                    })
                }
            };
            if charge.lends > 0 && lease.is_due(nodes, now_us) {
                note_busy(&mut self.busy, item.key, lease);
            }
        }
    }

    /// What was to be reported and never left.
    pub(in crate::lease::book) fn take_back_reports(&mut self, call: &Call<W>) {
        for (item, ask) in call.items.iter().zip(&call.ask.charges) {
            if let Some(lease) = self.leases.get_mut(&item.key) {
                for report in &ask.reports {
                    // A refund that comes later than meant may come on top of what was refilled in its stead.
                    lease.credit.report(Report { refunded: 0, ..*report });
                }
                note_busy(&mut self.busy, item.key, lease);
            }
        }
    }
}

impl<W: Waiter> Page<W> {
    /// Tells the waiters of `call` what they get.
    pub(in crate::lease::book) fn serve(&mut self, call: Call<W>, answer: &Answer, now_us: u64) {
        let Call { ask, items, waiters, .. } = call;
        let mut waiters = waiters.into_iter();
        for (number, run) in ask.runs.iter().enumerate() {
            for place in 0..run.repeats {
                let Some((cost, waiter)) = waiters.next() else { return };
                let passes = place < answer.passing[number];
                let steps = items.iter().zip(&answer.charges).map(|(item, charge)| {
                    let counted = charge.counted.get(number).is_none_or(|counted| place < *counted);
                    self.step(item, &charge.state, number, cost, passes && counted, answer.now_us, now_us)
                });
                let steps: SmallVec<[Step; 2]> = steps.collect();
                let counted: SmallVec<[bool; 2]> = steps.iter().map(|step| step.admitted).collect();
                let was_heard = match waiter {
                    Some(waiter) => waiter.hear(Verdict::Served { steps, store_us: answer.now_us }),
                    // The failure policy let it pass, unless one of the limits denies.
                    None => !items.iter().any(|item| item.enforced && item.denies_on_failure),
                };
                if passes && !was_heard {
                    self.bring_back_unheard(&items, &counted, cost, answer.now_us, now_us);
                }
            }
        }
    }

    /// How a request stands with one limit after the call.
    #[expect(clippy::too_many_arguments, reason = "all that a step depends on")]
    fn step(
        &self,
        item: &Item,
        state: &AnsweredState,
        run: usize,
        cost: u32,
        admitted: bool,
        store_us: u64,
        now_us: u64,
    ) -> Step {
        match state {
            AnsweredState::Account(account) if admitted => {
                let (at_store, reset_after_us) = account.look(&item.meter, store_us);
                let in_hand = self.leases.get(&item.key).map_or(0, |lease| lease.credit.left(now_us));
                let remaining = at_store.saturating_add(in_hand).min(item.meter.quota());
                Step { admitted, next: None, remaining, retry_after_us: 0, reset_after_us }
            }
            AnsweredState::Account(account) => account.step(&item.meter, store_us, cost),
            AnsweredState::Log(standings) => {
                let standing = standings.get(run).copied().unwrap_or_default();
                let retry_after_us = if admitted { 0 } else { standing.retry_after_us };
                Step {
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

    /// Nobody heard that the request passed: what it took goes back.
    fn bring_back_unheard(
        &mut self,
        items: &[Item],
        counted: &[bool],
        cost: u32,
        store_us: u64,
        now_us: u64,
    ) {
        for (item, _) in items.iter().zip(counted).filter(|(_, counted)| **counted) {
            if let Some(lease) = self.leases.get_mut(&item.key).filter(|lease| lease.misses(cost, now_us)) {
                let epoch = item.meter.epoch(store_us);
                lease.credit.report(Report { epoch, refunded: cost, ..Report::default() });
                lease.memory = None;
                note_busy(&mut self.busy, item.key, lease);
            }
        }
    }

    /// After an answer: what it lent, or said, may be enough for those who came meanwhile.
    /// `store_us` is the time at the store when it answered.
    pub(in crate::lease::book) fn serve_queue(
        &mut self,
        group: u64,
        store_us: u64,
        now_us: u64,
        settings: &Settings,
    ) {
        let Some(flight) = self.flights.get_mut(&group) else { return };
        flight.is_out = false;
        let items = Arc::clone(&flight.items);
        let queue = std::mem::take(&mut flight.queue);
        let mut still_waiting = Vec::new();
        for (cost, waiter) in queue {
            let locals: SmallVec<[Local; 2]> = items
                .iter()
                .map(|item| match self.leases.get_mut(&item.key) {
                    Some(lease) if lease.meter == item.meter => {
                        lease.look(&item.meter, cost, now_us, settings)
                    }
                    _ => Local::Ask,
                })
                .collect();
            let mut refused = false;
            let mut unknown = false;
            for (item, local) in items.iter().zip(&locals) {
                refused |= item.enforced && matches!(local, Local::Refuse(_));
                unknown |= matches!(local, Local::Ask);
            }
            if !refused && unknown {
                still_waiting.push((cost, waiter));
                continue;
            }
            // One that is not known stands in nobody's way here: another refuses.
            let open =
                Step { admitted: true, next: None, remaining: 0, retry_after_us: 0, reset_after_us: 0 };
            let steps = locals.iter().map(|local| local.step().unwrap_or(open)).collect();
            let mut paid: SmallVec<[(u64, Paid); 2]> = SmallVec::new();
            if !refused {
                for (item, local) in items.iter().zip(&locals) {
                    if matches!(local, Local::Spend(_)) {
                        paid.push((item.key, self.spend(item.key, cost, now_us)));
                    }
                }
            }
            if !waiter.hear(Verdict::Served { steps, store_us }) {
                paid.into_iter().for_each(|(key, paid)| self.undo(key, paid));
            }
        }
        if let Some(flight) = self.flights.get_mut(&group) {
            flight.queue = still_waiting;
        }
    }
}
