//! Refusing those who are to be refused, and deciding nothing else.
//!
//! A door that sees who hammers can then say no before it has put the request together. Whoever is not refused here
//! takes the usual way, on which it is decided as if nobody had asked before: nothing was spent, and nobody was asked.

use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::pending::{Due, SharedStore, charge_of, fold};
use crate::policy::{Policy, takes_time};
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::decision::{Fold, validate};
use tollgate_core::key::Hashes;
use tollgate_core::request::Request;
use tollgate_core::rules::{Charge, Charges, LimitId, Selection};

impl Limiter {
    /// Refuses `request` if it is over a limit as things stand, or held. None says nothing: it has to be
    /// [admitted](Limiter::admit), or not, as any other.
    pub fn refuse(&self, request: &Request<'_>) -> Option<Decision> {
        validate(request).ok()?;
        self.with_policy(|policy, caches| {
            let hashes = self.hashes(request);
            if policy.has_lists && caches.listed(policy, request, &hashes, self.clock().now_us()).is_some() {
                return None;
            }
            let selection = caches.select(policy, request, &hashes);
            let decision = self.refuse_selected(policy, selection, request, &hashes)?;
            if caches.is_sampled() {
                self.note_sample(request, &mut decision.into());
            }
            Some(decision)
        })
    }

    fn refuse_selected(
        &self,
        policy: &Arc<Policy>,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &Hashes<'_>,
    ) -> Option<Decision> {
        let rules = &policy.rules;
        if self.abuse.is_holding()
            && let Some(refusal) = self.held(rules, selection, request, hashes)
        {
            return Some(refusal);
        }
        if self.shared().is_none()
            && !rules.takes_time
            && let Some(charge) = rules.set.only_charge(selection, request, hashes)
            && request.cost <= u64::from(charge.limit.quota)
            && charge.limit.log_window().is_none()
        {
            let (step, now_us) = self.store().refuse_one(&charge, request.cost as u32, self.clock())?;
            let mut decision = Decision::of_one(rules, charge.id, &step, now_us);
            self.note_refusal(rules, &mut decision, |_| Some(charge));
            return Some(decision);
        }
        let mut charges = Charges::new();
        rules.set.charge(selection, request, hashes, &mut charges);
        // Rules that only count do not count what costs more than they have.
        charges.retain(|charge| charge.enforced || request.cost <= u64::from(charge.limit.quota));
        let is_usual = |charge: &Charge<'_>| {
            request.cost <= u64::from(charge.limit.quota)
                && !takes_time(rules.set.rule_of(charge.id), charge.limit)
        };
        if !charges.iter().all(is_usual) {
            return None;
        }
        let cost = request.cost as u32;
        if let Some(store) = self.shared() {
            return self.refuse_shared(store, policy, &charges, cost);
        }
        let now_us = self.clock().now_us();
        let fold = self.store().refuse(&charges, cost, now_us)?;
        Some(self.refusal(policy, &fold, now_us, |limit| {
            charges.iter().find(|charge| charge.id == limit).copied()
        }))
    }

    /// By what the shared store last said.
    fn refuse_shared(
        &self,
        store: &SharedStore,
        policy: &Policy,
        charges: &[Charge<'_>],
        cost: u32,
    ) -> Option<Decision> {
        let due: SmallVec<[Due; 4]> = charges.iter().map(|charge| Due::new(policy, charge)).collect();
        let charged: SmallVec<[_; 4]> = due.iter().map(|due| due.charged(policy)).collect();
        let (shared, number) = (&store.shared, policy.rules.number);
        let steps = shared.book.refuse(&charged, cost, number, shared.lease_us())?;
        let now_us = self.clock().now_us();
        Some(
            self.refusal(policy, &fold(policy, &due, &steps), now_us, |limit| charge_of(policy, &due, limit)),
        )
    }

    fn refusal<'r>(
        &self,
        policy: &'r Policy,
        fold: &Fold,
        now_us: u64,
        charge_of: impl FnOnce(LimitId) -> Option<Charge<'r>>,
    ) -> Decision {
        let mut decision = Decision::of(&policy.rules, fold, now_us);
        self.note_refusal(&policy.rules, &mut decision, charge_of);
        decision
    }
}
