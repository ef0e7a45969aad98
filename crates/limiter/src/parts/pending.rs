//! Parts of a request that wait for the shared store.
//!
//! The tokens of each part are reserved by a call of its own, as those of a request with limits in several calls are
//! (`docs/adr/0017`). When all parts are known, they are spent or returned together. Refunds follow only then, because
//! nothing is given back by a request that is refused.

use super::{PartDecisions, PreparedPart, PreparedParts, RequestPart, TokenOperation, admitted, counts};
use crate::charge::OwnedCharge;
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::memory::step_of;
use crate::metrics::DecisionOutcome;
use crate::observe::{FinalDecision, LateObservation};
use crate::pending::Sharing;
use crate::request_limit::keyed;
use crate::shared_store::{Passed, PeekFuture, PendingTake, StateAnswer, StateQuestion, Steps, TakeAnswers};
use smallvec::SmallVec;
use std::future::poll_fn;
use tokio::time::{Instant, timeout_at};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::decision::Outcome;
use tollgate_core::limit::Limit;
use tollgate_core::rules::REQUEST_KEY;
use tollgate_core::time::UnixTime;

/// Parts that the shared store has been asked about. Dropped, they return the tokens that are reserved for them.
#[derive(Debug)]
#[must_use = "they have to be awaited"]
pub struct PendingParts<'l> {
    limiter: &'l Limiter,
    sharing: &'l Sharing,
    parts: SmallVec<[PendingPart; 2]>,
    /// The addresses of which a token was taken, while the emergency limit is on.
    guards: SmallVec<[u64; 1]>,
    now: UnixTime,
    /// No operation is waited for any longer.
    deadline: Instant,
}

#[derive(Debug)]
struct PendingPart {
    prepared: PreparedPart,
    /// Of a part that takes.
    take: Option<Box<dyn PendingTake>>,
    /// Whether the decision is counted if it is admitted.
    is_refund: bool,
    late: LateObservation,
    /// What is known of its limits.
    steps: Steps,
    /// Limits that the store could not decide.
    failed: SmallVec<[usize; 4]>,
    /// Whether the failure policy has decided them.
    is_degraded: bool,
}

impl PendingPart {
    fn admits(&self) -> bool {
        match &self.prepared.decided {
            Some(decision) => decision.allowed(),
            None => self.prepared.fold(self.steps.iter().copied()).admits(),
        }
    }

    fn question(&self, index: usize, cost: u32) -> StateQuestion {
        let OwnedCharge { key, client, meter, .. } = self.prepared.charges[index];
        let address = self.prepared.addresses.get(index).cloned().flatten();
        StateQuestion { key, client, meter, address, cost, is_by_route: false }
    }
}

impl<'l> PendingParts<'l> {
    /// Asks the store about `prepared`, which are the parts `given`.
    pub(super) fn new(
        limiter: &'l Limiter,
        sharing: &'l Sharing,
        given: &[RequestPart<'_>],
        prepared: PreparedParts,
        guards: SmallVec<[u64; 1]>,
    ) -> Self {
        let start = |(prepared, given): (PreparedPart, &RequestPart<'_>)| {
            let takes = prepared.operation == TokenOperation::Take && prepared.decided.is_none();
            let take = (takes && !prepared.charges.is_empty()).then(|| {
                let address = |index: usize| prepared.addresses.get(index).cloned().flatten();
                // It is at most every quota: that is checked before.
                let cost = u32::try_from(prepared.cost).unwrap_or(u32::MAX);
                sharing.store.reserve(&prepared.charges, cost, prepared.snapshot.rules.number, &address)
            });
            let ids = given.limit.map(|limit| [(REQUEST_KEY, limit.key)]);
            let own = ids.as_ref().map(|ids| keyed(&given.request, ids));
            let request = limiter.copy_for_later(own.as_ref().unwrap_or(&given.request));
            PendingPart {
                take,
                is_refund: given.operation == TokenOperation::Refund,
                late: LateObservation { request, weight: None },
                steps: Steps::new(),
                failed: SmallVec::new(),
                is_degraded: false,
                prepared,
            }
        };
        let parts = prepared.into_iter().zip(given).map(start).collect();
        let deadline = Instant::now() + sharing.store.timeout();
        Self { limiter, sharing, parts, guards, now: limiter.clock().now(), deadline }
    }

    /// Waits for the store, at most for its timeout, and decides. What the parts give back is given back also if that takes longer;
    /// then it is not known what is left.
    pub async fn decisions(mut self) -> PartDecisions {
        self.look(TokenOperation::Look).await;
        for part in &mut self.parts {
            let Some(take) = &mut part.take else { continue };
            drop(timeout_at(self.deadline, poll_fn(|context| take.poll_answered(context))).await);
            let TakeAnswers { steps, failed } = take.answers();
            (part.steps, part.failed) = (steps, failed);
        }
        let refusals = self.decide_failed();
        let passes = refusals.is_empty() && self.parts.iter().all(PendingPart::admits);
        let passed = if passes { Passed::Yes } else { Passed::No };
        for part in &mut self.parts {
            if let Some(take) = &mut part.take {
                take.resolve(passed);
            }
        }
        match passed {
            Passed::Yes => self.refund().await,
            Passed::No => {
                self.look(TokenOperation::Refund).await;
                self.guards.drain(..).for_each(|address| self.limiter.give_back_guard(Some(address)));
            }
        }
        let mut decisions: PartDecisions = self.parts.iter().map(|part| self.decide(part, passed)).collect();
        for (index, refusal) in refusals {
            decisions[index] = refusal;
        }
        self.conclude(&mut decisions);
        decisions
    }

    /// Reads the states of all parts with this operation.
    async fn look(&mut self, operation: TokenOperation) {
        let asked = self.questions(operation, |part, charge| match operation {
            TokenOperation::Refund => 1,
            TokenOperation::Take | TokenOperation::Look => part.prepared.cost_of(charge),
        });
        if asked.is_empty() {
            return;
        }
        let (places, questions): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let answers = self.answered_in_time(self.sharing.store.peek(questions), places.len()).await;
        self.record(places, answers);
    }

    /// Gives back what the parts give back.
    async fn refund(&mut self) {
        let asked = self.questions(TokenOperation::Refund, |part, charge| part.prepared.cost_of(charge));
        if asked.is_empty() {
            return;
        }
        let (places, questions): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let answers = self.answered_in_time(self.sharing.store.refund(questions), places.len()).await;
        self.record(places, answers);
        for part in self.parts.iter_mut().filter(|part| part.is_refund && !part.failed.is_empty()) {
            part.is_degraded = true;
        }
    }

    async fn answered_in_time(&self, asked: PeekFuture<'_>, count: usize) -> Vec<Option<StateAnswer>> {
        timeout_at(self.deadline, asked).await.unwrap_or_else(|_| vec![None; count])
    }

    fn questions(
        &self,
        operation: TokenOperation,
        cost: impl Fn(&PendingPart, &OwnedCharge) -> u32,
    ) -> Vec<((usize, usize), StateQuestion)> {
        let mut asked = Vec::new();
        for (owner, part) in self.parts.iter().enumerate() {
            if part.prepared.operation != operation || part.prepared.decided.is_some() {
                continue;
            }
            for (index, charge) in part.prepared.charges.iter().enumerate() {
                asked.push(((owner, index), part.question(index, cost(part, charge))));
            }
        }
        asked
    }

    fn record(&mut self, places: Vec<(usize, usize)>, answers: Vec<Option<StateAnswer>>) {
        for ((owner, index), answer) in places.into_iter().zip(answers) {
            let part = &mut self.parts[owner];
            match answer {
                Some(answer) => part.steps.push((index, step_of(answer.status))),
                None => part.failed.push(index),
            }
        }
    }

    /// Decides by the failure policy what the store could not decide, unless the request is refused anyway. Returns the
    /// refusals of the emergency limit.
    fn decide_failed(&mut self) -> SmallVec<[(usize, Decision); 1]> {
        let Self { limiter, sharing, parts, now, .. } = self;
        for part in parts.iter_mut().filter(|part| part.prepared.operation == TokenOperation::Take) {
            let PendingPart { prepared, steps, failed, .. } = part;
            failed.retain(|index| {
                let charge = &prepared.charges[*index];
                let recalled = sharing.store.last_refusal(charge, prepared.cost_of(charge));
                steps.extend(recalled.map(|step| (*index, step)));
                recalled.is_none()
            });
        }
        let mut refusals = SmallVec::new();
        if !parts.iter().all(PendingPart::admits) {
            return refusals;
        }
        let nodes = sharing.store.node_count();
        for (owner, part) in parts.iter_mut().enumerate().filter(|(_, part)| !part.failed.is_empty()) {
            let PendingPart { prepared, steps, failed, .. } = part;
            let rules = &prepared.snapshot.rules;
            for index in &*failed {
                let owned = &prepared.charges[*index];
                let (charge, cost) = (owned.borrow(&prepared.snapshot), prepared.cost_of(owned));
                let step = match prepared.operation {
                    TokenOperation::Take => {
                        sharing.fallback.step(limiter.store(), rules, &charge, cost, nodes, *now)
                    }
                    TokenOperation::Look | TokenOperation::Refund => {
                        sharing.fallback.look(limiter.store(), rules, &charge, cost, nodes, *now)
                    }
                };
                steps.push((*index, step));
            }
            part.is_degraded = true;
            sharing.fallback.count();
            let address = part.prepared.ip.map(|ip| limiter.address_hash(ip));
            if part.admits()
                && let Some(refusal) =
                    limiter.refuse_in_outage(|| sharing.store.is_unavailable(), address, *now)
            {
                refusals.push((owner, refusal));
            }
        }
        refusals
    }

    fn decide(&self, part: &PendingPart, passed: Passed) -> Decision {
        let prepared = &part.prepared;
        if let Some(decision) = prepared.decided {
            return decision;
        }
        let mut steps = part.steps.clone();
        // Of two equally tight limits the first decides, in whatever order they were answered.
        steps.sort_unstable_by_key(|(index, _)| *index);
        if passed == Passed::No && prepared.operation == TokenOperation::Take {
            for (index, step) in steps.iter_mut().filter(|(_, step)| step.admitted) {
                let charge = &prepared.charges[*index];
                unspend(step, prepared.snapshot.rules.set.limit(charge.id), prepared.cost_of(charge));
            }
        }
        let mut decision = Decision::of(&prepared.snapshot.rules, &prepared.fold(steps), self.now);
        if part.is_refund {
            decision = admitted(decision);
        }
        if part.is_degraded {
            decision.degraded = true;
            decision.store_unavailable = match &decision.outcome {
                Outcome::Limited(standing) => {
                    prepared.charges.iter().any(|own| own.id == standing.limit && own.denies_on_failure)
                }
                Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => false,
            };
            // The remaining tokens are not known.
            decision.soft = None;
        }
        decision
    }

    /// Records refusals, and counts the decisions.
    fn conclude(&self, decisions: &mut PartDecisions) {
        let Self { limiter, parts, now, .. } = self;
        let passes = decisions.iter().all(Decision::allowed);
        for (part, decision) in parts.iter().zip(decisions) {
            let prepared = &part.prepared;
            if prepared.operation == TokenOperation::Take && prepared.decided.is_none() {
                limiter.note_refusal(&prepared.snapshot.rules, decision, |limit| {
                    let charge = prepared.charges.iter().find(|charge| charge.id == limit)?;
                    Some(charge.borrow(&prepared.snapshot))
                });
            }
            if counts(part.is_refund, decision, passes) {
                let elapsed_us = limiter.clock().now().since(*now);
                limiter.counters.remote.observe(elapsed_us.saturating_mul(1_000));
                let (rules, outcome) = (&prepared.snapshot.rules, DecisionOutcome::of(decision));
                let found = FinalDecision { rules, labels: prepared.labels, decision, outcome };
                limiter.count_late(&found, &part.late);
            }
        }
    }
}

/// The step of a limit that admits a request, if nothing is taken because another part is refused.
fn unspend(step: &mut LimitStep, limit: &Limit, cost: u32) {
    step.remaining = step.remaining.saturating_add(cost).min(limit.quota);
    let refill_us = limit.refill_us(cost.into()).unwrap_or(0);
    step.reset_after_us =
        if step.remaining == limit.quota { 0 } else { step.reset_after_us.saturating_sub(refill_us) };
}
