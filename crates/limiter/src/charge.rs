//! A charge that outlives the borrow of its rule set.

use crate::snapshot::Snapshot;
use tollgate_core::key::StateKey;
use tollgate_core::limit::Meter;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_core::rules::{CellKind, Charge, LeaseTiming, LimitId, OverLimitEffect, RuleSet};

/// One limit that a request is charged against, with all that a shared store needs.
#[derive(Clone, Copy, Debug)]
pub struct OwnedCharge {
    /// The limit within its rule set.
    pub id: LimitId,
    /// The key of the state.
    pub key: StateKey,
    /// The client's hash, the same under every limit: states of one client are kept together.
    pub client: u64,
    /// The numbers of the limit.
    pub meter: Meter,
    /// Whether it can refuse.
    pub enforced: bool,
    /// If it cannot refuse: the effect of being over it.
    pub over: OverLimitEffect,
    /// Whether tokens may be leased.
    pub leased: bool,
    /// The lease horizon and the report interval, if the rule states them.
    pub leasing: LeaseTiming,
    /// Whether a request is refused if the store cannot decide it.
    pub denies_on_failure: bool,
}

impl OwnedCharge {
    /// A copy of `charge`, which is of `rules`.
    pub fn new(rules: &RuleSet, charge: &Charge<'_>) -> Self {
        let rule = rules.rule_of(charge.id);
        Self {
            id: charge.id,
            key: charge.key,
            client: charge.client,
            meter: *charge.limit.meter(),
            enforced: charge.enforced,
            over: charge.over,
            leased: rule.lends(charge.limit),
            leasing: rule.leasing,
            denies_on_failure: rule.on_store_failure == OnStoreFailure::Deny,
        }
    }

    /// The charge again, borrowed from the rules that it is of.
    pub(crate) fn borrow<'p>(&self, snapshot: &'p Snapshot) -> Charge<'p> {
        let limit = snapshot.rules.set.limit(self.id);
        let Self { id, key, client, enforced, over, .. } = *self;
        Charge { limit, id, key, client, enforced, over, cell: CellKind::Own }
    }
}
