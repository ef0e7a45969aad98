//! Refusals without an admission.
//!
//! A door can refuse a client that repeats its requests before it has parsed the whole request. A request that is not
//! refused here is decided as usual: nothing was spent, and no store was called.

use crate::charge::OwnedCharge;
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::pending::fold;
use crate::prepare::{Prepared, charges};
use crate::snapshot::{Snapshot, takes_time};
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::decision::{LimitStatus, Outcome, OutcomeFold, validate};
use tollgate_core::key::RequestHasher;
use tollgate_core::request::Request;
use tollgate_core::rules::written::OnExceed;
use tollgate_core::rules::{Charge, RuleSet, Selection};
use tollgate_core::time::{StoreTime, UnixTime};

impl Limiter {
    /// Refuses `request` if it is known to be over a limit, or held. None decides nothing: [`Limiter::admit`] has to.
    pub fn refuse(&self, request: &Request<'_>) -> Option<Decision> {
        validate(request).ok()?;
        if self.grants.is_any() && self.has_grant(request) {
            return None;
        }
        self.with_snapshot(|snapshot, caches| {
            let hashes = self.hashes(request);
            let decision = match self.prepare(snapshot, caches, request, &hashes, DoorKind::CanWait) {
                Prepared::Decided(held) if matches!(held.outcome, Outcome::Limited(_)) => held,
                Prepared::Decided(_) => return None,
                Prepared::Selected(selection) | Prepared::Guarded(selection, _) => {
                    self.refuse_selected(snapshot, selection, request, &hashes)?
                }
            };
            self.count(&snapshot.rules, caches, request, &decision);
            self.sample_decided(&snapshot.rules, caches, request, decision);
            Some(decision)
        })
    }

    fn refuse_selected(
        &self,
        snapshot: &Arc<Snapshot>,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
    ) -> Option<Decision> {
        let rules = &snapshot.rules;
        let cost = request.cost as u32;
        if self.shared().is_none()
            && !rules.takes_time
            && let Some(charge) = rules.set.single_charge(selection, request, hashes)
            && charge.limit.log_window().is_none()
        {
            if request.cost > u64::from(charge.limit.quota) {
                return None;
            }
            let (step, now) = self.store().refuse_one(&charge, cost, self.clock())?;
            let mut decision = Decision::of_one(rules, charge.id, &step, now);
            self.note_refusal(rules, &mut decision, |_| Some(charge));
            return Some(decision);
        }
        let charges = charges(rules, selection, request, hashes, DoorKind::CanWait).ok()?;
        if charges.iter().any(|charge| takes_time(rules.set.rule_of(charge.id), charge.limit)) {
            return None;
        }
        let now = self.clock().now();
        self.refuse_known(snapshot, &charges, cost, now)
    }

    /// The refusal by `charges`, as far as that is known on this node, recorded like any other refusal.
    pub(crate) fn refuse_known(
        &self,
        snapshot: &Snapshot,
        charges: &[Charge<'_>],
        cost: u32,
        now: UnixTime,
    ) -> Option<Decision> {
        let fold = self.known_refusal(snapshot, charges, cost, now)?;
        let mut decision = Decision::of(&snapshot.rules, &fold, now);
        self.note_refusal(&snapshot.rules, &mut decision, |limit| {
            charges.iter().find(|charge| charge.id == limit).copied()
        });
        Some(decision)
    }

    /// The status of the limit with the longest wait, of those that are known to refuse.
    pub(crate) fn refusal_by_limits(
        &self,
        snapshot: &Snapshot,
        charges: &[Charge<'_>],
        cost: u32,
        now: UnixTime,
    ) -> Option<LimitStatus> {
        match self.known_refusal(snapshot, charges, cost, now)?.outcome() {
            Outcome::Limited(standing) => Some(standing),
            Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => None,
        }
    }

    /// The steps of `charges`, if one is known to refuse: by the states of the embedded store, or by the last replies of the
    /// shared one. Spends nothing and calls no store.
    fn known_refusal(
        &self,
        snapshot: &Snapshot,
        charges: &[Charge<'_>],
        cost: u32,
        now: UnixTime,
    ) -> Option<OutcomeFold> {
        if charges.is_empty() {
            return None;
        }
        let Some(sharing) = self.shared() else {
            return self.store().refuse(charges, cost, StoreTime::of_embedded_store(now));
        };
        let owned: SmallVec<[OwnedCharge; 4]> =
            charges.iter().map(|charge| OwnedCharge::new(&snapshot.rules.set, charge)).collect();
        let steps = sharing.store.known_refusal(&owned, cost, snapshot.rules.number)?;
        Some(fold(snapshot, &owned, &steps))
    }
}

/// Whether a door can delay a request over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoorKind {
    /// It refuses the request at once.
    CannotWait,
    /// It can wait for the turn of the request, and knows when the request ends.
    CanWait,
}

/// Whether a request of `cost` over the limit of `charge` is refused at `door` with a known wait.
pub(crate) fn may_refuse(rules: &RuleSet, charge: &Charge<'_>, cost: u64, door: DoorKind) -> bool {
    let lets_wait = door == DoorKind::CanWait
        && matches!(rules.rule_of(charge.id).on_exceed, OnExceed::Queue(_) | OnExceed::Shed(_));
    charge.enforced
        && cost <= u64::from(charge.limit.quota)
        && charge.limit.longest_in_flight_us().is_none()
        && !lets_wait
}
