//! Failure policy: decisions without the shared store, and the emergency limit per address.

use crate::memory::MemoryStore;
use crate::snapshot::RulesInForce;
use arc_swap::ArcSwapOption;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tollgate_core::algorithm::{Algorithm, LimitStep};
use tollgate_core::key::StateKey;
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::rate::Rate;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_core::rules::{CellKind, Charge, LimitId, OverLimitEffect};
use tollgate_core::time::{StoreTime, UnixTime};

const SECOND_US: u64 = 1_000_000;
/// The wait of a refusal: about as long as a failover takes.
const TRY_AGAIN_US: u64 = SECOND_US;

/// When an additional limit per address applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emergency {
    /// Never.
    #[default]
    Off,
    /// While no shard of the store answers.
    OnOutage,
    /// Always.
    On,
}

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
    emergency: AtomicU8,
    emergency_limit: Option<Limit>,
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
        let per_second = u64::from(settings.emergency_per_second.max(1));
        let size =
            LimitSize { capacity: Some(per_second), rate: Rate::per(per_second, SECOND_US), window_us: None };
        Self {
            settings,
            emergency: AtomicU8::new(settings.emergency as u8),
            emergency_limit: Limit::new("emergency", Algorithm::TokenBucket, size).ok(),
            shares: ArcSwapOption::empty(),
            degraded: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_emergency(&self, emergency: Emergency) {
        self.emergency.store(emergency as u8, Ordering::Relaxed);
    }

    /// Whether the emergency limit applies; `is_unavailable` is called only if it matters.
    pub(crate) fn is_emergency(&self, is_unavailable: impl FnOnce() -> bool) -> bool {
        let mode = self.emergency.load(Ordering::Relaxed);
        mode == Emergency::On as u8 || (mode == Emergency::OnOutage as u8 && is_unavailable())
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
        let key = StateKey::new(charge.key.identity_hash(charge.limit.state_id), limit.state_id);
        take(memory, &Charge { limit, key, ..*charge }, cost, now)
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
            let key = StateKey::new(charge.key.identity_hash(charge.limit.state_id), limit.state_id);
            memory.forget(&Charge { limit, key, ..*charge }, now);
        }
    }

    /// The step of a request from `address` under the emergency limit; none without such a limit.
    pub(crate) fn emergency_step(
        &self,
        memory: &MemoryStore,
        address: u64,
        now: UnixTime,
    ) -> Option<LimitStep> {
        let limit = self.emergency_limit.as_ref()?;
        let charge = Charge {
            limit,
            id: LimitId::NONE,
            key: StateKey::new(address, limit.state_id),
            client: address,
            enforced: true,
            over: OverLimitEffect::Shadow,
            cell: CellKind::Own,
        };
        Some(take(memory, &charge, 1, now))
    }

    /// The emergency limit, for its name.
    pub(crate) fn emergency_limit(&self) -> Option<&Limit> {
        self.emergency_limit.as_ref()
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
        self.shares.store(Some(Arc::clone(&shares)));
        shares
    }
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
