//! The book of all leases of a node: what is decided here, what is asked, and what follows from the answers.

mod flight;
mod lease;
mod page;
mod pages;
mod reports;
mod rounds;

use super::credit::Paid;
use flight::Item;
use lease::Local;
use page::Page;
use pages::{PAGES, Pages, page_of, refused};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tollgate_core::algorithm::Step;
use tollgate_core::limit::Meter;
use tollgate_core::place::Place;
use tollgate_core::rules::{Leasing, RuleSet};
use tollgate_core::script::{Answer, Ask};

/// How leases are dealt with. A rule may have a horizon and an interval of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// How far ahead of its use a busy key takes tokens.
    pub(crate) horizon_us: u64,
    /// The same for a key that no other node uses: nobody misses what is held here.
    pub(crate) lone_horizon_us: u64,
    /// How often credit is reported and idle credit brought back.
    pub(crate) interval_us: u64,
    /// How long after a call the next may come once something was refused.
    pub(crate) gate_us: u64,
    /// From how many tokens a second a key is busy.
    pub(crate) busy_per_second: u64,
    /// How many keys are kept at most.
    pub(crate) most_leases: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            horizon_us: 300_000,
            lone_horizon_us: 2_000_000,
            interval_us: 100_000,
            gate_us: 50_000,
            busy_per_second: 2,
            most_leases: 200_000,
        }
    }
}

/// All leases of a node. `W` is who waits for a call.
#[derive(Debug)]
pub(crate) struct Book<W> {
    pages: Box<[Mutex<Page<W>>]>,
    settings: Settings,
    /// How many nodes share the store, this one included.
    nodes: AtomicU32,
    /// From one tick to the next.
    tick_us: AtomicU64,
}

/// One limit that a request is to be charged against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged<'r> {
    /// Whose state, of which limit.
    pub(crate) key: u64,
    /// Whose, under any limit: what shares this shares a hash at the store.
    pub(crate) client: u64,
    pub(crate) meter: &'r Meter,
    /// Whether it can refuse.
    pub(crate) enforced: bool,
    /// Whether tokens may be taken ahead.
    pub(crate) leased: bool,
    /// How they are.
    pub(crate) leasing: Leasing,
    /// Whether a request is refused if the store does not answer.
    pub(crate) denies_on_failure: bool,
}

/// Steps by the index of their charge.
pub(crate) type Steps = SmallVec<[(usize, Step); 4]>;

/// What becomes of a request.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "what is decided here is the common case, and must not allocate"
)]
pub(crate) enum Checked<W> {
    /// It is decided: none of the steps refuses, and all are paid for; or one does, and nothing is.
    Decided(Steps),
    /// Some limits have to be asked; the waiters that were handed over will hear.
    Asked(Box<Asked<W>>),
}

/// See [`Checked::Asked`].
#[derive(Debug)]
pub(crate) struct Asked<W> {
    /// What is decided so far.
    pub(crate) steps: Steps,
    /// What was paid for it.
    pub(crate) reserved: Reserved,
    /// For each waiter, in order: the charges that it will hear about.
    pub(crate) groups: SmallVec<[SmallVec<[usize; 2]>; 1]>,
    /// To be sent now.
    pub(crate) calls: SmallVec<[Call<W>; 1]>,
}

/// What was paid from credit, by the index of the charge.
pub(crate) type Reserved = SmallVec<[(usize, Paid); 2]>;

/// Hears what becomes of its request.
pub(crate) trait Waiter {
    /// Answers whether anybody listened.
    fn hear(self, verdict: Verdict) -> bool;
}

/// What the store says to a waiter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// How its request stands with each limit of its group, and the time at the store. All enforced ones
    /// admit it, and it is paid for; or one does not, and nothing was taken.
    Served { steps: SmallVec<[Step; 2]>, store_us: u64 },
    /// The store did not answer in time, or could not.
    Failed,
}

/// A call to the store for one client.
#[derive(Debug)]
pub(crate) struct Call<W> {
    /// The client's key at the store.
    pub(crate) key: Arc<str>,
    pub(crate) ask: Ask,
    /// When it was made; at least as early as it is sent.
    pub(crate) sent_us: u64,
    client: u64,
    group: u64,
    items: Arc<[Item]>,
    /// In the order of the runs of `ask`; empty places have gone to the failure policy.
    waiters: Vec<(u32, Option<W>)>,
}

/// Which requests a call is for, and who waits behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlightId {
    client: u64,
    group: u64,
}

impl<W> Call<W> {
    pub(crate) fn flight(&self) -> FlightId {
        FlightId { client: self.client, group: self.group }
    }

    /// Who waits for it, in the order in which they came.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &W> {
        self.waiters.iter().filter_map(|(_, waiter)| waiter.as_ref())
    }
}

impl<W: Waiter> Book<W> {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            pages: (0..PAGES).map(|_| Mutex::new(Page::new(settings.most_leases / PAGES))).collect(),
            settings,
            nodes: AtomicU32::new(1),
            tick_us: AtomicU64::new(settings.interval_us),
        }
    }

    /// Decides what can be decided here and asks for the rest. `place` tells where the state of a charge
    /// stands, `waiter` makes somebody who hears; `rules` is the number of the rule set.
    pub(crate) fn check(
        &self,
        charges: &[Charged<'_>],
        cost: u32,
        rules: u32,
        now_us: u64,
        place: impl Fn(usize) -> Place,
        waiter: impl FnMut() -> W,
    ) -> Checked<W> {
        if let [only] = charges {
            let mut page = self.page(only.client).lock();
            let local = page.look_and_spend(only, cost, rules, now_us, &self.settings);
            match local {
                Local::Spend(step) => return Checked::Decided(SmallVec::from_slice(&[(0, step)])),
                Local::Refuse(step) => return Checked::Decided(SmallVec::from_slice(&[(0, step)])),
                Local::Ask => {}
            }
            let mut pages = Pages::of_one(only.client, page);
            return self.ask(&mut pages, charges, &[local], cost, rules, now_us, place, waiter);
        }
        let mut pages = Pages::lock(&self.pages, charges);
        let locals = pages.look(charges, cost, rules, now_us, &self.settings);
        match refused(charges, &locals) {
            Some(steps) => Checked::Decided(steps),
            None => self.ask(&mut pages, charges, &locals, cost, rules, now_us, place, waiter),
        }
    }

    /// Refuses what is known to be refused; about anything else it says nothing, spends nothing and asks nobody.
    pub(crate) fn refuse(
        &self,
        charges: &[Charged<'_>],
        cost: u32,
        rules: u32,
        now_us: u64,
    ) -> Option<Steps> {
        refused(
            charges,
            &Pages::lock(&self.pages, charges).look(charges, cost, rules, now_us, &self.settings),
        )
    }

    /// Nothing is known that refuses: pays from credit, and asks for what has none.
    #[expect(clippy::too_many_arguments, reason = "they are those of `check`, and what it has found")]
    fn ask(
        &self,
        pages: &mut Pages<'_, W>,
        charges: &[Charged<'_>],
        locals: &[Local],
        cost: u32,
        rules: u32,
        now_us: u64,
        place: impl Fn(usize) -> Place,
        mut waiter: impl FnMut() -> W,
    ) -> Checked<W> {
        let mut steps = Steps::new();
        let mut reserved = Reserved::new();
        let mut groups: SmallVec<[SmallVec<[usize; 2]>; 1]> = SmallVec::new();
        for (index, (charge, local)) in charges.iter().zip(locals).enumerate() {
            match local {
                Local::Spend(step) => {
                    let paid = pages.of(charge.client).spend(charge.key, cost, now_us);
                    reserved.push((index, paid));
                    steps.push((index, *step));
                }
                Local::Refuse(step) => steps.push((index, *step)),
                Local::Ask => match groups.iter_mut().find(|group| charges[group[0]].client == charge.client)
                {
                    Some(group) => group.push(index),
                    None => groups.push(SmallVec::from_slice(&[index])),
                },
            }
        }
        if groups.is_empty() {
            return Checked::Decided(steps);
        }
        let mut calls = SmallVec::new();
        for group in &groups {
            let client = charges[group[0]].client;
            let items = || {
                let first = place(group[0]);
                let items = group.iter().map(|index| Item::new(&charges[*index], place(*index).field));
                (Arc::from(first.key), items.collect())
            };
            let name = group.iter().fold(u64::from(rules), |name, index| {
                (name ^ charges[*index].key).rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            let page = pages.of(client);
            page.join(name, items, cost, waiter());
            calls.extend(page.depart(client, name, now_us, self.nodes(), &self.settings));
        }
        Checked::Asked(Box::new(Asked { steps, reserved, groups, calls }))
    }

    /// Takes in what the store answered to `call`. Hands back what is to be sent next.
    pub(crate) fn answered(&self, call: Call<W>, answer: &Answer, now_us: u64) -> Option<Call<W>> {
        let (client, group) = (call.client, call.group);
        let mut page = self.page(client).lock();
        let is_late = call.waiters.iter().any(|(_, waiter)| waiter.is_none());
        page.take_in(&call, answer, self.nodes(), now_us);
        page.serve(call, answer, now_us);
        if is_late {
            return None;
        }
        page.serve_queue(group, answer.now_us, now_us, &self.settings);
        page.depart(client, group, now_us, self.nodes(), &self.settings)
    }

    /// The store has not answered in time: all who wait for this call, or behind it, are left to the failure
    /// policy. The call itself goes on.
    pub(crate) fn overdue(&self, call: &mut Call<W>) {
        let waiters = call.waiters.iter_mut().filter_map(|(_, waiter)| waiter.take());
        let waiters: Vec<W> = waiters.collect();
        if waiters.is_empty() {
            // They were told before, or there never were any. Others may be on their way with the same question.
            return;
        }
        let queued = self.page(call.client).lock().disband(call.group);
        for waiter in waiters.into_iter().chain(queued) {
            waiter.hear(Verdict::Failed);
        }
    }

    /// The call has failed. What it was to report is kept if the store certainly has not seen it.
    pub(crate) fn failed(&self, mut call: Call<W>, was_seen: bool) {
        self.overdue(&mut call);
        if !was_seen {
            self.page(call.client).lock().take_back_reports(&call);
        }
    }

    /// The call of a flight is lost: all who wait behind it are left to the failure policy.
    pub(crate) fn abandon(&self, flight: FlightId) {
        for waiter in self.page(flight.client).lock().disband(flight.group) {
            waiter.hear(Verdict::Failed);
        }
    }

    /// Takes back what a request paid from credit that came to nothing.
    pub(crate) fn undo(&self, charges: &[Charged<'_>], reserved: &Reserved) {
        for (index, paid) in reserved {
            let charge = &charges[*index];
            self.page(charge.client).lock().undo(charge.key, *paid);
        }
    }

    /// Brings back what was taken at the store for a request that came to nothing: to be sent at once.
    pub(crate) fn refund(
        &self,
        charges: &[Charged<'_>],
        group: &[usize],
        cost: u32,
        store_us: u64,
        now_us: u64,
        place: impl Fn(usize) -> Place,
    ) -> Call<W> {
        let items: Arc<[Item]> =
            group.iter().map(|index| Item::new(&charges[*index], place(*index).field)).collect();
        let client = charges[group[0]].client;
        let mut page = self.page(client).lock();
        page.forget(items.iter());
        page.refund(client, Arc::from(place(group[0]).key), items, cost, store_us, now_us)
    }

    /// Reports what was spent, brings back what is idle or about to die, forgets what is not in use. To be
    /// called every [`Book::tick_us`].
    pub(crate) fn tick(&self, now_us: u64, mut send: impl FnMut(Call<W>)) {
        let (nodes, tick_us) = (self.nodes(), self.tick_us());
        for page in &self.pages {
            let calls = page.lock().tick(now_us, tick_us, nodes, &self.settings);
            calls.into_iter().for_each(&mut send);
        }
    }

    /// Brings back everything, for a shutdown.
    pub(crate) fn bring_back_all(&self, now_us: u64, mut send: impl FnMut(Call<W>)) {
        for page in &self.pages {
            let calls = page.lock().bring_back_all(now_us);
            calls.into_iter().for_each(&mut send);
        }
    }

    /// How many nodes share the store, this one included.
    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Ticks as often as `rules` ask for it from now on. Answers whether that is more often than before.
    pub(crate) fn keep_pace_with(&self, rules: &RuleSet) -> bool {
        let shortest_us = rules.shortest_interval_us().map_or(u64::MAX, |us| us.get().into());
        let tick_us = shortest_us.min(self.settings.interval_us);
        self.tick_us.swap(tick_us, Ordering::Relaxed) > tick_us
    }

    /// How often it has to be called for a tick: at the shortest interval in force.
    pub(crate) fn tick_us(&self) -> u64 {
        self.tick_us.load(Ordering::Relaxed)
    }

    /// How many keys are kept.
    pub(crate) fn leases(&self) -> usize {
        self.pages.iter().map(|page| page.lock().leases()).sum()
    }

    fn page(&self, client: u64) -> &Mutex<Page<W>> {
        &self.pages[page_of(client)]
    }
}
