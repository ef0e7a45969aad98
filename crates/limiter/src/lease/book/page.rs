//! A part of the book under one lock: the leases of some clients, and their flights.

use super::flight::{Flight, Item};
use super::{Call, Charged, Settings, Verdict, Waiter};
use crate::lease::credit::{Credit, Paid};
use crate::lease::memory::{Memory, Recalled};
use crate::lease::pace::Pace;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use tollgate_core::algorithm::Step;
use tollgate_core::lending::{Account, Report};
use tollgate_core::limit::Meter;
use tollgate_core::place::Field;
use tollgate_core::script::{Answer, AnsweredState, Ask, ChargeAnswer, ChargeAsk, MOST_PARTS, Run};

/// A key that nobody has asked for is forgotten after this time; sooner where many are kept.
const IDLE_US: u64 = 10_000_000;
const IDLE_IN_A_CROWD_US: u64 = 2_000_000;
/// A node that has been alone with a key for so long is thought to stay so.
const ALONE_AFTER_US: u64 = 500_000;
/// One part in so many of a capacity is too little to call for.
const SLACK: u32 = 100;

/// Keys are keyed hashes already.
type ByKey<T> = HashMap<u64, T, rapidhash::fast::RandomState>;

#[derive(Debug)]
pub(super) struct Page<W> {
    leases: ByKey<Lease>,
    flights: ByKey<Flight<W>>,
    most_leases: usize,
}

/// What is known of one limit of one client.
#[derive(Debug)]
struct Lease {
    meter: Meter,
    credit: Credit,
    memory: Option<Memory>,
    pace: Pace,
    /// The state when it was last answered, whether it is still believed or not; and when that was asked.
    last: Option<(Account, u64)>,
    /// For how long nobody else has touched the state, as far as the answers tell.
    alone_us: u64,
    /// When the store was last asked.
    asked_us: u64,
    /// Whether anything was refused since.
    was_refused: bool,
    /// When somebody last asked here.
    used_us: u64,
    /// Where the state stands; known since it was first asked for.
    place: Option<(Arc<str>, u64, Field)>,
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
    fn new(meter: &Meter, now_us: u64) -> Self {
        Self {
            meter: *meter,
            credit: Credit::default(),
            memory: None,
            pace: Pace::default(),
            last: None,
            alone_us: 0,
            asked_us: 0,
            was_refused: false,
            used_us: now_us,
            place: None,
        }
    }

    /// The numbers of the limit are now `meter`: what was believed and held under others is void.
    fn adopt(&mut self, meter: &Meter) {
        if self.meter != *meter {
            self.meter = *meter;
            self.memory = None;
            self.credit.bring_back(u64::MAX);
        }
    }

    /// What can be said about a request of `cost`.
    fn look(&mut self, cost: u32, now_us: u64, settings: &Settings) -> Local {
        let left = self.credit.left(now_us);
        if left >= cost {
            return Local::Spend(self.admitted(left - cost, now_us));
        }
        let recalled = match &self.memory {
            // With something in hand, the store and it together may be enough.
            Some(memory) if left == 0 => memory.recall(&self.meter, cost, now_us),
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
    fn admitted(&self, left: u32, now_us: u64) -> Step {
        let (at_store, reset_after_us) = match &self.memory {
            Some(memory) => memory.look(&self.meter, now_us),
            None => (0, 0),
        };
        let remaining = at_store.saturating_add(left).min(self.meter.quota());
        Step { admitted: true, next: None, remaining, retry_after_us: 0, reset_after_us }
    }

    /// Whether no other node has used the key for a while, as where a balancer sends a client to one node.
    fn is_alone(&self) -> bool {
        self.alone_us >= ALONE_AFTER_US
    }

    /// How long nobody may come before what is in hand goes back: a key that should have been asked for
    /// several times by now has gone quiet.
    fn patience_us(&self, now_us: u64, settings: &Settings) -> u64 {
        if self.is_alone() {
            return settings.lone_horizon_us;
        }
        let arrivals = self.pace.per_second(now_us) * settings.interval_us / 1_000_000;
        if arrivals >= 1 { settings.interval_us } else { settings.horizon_us }
    }

    /// How many tokens to take ahead, and at most one in how many of those that are left.
    fn ahead(&self, nodes: u32, now_us: u64, settings: &Settings) -> (u32, u32) {
        let per_second = self.pace.per_second(now_us);
        let is_alone = self.is_alone();
        // What would not be spent while it lives is not worth taking.
        let life_us = self.memory.as_ref().map_or(0, |memory| {
            let life_us = self.meter.credit_us(memory.store_us(now_us));
            life_us.saturating_sub(2 * settings.interval_us)
        });
        let horizon_us = match is_alone {
            true => settings.lone_horizon_us.min(life_us),
            false if per_second >= settings.busy_per_second => settings.horizon_us,
            false => 0,
        };
        let tokens = |us: u64| (per_second * us).div_ceil(1_000_000);
        let slack = self.slack(nodes);
        let is_full = self.missing(now_us).is_some_and(|missing| missing <= slack);
        // Where nobody misses them if they die, enough for a client that comes twice as often as it did.
        let free = if is_full { tokens(2 * life_us).min(u64::from(slack)) } else { 0 };
        let want = u32::try_from(tokens(horizon_us).max(free)).unwrap_or(u32::MAX);
        let nodes = if is_alone { 1 } else { nodes };
        // Where something was refused, every node is waiting for its part of what trickles in.
        let share = if self.was_refused { nodes } else { nodes.saturating_mul(4) };
        (want, share)
    }

    /// How many tokens need no word: what all nodes together keep to themselves is lost in the capacity.
    fn slack(&self, nodes: u32) -> u32 {
        let nodes = if self.is_alone() { 1 } else { nodes };
        self.meter.quota() / SLACK / nodes
    }

    /// How many tokens are missing at the store, see [`Memory::missing`].
    fn missing(&self, now_us: u64) -> Option<u32> {
        self.memory.as_ref()?.missing(&self.meter, now_us)
    }

    /// Whether the store has to be told what was spent without being asked. While it is not full it need not:
    /// the refill goes on all the same.
    fn has_news(&self, nodes: u32, now_us: u64) -> bool {
        self.credit.brings_back()
            || (self.credit.untold(now_us) > self.slack(nodes)
                && self.missing(now_us).is_none_or(|missing| missing == 0))
    }

    /// Whether what is in hand may as well die: so little that a bucket that is nearly full does not miss it.
    fn may_die(&self, nodes: u32, now_us: u64) -> bool {
        let slack = self.slack(nodes);
        self.credit.left(now_us) <= slack && self.missing(now_us).is_some_and(|missing| missing <= slack)
    }

    /// Lets go of what is idle or about to die, if anybody could miss it.
    fn let_go(&mut self, nodes: u32, now_us: u64, settings: &Settings) {
        let is_idle = self.used_us + self.patience_us(now_us, settings) <= now_us;
        // What dies before the next tick but one goes back while there is time.
        let dies_us = if is_idle { u64::MAX } else { now_us + 2 * settings.interval_us };
        if self.credit.holds(dies_us) && !self.may_die(nodes, now_us) {
            self.credit.bring_back(dies_us);
            self.memory = None;
        }
    }

    /// Whether `cost` tokens that were taken just now will surely still be missing when they come back with the
    /// next tick. If the bucket is full by then, its refill has replaced them, and they would be on top.
    fn misses(&self, cost: u32, now_us: u64, settings: &Settings) -> bool {
        let Some(bucket) = self.meter.bucket() else { return true };
        let ticks = 2 * settings.interval_us / bucket.tick_us + 1;
        let refilled = ticks * u64::from(bucket.amount) / u64::from(bucket.period) + 2;
        let others = self.credit.refunded();
        self.missing(now_us).is_some_and(|missing| u64::from(missing) > refilled + u64::from(cost) + others)
    }

    /// Takes in what the store says after `ask`: how things stand, and whether anybody else was there since it
    /// last said something.
    fn hear(&mut self, ask: &Ask, charge: &ChargeAsk, answer: &Answer, told: &ChargeAnswer, sent_us: u64) {
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

impl<W> Page<W> {
    pub(super) fn new(most_leases: usize) -> Self {
        Self { leases: ByKey::default(), flights: ByKey::default(), most_leases }
    }

    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// What can be said about `charge`; and notes that it was asked for.
    #[inline]
    pub(super) fn look(
        &mut self,
        charge: &Charged<'_>,
        cost: u32,
        now_us: u64,
        settings: &Settings,
    ) -> Local {
        let room = self.leases.len() < self.most_leases;
        let lease = match self.leases.get_mut(&charge.key) {
            Some(lease) => lease,
            None if room => self.leases.entry(charge.key).or_insert(Lease::new(charge.meter, now_us)),
            None => return Local::Ask,
        };
        lease.adopt(charge.meter);
        lease.pace.note(cost, now_us);
        lease.used_us = now_us;
        lease.look(cost, now_us, settings)
    }

    pub(super) fn spend(&mut self, key: u64, cost: u32, now_us: u64) -> Paid {
        self.leases.get_mut(&key).map_or(Paid::default(), |lease| lease.credit.spend(cost, now_us))
    }

    pub(super) fn undo(&mut self, key: u64, paid: Paid) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.credit.undo(paid);
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
    pub(super) fn take_in(&mut self, call: &Call<W>, answer: &Answer) {
        let all_passed =
            answer.passing.iter().zip(&call.ask.runs).all(|(passing, run)| *passing == run.repeats);
        for ((item, charge), asked) in call.items.iter().zip(&answer.charges).zip(&call.ask.charges) {
            let Some(lease) = self.leases.get_mut(&item.key) else { continue };
            let epoch = item.meter.epoch(answer.now_us);
            let deadline_us = call.sent_us + item.meter.credit_us(answer.now_us);
            lease.credit.grant(epoch, charge.lends, deadline_us);
            if lease.meter != item.meter {
                lease.credit.bring_back(u64::MAX);
                continue;
            }
            lease.was_refused |= !all_passed;
            lease.hear(&call.ask, asked, answer, charge, call.sent_us);
            if lease.memory.is_some_and(|memory| !memory.is_older_than(answer.now_us)) {
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
                ask.reports.iter().for_each(|report| lease.credit.report(*report));
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
    pub(super) fn tick(&mut self, now_us: u64, nodes: u32, settings: &Settings) -> Vec<Call<W>> {
        let mut calls = Calls::default();
        let is_crowded = self.leases.len() > self.most_leases / 2;
        let idle_us = if is_crowded { IDLE_IN_A_CROWD_US } else { IDLE_US };
        self.leases.retain(|key, lease| {
            if lease.credit.is_empty(now_us) {
                return lease.used_us + idle_us > now_us;
            }
            lease.let_go(nodes, now_us, settings);
            if lease.has_news(nodes, now_us) {
                calls.report(*key, lease, now_us);
            }
            lease.used_us + idle_us > now_us || !lease.credit.is_empty(now_us)
        });
        calls.into_calls(now_us)
    }

    /// See [`super::Book::bring_back_all`].
    pub(super) fn bring_back_all(&mut self, now_us: u64) -> Vec<Call<W>> {
        let mut calls = Calls::default();
        for (key, lease) in &mut self.leases {
            lease.credit.bring_back(u64::MAX);
            lease.memory = None;
            calls.report(*key, lease, now_us);
        }
        calls.into_calls(now_us)
    }
}

impl<W: Waiter> Page<W> {
    /// Tells the waiters of `call` what they get.
    pub(super) fn serve(&mut self, call: Call<W>, answer: &Answer, now_us: u64, settings: &Settings) {
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
                    self.bring_back_unheard(&items, &counted, cost, answer.now_us, now_us, settings);
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
        settings: &Settings,
    ) {
        for (item, _) in items.iter().zip(counted).filter(|(_, counted)| **counted) {
            if let Some(lease) = self.leases.get_mut(&item.key).filter(|lease| lease.misses(cost, now_us, settings)) {
                let epoch = item.meter.epoch(store_us);
                lease.credit.report(Report { epoch, refunded: cost, ..Report::default() });
                lease.memory = None;
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
                    Some(lease) if lease.meter == item.meter => lease.look(cost, now_us, settings),
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

/// Reports on their way, those of one client together.
struct Calls {
    by_client: ByKey<(Arc<str>, Vec<(Item, ChargeAsk)>)>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { by_client: ByKey::default() }
    }
}

impl Calls {
    fn report(&mut self, key: u64, lease: &mut Lease, now_us: u64) {
        let reports = worth_telling(lease.credit.reports(now_us), &lease.meter);
        let (false, Some((client_key, client, field))) = (reports.is_empty(), &lease.place) else { return };
        let item = Item {
            key,
            field: *field,
            meter: lease.meter,
            enforced: true,
            leased: true,
            denies_on_failure: false,
        };
        let (_, charges) =
            self.by_client.entry(*client).or_insert_with(|| (Arc::clone(client_key), Vec::new()));
        charges.push((item, report_ask(lease.meter, *field, reports)));
    }

    fn into_calls<W>(self, now_us: u64) -> Vec<Call<W>> {
        let calls = self.by_client.into_iter().flat_map(|(client, (key, charges))| {
            let chunks: Vec<Call<W>> = charges
                .chunks(MOST_PARTS)
                .map(|charges| Call {
                    key: Arc::clone(&key),
                    ask: Ask {
                        runs: SmallVec::new(),
                        charges: charges.iter().map(|(_, ask)| ask.clone()).collect(),
                    },
                    sent_us: now_us,
                    client,
                    group: 0,
                    items: charges.iter().map(|(item, _)| *item).collect(),
                    waiters: Vec::new(),
                })
                .collect();
            chunks
        });
        calls.collect()
    }
}

fn report_ask(meter: Meter, field: Field, reports: SmallVec<[Report; 2]>) -> ChargeAsk {
    ChargeAsk { meter, field, enforced: true, want: 0, share: 1, reports }
}

/// What was spent in a window counts in it anyway; only buckets have to be told.
fn worth_telling(mut reports: SmallVec<[Report; 2]>, meter: &Meter) -> SmallVec<[Report; 2]> {
    if meter.window().is_some() {
        reports.retain(|report| report.returned > 0 || report.refunded > 0);
    }
    reports
}
