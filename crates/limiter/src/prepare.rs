//! The first part of every decision: lists, selection, holds, charges.
//!
//! [`Limiter::check`], [`Limiter::admit`] and [`Limiter::refuse`] differ only in what they do with the charges. The cost
//! of a request is validated here and nowhere else.

use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::memo::Caches;
use crate::refusal::DoorKind;
use crate::snapshot::{RulesInForce, Snapshot};
use tollgate_core::decision::{InvalidRequest, Outcome};
use tollgate_core::key::RequestHasher;
use tollgate_core::request::Request;
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::rules::{Charge, Charges, LimitId, Selection};

/// A request before it is charged.
pub(crate) enum Prepared<'c> {
    /// A list or a hold has decided it.
    Decided(Decision),
    /// It has to be charged: [`RuleSet::single_charge`](tollgate_core::rules::RuleSet::single_charge) or [`charges`] has its
    /// charges. They are not part of this value, which would be too large for the hot path.
    Selected(&'c Selection),
    /// The same while the emergency limit is on: a token of the address with this hash is needed as well.
    Guarded(&'c Selection, u64),
}

impl Limiter {
    /// Decides by lists and holds, or selects the rules that apply.
    #[inline]
    pub(crate) fn prepare<'c>(
        &self,
        snapshot: &Snapshot,
        caches: &'c mut Caches,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        door: DoorKind,
    ) -> Prepared<'c> {
        if snapshot.has_lists {
            let now = self.clock().now();
            let outcome = match caches.listed(snapshot, request, hashes, now) {
                Some(ListVerdict::Denied) => Some(Outcome::Denied),
                Some(ListVerdict::Allowed) => Some(Outcome::Unlimited),
                None => None,
            };
            if let Some(outcome) = outcome {
                caches.select_nothing();
                return Prepared::Decided(Decision::without_limit(outcome, now));
            }
        }
        let selection = caches.select(snapshot, request, hashes);
        if self.abuse.is_holding() {
            return self.prepare_watched(snapshot, selection, request, hashes, door);
        }
        Prepared::Selected(selection)
    }
}

/// All charges of a request. It is an error if the cost exceeds an enforced limit; other limits do not count such a
/// request. A request in flight takes one slot whatever it costs, and is invalid at a door that does not know its end.
pub(crate) fn charges<'r>(
    rules: &'r RulesInForce,
    selection: &Selection,
    request: &Request<'_>,
    hashes: &RequestHasher<'_>,
    door: DoorKind,
) -> Result<Charges<'r>, InvalidRequest> {
    let mut charges = Charges::new();
    rules.set.charge(selection, request, hashes, &mut charges);
    let in_flight = |charge: &Charge<'_>| charge.limit.longest_in_flight_us().is_some();
    if door == DoorKind::CannotWait
        && let Some(charge) = charges.iter().find(|charge| in_flight(charge))
    {
        return Err(InvalidRequest::EndUnknown { rule: rules.set.rule_of(charge.id).id.clone() });
    }
    let exceeds = |charge: &Charge<'_>| request.cost > u64::from(charge.limit.quota) && !in_flight(charge);
    if let Some(charge) = charges.iter().find(|charge| charge.enforced && exceeds(charge)) {
        return Err(cost_above_limit(rules, charge.id, request.cost));
    }
    charges.retain(|charge| !exceeds(charge));
    Ok(charges)
}

#[cold]
#[inline(never)]
pub(crate) fn cost_above_limit(rules: &RulesInForce, limit: LimitId, cost: u64) -> InvalidRequest {
    let rule = rules.set.rule_of(limit).id.clone();
    InvalidRequest::CostAboveLimit { rule, limit: rules.set.limit(limit).quota, cost }
}
