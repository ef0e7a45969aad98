//! One attempt to charge a request: first its slots, then everything else.

use super::permit::{Permit, PermitPart};
use crate::charge::OwnedCharge;
use crate::decision::{Check, Decision, NotedLimit};
use crate::failure::{admitted_step, refused_step};
use crate::grants::{GrantCandidates, GrantRequest};
use crate::limiter::Limiter;
use crate::metrics::decision_counters::RequestLabels;
use crate::observe::LateObservation;
use crate::pending::Sharing;
use crate::refusal::{DoorKind, may_refuse};
use crate::shared_store::StoreUnavailable;
use crate::snapshot::Snapshot;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};
use tollgate_core::algorithm::{LimitStep, concurrency};
use tollgate_core::decision::{Outcome, OutcomeFold};
use tollgate_core::key::StateKey;
use tollgate_core::request::Request;
use tollgate_core::rules::on_exceed::DEFAULT_PRIORITY;
use tollgate_core::rules::written::{OnExceed, OnStoreFailure, QueueSettings};
use tollgate_core::rules::{Charge, LimitId, OverLimitEffect};
use tollgate_core::state_address::StateAddress;
use tollgate_core::time::UnixTime;

/// Timers are late by about a millisecond. Up to this, the embedded store is charged for the time that was meant:
/// otherwise each request of a queue would add its delay to the pace.
const MOST_LATE_US: u64 = 20_000;

/// A request that can be charged any number of times.
#[derive(Debug)]
pub(super) struct PendingAdmission {
    pub(super) snapshot: Arc<Snapshot>,
    due: SmallVec<[OwnedCharge; 4]>,
    /// The addresses of the states of `due` in the shared store; none if it was never reached.
    addresses: Vec<Option<StateAddress>>,
    in_flight: SmallVec<[NeededSlot; 1]>,
    /// The pools of grants that it may draw from.
    grants: Option<GrantCandidates>,
    pub(super) cost: u64,
    priority: u8,
    ip: Option<IpAddr>,
    /// The queue in which it waits: that of the first rule with one.
    pub(super) queue: Option<QueuePlace>,
    /// What the decision is counted under.
    pub(super) labels: RequestLabels,
    /// What its observation needs.
    pub(super) late: LateObservation,
    /// The client's key for abuse detection, if this request was sampled.
    pub(super) watched: Option<u64>,
    /// The address of which a token was taken, while the emergency limit is on.
    pub(super) guarded: Option<u64>,
}

/// A slot that it needs.
#[derive(Debug)]
struct NeededSlot {
    due: OwnedCharge,
    /// The address of its state in the shared store.
    address: Option<StateAddress>,
}

/// The result of taking a slot.
struct SlotAttempt {
    step: LimitStep,
    /// Holds the slot if it is taken.
    permit: Permit,
    /// The shared store did not answer.
    degraded: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePlace {
    pub(super) key: StateKey,
    pub(super) limit: LimitId,
    pub(super) queue: QueueSettings,
}

impl PendingAdmission {
    pub(super) fn new(
        limiter: &Limiter,
        snapshot: &Arc<Snapshot>,
        charges: &[Charge<'_>],
        request: &Request<'_>,
        route: u64,
    ) -> Self {
        let rules = &snapshot.rules.set;
        let address = |charge: &Charge<'_>| {
            let store = &limiter.shared()?.store;
            store.locate(rules.rule_of(charge.id), charge.limit, request, route)
        };
        let mut asked = Self {
            snapshot: Arc::clone(snapshot),
            due: SmallVec::new(),
            addresses: Vec::new(),
            in_flight: SmallVec::new(),
            grants: if limiter.grants.is_any() { limiter.grant_candidates(request) } else { None },
            cost: request.cost,
            priority: request.priority.unwrap_or(DEFAULT_PRIORITY),
            ip: request.ip,
            queue: None,
            labels: RequestLabels::default(),
            late: LateObservation::default(),
            watched: None,
            guarded: None,
        };
        for charge in charges {
            let due = OwnedCharge::new(rules, charge);
            if let OnExceed::Queue(queue) = rules.rule_of(charge.id).on_exceed {
                asked.queue = asked.queue.or(Some(QueuePlace { key: charge.key, limit: charge.id, queue }));
            }
            if charge.limit.longest_in_flight_us().is_some() {
                asked.in_flight.push(NeededSlot { due, address: address(charge) });
            } else {
                asked.due.push(due);
                asked.addresses.push(address(charge));
            }
        }
        asked
    }

    /// Charges it once, all or nothing; `meant` is the time at which its turn came.
    pub(super) async fn attempt(
        &self,
        limiter: &Arc<Limiter>,
        meant: Option<UnixTime>,
    ) -> (Decision, Permit) {
        let now = limiter.clock().now();
        // Slots and tokens are calls one after the other: together they wait no longer than one may.
        let shared = limiter.shared().map(|sharing| (sharing, Instant::now() + sharing.store.timeout()));
        let (held, mut permit) = self.take_slots(limiter, shared, now).await;
        if let Some(held) = held
            && !held.allowed()
        {
            return (held, Permit::default());
        }
        let mut due = self.due.clone();
        let mut rest = self.charge(limiter, shared, &due, now, meant).await;
        // Each rule that sheds can admit it once.
        for _ in 0..due.len() {
            let Some((rule, counted)) = self.tolerated(limiter, &rest) else { break };
            permit.add(PermitPart::LoadGuard { _counted: counted });
            for due in due.iter_mut().filter(|due| self.snapshot.rules.terms(due.id).names.rule == rule) {
                (due.enforced, due.over) = (false, OverLimitEffect::Tolerated);
            }
            rest = self.charge(limiter, shared, &due, now, meant).await;
        }
        let decision = match held {
            Some(held) => joined(held, rest),
            None => rest,
        };
        if !decision.allowed() {
            return (decision, Permit::default());
        }
        self.enter(limiter, &due, &mut permit);
        (decision, permit)
    }

    /// For a request without a free slot: if another limit is known to refuse it for a longer time, that is the wait.
    /// Spends nothing and calls no store.
    pub(super) fn use_longest_wait(&self, limiter: &Limiter, decision: &mut Decision) {
        let Outcome::Limited(standing) = decision.outcome else { return };
        if !decision.terms.is_some_and(|terms| terms.counts_in_flight()) {
            return;
        }
        let charges = self.due.iter().map(|due| due.borrow(&self.snapshot));
        let rules = &self.snapshot.rules.set;
        let charges: SmallVec<[Charge<'_>; 4]> =
            charges.filter(|charge| may_refuse(rules, charge, self.cost, DoorKind::CanWait)).collect();
        let found = limiter.refuse_known(&self.snapshot, &charges, self.cost as u32, decision.now);
        if let Some(found) = found
            && let Outcome::Limited(other) = found.outcome
            && other.retry_after_us > standing.retry_after_us
        {
            *decision = Decision { degraded: decision.degraded, ..found };
        }
    }

    /// If a rule that sheds refuses it, and the node has capacity for it: that rule, and the count of the request.
    fn tolerated(
        &self,
        limiter: &Limiter,
        found: &Decision,
    ) -> Option<(&'static str, super::rule_load::LoadGuard)> {
        let Outcome::Limited(_) = found.outcome else { return None };
        let names = found.terms?.names;
        let OnExceed::Shed(shed) = &names.on_exceed else { return None };
        let counted = limiter.admissions.rule_loads.tolerate(&names.rule, shed, self.priority)?;
        Some((&names.rule, counted))
    }

    /// Counts it for the rules that shed and have not counted it yet.
    fn enter(&self, limiter: &Limiter, due: &[OwnedCharge], permit: &mut Permit) {
        let mut entered: SmallVec<[&'static str; 2]> = SmallVec::new();
        for due in due.iter().filter(|due| due.enforced) {
            let names = self.snapshot.rules.terms(due.id).names;
            if matches!(names.on_exceed, OnExceed::Shed(_)) && !entered.contains(&names.rule.as_str()) {
                entered.push(&names.rule);
                permit.add(PermitPart::LoadGuard {
                    _counted: limiter.admissions.rule_loads.enter(&names.rule),
                });
            }
        }
    }

    /// Charges everything but slots.
    async fn charge(
        &self,
        limiter: &Limiter,
        shared: Option<(&Sharing, Instant)>,
        due: &[OwnedCharge],
        now: UnixTime,
        meant: Option<UnixTime>,
    ) -> Decision {
        let rules = &self.snapshot.rules;
        if let Some((sharing, deadline)) = shared {
            let address = |index: usize| self.addresses[index].clone();
            let cost = self.cost as u32;
            let grants = || {
                let (candidates, addresses) = (self.grants.clone()?, self.addresses.clone());
                Some(Box::new(GrantRequest { candidates, addresses, ip: self.ip }))
            };
            let mut check =
                limiter.take_shared(sharing, &self.snapshot, due, cost, self.ip, now, &address, &grants);
            if let Check::Pending(pending) = &mut check {
                pending.wait_until(deadline);
            }
            return check.decision().await;
        }
        let late_us = meant.map_or(0, |meant| now.since(meant).min(MOST_LATE_US));
        let charged_at = UnixTime::from_us(now.as_us() - late_us);
        let charges: SmallVec<[Charge<'_>; 4]> = due.iter().map(|due| due.borrow(&self.snapshot)).collect();
        let grants = || self.grants.clone();
        limiter.take_all(rules, &charges, self.cost as u32, self.ip, charged_at, &grants)
    }

    /// Takes all slots, or none. No decision if it needs none.
    async fn take_slots(
        &self,
        limiter: &Arc<Limiter>,
        shared: Option<(&Sharing, Instant)>,
        now: UnixTime,
    ) -> (Option<Decision>, Permit) {
        let mut permit = Permit::default();
        if self.in_flight.is_empty() {
            return (None, permit);
        }
        let (mut fold, mut degraded, mut is_denied) = (OutcomeFold::default(), false, false);
        for wanted in &self.in_flight {
            let charge = wanted.due.borrow(&self.snapshot);
            let taken = match shared {
                None => take_here(limiter, &charge, charge.limit.quota, now),
                Some(shared) => self.take_shared(limiter, shared, wanted, &charge, now).await,
            };
            degraded |= taken.degraded;
            fold.add(&charge, &taken.step);
            permit.join(taken.permit);
            if !fold.admits() {
                let policy = self.snapshot.rules.set.rule_of(charge.id).on_store_failure;
                is_denied = taken.degraded && policy == OnStoreFailure::Deny;
                break;
            }
        }
        let mut decision = Decision::of(&self.snapshot.rules, &fold, now);
        decision.degraded = degraded;
        // The last slot is the one that was refused.
        decision.store_unavailable = is_denied;
        if degraded {
            decision.soft = None;
        }
        (Some(decision), permit)
    }

    /// Takes a slot in the shared store; if that fails, by the failure policy of the rule.
    async fn take_shared(
        &self,
        limiter: &Arc<Limiter>,
        (sharing, deadline): (&Sharing, Instant),
        wanted: &NeededSlot,
        charge: &Charge<'_>,
        now: UnixTime,
    ) -> SlotAttempt {
        let (limit, longest_us) = (charge.limit, charge.limit.longest_in_flight_us().unwrap_or(0));
        let mut permit = Permit::default();
        let slot = match &wanted.address {
            Some(address) => {
                let number = limiter.admissions.in_flight.number();
                let slot = sharing.store.slot(address, number, longest_us);
                let taken = timeout_at(deadline, slot.take(limit.quota)).await;
                match taken.unwrap_or(Err(StoreUnavailable)) {
                    Ok(taken) => {
                        let step =
                            concurrency::slot_step(taken.admitted, limit.quota, taken.taken, longest_us);
                        if taken.admitted {
                            let limiter = Arc::clone(limiter);
                            permit.ends_within(longest_us);
                            permit.add(PermitPart::Shared { limiter, key: charge.key, slot: Some(slot) });
                        }
                        return SlotAttempt { step, permit, degraded: false };
                    }
                    Err(_) => Some(slot),
                }
            }
            None => None,
        };
        sharing.fallback.count();
        let step = match self.snapshot.rules.set.rule_of(charge.id).on_store_failure {
            OnStoreFailure::Allow => admitted_step(),
            OnStoreFailure::Deny => refused_step(),
            OnStoreFailure::Local => {
                let share = sharing.fallback.share_in_flight(limit.quota, sharing.store.node_count());
                let taken = take_here(limiter, charge, share, now);
                permit.join(taken.permit);
                taken.step
            }
        };
        if let Some(mut slot) = slot.filter(|_| step.admitted) {
            // The store gets it as soon as it is reachable.
            slot.hold();
            permit.ends_within(longest_us);
            permit.add(PermitPart::Shared {
                limiter: Arc::clone(limiter),
                key: charge.key,
                slot: Some(slot),
            });
        }
        SlotAttempt { step, permit, degraded: true }
    }
}

/// Takes a slot on this node.
fn take_here(limiter: &Arc<Limiter>, charge: &Charge<'_>, limit: u32, now: UnixTime) -> SlotAttempt {
    let in_flight = &limiter.admissions.in_flight;
    let (key, number) = (charge.key, in_flight.number());
    let longest_us = charge.limit.longest_in_flight_us().unwrap_or(0);
    let step = in_flight.take(key, limit, longest_us, number, now);
    let mut permit = Permit::default();
    if step.admitted {
        permit.ends_within(longest_us);
        permit.add(PermitPart::Local { limiter: Arc::clone(limiter), key, number });
    }
    SlotAttempt { step, permit, degraded: false }
}

/// The decision of two parts of one request; the first part admits it.
fn joined(held: Decision, rest: Decision) -> Decision {
    let takes_held = match (held.outcome, rest.outcome) {
        (Outcome::Admitted(held), Outcome::Admitted(rest)) => held.remaining < rest.remaining,
        (_, rest) => rest == Outcome::Unlimited,
    };
    let (outcome, terms) = if takes_held { (held.outcome, held.terms) } else { (rest.outcome, rest.terms) };
    Decision {
        outcome,
        terms,
        degraded: held.degraded || rest.degraded,
        shadowed_by: rest.shadowed_by.or(held.shadowed_by),
        flagged_by: rest.flagged_by.or(held.flagged_by),
        soft: rest.soft.or(held.soft),
        noted: if rest.noted == NotedLimit::NONE { held.noted } else { rest.noted },
        ..rest
    }
}
