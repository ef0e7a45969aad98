//! Failure policy: decisions without the shared store.

use crate::emergency::Emergency;
use crate::memory::{MemoryStore, step_of};
use crate::request_limit::is_request_limit;
use crate::snapshot::RulesInForce;
use arc_swap::ArcSwapOption;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::key::StateKey;
use tollgate_core::limit::Limit;
use tollgate_core::rules::Charge;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_core::time::{StoreTime, UnixTime};

const SECOND_US: u64 = 1_000_000;
/// The wait of a refusal: about as long as a failover takes.
const TRY_AGAIN_US: u64 = SECOND_US;

/// The settings for decisions without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureSettings {
    /// Under `local`, the share of the limit of each node is multiplied by this, in thousandths.
    pub local_factor_permille: u32,
    /// See [`Emergency`].
    pub emergency: Emergency,
    /// The requests per second of one address in an emergency.
    pub emergency_per_second: u32,
}

impl Default for FailureSettings {
    fn default() -> Self {
        Self { local_factor_permille: 1_000, emergency: Emergency::Off, emergency_per_second: 10 }
    }
}

/// Decides while the store is unavailable.
#[derive(Debug)]
pub(crate) struct Fallback {
    settings: FailureSettings,
    shares: ArcSwapOption<NodeShares>,
    /// Decisions made without the store.
    degraded: AtomicU64,
}

/// The share of one node of `nodes` of every limit.
#[derive(Debug)]
struct NodeShares {
    rules: u32,
    nodes: u32,
    limits: Vec<Option<Limit>>,
}

impl Fallback {
    pub(crate) fn new(settings: FailureSettings) -> Self {
        Self { settings, shares: ArcSwapOption::empty(), degraded: AtomicU64::new(0) }
    }

    /// The number of decisions made without the store.
    pub(crate) fn degraded(&self) -> u64 {
        self.degraded.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) {
        self.degraded.fetch_add(1, Ordering::Relaxed);
    }

    /// The slots of one of `nodes`, of `quota` in all.
    pub(crate) fn share_in_flight(&self, quota: u32, nodes: u32) -> u32 {
        let factor = u64::from(self.settings.local_factor_permille.max(1));
        (u64::from(quota) * factor).div_ceil(1_000 * u64::from(nodes.max(1))).min(u64::from(u32::MAX)) as u32
    }

    /// The step of a request by the failure policy of the rule.
    pub(crate) fn step(
        &self,
        memory: &MemoryStore,
        rules: &RulesInForce,
        charge: &Charge<'_>,
        cost: u32,
        nodes: u32,
        now: UnixTime,
    ) -> LimitStep {
        match rules.set.rule_of(charge.id).on_store_failure {
            OnStoreFailure::Allow => admitted_step(),
            OnStoreFailure::Deny => refused_step(),
            OnStoreFailure::Local => self.local_step(memory, rules, charge, cost, nodes, now),
        }
    }

    /// How a request of `cost` would stand by the failure policy. Takes nothing.
    pub(crate) fn look(
        &self,
        memory: &MemoryStore,
        rules: &RulesInForce,
        charge: &Charge<'_>,
        cost: u32,
        nodes: u32,
        now: UnixTime,
    ) -> LimitStep {
        match rules.set.rule_of(charge.id).on_store_failure {
            OnStoreFailure::Allow => admitted_step(),
            OnStoreFailure::Deny => refused_step(),
            OnStoreFailure::Local => {
                let shares = self.shares(rules, nodes);
                let Some(limit) = shares.limits.get(charge.id.index()).and_then(Option::as_ref) else {
                    return refused_step();
                };
                let charge = shared_charge(charge, limit);
                let cost = cost.min(limit.quota);
                step_of(memory.status(&charge, cost, StoreTime::of_embedded_store(now)))
            }
        }
    }

    fn local_step(
        &self,
        memory: &MemoryStore,
        rules: &RulesInForce,
        charge: &Charge<'_>,
        cost: u32,
        nodes: u32,
        now: UnixTime,
    ) -> LimitStep {
        let shares = self.shares(rules, nodes);
        let Some(limit) = shares.limits.get(charge.id.index()).and_then(Option::as_ref) else {
            return refused_step();
        };
        // If the cost exceeds the share, it takes all of it.
        let cost = cost.min(limit.quota);
        take(memory, &shared_charge(charge, limit), cost, now)
    }

    /// Removes the state of `charge` from which decisions without the store are made.
    pub(crate) fn forget(
        &self,
        memory: &MemoryStore,
        rules: &RulesInForce,
        charge: &Charge<'_>,
        now: StoreTime,
    ) {
        let shares = self.shares.load();
        let known = shares.as_ref().filter(|shares| shares.rules == rules.number);
        let limit = known.and_then(|shares| shares.limits.get(charge.id.index())?.as_ref());
        if let Some(limit) = limit {
            memory.forget(&shared_charge(charge, limit), now);
        }
    }

    fn shares(&self, rules: &RulesInForce, nodes: u32) -> Arc<NodeShares> {
        if let Some(known) = &*self.shares.load()
            && known.rules == rules.number
            && known.nodes == nodes
        {
            return Arc::clone(known);
        }
        let factor = self.settings.local_factor_permille;
        let limits = rules.set.limits().map(|(_, limit)| limit.divided(nodes, factor)).collect();
        let shares = Arc::new(NodeShares { rules: rules.number, nodes, limits });
        // A limit that a request states would displace the shares of all rules.
        if !is_request_limit(rules.number) {
            self.shares.store(Some(Arc::clone(&shares)));
        }
        shares
    }
}

/// The charge of `limit`, which is this node's share of the limit of `charge`.
fn shared_charge<'s>(charge: &Charge<'_>, limit: &'s Limit) -> Charge<'s> {
    let key = StateKey::new(charge.key.identity_hash(charge.limit.state_id), limit.state_id);
    let Charge { id, client, enforced, over, cell, .. } = *charge;
    Charge { limit, id, key, client, enforced, over, cell }
}

fn take(memory: &MemoryStore, charge: &Charge<'_>, cost: u32, now: UnixTime) -> LimitStep {
    // Without memory for the state the request is admitted: these limits have no overflow cells.
    memory.take_step(charge, cost, StoreTime::of_embedded_store(now)).unwrap_or(admitted_step())
}

/// An admission without a look at the state.
pub(crate) fn admitted_step() -> LimitStep {
    LimitStep { admitted: true, next: None, remaining: 0, retry_after_us: 0, reset_after_us: 0 }
}

/// A refusal without a look at the state.
pub(crate) fn refused_step() -> LimitStep {
    let retry_after_us = TRY_AGAIN_US;
    LimitStep { admitted: false, next: None, remaining: 0, retry_after_us, reset_after_us: retry_after_us }
}
