//! A decision that waits for the shared store.

use crate::decision::{Check, Decision};
use crate::failure::Fallback;
use crate::lease::{Asked, Charged, Checked, Reserved, Steps, Verdict};
use crate::limiter::{Limiter, must_end};
use crate::policy::{Policy, Terms};
use crate::redis::{Hearing, Shared, Ticket};
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::algorithm::Step;
use tollgate_core::decision::{Fold, Invalid, Outcome};
use tollgate_core::key::Hashes;
use tollgate_core::limit::Meter;
use tollgate_core::place::Place;
use tollgate_core::request::Request;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_core::rules::{Charge, Charges, Leasing, LimitId, Over, Selection};

/// A shared store, and what is done without it.
#[derive(Debug)]
pub(crate) struct SharedStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) fallback: Fallback,
}

/// A decision on its way. The store has been asked; whoever drops this leaves nothing behind.
#[derive(Debug)]
#[must_use = "it has to be awaited"]
pub struct Pending<'l> {
    limiter: &'l Limiter,
    store: &'l SharedStore,
    waiting: Box<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    policy: Arc<Policy>,
    charges: SmallVec<[Due; 4]>,
    cost: u32,
    /// The client's address, hashed, for an emergency.
    address: Option<u64>,
    /// By what the client is known to who watches for abuse, if this check is one that was sampled.
    watched: Option<u64>,
    now_us: u64,
    steps: Steps,
    reserved: Reserved,
    groups: SmallVec<[Group; 1]>,
}

/// The limits that one call to the store is about.
#[derive(Debug)]
struct Group {
    /// Which of the charges.
    charges: SmallVec<[usize; 2]>,
    /// Where their states stand; known only if there are several groups, one of which may have to be undone.
    places: Vec<Place>,
    hearing: Option<Hearing>,
    /// What was taken, and when at the store.
    taken_us: Option<u64>,
}

/// A charge, without the rule set that it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) id: LimitId,
    pub(crate) key: u64,
    pub(crate) client: u64,
    pub(crate) enforced: bool,
    pub(crate) over: Over,
    leased: bool,
    leasing: Leasing,
    denies_on_failure: bool,
}

impl Due {
    pub(crate) fn new(policy: &Policy, charge: &Charge<'_>) -> Self {
        let rule = policy.rules.set.rule_of(charge.id);
        Self {
            id: charge.id,
            key: charge.key,
            client: charge.client,
            enforced: charge.enforced,
            over: charge.over,
            leased: rule.lends(charge.limit),
            leasing: rule.leasing,
            denies_on_failure: rule.on_store_failure == OnStoreFailure::Deny,
        }
    }

    pub(crate) fn charged<'p>(&self, policy: &'p Policy) -> Charged<'p> {
        let meter: &Meter = policy.rules.set.limit(self.id).meter();
        Charged {
            key: self.key,
            client: self.client,
            meter,
            enforced: self.enforced,
            leased: self.leased,
            leasing: self.leasing,
            denies_on_failure: self.denies_on_failure,
        }
    }

    pub(crate) fn charge<'p>(&self, policy: &'p Policy) -> Charge<'p> {
        let limit = policy.rules.set.limit(self.id);
        let Self { id, key, client, enforced, over, .. } = *self;
        Charge { limit, id, key, client, enforced, over }
    }
}

impl Limiter {
    /// Charges a request at the shared store, or at what is held of it here.
    pub(crate) fn charge_shared<'l>(
        &'l self,
        store: &'l SharedStore,
        policy: &Arc<Policy>,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &Hashes<'_>,
        now_us: u64,
    ) -> Result<Check<'l>, Invalid> {
        let rules = &policy.rules.set;
        let mut charges = Charges::new();
        rules.charge(selection, request, hashes, &mut charges);
        must_end(&policy.rules, &charges)?;
        let mut due: SmallVec<[Due; 4]> = SmallVec::new();
        for charge in &charges {
            if request.cost <= u64::from(charge.limit.quota) {
                due.push(Due::new(policy, charge));
            } else if charge.enforced {
                let rule = rules.rule_of(charge.id).id.clone();
                return Err(Invalid::CostAboveLimit { rule, limit: charge.limit.quota, cost: request.cost });
            }
        }
        let address = request.ip.map(|ip| self.address_hash(ip));
        let places = store.shared.places_now();
        let place = (*places).as_ref().map(|places| {
            |_: usize, id: LimitId| places.of(rules.rule_of(id), rules.limit(id), request, selection.route())
        });
        Ok(self.ask_shared(store, policy, due, request.cost as u32, address, now_us, place))
    }

    /// Charges `due`, of which `place` tells the places at the store by number and limit; there is none as long
    /// as the store has never been reached.
    #[expect(clippy::too_many_arguments, reason = "all that a decision at the store depends on")]
    pub(crate) fn ask_shared<'l>(
        &'l self,
        store: &'l SharedStore,
        policy: &Arc<Policy>,
        due: SmallVec<[Due; 4]>,
        cost: u32,
        address: Option<u64>,
        now_us: u64,
        place: Option<impl Fn(usize, LimitId) -> Place>,
    ) -> Check<'l> {
        if due.is_empty() {
            return Check::Decided(Decision::without_limit(Outcome::Unlimited, now_us));
        }
        let waiting = |charges, steps, reserved, groups| Waiting {
            policy: Arc::clone(policy),
            charges,
            cost,
            address,
            watched: None,
            now_us,
            steps,
            reserved,
            groups,
        };
        let Some(place) = place else {
            // Nobody has ever reached the store: nothing is held and nothing is known.
            let all = (0..due.len()).collect();
            let group = Group { charges: all, places: Vec::new(), hearing: None, taken_us: None };
            let groups = SmallVec::from_iter([group]);
            let waiting = Box::new(waiting(due, Steps::new(), Reserved::new(), groups));
            return Check::Pending(Pending { limiter: self, store, waiting });
        };
        let charged: SmallVec<[Charged<'_>; 4]> = due.iter().map(|due| due.charged(policy)).collect();
        let place = |index: usize| place(index, due[index].id);
        let mut hearings: SmallVec<[Hearing; 1]> = SmallVec::new();
        let ticket = || {
            let (ticket, hearing) = Ticket::new();
            hearings.push(hearing);
            ticket
        };
        let lease_us = store.shared.lease_us();
        let checked = store.shared.book.check(&charged, cost, policy.rules.number, lease_us, place, ticket);
        let asked = match checked {
            Checked::Decided(steps) => {
                let mut decision = Decision::of(&policy.rules, &fold(policy, &due, &steps), now_us);
                self.note_refusal(&policy.rules, &mut decision, |limit| charge_of(policy, &due, limit));
                return Check::Decided(decision);
            }
            Checked::Asked(asked) => *asked,
        };
        let Asked { steps, reserved, groups, calls } = asked;
        let has_several = groups.len() > 1;
        let groups = groups.into_iter().zip(hearings).map(|(charges, hearing)| {
            let places =
                if has_several { charges.iter().map(|index| place(*index)).collect() } else { Vec::new() };
            Group { charges, places, hearing: Some(hearing), taken_us: None }
        });
        let groups = groups.collect();
        calls.into_iter().for_each(|call| store.shared.send(call));
        Check::Pending(Pending {
            limiter: self,
            store,
            waiting: Box::new(waiting(due, steps, reserved, groups)),
        })
    }
}

/// The charge of this limit.
pub(crate) fn charge_of<'p>(policy: &'p Policy, charges: &[Due], limit: LimitId) -> Option<Charge<'p>> {
    charges.iter().find(|due| due.id == limit).map(|due| due.charge(policy))
}

pub(crate) fn fold(policy: &Policy, charges: &[Due], steps: &[(usize, Step)]) -> Fold {
    let mut fold = Fold::default();
    for (index, step) in steps {
        fold.add(&charges[*index].charge(policy), step);
    }
    fold
}

impl Waiting {
    fn charge_of(&self, limit: LimitId) -> Option<Charge<'_>> {
        charge_of(&self.policy, &self.charges, limit)
    }

    fn fold(&self, steps: &[(usize, Step)]) -> Fold {
        fold(&self.policy, &self.charges, steps)
    }
}

impl Pending<'_> {
    /// Has it said to who watches for abuse if this comes to be refused.
    pub(crate) fn watch(&mut self, key: u64) {
        self.waiting.watched = Some(key);
    }

    /// Waits for the store, no longer than its timeout, and decides.
    pub async fn decision(mut self) -> Decision {
        let mut failed: SmallVec<[usize; 4]> = SmallVec::new();
        for number in 0..self.waiting.groups.len() {
            let verdict = match &mut self.waiting.groups[number].hearing {
                Some(hearing) => hearing.await.unwrap_or(Verdict::Failed),
                None => Verdict::Failed,
            };
            self.waiting.groups[number].hearing = None;
            let Waiting { groups, steps, charges, .. } = &mut *self.waiting;
            let group = &mut groups[number];
            match verdict {
                Verdict::Served { steps: served, store_us } => {
                    let refused = |(index, step): (&usize, &Step)| charges[*index].enforced && !step.admitted;
                    let was_taken = !group.charges.iter().zip(&served).any(refused);
                    group.taken_us = was_taken.then_some(store_us);
                    steps.extend(group.charges.iter().copied().zip(served));
                }
                Verdict::Failed => failed.extend(group.charges.iter().copied()),
            }
        }
        self.conclude(&failed)
    }

    /// All that could be heard has been heard.
    fn conclude(&mut self, failed: &[usize]) -> Decision {
        let Self { limiter, store, waiting } = self;
        let now_us = waiting.now_us;
        let heard = waiting.fold(&waiting.steps);
        let mut steps = waiting.steps.clone();
        // One that is refused anyway must not be charged by a policy as well.
        if heard.admits() {
            let nodes = store.shared.book.nodes();
            for index in failed {
                let charge = waiting.charges[*index].charge(&waiting.policy);
                let rules = &waiting.policy.rules;
                let step = store.fallback.step(limiter.store(), rules, &charge, waiting.cost, nodes, now_us);
                steps.push((*index, step));
            }
        }
        // Of two limits that are equally tight the first decides, whichever was heard first.
        steps.sort_unstable_by_key(|(index, _)| *index);
        let fold = waiting.fold(&steps);
        let mut decision = Decision::of(&waiting.policy.rules, &fold, now_us);
        if !failed.is_empty() && heard.admits() {
            decision.degraded = true;
            // What is left is not known.
            decision.soft = None;
            store.fallback.count();
            if fold.admits()
                && let Some(refusal) = limiter.emergency(store, waiting.address, now_us)
            {
                decision = refusal;
            }
        }
        limiter.note_refusal(&waiting.policy.rules, &mut decision, |limit| waiting.charge_of(limit));
        if let (Outcome::Limited(_), Some(key)) = (&decision.outcome, waiting.watched) {
            limiter.abuse.refused_later(key);
        }
        if decision.allowed() {
            waiting.groups.clear();
            waiting.reserved.clear();
        }
        // What is left of them is brought back when this is dropped.
        decision
    }
}

impl Drop for Pending<'_> {
    /// Brings back what was paid for a request that did not pass, or that nobody waits for any more.
    fn drop(&mut self) {
        let Self { store, waiting, .. } = self;
        if waiting.reserved.is_empty() && waiting.groups.iter().all(|group| group.taken_us.is_none()) {
            return;
        }
        let shared = &store.shared;
        let charged: SmallVec<[Charged<'_>; 4]> =
            waiting.charges.iter().map(|due| due.charged(&waiting.policy)).collect();
        shared.book.undo(&charged, &waiting.reserved);
        for group in &waiting.groups {
            let Some(taken_us) = group.taken_us else { continue };
            let place = |index: usize| {
                let position = group.charges.iter().position(|charge| *charge == index).unwrap_or_default();
                group.places[position].clone()
            };
            if group.places.len() == group.charges.len() {
                let lease_us = shared.lease_us();
                let call =
                    shared.book.refund(&charged, &group.charges, waiting.cost, taken_us, lease_us, place);
                shared.send(call);
            }
        }
    }
}

impl Limiter {
    /// In an emergency: the refusal of an address that has had enough.
    fn emergency(&self, store: &SharedStore, address: Option<u64>, now_us: u64) -> Option<Decision> {
        if !store.fallback.is_emergency(|| store.shared.is_all_away()) {
            return None;
        }
        let limit = store.fallback.emergency_limit()?;
        let step = store.fallback.emergency_step(self.store(), address?, now_us)?;
        if step.admitted {
            return None;
        }
        let mut fold = Fold::default();
        let charge =
            Charge { limit, id: LimitId::NONE, key: 0, client: 0, enforced: true, over: Over::Shadow };
        fold.add(&charge, &step);
        Some(Decision {
            outcome: fold.outcome(),
            terms: Some(Terms::of_own("emergency", limit)),
            now_us,
            shadowed_by: None,
            degraded: true,
            flagged_by: None,
            soft: None,
        })
    }
}
