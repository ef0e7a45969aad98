//! A decision that waits for the shared store.

use crate::decision::{Check, Decision};
use crate::failure::Fallback;
use crate::lease::{Asked, Charged, Checked, Passed, Reserved, Steps, Verdict};
use crate::limiter::{Limiter, must_end};
use crate::policy::{Policy, Terms};
use crate::redis::{Hearing, Shared, Ticket};
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::decision::{InvalidRequest, Outcome, OutcomeFold};
use tollgate_core::key::RequestHasher;
use tollgate_core::limit::Meter;
use tollgate_core::request::Request;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_core::rules::{Charge, Charges, LeaseTiming, LimitId, OverLimitEffect, Selection};
use tollgate_core::state_address::StateAddress;

/// A shared store, and what is done without it.
#[derive(Debug)]
pub(crate) struct SharedStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) fallback: Fallback,
}

/// A decision that the store has been asked for. Dropped, it returns what other limits have reserved for it.
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
    /// Tokens that are spent if the request passes, and free again if not.
    reserved: Reserved,
    groups: SmallVec<[Group; 1]>,
}

/// The limits that one call to the store is about.
#[derive(Debug)]
struct Group {
    /// Which of the charges.
    charges: SmallVec<[usize; 2]>,
    /// Where their states are kept; known only if there are several groups, one of which may have to be undone.
    places: Vec<StateAddress>,
    hearing: Option<Hearing>,
}

impl Group {
    /// The verdict, or none if the store did not answer in time.
    fn take_in(&mut self, verdict: Verdict, steps: &mut Steps, reserved: &mut Reserved) -> Option<()> {
        let Verdict::Served { steps: served, reserved: held } = verdict else { return None };
        steps.extend(self.charges.iter().copied().zip(served));
        let held = self.charges.iter().zip(held);
        reserved.extend(held.filter_map(|(index, reservation)| Some((*index, reservation?))));
        Some(())
    }
}

/// A charge, without the rule set that it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) id: LimitId,
    pub(crate) key: u64,
    pub(crate) client: u64,
    pub(crate) enforced: bool,
    pub(crate) over: OverLimitEffect,
    leased: bool,
    leasing: LeaseTiming,
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
        hashes: &RequestHasher<'_>,
        now_us: u64,
    ) -> Result<Check<'l>, InvalidRequest> {
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
                return Err(InvalidRequest::CostAboveLimit {
                    rule,
                    limit: charge.limit.quota,
                    cost: request.cost,
                });
            }
        }
        let address = request.ip.map(|ip| self.address_hash(ip));
        let places = store.shared.places_now();
        let place = (*places).as_ref().map(|places| {
            |_: usize, id: LimitId| {
                places.locate(rules.rule_of(id), rules.limit(id), request, selection.route())
            }
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
        place: Option<impl Fn(usize, LimitId) -> StateAddress>,
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
            // The store has never been reached: nothing is held and nothing is known.
            let all = (0..due.len()).collect();
            let group = Group { charges: all, places: Vec::new(), hearing: None };
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
            Group { charges, places, hearing: Some(hearing) }
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

pub(crate) fn fold(policy: &Policy, charges: &[Due], steps: &[(usize, LimitStep)]) -> OutcomeFold {
    let mut fold = OutcomeFold::default();
    for (index, step) in steps {
        fold.add(&charges[*index].charge(policy), step);
    }
    fold
}

impl Waiting {
    fn charge_of(&self, limit: LimitId) -> Option<Charge<'_>> {
        charge_of(&self.policy, &self.charges, limit)
    }

    /// Whether the rule of this limit refuses what the store cannot decide.
    fn denies_on_failure(&self, limit: LimitId) -> bool {
        self.charges.iter().any(|due| due.id == limit && due.denies_on_failure)
    }

    fn fold(&self, steps: &[(usize, LimitStep)]) -> OutcomeFold {
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
            let Waiting { groups, steps, reserved, .. } = &mut *self.waiting;
            let group = &mut groups[number];
            if group.take_in(verdict, steps, reserved).is_none() {
                failed.extend(group.charges.iter().copied());
            }
        }
        self.conclude(&failed)
    }

    /// All verdicts are in.
    fn conclude(&mut self, failed: &[usize]) -> Decision {
        let failed = &self.recall_refusals(failed);
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
            decision.store_unavailable = match &decision.outcome {
                Outcome::Limited(standing) => waiting.denies_on_failure(standing.limit),
                Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => false,
            };
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
        let passed = if decision.allowed() { Passed::Yes } else { Passed::No };
        self.resolve(passed);
        decision
    }

    /// Under every policy a refusal of the store holds until its retry time. Returns the limits of which none is
    /// known.
    fn recall_refusals(&mut self, failed: &[usize]) -> SmallVec<[usize; 4]> {
        let Self { store, waiting, .. } = self;
        let lease_us = store.shared.lease_us();
        let mut unknown = SmallVec::new();
        for index in failed {
            let charged = waiting.charges[*index].charged(&waiting.policy);
            match store.shared.book.recall_refusal(&charged, waiting.cost, lease_us) {
                Some(step) => waiting.steps.push((*index, step)),
                None => unknown.push(*index),
            }
        }
        unknown
    }

    /// Spends what is reserved, or sets it free.
    fn resolve(&mut self, passed: Passed) {
        let Self { store, waiting, .. } = self;
        let reserved = std::mem::take(&mut waiting.reserved);
        if reserved.is_empty() {
            return;
        }
        let shared = &store.shared;
        let charged: SmallVec<[Charged<'_>; 4]> =
            waiting.charges.iter().map(|due| due.charged(&waiting.policy)).collect();
        let place = |index: usize| {
            let group = waiting.groups.iter().find(|group| group.charges.contains(&index))?;
            let position = group.charges.iter().position(|charge| *charge == index)?;
            group.places.get(position).cloned()
        };
        let calls = shared.book.resolve(&charged, &reserved, passed, shared.lease_us(), place);
        calls.into_iter().for_each(|call| shared.send(call));
    }
}

impl Drop for Pending<'_> {
    /// Sets free what is reserved for a request that is not waited for any more.
    fn drop(&mut self) {
        let Waiting { groups, steps, reserved, .. } = &mut *self.waiting;
        for group in groups {
            if let Some(mut hearing) = group.hearing.take() {
                hearing.close();
                if let Ok(verdict) = hearing.try_recv() {
                    group.take_in(verdict, steps, reserved);
                }
            }
        }
        self.resolve(Passed::No);
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
        let mut fold = OutcomeFold::default();
        let charge = Charge {
            limit,
            id: LimitId::NONE,
            key: 0,
            client: 0,
            enforced: true,
            over: OverLimitEffect::Shadow,
        };
        fold.add(&charge, &step);
        Some(Decision {
            outcome: fold.outcome(),
            terms: Some(Terms::of_own("emergency", limit)),
            now_us,
            shadowed_by: None,
            degraded: true,
            store_unavailable: false,
            flagged_by: None,
            soft: None,
        })
    }
}
