//! The emergency limit: a limit for each client address besides the rules, switched on by an operator or by an outage.
//!
//! While it is on, every request with an address takes a token of that address on this node before it is decided, and gets
//! it back if it is refused otherwise. Requests on a list are decided before. `on_outage` is part of the failure policy
//! instead: only requests that would be admitted without the store take a token ([`crate::pending`]).

use crate::decision::{Check, Decision, NotedLimit};
use crate::limit_names::LimitNames;
use crate::limiter::Limiter;
use crate::memo::Caches;
use crate::memory::MemoryStore;
use crate::prepare::Prepared;
use crate::refusal::DoorKind;
use crate::snapshot::{LimitTerms, Snapshot};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};
use tollgate_core::algorithm::{Algorithm, LimitStep};
use tollgate_core::decision::{InvalidRequest, OutcomeFold};
use tollgate_core::key::{RequestHasher, StateKey};
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::rate::{Rate, SECOND_US};
use tollgate_core::request::Request;
use tollgate_core::rules::{CellKind, Charge, LimitId, OverLimitEffect, Selection};
use tollgate_core::time::{StoreTime, UnixTime};

static NAMES: LazyLock<LimitNames> = LazyLock::new(|| LimitNames::of_own("emergency"));

/// When an additional limit per address applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emergency {
    /// Never.
    #[default]
    Off,
    /// To requests that are admitted while no shard of the store answers.
    OnOutage,
    /// Always.
    On,
}

/// The switch, and the limit.
#[derive(Debug)]
pub(crate) struct EmergencyLimit {
    configured: Emergency,
    mode: AtomicU8,
    limit: Option<Limit>,
}

impl EmergencyLimit {
    pub(crate) fn new(configured: Emergency, per_second: u32) -> Self {
        let per_second = u64::from(per_second.max(1));
        let size =
            LimitSize { capacity: Some(per_second), rate: Rate::per(per_second, SECOND_US), window_us: None };
        Self {
            configured,
            mode: AtomicU8::new(configured as u8),
            limit: Limit::new("emergency", Algorithm::TokenBucket, size).ok(),
        }
    }

    fn mode(&self) -> Emergency {
        let mode = self.mode.load(Ordering::Relaxed);
        let known = [Emergency::OnOutage, Emergency::On].into_iter().find(|known| *known as u8 == mode);
        known.unwrap_or_default()
    }

    fn charge(&self, address: u64) -> Option<Charge<'_>> {
        let limit = self.limit.as_ref()?;
        Some(Charge {
            limit,
            id: LimitId::NONE,
            key: StateKey::new(address, limit.state_id),
            client: address,
            enforced: true,
            over: OverLimitEffect::Shadow,
            cell: CellKind::Own,
        })
    }

    /// Takes a token of `address`, which is a hash. None if it has none left; without memory for its state it has.
    fn take(&self, memory: &MemoryStore, address: u64, now: UnixTime) -> Result<(), Decision> {
        let Some(charge) = self.charge(address) else { return Ok(()) };
        match memory.take_step(&charge, 1, StoreTime::of_embedded_store(now)) {
            Some(step) if !step.admitted => Err(refusal(&charge, &step, now)),
            Some(_) | None => Ok(()),
        }
    }
}

fn refusal(charge: &Charge<'_>, step: &LimitStep, now: UnixTime) -> Decision {
    let mut fold = OutcomeFold::default();
    fold.add(charge, step);
    Decision {
        outcome: fold.outcome(),
        terms: Some(LimitTerms::new(&NAMES, charge.limit)),
        now,
        shadowed_by: None,
        degraded: false,
        store_unavailable: false,
        granted: false,
        flagged_by: None,
        soft: None,
        noted: NotedLimit::NONE,
    }
}

impl Limiter {
    /// Sets when a limit of so many requests per second and address applies besides the rules.
    #[must_use]
    pub fn with_emergency(mut self, emergency: Emergency, per_second: u32) -> Self {
        self.emergency = EmergencyLimit::new(emergency, per_second);
        self.switch_emergency(None);
        self
    }

    /// The requests per second of one address under the emergency limit.
    pub fn emergency_per_second(&self) -> u32 {
        self.emergency.limit.as_ref().map_or(0, |limit| limit.quota)
    }

    /// Switches the emergency limit, at any time; none is the setting that the limiter was made with.
    pub fn switch_emergency(&self, emergency: Option<Emergency>) {
        let mode = emergency.unwrap_or(self.emergency.configured);
        self.emergency.mode.store(mode as u8, Ordering::Relaxed);
        self.abuse.set_guarded(mode == Emergency::On);
    }

    /// Sets when the emergency limit applies.
    pub fn set_emergency(&self, emergency: Emergency) {
        self.switch_emergency(Some(emergency));
    }

    /// When the emergency limit applies.
    pub fn emergency(&self) -> Emergency {
        self.emergency.mode()
    }

    /// The refusal of a held client; else the selection, to be guarded if the emergency limit is on.
    #[cold]
    #[inline(never)]
    pub(crate) fn prepare_watched<'c>(
        &self,
        snapshot: &Snapshot,
        selection: &'c Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        door: DoorKind,
    ) -> Prepared<'c> {
        if let Some(refusal) = self.refuse_held(snapshot, selection, request, hashes, door) {
            return Prepared::Decided(refusal);
        }
        match self.guarded_address(request.ip) {
            Some(address) => Prepared::Guarded(selection, address),
            None => Prepared::Selected(selection),
        }
    }

    /// The hash of the address of which a token is needed while the emergency limit is on.
    pub(crate) fn guarded_address(&self, ip: Option<IpAddr>) -> Option<u64> {
        ip.filter(|_| self.emergency.mode() == Emergency::On).map(|ip| self.address_hash(ip))
    }

    /// Decides a request of `address` while the emergency limit is on.
    #[cold]
    #[inline(never)]
    pub(crate) fn decide_guarded(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        address: u64,
    ) -> Result<Check<'_>, InvalidRequest> {
        let now = self.clock().now();
        if let Err(refusal) = self.emergency.take(self.store(), address, now) {
            self.count(&snapshot.rules, caches, request, &refusal);
            return Ok(refusal.into());
        }
        let selection = caches.select(snapshot, request, hashes);
        let decided = match self.shared() {
            Some(sharing) => self.charge_shared(sharing, snapshot, selection, request, hashes, now),
            None => self.charge(&snapshot.rules, selection, request, hashes).map(Check::from),
        };
        let mut check = match decided {
            Ok(check) => check,
            Err(error) => {
                self.give_back_guard(Some(address));
                return Err(self.count_invalid(request.door, error));
            }
        };
        match &mut check {
            Check::Decided(decision) if !decision.allowed() => self.give_back_guard(Some(address)),
            Check::Decided(_) => {}
            Check::Pending(pending) => pending.guard(address),
        }
        self.count_check(snapshot, caches, request, &mut check);
        Ok(check)
    }

    /// Takes a token of `address` for a request that may wait. Returns the refusal if there is none.
    pub(crate) fn take_guard(&self, address: u64) -> Result<(), Decision> {
        self.emergency.take(self.store(), address, self.clock().now())
    }

    /// A request for which a token of `address` was taken is refused otherwise.
    pub(crate) fn give_back_guard(&self, address: Option<u64>) {
        let charge = address.and_then(|address| self.emergency.charge(address));
        if let Some(charge) = charge {
            self.store().give_back(&charge, 1, StoreTime::of_embedded_store(self.clock().now()));
        }
    }

    /// The refusal by the emergency limit of a request that is admitted without the store, if that limit applies.
    pub(crate) fn refuse_in_outage(
        &self,
        is_unavailable: impl FnOnce() -> bool,
        address: Option<u64>,
        now: UnixTime,
    ) -> Option<Decision> {
        if self.emergency.mode() != Emergency::OnOutage || !is_unavailable() {
            return None;
        }
        let refusal = self.emergency.take(self.store(), address?, now).err()?;
        Some(Decision { degraded: true, ..refusal })
    }
}
