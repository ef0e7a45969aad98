//! A part of the book under one lock: the leases of some clients, and their flights.

use super::flight::{Flight, Item};
use super::lease::{Lease, Local, Timing};
use super::reports::{Reports, report_ask, worth_telling};
use super::rounds::Rounds;
use super::{Call, Charged, Settings, Verdict, Waiter};
use crate::lease::credit::Paid;
use crate::lease::memory::Memory;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tollgate_core::algorithm::Step;
use tollgate_core::lending::Report;
use tollgate_core::script::{Answer, AnsweredState, Ask, ChargeAsk, MOST_PARTS, Run};

/// A key that nobody has asked for is forgotten after this time; sooner where many are kept.
const IDLE_US: u64 = 16_000_000;
const IDLE_IN_A_CROWD_US: u64 = 2_000_000;
const SWEEP_EVERY_US: u64 = 2_000_000;
const SWEEP_A_CROWD_EVERY_US: u64 = 500_000;

/// Keys are keyed hashes already.
pub(super) type ByKey<T> = HashMap<u64, T, rapidhash::fast::RandomState>;

#[derive(Debug)]
pub(super) struct Page<W> {
    leases: ByKey<Lease>,
    /// Those that hold credit that could be missed, or have something to tell: the others need nothing from a
    /// tick.
    busy: Rounds,
    /// When those that nobody uses are looked for again.
    sweep_us: u64,
    flights: ByKey<Flight<W>>,
    most_leases: usize,
}

impl<W> Page<W> {
    pub(super) fn new(most_leases: usize) -> Self {
        Self {
            leases: ByKey::default(),
            busy: Rounds::default(),
            sweep_us: 0,
            flights: ByKey::default(),
            most_leases,
        }
    }

    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// What can be said about `charge` under the rules of this number; and notes that it was asked for.
    pub(super) fn look(
        &mut self,
        charge: &Charged<'_>,
        cost: u32,
        rules: u32,
        now_us: u64,
        settings: &Settings,
    ) -> Local {
        let Some(lease) = self.asked_for(charge, cost, rules, now_us, settings) else { return Local::Ask };
        lease.look(charge.meter, cost, now_us, settings)
    }

    /// The same, and pays for it if there is credit.
    #[inline]
    pub(super) fn look_and_spend(
        &mut self,
        charge: &Charged<'_>,
        cost: u32,
        rules: u32,
        now_us: u64,
        settings: &Settings,
    ) -> Local {
        let Some(lease) = self.asked_for(charge, cost, rules, now_us, settings) else { return Local::Ask };
        let local = lease.look(charge.meter, cost, now_us, settings);
        if let Local::Spend(_) = local {
            lease.credit.spend(cost, now_us);
        }
        local
    }

    /// The lease that `charge` is about, if there is room for it.
    #[inline]
    fn asked_for(
        &mut self,
        charge: &Charged<'_>,
        cost: u32,
        rules: u32,
        now_us: u64,
        settings: &Settings,
    ) -> Option<&mut Lease> {
        let room = self.leases.len() < self.most_leases;
        let lease = match self.leases.entry(charge.key) {
            Entry::Occupied(lease) => lease.into_mut(),
            Entry::Vacant(free) if room => {
                free.insert(Lease::new(charge.meter, Timing::new(charge.leasing, settings), now_us))
            }
            Entry::Vacant(_) => return None,
        };
        let known_as = (rules, std::ptr::from_ref(charge.meter) as usize);
        if lease.known_as != known_as {
            lease.known_as = known_as;
            let timing = Timing::new(charge.leasing, settings);
            if lease.is_busy && timing.interval_us != lease.timing.interval_us {
                self.busy.leave(charge.key, lease.timing.interval_us);
                self.busy.join(charge.key, timing.interval_us);
            }
            lease.timing = timing;
            if lease.meter != *charge.meter {
                lease.adopt(charge.meter);
                note_busy(&mut self.busy, charge.key, lease);
            }
        }
        lease.pace.note(cost, now_us);
        lease.used_us = now_us;
        Some(lease)
    }

    pub(super) fn spend(&mut self, key: u64, cost: u32, now_us: u64) -> Paid {
        self.leases.get_mut(&key).map_or(Paid::default(), |lease| lease.credit.spend(cost, now_us))
    }

    pub(super) fn undo(&mut self, key: u64, paid: Paid) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.credit.undo(paid);
            note_busy(&mut self.busy, key, lease);
        }
    }

    /// Puts a waiter into the queue of its flight.
    pub(super) fn join(
        &mut self,
        group: u64,
        items: impl FnOnce() -> (Arc<str>, Arc<[Item]>),
        cost: u32,
        waiter: W,
    ) {
        let flight = self.flights.entry(group).or_insert_with(|| {
            let (key, items) = items();
            Flight { key, items, queue: Vec::new(), is_out: false }
        });
        flight.queue.push((cost, waiter));
    }

    /// The next call of a flight, if somebody waits and none is under way.
    pub(super) fn depart(
        &mut self,
        client: u64,
        group: u64,
        now_us: u64,
        nodes: u32,
        settings: &Settings,
    ) -> Option<Call<W>> {
        let flight = self.flights.get_mut(&group)?;
        if flight.is_out {
            return None;
        }
        if flight.queue.is_empty() {
            self.flights.remove(&group);
            return None;
        }
        flight.is_out = true;
        let mut runs: SmallVec<[Run; 2]> = SmallVec::new();
        let mut aboard = 0;
        for (cost, _) in &flight.queue {
            let is_full = runs.len() == MOST_PARTS;
            match runs.last_mut() {
                Some(run) if run.cost == *cost => run.repeats += 1,
                _ if is_full => break,
                _ => runs.push(Run { repeats: 1, cost: *cost }),
            }
            aboard += 1;
        }
        let waiters = flight.queue.drain(..aboard).map(|(cost, waiter)| (cost, Some(waiter))).collect();
        let (key, items) = (Arc::clone(&flight.key), Arc::clone(&flight.items));
        let charges = items.iter().map(|item| self.charge_ask(item, &key, client, now_us, nodes, settings));
        let ask = Ask { runs, charges: charges.collect() };
        Some(Call { key, ask, sent_us: now_us, client, group, items, waiters })
    }

    /// What is asked of one limit. What is left in hand was not enough: it goes back with the same call.
    fn charge_ask(
        &mut self,
        item: &Item,
        key: &Arc<str>,
        client: u64,
        now_us: u64,
        nodes: u32,
        settings: &Settings,
    ) -> ChargeAsk {
        let mut ask = ChargeAsk {
            meter: item.meter,
            field: item.field,
            enforced: item.enforced,
            want: 0,
            share: 1,
            reports: SmallVec::new(),
        };
        if let Some(lease) = self.leases.get_mut(&item.key) {
            if item.leased {
                (ask.want, ask.share) = lease.ahead(nodes, now_us, settings);
            }
            lease.credit.bring_back(u64::MAX);
            ask.reports = worth_telling(lease.credit.reports(now_us), &lease.meter);
            lease.asked_us = now_us;
            lease.was_refused = false;
            lease.place.get_or_insert_with(|| (Arc::clone(key), client, item.field));
        }
        ask
    }

    /// Keeps what `answer` lends, and what it says.
    pub(super) fn take_in(&mut self, call: &Call<W>, answer: &Answer, nodes: u32, now_us: u64) {
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

    /// Drops what is believed of `items`: this node brings tokens back.
    pub(super) fn forget<'i>(&mut self, items: impl Iterator<Item = &'i Item>) {
        for item in items {
            if let Some(lease) = self.leases.get_mut(&item.key) {
                lease.memory = None;
            }
        }
    }

    /// What was to be reported and never left.
    pub(super) fn take_back_reports(&mut self, call: &Call<W>) {
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

    /// A call that brings back what `items` were charged.
    pub(super) fn refund(
        &mut self,
        client: u64,
        key: Arc<str>,
        items: Arc<[Item]>,
        cost: u32,
        store_us: u64,
        now_us: u64,
    ) -> Call<W> {
        let charges = items.iter().map(|item| {
            let report = Report { epoch: item.meter.epoch(store_us), refunded: cost, ..Report::default() };
            report_ask(item.meter, item.field, SmallVec::from_slice(&[report]))
        });
        let ask = Ask { runs: SmallVec::new(), charges: charges.collect() };
        Call { key, ask, sent_us: now_us, client, group: 0, items, waiters: Vec::new() }
    }

    /// Everybody in the queue of a flight, which is no more.
    pub(super) fn disband(&mut self, group: u64) -> Vec<W> {
        let flight = self.flights.remove(&group);
        flight.map_or(Vec::new(), |flight| flight.queue.into_iter().map(|(_, waiter)| waiter).collect())
    }

    /// See [`super::Book::tick`].
    pub(super) fn tick(
        &mut self,
        now_us: u64,
        tick_us: u64,
        nodes: u32,
        settings: &Settings,
    ) -> Vec<Call<W>> {
        let mut reports = Reports::default();
        let leases = &mut self.leases;
        self.busy.walk(now_us, tick_us, |key| {
            let Some(lease) = leases.get_mut(&key) else { return false };
            lease.let_go(nodes, now_us, settings);
            if lease.has_news(nodes, now_us) {
                reports.add(key, lease, now_us);
            }
            lease.is_busy = lease.is_due(nodes, now_us);
            lease.is_busy
        });
        if self.sweep_us <= now_us {
            let is_crowded = self.leases.len() > self.most_leases / 4 * 3;
            let (idle_us, every_us) = match is_crowded {
                true => (IDLE_IN_A_CROWD_US, SWEEP_A_CROWD_EVERY_US),
                false => (IDLE_US, SWEEP_EVERY_US),
            };
            self.sweep_us = now_us + every_us;
            self.leases.retain(|_, lease| lease.is_busy || lease.used_us + idle_us > now_us);
        }
        reports.into_calls(now_us)
    }

    /// See [`super::Book::bring_back_all`].
    pub(super) fn bring_back_all(&mut self, now_us: u64) -> Vec<Call<W>> {
        let mut reports = Reports::default();
        for (key, lease) in &mut self.leases {
            lease.credit.bring_back(u64::MAX);
            lease.memory = None;
            reports.add(*key, lease, now_us);
        }
        reports.into_calls(now_us)
    }
}

/// The next tick has to look at this one.
fn note_busy(busy: &mut Rounds, key: u64, lease: &mut Lease) {
    if !lease.is_busy {
        lease.is_busy = true;
        busy.join(key, lease.timing.interval_us);
    }
}

impl<W: Waiter> Page<W> {
    /// Tells the waiters of `call` what they get.
    pub(super) fn serve(&mut self, call: Call<W>, answer: &Answer, now_us: u64) {
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
    pub(super) fn serve_queue(&mut self, group: u64, store_us: u64, now_us: u64, settings: &Settings) {
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
