//! The engine: selects the charges of a request by the rules in force, and decides.

use crate::abuse::{Abuse, AbuseSettings};
use crate::admission::Admissions;
use crate::clock::Clock;
use crate::counting::Counting;
use crate::decision::{Check, Decision};
use crate::emergency::EmergencyLimit;
use crate::failure::{FailureSettings, Fallback};
use crate::grants::{GrantCandidates, Grants};
use crate::limit_names::LimitNamesFull;
use crate::memo::{self, Caches};
use crate::memory::{MemoryStore, OVERFLOW_CELLS};
use crate::metrics::decision_counters::DecisionCounters;
use crate::observe::Observation;
use crate::pending::Sharing;
use crate::prepare::{Prepared, charges, cost_above_limit};
use crate::refusal::DoorKind;
use crate::shared_store::SharedStore;
use crate::snapshot::{RulesInForce, Snapshot, Versioned, next_number};
use arc_swap::ArcSwap;
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::decision::{InvalidRequest, Outcome, OutcomeFold, validate};
use tollgate_core::key::{Identity, Ipv6Prefix, KeySeed, RequestHasher, StateKey, ip_bits};
use tollgate_core::request::Request;
use tollgate_core::rules::lists::AccessLists;
use tollgate_core::rules::written::OnExceed;
use tollgate_core::rules::{CellKind, Charge, Charges, EndpointScope, RuleSet, Selection};
use tollgate_core::time::{StoreTime, UnixTime};

/// The rate limiter. All methods take `&self`, so it is shared in an `Arc`.
#[derive(Debug)]
pub struct Limiter {
    /// Identifies this limiter in the snapshots that threads keep.
    number: u32,
    version: AtomicU64,
    snapshot: ArcSwap<Snapshot>,
    store: MemoryStore,
    /// If set, it holds the states, and the embedded store only those of decisions without it.
    shared: Option<Sharing>,
    clock: Clock,
    seed: KeySeed,
    pub(crate) abuse: Abuse,
    pub(crate) admissions: Admissions,
    pub(crate) grants: Grants,
    pub(crate) emergency: EmergencyLimit,
    pub(crate) counters: DecisionCounters,
    pub(crate) observation: Observation,
    counting: Counting,
    takes_time: AtomicBool,
    has_flags: AtomicBool,
    looks_at_domains: AtomicBool,
}

impl Limiter {
    /// A limiter with no rules yet.
    pub fn new(store: MemoryStore, clock: Clock) -> Self {
        let random = RandomState::new();
        let abuse = Abuse::new(AbuseSettings::default(), clock.now());
        let failure = FailureSettings::default();
        Self {
            number: next_number(),
            version: AtomicU64::new(0),
            snapshot: ArcSwap::from_pointee(Snapshot::empty()),
            store,
            shared: None,
            clock,
            seed: KeySeed::new([random.hash_one(1), random.hash_one(2)]),
            abuse,
            admissions: Admissions::default(),
            grants: Grants::default(),
            emergency: EmergencyLimit::new(failure.emergency, failure.emergency_per_second),
            counters: DecisionCounters::default(),
            observation: Observation::default(),
            counting: Counting::On,
            takes_time: AtomicBool::new(false),
            has_flags: AtomicBool::new(false),
            looks_at_domains: AtomicBool::new(false),
        }
    }

    /// Shares the states through `store`. The embedded store then holds only the states of decisions made while the
    /// shared one is unavailable.
    #[must_use]
    pub fn sharing(mut self, store: Arc<dyn SharedStore>, settings: FailureSettings) -> Self {
        store.install(&self.snapshot.load().rules.set);
        self.shared = Some(Sharing { store, fallback: Fallback::new(settings) });
        self.with_emergency(settings.emergency, settings.emergency_per_second)
    }

    /// Whether it counts its decisions, which it does by default.
    #[must_use]
    pub fn counting(mut self, counting: Counting) -> Self {
        self.counting = counting;
        self
    }

    /// The number of this limiter in the caches of threads.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.counting == Counting::On
    }

    /// Whether a rule with this id is in force.
    pub fn has_rule(&self, id: &str) -> bool {
        self.snapshot.load().rules.set.rules().iter().any(|rule| rule.id == id)
    }

    /// The number of rules in force.
    pub(crate) fn rule_count(&self) -> usize {
        self.snapshot.load().rules.set.rules().len()
    }

    /// Whether [`Limiter::admit`] may have to wait: for a shared store, or under a rule with a queue, tarpit or slots.
    #[inline]
    pub fn may_wait(&self) -> bool {
        self.shared.is_some() || self.takes_time.load(Ordering::Acquire)
    }

    pub(crate) fn shared(&self) -> Option<&Sharing> {
        self.shared.as_ref()
    }

    /// The number of decisions made without the shared store.
    pub fn degraded(&self) -> u64 {
        self.shared.as_ref().map_or(0, |sharing| sharing.fallback.degraded())
    }

    /// Puts new rules and lists in force. States are kept: they belong to rule ids, not to rule sets. On an error the
    /// rules stay as they were.
    pub fn install(&self, rules: RuleSet, lists: AccessLists) -> Result<(), LimitNamesFull> {
        let snapshot = Snapshot::new(rules, lists)?;
        let rules = &snapshot.rules.set;
        self.abuse.prepare(rules);
        if let Some(sharing) = &self.shared {
            sharing.store.install(rules);
        }
        self.counters.retain(rules);
        let looks_at_domains = rules.has_domains();
        let takes_time = snapshot.rules.takes_time;
        // Before the rules that need it: no request may be checked by them without its domain.
        self.looks_at_domains.fetch_or(looks_at_domains, Ordering::AcqRel);
        self.snapshot.store(Arc::new(snapshot));
        self.takes_time.store(takes_time, Ordering::Release);
        self.has_flags.store(!self.flag_headers().is_empty(), Ordering::Release);
        self.version.fetch_add(1, Ordering::Release);
        self.looks_at_domains.store(looks_at_domains, Ordering::Release);
        Ok(())
    }

    /// Puts new lists in force. Rules and their caches stay.
    pub fn set_lists(&self, lists: AccessLists) {
        let lists = Versioned::new(lists);
        self.snapshot.rcu(|snapshot| Snapshot::with(Arc::clone(&snapshot.rules), Arc::clone(&lists)));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Decides whether `request` is admitted now. Where a rule would queue it, it is refused with the time that it would
    /// wait; see [`Limiter::admit`] for doors that can wait.
    #[inline]
    pub fn check(&self, request: &Request<'_>) -> Result<Check<'_>, InvalidRequest> {
        if let Err(error) = validate(request) {
            return Err(self.count_invalid(request.door, error));
        }
        let version = self.version.load(Ordering::Acquire);
        let mut lent = memo::lend();
        let (snapshot, caches) = lent.memo().snapshot(self.number, version, &self.snapshot);
        self.judge(snapshot, caches, request)
    }

    /// Decides, and samples some of the checks for abuse detection and for observation.
    #[inline]
    pub(crate) fn judge(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        request: &Request<'_>,
    ) -> Result<Check<'_>, InvalidRequest> {
        if caches.is_due() {
            return self.decide_sampled(snapshot, caches, request);
        }
        self.decide(snapshot, caches, request)
    }

    /// Decides a check that is sampled for abuse detection, or observed, or both.
    #[cold]
    #[inline(never)]
    fn decide_sampled(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        request: &Request<'_>,
    ) -> Result<Check<'_>, InvalidRequest> {
        let due = caches.take_due(&self.clock);
        let start_ns = self.clock.counter_ns();
        let mut check = self.decide(snapshot, caches, request)?;
        let elapsed_ns = self.clock.counter_ns().saturating_sub(start_ns);
        if due.is_sampled {
            self.note_sample(request, &mut check);
        }
        if let Some(weight) = due.weight.filter(|_| self.is_counting()) {
            self.observe_check(&snapshot.rules, caches, request, &mut check, weight, elapsed_ns);
        }
        Ok(check)
    }

    /// Calls `with` with the snapshot in force and this thread's caches.
    pub(crate) fn with_snapshot<T>(&self, with: impl FnOnce(&Arc<Snapshot>, &mut Caches) -> T) -> T {
        let version = self.version.load(Ordering::Acquire);
        let mut lent = memo::lend();
        let (snapshot, caches) = lent.memo().snapshot(self.number, version, &self.snapshot);
        with(snapshot, caches)
    }

    /// Whether rules in force set flags for the upstream.
    #[inline]
    pub fn has_flags(&self) -> bool {
        self.has_flags.load(Ordering::Acquire)
    }

    /// Whether rules in force match domains. If not, a door need not find the domain of a request.
    #[inline]
    pub fn looks_at_domains(&self) -> bool {
        self.looks_at_domains.load(Ordering::Acquire)
    }

    /// The headers of flags of the rules in force. Doors remove what a client sends in them.
    pub fn flag_headers(&self) -> Vec<&'static str> {
        let snapshot = self.snapshot.load();
        let mut headers: Vec<&'static str> = Vec::new();
        for names in snapshot.rules.names() {
            let soft = names.soft.as_ref().map(|soft| &soft.then);
            for action in soft.into_iter().chain([&names.on_exceed]) {
                if let OnExceed::Flag(flag) = action
                    && !headers.contains(&flag.header.as_str())
                {
                    headers.push(&flag.header);
                }
            }
        }
        headers
    }

    #[inline]
    fn decide(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        request: &Request<'_>,
    ) -> Result<Check<'_>, InvalidRequest> {
        let hashes = self.seed.hasher(request);
        let selection = match self.prepare(snapshot, caches, request, &hashes, DoorKind::CannotWait) {
            Prepared::Decided(decision) => {
                self.count(&snapshot.rules, caches, request, &decision);
                return Ok(decision.into());
            }
            Prepared::Selected(selection) => selection,
            Prepared::Guarded(_, address) => {
                return self.decide_guarded(snapshot, caches, request, &hashes, address);
            }
        };
        if let Some(sharing) = &self.shared {
            let check = self.charge_shared(sharing, snapshot, selection, request, &hashes, self.clock.now());
            let mut check = check.map_err(|error| self.count_invalid(request.door, error))?;
            self.count_check(snapshot, caches, request, &mut check);
            return Ok(check);
        }
        let rules = &snapshot.rules;
        let Some(charge) = rules.set.single_charge(selection, request, &hashes) else {
            let decision = self.charge(rules, selection, request, &hashes);
            let decision = decision.map_err(|error| self.count_invalid(request.door, error))?;
            self.count(rules, caches, request, &decision);
            return Ok(decision.into());
        };
        if request.cost > u64::from(charge.limit.quota) {
            return Err(self.count_invalid(request.door, cost_above_limit(rules, charge.id, request.cost)));
        }
        match self.take_one(&charge, request.cost as u32) {
            Some((step, now)) if step.admitted || rules.refuses_plainly && !self.grants.is_any() => {
                let outcome = Outcome::of_one(charge.id, &step);
                if self.counting == Counting::On {
                    match caches.last_handle(charge.id, request.door) {
                        Some(handle) if step.admitted => handle.count_allowed(step.remaining),
                        _ => caches.count_outcome(&self.counters, rules, request.door, charge.id, outcome),
                    }
                    if !step.admitted {
                        self.observe_refused(rules, caches, request, charge.id, outcome, now);
                    }
                }
                Ok(Decision::by_limit(rules, charge.id, outcome, now).into())
            }
            Some((step, now)) => {
                let refused = Decision::of_one(rules, charge.id, &step, now);
                let decision = self.grant_or_refuse(rules, request, refused, charge);
                self.count(rules, caches, request, &decision);
                Ok(decision.into())
            }
            None => {
                let now = self.clock.now();
                let grants = || self.grant_candidates(request);
                let decision = self.take_all(rules, &[charge], request.cost as u32, request.ip, now, &grants);
                self.count(rules, caches, request, &decision);
                Ok(decision.into())
            }
        }
    }

    /// Spends on all charges of the rules that apply, or on none.
    #[inline(never)]
    pub(crate) fn charge(
        &self,
        rules: &RulesInForce,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
    ) -> Result<Decision, InvalidRequest> {
        let charges = charges(rules, selection, request, hashes, DoorKind::CannotWait)?;
        let cost = request.cost as u32;
        if let [only] = charges.as_slice()
            && let Some((step, now)) = self.take_one(only, cost)
        {
            let mut fold = OutcomeFold::default();
            fold.add(only, &step);
            let decision = Decision::of(rules, &fold, now);
            if fold.admits() {
                return Ok(decision);
            }
            return Ok(self.grant_or_refuse(rules, request, decision, *only));
        }
        let grants = || self.grant_candidates(request);
        Ok(self.take_all(rules, &charges, cost, request.ip, self.clock.now(), &grants))
    }

    /// The decision on a request that its only limit, that of `charge`, has refused.
    #[inline(never)]
    fn grant_or_refuse(
        &self,
        rules: &RulesInForce,
        request: &Request<'_>,
        mut refused: Decision,
        charge: Charge<'_>,
    ) -> Decision {
        if self.grants.is_any()
            && let Some(granted) = self.grant_single(request, &refused)
        {
            return granted;
        }
        self.note_refusal(rules, &mut refused, |_| Some(charge));
        refused
    }

    /// The common case: one charge that is not a log, with memory for its state.
    #[inline]
    pub(crate) fn take_one(&self, charge: &Charge<'_>, cost: u32) -> Option<(LimitStep, UnixTime)> {
        if charge.limit.log_window().is_some() {
            return None;
        }
        self.store.take_one(charge, cost, &self.clock)
    }

    /// The general case, also for a single charge without memory for its state. `grants` returns the pools that a refused
    /// request may draw from.
    #[inline(never)]
    pub(crate) fn take_all<'r>(
        &self,
        rules: &'r RulesInForce,
        charges: &[Charge<'r>],
        cost: u32,
        ip: Option<IpAddr>,
        now: UnixTime,
        grants: &dyn Fn() -> Option<GrantCandidates>,
    ) -> Decision {
        if charges.is_empty() {
            return Decision::without_limit(Outcome::Unlimited, now);
        }
        let mut charges = Charges::from_slice(charges);
        loop {
            match self.store.take_all(&charges, cost, StoreTime::of_embedded_store(now)) {
                Ok(fold) => {
                    let mut decision = Decision::of(rules, &fold, now);
                    if !fold.admits()
                        && self.grants.is_any()
                        && let Some(granted) = self.grant_several(rules, &charges, cost, grants(), &decision)
                    {
                        return granted;
                    }
                    // Other clients spend from an overflow cell too: its refusals are no strikes.
                    self.note_refusal(rules, &mut decision, |limit| {
                        let is_own =
                            |charge: &&Charge<'_>| charge.id == limit && charge.cell == CellKind::Own;
                        charges.iter().find(is_own).copied()
                    });
                    return decision;
                }
                Err(full) => self.use_overflow_cell(&mut charges[full.charge], ip),
            }
        }
    }

    /// Charges the overflow cell of the client's address prefix: there is no memory for a state of its own.
    #[cold]
    pub(crate) fn use_overflow_cell(&self, charge: &mut Charge<'_>, ip: Option<IpAddr>) {
        self.store.count_overflow();
        charge.cell = CellKind::Overflow;
        charge.key = StateKey::new(self.seed.overflow_cell(ip, OVERFLOW_CELLS), charge.limit.state_id);
    }

    pub(crate) fn hashes(&self, request: &Request<'_>) -> RequestHasher<'_> {
        self.seed.hasher(request)
    }

    /// The hash of an address, by the prefix that is counted.
    pub(crate) fn address_hash(&self, ip: std::net::IpAddr) -> u64 {
        self.seed.chain(0, &Identity::Ip(ip_bits(ip, Ipv6Prefix::default())))
    }

    /// Housekeeping; to be called about ten times a second.
    pub fn tidy(&self) {
        let now = self.clock.now();
        self.store.tidy(StoreTime::of_embedded_store(now));
        self.abuse.tidy(now);
        self.admissions.tidy(now);
        self.observation.tidy(now);
        self.follow_resets();
    }

    pub(crate) fn seed(&self) -> &KeySeed {
        &self.seed
    }

    /// The keys of the penalty records of the client of `request`.
    pub(crate) fn conduct_keys(&self, request: &Request<'_>) -> SmallVec<[u64; 8]> {
        let snapshot = self.snapshot.load();
        let set = &snapshot.rules.set;
        let hashes = self.seed.hasher(request);
        let limits = [EndpointScope::Request, EndpointScope::Any]
            .into_iter()
            .flat_map(|scope| set.client_limits(request, scope, &hashes));
        limits.filter_map(|found| set.penalty_key(&found.charge)).collect()
    }

    /// The store.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}
