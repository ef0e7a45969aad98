//! A lease table, a store, and everything that can happen between them.

mod limits;
mod replies;

use super::LeaseFuzzCoverage;
use super::choices::FuzzChoices;
use super::grant_ledger::{Cover, GrantEpoch, GrantLedger};
use crate::lease::table::{
    Executed, LeaseCheck, LeaseSettings, LeaseTable, PendingLeaseCheck, ReservedTokens, StoreCall, Verdict,
    Waiter,
};
use limits::{FuzzLimit, address};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::key::StateKey;
use tollgate_core::limit::Meter;
use tollgate_core::script::MOST_PARTS;
use tollgate_core::time::{BootTime, StoreTime};
use tollgate_core::virtual_store::VirtualStore;
use tollgate_limiter::{OwnedCharge, Passed, Steps};

const SECOND_US: u64 = 1_000_000;
const DAY_US: u64 = 86_400 * SECOND_US;
/// The store's clock when the node's is 0.
const START_US: u64 = 1_700_000_123_456_789;
/// Calls under way before one has to come back.
const MOST_CALLS: usize = 12;

/// Receives the verdict of one call.
#[derive(Debug)]
struct FuzzWaiter {
    id: usize,
    is_gone: Rc<Cell<bool>>,
    told: FuzzVerdicts,
    /// It must not be dropped without a verdict.
    has_heard: bool,
}

/// The verdicts of the step under way, in order: the waiter, the verdict, and whether it was received.
type FuzzVerdicts = Rc<RefCell<Vec<(usize, Verdict, bool)>>>;

impl Waiter for FuzzWaiter {
    fn deliver(mut self, verdict: Verdict) -> bool {
        self.has_heard = true;
        let is_received = !self.is_gone.get();
        self.told.borrow_mut().push((self.id, verdict, is_received));
        is_received
    }
}

impl Drop for FuzzWaiter {
    fn drop(&mut self) {
        assert!(self.has_heard || std::thread::panicking(), "a waiter was dropped without a verdict");
    }
}

/// Of a limit that requests state: the next may state other numbers for the same key.
const FIRST_RULES: u32 = 1 << 31;

/// What a pending group is named by: the number of the rules, and for each limit its key, numbers, and whether it can refuse.
type GroupKey = (u32, Vec<(StateKey, Meter, bool)>);

/// A request that waits.
struct FuzzRequest {
    dues: Vec<OwnedCharge>,
    cost: u32,
    reserved: ReservedTokens,
    /// For each of `reserved`: the grants that it was taken from.
    covers: Vec<Cover>,
    groups: Vec<Vec<usize>>,
    unheard: usize,
    is_refused: bool,
    has_failed: bool,
    is_gone: Rc<Cell<bool>>,
}

impl FuzzRequest {
    /// Whether no limit of a group refuses, as the steps of a verdict say.
    fn is_passed(&self, group: usize, steps: &[LimitStep]) -> bool {
        let group = self.groups[group].iter().zip(steps);
        group.fold(true, |passes, (index, step)| passes && (step.admitted || !self.dues[*index].enforced))
    }
}

/// What a waiter waits for: its request, which of its groups, and the pending group.
struct WaiterPosition {
    request: usize,
    group: usize,
    group_key: GroupKey,
    has_heard: bool,
}

pub(super) struct FuzzRun<'b> {
    choices: FuzzChoices<'b>,
    met: &'b LeaseFuzzCoverage,
    table: LeaseTable<FuzzWaiter>,
    store: VirtualStore<u64>,
    now: BootTime,
    /// How far the store's clock is ahead of where it began.
    offset_us: i64,
    rules: u32,
    limits: Vec<FuzzLimit>,
    requests: Vec<FuzzRequest>,
    seats: Vec<WaiterPosition>,
    /// How many of the seats have not heard.
    unheard: usize,
    told: FuzzVerdicts,
    /// Calls under way.
    out: Vec<StoreCall<FuzzWaiter>>,
    /// Replies that were given before.
    old: Vec<Vec<u8>>,
    ledgers: BTreeMap<StateKey, GrantLedger>,
}

impl<'b> FuzzRun<'b> {
    pub(super) fn new(choices: FuzzChoices<'b>, met: &'b LeaseFuzzCoverage) -> Self {
        Self {
            choices,
            met,
            table: LeaseTable::new(LeaseSettings::default()),
            store: VirtualStore::default(),
            now: BootTime::from_us(SECOND_US),
            offset_us: 0,
            rules: FIRST_RULES,
            limits: FuzzLimit::all(),
            requests: Vec::new(),
            seats: Vec::new(),
            unheard: 0,
            told: FuzzVerdicts::default(),
            out: Vec::new(),
            old: Vec::new(),
            ledgers: BTreeMap::new(),
        }
    }

    pub(super) fn walk(mut self) {
        while !self.choices.is_over() {
            self.step();
            self.assert_sound();
        }
        self.end();
    }

    fn step(&mut self) {
        match self.choices.below(16) {
            0..=6 if self.out.len() < MOST_CALLS => self.request(),
            0..=11 => self.deliver(),
            12 | 13 => self.pass_time(),
            14 => self.tick(),
            _ => match self.choices.below(5) {
                0 => {
                    let edited = self.choices.below(self.limits.len());
                    self.limits[edited].edit(&mut self.choices);
                    self.rules += 1;
                }
                1 => self.give_up(),
                2 => {
                    let most_us = [SECOND_US, 10 * SECOND_US, DAY_US][self.choices.below(3)];
                    self.offset_us += most_us as i64 - self.choices.up_to(2 * most_us) as i64;
                }
                3 => self.table.set_nodes(self.choices.byte().into()),
                _ => {
                    let mut calls = Vec::new();
                    self.table.return_all(self.now, |call| calls.push(call));
                    calls.into_iter().for_each(|call| self.send(call));
                }
            },
        }
    }

    fn pass_time(&mut self) {
        let most_us = [1, 1_000, 100_000, 3 * SECOND_US, 3 * SECOND_US, 3_600 * SECOND_US, 3 * DAY_US];
        self.now += match self.choices.below(2 * most_us.len()) {
            index if index < most_us.len() => self.choices.up_to(most_us[index]),
            _ => 100_000,
        };
    }

    fn tick(&mut self) {
        let mut calls = Vec::new();
        self.table.tick(self.now, |call| calls.push(call));
        calls.into_iter().for_each(|call| self.send(call));
    }

    fn store_time(&self) -> StoreTime {
        StoreTime::from_us(START_US + self.now.as_us()).shifted_by(self.offset_us)
    }

    fn ledger(&mut self, key: StateKey) -> &mut GrantLedger {
        self.ledgers.entry(key).or_default()
    }

    /// A request against one to three limits.
    fn request(&mut self) {
        let mut chosen: Vec<usize> =
            (0..=self.choices.below(3)).map(|_| self.choices.below(self.limits.len())).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let dues: Vec<OwnedCharge> =
            chosen.iter().map(|index| self.limits[*index].charge_of_request(&mut self.choices)).collect();
        let most = dues.iter().map(|due| due.meter.quota()).min().unwrap_or(1);
        let cost = match self.choices.below(8) {
            0 => most,
            1 => 1 + self.choices.up_to(u64::from(most) - 1) as u32,
            _ => 1 + self.choices.below(most.min(4) as usize) as u32,
        };
        let is_gone = Rc::new(Cell::new(false));
        let (first, mut made) = (self.seats.len(), 0);
        let seat = || {
            made += 1;
            let (is_gone, told) = (Rc::clone(&is_gone), Rc::clone(&self.told));
            FuzzWaiter { id: first + made - 1, is_gone, told, has_heard: false }
        };
        let locate = |index: usize| Some(address(&dues[index]));
        let mut steps = Steps::new();
        match self.table.check(&dues, cost, self.rules, self.now, locate, seat, &mut steps) {
            LeaseCheck::Decided => {
                assert_eq!(made, 0, "nothing is asked");
                LeaseFuzzCoverage::note(&self.met.decided);
                let passes = steps.iter().all(|(index, step)| step.admitted || !dues[*index].enforced);
                assert!(!passes || steps.len() == dues.len(), "decided without a word of some limits");
                for (index, _) in steps.iter().filter(|(_, step)| passes && step.admitted) {
                    LeaseFuzzCoverage::note(&self.met.spent);
                    let now = self.now;
                    self.ledger(dues[*index].key).spend(cost.into(), now);
                }
            }
            LeaseCheck::Pending(asked) => {
                assert_eq!(made, asked.groups.len(), "a waiter for each group");
                self.wait(dues, cost, *asked, is_gone);
            }
        }
    }

    fn wait(
        &mut self,
        dues: Vec<OwnedCharge>,
        cost: u32,
        asked: PendingLeaseCheck<FuzzWaiter>,
        is_gone: Rc<Cell<bool>>,
    ) {
        let PendingLeaseCheck { steps, reserved, groups, calls } = asked;
        assert!(
            steps.iter().all(|(index, step)| step.admitted || !dues[*index].enforced),
            "refused, and asked"
        );
        let now = self.now;
        let spend = |(index, _): &(usize, _)| self.ledger(dues[*index].key).spend(cost.into(), now);
        let covers: Vec<Cover> = reserved.iter().map(spend).collect();
        let groups: Vec<Vec<usize>> = groups.into_iter().map(SmallVec::into_vec).collect();
        for (group, indices) in groups.iter().enumerate() {
            let asked = |due: &OwnedCharge| (due.key, due.meter, due.enforced);
            let group_key = (self.rules, indices.iter().map(|index| asked(&dues[*index])).collect());
            self.seats.push(WaiterPosition {
                request: self.requests.len(),
                group,
                group_key,
                has_heard: false,
            });
        }
        if groups.len() > 1 {
            LeaseFuzzCoverage::note(&self.met.tentative);
        }
        self.unheard += groups.len();
        let (unheard, is_refused, has_failed) = (groups.len(), false, false);
        self.requests.push(FuzzRequest {
            dues,
            cost,
            reserved,
            covers,
            groups,
            unheard,
            is_refused,
            has_failed,
            is_gone,
        });
        calls.into_iter().for_each(|call| self.send(call));
    }

    /// A call leaves.
    fn send(&mut self, call: StoreCall<FuzzWaiter>) {
        let runs = &call.ask.runs;
        assert!(runs.len() <= MOST_PARTS && call.ask.charges.len() <= MOST_PARTS);
        assert_eq!(runs.iter().map(|run| run.repeats as usize).sum::<usize>(), call.waiters.len());
        let needed: u64 = runs.iter().map(|run| u64::from(run.repeats) * u64::from(run.cost)).sum();
        for (item, charge) in call.charges.iter().zip(&call.ask.charges) {
            assert!(charge.reports.len() <= MOST_PARTS, "more reports than can be written");
            self.ledger(item.key).ask(needed + u64::from(charge.prefetch.want));
            for report in charge.reports.iter().filter(|report| report.returned > 0) {
                LeaseFuzzCoverage::note(&self.met.returned);
                let epoch = GrantEpoch::new(&charge.meter, report.epoch);
                self.ledger(item.key).take(report.returned.into(), epoch);
            }
        }
        self.out.push(call);
    }

    /// A waiter has been told `verdict`, and `is_received` unless its request was given up. What its request was admitted
    /// for was `taken` in these epochs by its call, or else comes from credit.
    fn record_verdict(
        &mut self,
        id: usize,
        verdict: Verdict,
        is_received: bool,
        taken: Option<&BTreeMap<StateKey, GrantEpoch>>,
    ) {
        let WaiterPosition { request: number, group, has_heard, .. } = &mut self.seats[id];
        assert!(!std::mem::replace(has_heard, true), "a second verdict");
        let (number, group) = (*number, *group);
        self.unheard -= 1;
        if !is_received {
            return;
        }
        let request = &mut self.requests[number];
        request.unheard -= 1;
        match verdict {
            Verdict::Failed => request.has_failed = true,
            Verdict::Served { steps, reserved } if !request.is_passed(group, &steps) => {
                assert!(reserved.iter().all(Option::is_none), "refused, and reserved");
                request.is_refused = true;
            }
            Verdict::Served { steps, reserved } => {
                let is_tentative = request.groups.len() > 1;
                assert!(is_tentative || reserved.is_empty(), "reserved for no other limit");
                let cost = request.cost.into();
                for (position, index) in request.groups[group].clone().into_iter().enumerate() {
                    let request = &mut self.requests[number];
                    if is_tentative {
                        assert_eq!(reserved[position].is_some(), steps[position].admitted);
                        request.reserved.extend(reserved[position].map(|reservation| (index, reservation)));
                    }
                    if steps[position].admitted {
                        let (key, now) = (request.dues[index].key, self.now);
                        let cover = match taken {
                            Some(epochs) => self.ledger(key).take(cost, epochs[&key]),
                            None => self.ledger(key).spend(cost, now),
                        };
                        if is_tentative {
                            self.requests[number].covers.push(cover);
                        }
                    }
                }
            }
        }
        if self.requests[number].unheard == 0 {
            self.conclude(number);
        }
    }

    /// All verdicts on a request are in.
    fn conclude(&mut self, number: usize) {
        let request = &self.requests[number];
        // A policy may let it pass.
        let passes = !request.is_refused && (!request.has_failed || self.choices.one_in(2));
        self.resolve(number, if passes { Passed::Yes } else { Passed::No });
    }

    fn resolve(&mut self, number: usize, passed: Passed) {
        let request = &mut self.requests[number];
        let (reserved, cost) = (std::mem::take(&mut request.reserved), request.cost.into());
        let covers = std::mem::take(&mut request.covers);
        let (dues, groups) = (request.dues.clone(), request.groups.clone());
        if passed == Passed::No {
            for ((index, _), cover) in reserved.iter().zip(covers) {
                self.ledger(dues[*index].key).put_back(cost, cover);
            }
        }
        let locate = |index: usize| {
            let is_asked = groups.len() > 1 && groups.iter().any(|group| group.contains(&index));
            is_asked.then(|| address(&dues[index]))
        };
        let calls = self.table.resolve(&dues, &reserved, passed, self.now, locate);
        calls.into_iter().for_each(|call| self.send(call));
    }

    /// A caller goes away.
    fn give_up(&mut self) {
        let is_waiting = |request: &FuzzRequest| request.unheard > 0 && !request.is_gone.get();
        let waiting: Vec<usize> =
            (0..self.requests.len()).filter(|number| is_waiting(&self.requests[*number])).collect();
        if !waiting.is_empty() {
            let number = waiting[self.choices.below(waiting.len())];
            self.requests[number].is_gone.set(true);
            self.resolve(number, Passed::No);
        }
    }

    fn assert_sound(&mut self) {
        let (mut leases, mut groups, mut queued) = (0, 0, 0);
        for client in FuzzLimit::clients() {
            let audit = self.table.shard(client).lock().audit();
            assert_eq!(audit.busy.0, audit.busy.1, "leases that a tick has to look at");
            (leases, groups, queued) = (leases + audit.leases, groups + audit.groups, queued + audit.queued);
            for (key, held) in audit.held {
                self.ledger(key).assert_covers(held);
            }
        }
        assert!(leases <= self.limits.len());
        let waited_for = self.out.iter().map(|call| call.waiters().count());
        assert_eq!(waited_for.clone().filter(|count| *count > 0).count(), groups, "a call for each group");
        assert_eq!(waited_for.sum::<usize>() + queued, self.unheard, "some waiter is nowhere");
    }

    /// Everything under way fails, and time passes.
    fn end(mut self) {
        for round in 0..4 {
            for _ in 0..self.out.len() {
                // The first time, reports come back.
                let call = self.out.remove(0);
                self.fail(call, if round > 0 { Executed::Maybe } else { Executed::No });
                self.assert_sound();
            }
            self.now += 100 * DAY_US;
            self.tick();
        }
        assert_eq!((self.unheard, self.out.len(), self.table.lease_count()), (0, 0, 0), "something is left");
    }
}
