//! Requests in several parts, charged together: all parts or none.
//!
//! A part has identities and a cost of its own, and either the rules apply to it or a limit that it states. Its operation
//! takes tokens, only looks, or gives tokens back. If a part is refused, nothing is taken and nothing is given back. Each
//! part gets a decision, and the request passes if all of them are admitted.
//!
//! A single part that takes is decided like a check: by [`Limiter::check`] or [`Limiter::check_limit`]. Several parts do not
//! draw from grants. With a shared store, the tokens of each part are reserved until all parts are decided
//! ([`pending`]): a part that is refused cannot lift the limits of another above their due.

mod pending;

use crate::charge::OwnedCharge;
use crate::decision::{Check, Decision};
use crate::limiter::Limiter;
use crate::memo::Caches;
use crate::memory::PartCharge;
use crate::metrics::decision_counters::RequestLabels;
use crate::pending::Pending;
use crate::prepare::{Prepared, charges, cost_above_limit};
use crate::refusal::DoorKind;
use crate::request_limit::{RequestLimit, is_request_limit, keyed};
use crate::snapshot::Snapshot;
pub use pending::PendingParts;
use smallvec::SmallVec;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::decision::{InvalidRequest, LimitStatus, Outcome, OutcomeFold, validate};
use tollgate_core::key::StateKey;
use tollgate_core::request::Request;
use tollgate_core::rules::{Charges, LimitId, REQUEST_KEY};
use tollgate_core::state_address::StateAddress;
use tollgate_core::time::StoreTime;

/// What a part does with the tokens of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenOperation {
    /// Takes the cost.
    #[default]
    Take,
    /// Takes nothing: the decision says how a request of this cost would stand.
    Look,
    /// Gives the cost back, never more than fits beside what is lent, nor than a window has counted. It is always
    /// admitted.
    Refund,
}

/// A part of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestPart<'a> {
    /// The identities, the endpoint and the cost, which is at least 1 for every operation.
    pub request: Request<'a>,
    /// What is done with the tokens.
    pub operation: TokenOperation,
    /// The limit that applies; none if the rules do.
    pub limit: Option<RequestLimit<'a>>,
}

/// Why the parts of a request cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPart {
    /// The index of the part.
    pub part: usize,
    /// What is wrong with it.
    pub error: InvalidRequest,
}

impl fmt::Display for InvalidPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for InvalidPart {}

/// The decisions on the parts of a request, in their order.
pub type PartDecisions = SmallVec<[Decision; 2]>;

/// The result of [`Limiter::check_parts`].
#[derive(Debug)]
pub enum PartsCheck<'l> {
    /// The decisions. With the embedded store this is the only case.
    Decided(PartDecisions),
    /// The shared store has to answer about the only part.
    Single(Pending<'l>),
    /// The shared store has to answer first.
    Pending(Box<PendingParts<'l>>),
}

impl PartsCheck<'_> {
    /// The decisions, after the shared store has answered.
    pub async fn decisions(self) -> PartDecisions {
        match self {
            Self::Decided(decisions) => decisions,
            Self::Single(pending) => PartDecisions::from_iter([pending.decision().await]),
            Self::Pending(pending) => pending.decisions().await,
        }
    }

    /// The decisions, if they have been made.
    pub fn now(self) -> Option<PartDecisions> {
        match self {
            Self::Decided(decisions) => Some(decisions),
            Self::Single(_) | Self::Pending(_) => None,
        }
    }
}

impl<'l> From<Check<'l>> for PartsCheck<'l> {
    fn from(check: Check<'l>) -> Self {
        match check {
            Check::Decided(decision) => Self::Decided(PartDecisions::from_iter([decision])),
            Check::Pending(pending) => Self::Single(pending),
        }
    }
}

/// A part whose limits are known.
#[derive(Debug)]
struct PreparedPart {
    /// Of the rules in force, or of the limit that the part states.
    snapshot: Arc<Snapshot>,
    operation: TokenOperation,
    cost: u64,
    /// A list, a hold or the emergency limit has decided it.
    decided: Option<Decision>,
    charges: SmallVec<[OwnedCharge; 4]>,
    /// With a shared store, where their states are.
    addresses: SmallVec<[Option<StateAddress>; 4]>,
    labels: RequestLabels,
    ip: Option<IpAddr>,
}

type PreparedParts = SmallVec<[PreparedPart; 2]>;

impl PreparedPart {
    /// What is taken, looked for or given back of the limit of `charge`.
    fn cost_of(&self, charge: &OwnedCharge) -> u32 {
        u32::try_from(self.cost).unwrap_or(u32::MAX).min(charge.meter.quota())
    }

    fn fold(&self, steps: impl IntoIterator<Item = (usize, LimitStep)>) -> OutcomeFold {
        let mut fold = OutcomeFold::default();
        for (index, step) in steps {
            fold.add(&self.charges[index].borrow(&self.snapshot), &step);
        }
        fold
    }
}

impl Limiter {
    /// Decides whether all of `parts` are admitted, and applies their operations if they are. The parts of a request that
    /// passes are counted as a decision each, those of one that is refused only if they refuse it, and refunds never.
    pub fn check_parts(&self, parts: &[RequestPart<'_>]) -> Result<PartsCheck<'_>, InvalidPart> {
        if let [RequestPart { request, operation: TokenOperation::Take, limit }] = parts {
            let check = match limit {
                Some(limit) => self.check_limit(request, limit),
                None => self.check(request),
            };
            return check.map(PartsCheck::from).map_err(|error| InvalidPart { part: 0, error });
        }
        let mut guards = SmallVec::new();
        let checked = self.with_snapshot(|snapshot, caches| {
            let prepared = self.prepare_parts(snapshot, caches, parts, &mut guards)?;
            Ok(match self.shared() {
                None => PartsCheck::Decided(self.decide_parts(caches, parts, prepared)),
                Some(sharing) => {
                    let pending = PendingParts::new(self, sharing, parts, prepared, guards.clone());
                    PartsCheck::Pending(Box::new(pending))
                }
            })
        });
        match &checked {
            Ok(PartsCheck::Decided(decisions)) if decisions.iter().all(Decision::allowed) => {}
            Ok(PartsCheck::Decided(_)) | Err(_) => {
                guards.into_iter().for_each(|address| self.give_back_guard(Some(address)));
            }
            Ok(PartsCheck::Single(_) | PartsCheck::Pending(_)) => {}
        }
        checked.map_err(|InvalidPart { part, error }| {
            let door = parts.get(part).map(|part| part.request.door).unwrap_or_default();
            InvalidPart { part, error: self.count_invalid(door, error) }
        })
    }

    fn prepare_parts(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        parts: &[RequestPart<'_>],
        guards: &mut SmallVec<[u64; 1]>,
    ) -> Result<PreparedParts, InvalidPart> {
        let mut prepared = PreparedParts::new();
        for (index, part) in parts.iter().enumerate() {
            let ids = part.limit.map(|limit| [(REQUEST_KEY, limit.key)]);
            let found = match (&part.limit, &ids) {
                (Some(limit), Some(ids)) => {
                    self.prepare_limit(snapshot, caches, part, limit, &keyed(&part.request, ids), guards)
                }
                _ => self.prepare_request(snapshot, caches, part, guards),
            };
            prepared.push(found.map_err(|error| InvalidPart { part: index, error })?);
        }
        if snapshot.rules.set.has_replacements() && prepared.len() > 1 {
            drop_replaced(snapshot, &mut prepared);
        }
        each_within_limit(&mut prepared)?;
        together_within_limit(&prepared)?;
        if prepared.iter().any(|part| part.decided.is_some_and(|decision| !decision.allowed())) {
            // Refused already: the others only say how they stand.
            prepared.iter_mut().for_each(|part| part.operation = TokenOperation::Look);
        }
        Ok(prepared)
    }

    /// Prepares a part that the rules apply to.
    fn prepare_request(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        part: &RequestPart<'_>,
        guards: &mut SmallVec<[u64; 1]>,
    ) -> Result<PreparedPart, InvalidRequest> {
        // What is given back may be more than a limit holds, and a limit that does not hold the cost may be replaced by that of another
        // part: the cost is compared when the limits of all parts are known.
        let request = &Request { cost: 1, ..part.request };
        validate(&part.request)?;
        let hashes = self.hashes(request);
        let (mut decided, mut route, mut found) = (None, 0, Charges::new());
        match self.prepare(snapshot, caches, request, &hashes, DoorKind::CannotWait) {
            Prepared::Decided(decision) => decided = Some(decision),
            Prepared::Selected(selection) | Prepared::Guarded(selection, _) => {
                route = selection.route();
                found = charges(&snapshot.rules, selection, request, &hashes, DoorKind::CannotWait)?;
            }
        }
        let rules = &snapshot.rules.set;
        let owned: SmallVec<[OwnedCharge; 4]> =
            found.iter().map(|charge| OwnedCharge::new(rules, charge)).collect();
        let locate = |charge: &OwnedCharge| {
            let store = &self.shared()?.store;
            store.locate(rules.rule_of(charge.id), rules.limit(charge.id), request, route)
        };
        decided = decided.or_else(|| self.guard_part(part, guards));
        Ok(PreparedPart {
            snapshot: Arc::clone(snapshot),
            operation: part.operation,
            cost: part.request.cost,
            decided,
            addresses: owned.iter().map(locate).collect(),
            charges: owned,
            labels: caches.labels(request.door),
            ip: request.ip,
        })
    }

    /// Prepares a part that states its limit.
    fn prepare_limit(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        part: &RequestPart<'_>,
        limit: &RequestLimit<'_>,
        keyed: &Request<'_>,
        guards: &mut SmallVec<[u64; 1]>,
    ) -> Result<PreparedPart, InvalidRequest> {
        validate(keyed)?;
        caches.select_nothing();
        let own = Arc::clone(caches.request_limits.find(limit, snapshot)?);
        let decided = self.decide_before_limit(snapshot, caches, &part.request, keyed);
        let rules = &own.rules.set;
        let charge = rules.charge_key(limit.key, self.seed());
        if part.operation != TokenOperation::Refund && part.request.cost > u64::from(charge.limit.quota) {
            return Err(cost_above_limit(&own.rules, charge.id, part.request.cost));
        }
        let locate = |sharing: &crate::pending::Sharing| {
            sharing.store.locate(rules.rule_of(charge.id), charge.limit, keyed, 0)
        };
        Ok(PreparedPart {
            operation: part.operation,
            cost: part.request.cost,
            decided: decided.or_else(|| self.guard_part(part, guards)),
            charges: SmallVec::from_iter([OwnedCharge::new(rules, &charge)]),
            addresses: SmallVec::from_iter([self.shared().and_then(locate)]),
            labels: caches.labels(part.request.door),
            ip: part.request.ip,
            snapshot: Arc::clone(&own),
        })
    }

    /// Takes a token of the address of a part that takes, while the emergency limit is on: one for each address. Returns
    /// the refusal if there is none.
    fn guard_part(&self, part: &RequestPart<'_>, guards: &mut SmallVec<[u64; 1]>) -> Option<Decision> {
        if !self.abuse.is_holding() || part.operation != TokenOperation::Take {
            return None;
        }
        let address = self.guarded_address(part.request.ip).filter(|address| !guards.contains(address))?;
        let refusal = self.take_guard(address).err();
        if refusal.is_none() {
            guards.push(address);
        }
        refusal
    }

    /// Decides with the embedded store.
    fn decide_parts(
        &self,
        caches: &mut Caches,
        parts: &[RequestPart<'_>],
        prepared: PreparedParts,
    ) -> PartDecisions {
        let now = self.clock().now();
        let mut owners: SmallVec<[usize; 8]> = SmallVec::new();
        let mut charges: SmallVec<[PartCharge<'_>; 8]> = SmallVec::new();
        for (owner, part) in prepared.iter().enumerate().filter(|(_, part)| part.decided.is_none()) {
            for charge in &part.charges {
                let (operation, cost) = (part.operation, part.cost_of(charge));
                charges.push(PartCharge { charge: charge.borrow(&part.snapshot), operation, cost });
                owners.push(owner);
            }
        }
        let steps = loop {
            match self.store().take_parts(&charges, StoreTime::of_embedded_store(now)) {
                Ok(steps) => break steps,
                Err(full) => {
                    let ip = prepared[owners[full.charge]].ip;
                    self.use_overflow_cell(&mut charges[full.charge].charge, ip);
                }
            }
        };
        let mut decisions = PartDecisions::new();
        for (index, part) in prepared.iter().enumerate() {
            let own = owners.iter().zip(&charges).zip(&steps).filter(|((owner, _), _)| **owner == index);
            let mut fold = OutcomeFold::default();
            own.for_each(|((_, part), step)| fold.add(&part.charge, step));
            let decision = part.decided.unwrap_or_else(|| Decision::of(&part.snapshot.rules, &fold, now));
            let is_refund = parts[index].operation == TokenOperation::Refund && part.decided.is_none();
            decisions.push(if is_refund { admitted(decision) } else { decision });
        }
        self.note_part_refusals(&prepared, &mut decisions);
        let passes = decisions.iter().all(Decision::allowed);
        for ((part, given), decision) in prepared.iter().zip(parts).zip(&decisions) {
            if counts(given.operation == TokenOperation::Refund, decision, passes) {
                self.count_part(caches, part, given, decision);
            }
        }
        decisions
    }

    /// Records the refusals of parts that take, for penalties.
    fn note_part_refusals(&self, prepared: &PreparedParts, decisions: &mut PartDecisions) {
        for (part, decision) in prepared.iter().zip(decisions) {
            if part.operation == TokenOperation::Take && part.decided.is_none() {
                self.note_refusal(&part.snapshot.rules, decision, |limit| {
                    let charge = part.charges.iter().find(|charge| charge.id == limit)?;
                    Some(charge.borrow(&part.snapshot))
                });
            }
        }
    }

    fn count_part(
        &self,
        caches: &mut Caches,
        part: &PreparedPart,
        given: &RequestPart<'_>,
        decision: &Decision,
    ) {
        let ids = given.limit.map(|limit| [(REQUEST_KEY, limit.key)]);
        let own = ids.as_ref().map(|ids| keyed(&given.request, ids));
        let request = own.as_ref().unwrap_or(&given.request);
        let rules = &part.snapshot.rules;
        self.count_labelled(rules, caches, part.labels, request, decision);
        let due = caches.next_due(self.clock());
        if due.is_sampled {
            self.note_sample(request, &mut Check::Decided(*decision));
        }
        if let Some(weight) = due.weight.filter(|_| self.is_counting()) {
            if !is_request_limit(rules.number) {
                self.keep_sample(request, weight);
            }
            self.observe_labelled(rules, caches, part.labels, request, decision, weight);
        }
    }
}

/// Whether the decision on a part is counted: a refund decides nothing, and a part of a refused request was not admitted.
fn counts(is_refund: bool, decision: &Decision, passes: bool) -> bool {
    !is_refund && (passes || !decision.allowed())
}

/// Removes the charges of rules that a charge of another part replaces, as [`RuleSet`](tollgate_core::rules::RuleSet) does within a
/// part. Parts that state their limit neither replace nor are replaced.
fn drop_replaced(snapshot: &Arc<Snapshot>, parts: &mut PreparedParts) {
    let is_by_rules = |part: &PreparedPart| Arc::ptr_eq(&part.snapshot, snapshot) && part.decided.is_none();
    let enforced: SmallVec<[LimitId; 8]> = { parts.iter() }
        .filter(|part| is_by_rules(part))
        .flat_map(|part| part.charges.iter().filter(|charge| charge.enforced).map(|charge| charge.id))
        .collect();
    let rules = &snapshot.rules.set;
    for part in parts.iter_mut().filter(|part| is_by_rules(part)) {
        for index in (0..part.charges.len()).rev() {
            if enforced.iter().any(|by| rules.replaces(*by, part.charges[index].id)) {
                part.charges.remove(index);
                part.addresses.remove(index);
            }
        }
    }
}

/// An error if a part takes or looks for more than an enforced limit holds; other limits do not count such a request.
fn each_within_limit(parts: &mut PreparedParts) -> Result<(), InvalidPart> {
    for (index, part) in parts.iter_mut().enumerate() {
        let cost = part.cost;
        if part.operation == TokenOperation::Refund || part.decided.is_some() {
            continue;
        }
        let exceeds = |charge: &OwnedCharge| cost > u64::from(charge.meter.quota());
        if let Some(charge) = part.charges.iter().find(|charge| charge.enforced && exceeds(charge)) {
            let error = cost_above_limit(&part.snapshot.rules, charge.id, cost);
            return Err(InvalidPart { part: index, error });
        }
        for charge in (0..part.charges.len()).rev() {
            if exceeds(&part.charges[charge]) {
                part.charges.remove(charge);
                part.addresses.remove(charge);
            }
        }
    }
    Ok(())
}

/// An error if the parts together take more of a state than its limit holds: then no wait helps.
fn together_within_limit(parts: &PreparedParts) -> Result<(), InvalidPart> {
    let mut taken: SmallVec<[(StateKey, u64); 8]> = SmallVec::new();
    for (index, part) in parts.iter().enumerate() {
        if part.operation != TokenOperation::Take || part.decided.is_some() {
            continue;
        }
        for charge in part.charges.iter().filter(|charge| charge.enforced) {
            let known = taken.iter().position(|(key, _)| *key == charge.key).unwrap_or_else(|| {
                taken.push((charge.key, 0));
                taken.len() - 1
            });
            taken[known].1 += part.cost;
            if taken[known].1 > u64::from(charge.meter.quota()) {
                let error = cost_above_limit(&part.snapshot.rules, charge.id, taken[known].1);
                return Err(InvalidPart { part: index, error });
            }
        }
    }
    Ok(())
}

/// The decision on a refund, which nothing refuses.
fn admitted(decision: Decision) -> Decision {
    match decision.outcome {
        Outcome::Limited(status) => {
            let status = LimitStatus { retry_after_us: None, ..status };
            Decision { outcome: Outcome::Admitted(status), ..decision }
        }
        Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => decision,
    }
}
