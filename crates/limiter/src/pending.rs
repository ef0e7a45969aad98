//! A decision that waits for the shared store.

use crate::charge::OwnedCharge;
use crate::decision::{Check, Decision};
use crate::failure::Fallback;
use crate::grants::{AnsweredTake, GrantRequest};
use crate::limiter::Limiter;
use crate::metrics::DecisionOutcome;
use crate::metrics::decision_counters::RequestLabels;
use crate::observe::{FinalDecision, IdentityCopy, LateObservation};
use crate::prepare::{charges, cost_above_limit};
use crate::refusal::DoorKind;
use crate::shared_store::{Passed, PendingTake, SharedStore, SharedTake, Steps, TakeAnswers};
use crate::snapshot::Snapshot;
use smallvec::SmallVec;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::decision::{InvalidRequest, Outcome, OutcomeFold};
use tollgate_core::key::RequestHasher;
use tollgate_core::request::Request;
use tollgate_core::rules::{Charge, LimitId, Selection};
use tollgate_core::state_address::StateAddress;
use tollgate_core::time::UnixTime;

/// The shared store, and the failure policy.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) store: Arc<dyn SharedStore>,
    pub(crate) fallback: Fallback,
}

/// A decision that the shared store has been asked for. Dropped, it returns the tokens that are reserved for it.
#[derive(Debug)]
#[must_use = "it has to be awaited"]
pub struct Pending<'l> {
    limiter: &'l Limiter,
    sharing: &'l Sharing,
    waiting: Box<PendingCheck>,
}

#[derive(Debug)]
struct PendingCheck {
    snapshot: Arc<Snapshot>,
    charges: SmallVec<[OwnedCharge; 4]>,
    cost: u32,
    /// The hash of the client's address, for the emergency limit.
    address: Option<u64>,
    /// The address of which a token was taken, while the emergency limit is on.
    guarded: Option<u64>,
    /// What the decision is counted under; none if it is only a part of one.
    labels: Option<RequestLabels>,
    /// What its observation needs.
    late: LateObservation,
    /// The client's key for abuse detection, if this check was sampled.
    watched: Option<u64>,
    now: UnixTime,
    /// When the decision stops waiting, if it has waited for the store before.
    deadline: Option<Instant>,
    /// What it needs to draw from grants; none if there is none for it.
    grants: Option<Box<GrantRequest>>,
    take: Box<dyn PendingTake>,
}

impl Limiter {
    /// Charges a request at the shared store.
    pub(crate) fn charge_shared<'l>(
        &'l self,
        sharing: &'l Sharing,
        snapshot: &Arc<Snapshot>,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        now: UnixTime,
    ) -> Result<Check<'l>, InvalidRequest> {
        let rules = &snapshot.rules.set;
        let (cost, route) = (request.cost as u32, selection.route());
        let locate = |charge: &OwnedCharge| {
            sharing.store.locate(rules.rule_of(charge.id), rules.limit(charge.id), request, route)
        };
        if let Some(charge) = rules.single_charge(selection, request, hashes) {
            if request.cost > u64::from(charge.limit.quota) {
                return Err(cost_above_limit(&snapshot.rules, charge.id, request.cost));
            }
            let owned = [OwnedCharge::new(rules, &charge)];
            let address = |_: usize| locate(&owned[0]);
            let grants = || self.grant_request(request, owned.len(), &address);
            return Ok(self.take_shared(sharing, snapshot, &owned, cost, request.ip, now, &address, &grants));
        }
        let charges = charges(&snapshot.rules, selection, request, hashes, DoorKind::CannotWait)?;
        let owned: SmallVec<[OwnedCharge; 4]> =
            charges.iter().map(|charge| OwnedCharge::new(rules, charge)).collect();
        let address = |index: usize| locate(&owned[index]);
        let grants = || self.grant_request(request, owned.len(), &address);
        Ok(self.take_shared(sharing, snapshot, &owned, cost, request.ip, now, &address, &grants))
    }

    /// Charges `charges`; `address` returns the address of a state by the index of its charge, and `grants` what is needed
    /// to draw from grants. It is called only for a request that is refused, or not decided yet.
    #[expect(clippy::too_many_arguments, reason = "all that a decision at the store depends on")]
    pub(crate) fn take_shared<'l>(
        &'l self,
        sharing: &'l Sharing,
        snapshot: &Arc<Snapshot>,
        charges: &[OwnedCharge],
        cost: u32,
        ip: Option<IpAddr>,
        now: UnixTime,
        address: &dyn Fn(usize) -> Option<StateAddress>,
        grants: &dyn Fn() -> Option<Box<GrantRequest>>,
    ) -> Check<'l> {
        if charges.is_empty() {
            return Check::Decided(Decision::without_limit(Outcome::Unlimited, now));
        }
        let mut steps = Steps::new();
        let (take, grants): (Box<dyn PendingTake>, _) =
            match sharing.store.take(charges, cost, snapshot.rules.number, address, &mut steps) {
                SharedTake::Decided => {
                    let fold = fold(snapshot, charges, &steps);
                    let grants = if fold.admits() || !self.grants.is_any() { None } else { grants() };
                    if grants.is_none() {
                        let mut decision = Decision::of(&snapshot.rules, &fold, now);
                        self.note_refusal(&snapshot.rules, &mut decision, |limit| {
                            charge_of(snapshot, charges, limit)
                        });
                        return Check::Decided(decision);
                    }
                    (Box::new(AnsweredTake(steps)), grants)
                }
                SharedTake::Pending(take) => (take, if self.grants.is_any() { grants() } else { None }),
            };
        let snapshot = Arc::clone(snapshot);
        let waiting = PendingCheck {
            snapshot,
            charges: SmallVec::from_slice(charges),
            cost,
            address: ip.map(|ip| self.address_hash(ip)),
            guarded: None,
            labels: None,
            late: LateObservation::default(),
            watched: None,
            now,
            deadline: None,
            grants,
            take,
        };
        Check::Pending(Pending { limiter: self, sharing, waiting: Box::new(waiting) })
    }

    /// What `request` needs to draw from grants, if there is one for it.
    fn grant_request(
        &self,
        request: &Request<'_>,
        charges: usize,
        address: &dyn Fn(usize) -> Option<StateAddress>,
    ) -> Option<Box<GrantRequest>> {
        let candidates = self.grant_candidates(request)?;
        let addresses = (0..charges).map(address).collect();
        Some(Box::new(GrantRequest { candidates, addresses, ip: request.ip }))
    }
}

/// The charge of this limit.
pub(crate) fn charge_of<'p>(
    snapshot: &'p Snapshot,
    charges: &[OwnedCharge],
    limit: LimitId,
) -> Option<Charge<'p>> {
    charges.iter().find(|charge| charge.id == limit).map(|charge| charge.borrow(snapshot))
}

pub(crate) fn fold(
    snapshot: &Snapshot,
    charges: &[OwnedCharge],
    steps: &[(usize, LimitStep)],
) -> OutcomeFold {
    let mut fold = OutcomeFold::default();
    for (index, step) in steps {
        fold.add(&charges[*index].borrow(snapshot), step);
    }
    fold
}

impl PendingCheck {
    fn charge_of(&self, limit: LimitId) -> Option<Charge<'_>> {
        charge_of(&self.snapshot, &self.charges, limit)
    }

    /// Whether the rule of this limit refuses what the store cannot decide.
    fn denies_on_failure(&self, limit: LimitId) -> bool {
        self.charges.iter().any(|charge| charge.id == limit && charge.denies_on_failure)
    }

    fn fold(&self, steps: &[(usize, LimitStep)]) -> OutcomeFold {
        fold(&self.snapshot, &self.charges, steps)
    }
}

impl Pending<'_> {
    /// Counts the decision under these labels when it is made. `request` has the identities, if they may be needed.
    pub(crate) fn count_as(&mut self, labels: RequestLabels, request: Option<IdentityCopy>) {
        self.waiting.labels = Some(labels);
        self.waiting.late.request = request;
    }

    /// Observes the decision with this weight when it is made.
    pub(crate) fn observe_with(&mut self, weight: u32, request: &Request<'_>) {
        self.waiting.late.weigh(weight, request);
    }

    /// Gives the token of `address` back if it is refused.
    pub(crate) fn guard(&mut self, address: u64) {
        self.waiting.guarded = Some(address);
    }

    /// Reports it to abuse detection if it is refused.
    pub(crate) fn watch(&mut self, key: u64) {
        self.waiting.watched = Some(key);
    }

    /// Waits no longer than until `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) {
        self.waiting.deadline = Some(deadline);
    }

    /// Waits for the store, at most for its timeout, and decides.
    pub async fn decision(mut self) -> Decision {
        let deadline = self.waiting.deadline;
        let answered = poll_fn(|context| self.waiting.take.poll_answered(context));
        match deadline {
            Some(deadline) => drop(timeout_at(deadline, answered).await),
            None => answered.await,
        }
        let answers = self.waiting.take.answers();
        let grants = self.waiting.grants.take();
        let (mut decision, refusing) = self.conclude(answers);
        let passed = if decision.allowed() { Passed::Yes } else { Passed::No };
        self.waiting.take.resolve(passed);
        if let Some(grants) = grants.filter(|_| passed == Passed::No && !decision.degraded)
            && let Some(granted) = self.draw(&grants, &refusing, &decision).await
        {
            decision = granted;
        }
        self.note_refusal(&mut decision);
        if !decision.allowed() {
            self.limiter.give_back_guard(self.waiting.guarded);
        }
        if let Some(labels) = self.waiting.labels {
            let elapsed_us = self.limiter.clock().now().since(self.waiting.now);
            self.limiter.counters.remote.observe(elapsed_us.saturating_mul(1_000));
            let (rules, outcome) = (&self.waiting.snapshot.rules, DecisionOutcome::of(&decision));
            let found = FinalDecision { rules, labels, decision: &decision, outcome };
            self.limiter.count_late(&found, &self.waiting.late);
        }
        decision
    }

    /// Admits it with tokens of grants, if all limits that refuse it are covered.
    async fn draw(
        &self,
        grants: &GrantRequest,
        refusing: &[LimitId],
        refused: &Decision,
    ) -> Option<Decision> {
        let Self { limiter, sharing, waiting } = self;
        let PendingCheck { snapshot, charges, cost, .. } = &**waiting;
        limiter.grant_shared(sharing, snapshot, charges, refusing, *cost, grants, refused).await
    }

    /// Decides after all answers. Returns the limits that refuse as well.
    fn conclude(&self, answers: TakeAnswers) -> (Decision, SmallVec<[LimitId; 4]>) {
        let Self { limiter, sharing, waiting } = self;
        let now = waiting.now;
        let TakeAnswers { mut steps, failed } = answers;
        let failed = self.recall_refusals(&failed, &mut steps);
        let answered = waiting.fold(&steps);
        // A request that is refused anyway must not be charged by a failure policy as well.
        if answered.admits() {
            let nodes = sharing.store.node_count();
            for index in &failed {
                let charge = waiting.charges[*index].borrow(&waiting.snapshot);
                let rules = &waiting.snapshot.rules;
                let step = sharing.fallback.step(limiter.store(), rules, &charge, waiting.cost, nodes, now);
                steps.push((*index, step));
            }
        }
        // Of two equally tight limits the first decides, in whatever order they were answered.
        steps.sort_unstable_by_key(|(index, _)| *index);
        let fold = waiting.fold(&steps);
        let refused = steps.iter().filter(|(_, step)| !step.admitted);
        let refused = refused.map(|(index, _)| &waiting.charges[*index]).filter(|charge| charge.enforced);
        let refusing = refused.map(|charge| charge.id).collect();
        let mut decision = Decision::of(&waiting.snapshot.rules, &fold, now);
        if !failed.is_empty() && answered.admits() {
            decision.degraded = true;
            decision.store_unavailable = match &decision.outcome {
                Outcome::Limited(standing) => waiting.denies_on_failure(standing.limit),
                Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => false,
            };
            // The remaining tokens are not known.
            decision.soft = None;
            sharing.fallback.count();
            if fold.admits()
                && let Some(refusal) =
                    limiter.refuse_in_outage(|| sharing.store.is_unavailable(), waiting.address, now)
            {
                decision = refusal;
            }
        }
        (decision, refusing)
    }

    /// Records a refusal for penalties and for abuse detection.
    fn note_refusal(&self, decision: &mut Decision) {
        let Self { limiter, waiting, .. } = self;
        limiter.note_refusal(&waiting.snapshot.rules, decision, |limit| waiting.charge_of(limit));
        if let (Outcome::Limited(_), Some(key)) = (&decision.outcome, waiting.watched) {
            limiter.abuse.record_late_refusal(key);
        }
    }

    /// Under every policy a refusal of the store holds until its retry time. Adds the steps of those, and returns the
    /// limits without one.
    fn recall_refusals(
        &self,
        failed: &[usize],
        steps: &mut SmallVec<[(usize, LimitStep); 4]>,
    ) -> SmallVec<[usize; 4]> {
        let Self { sharing, waiting, .. } = self;
        let mut unknown = SmallVec::new();
        for index in failed {
            match sharing.store.last_refusal(&waiting.charges[*index], waiting.cost) {
                Some(step) => steps.push((*index, step)),
                None => unknown.push(*index),
            }
        }
        unknown
    }
}
