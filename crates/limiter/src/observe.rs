//! Observing decisions: durations, top keys and records for the decision log.
//!
//! Every decision is counted ([`crate::counting`]); what costs more is done for some of them. Each thread observes a sample
//! of its decisions ([`pace`]): the sample feeds the durations, the top keys and routes ([`top_keys`]), and a share of the
//! admitted decisions goes to the [`DecisionObserver`]. Refusals are few or come in storms: each is recorded up to a rate,
//! and the top limited keys have a sample of their own.

mod identity_copy;
mod pace;
mod record;
mod top_keys;
mod traffic_samples;

use crate::abuse::{Label, fingerprint, watched};
use crate::decision::{Check, Decision};
use crate::limiter::Limiter;
use crate::memo::Caches;
use crate::metrics::decision_counters::{DecidedBy, RequestLabels};
use crate::metrics::{DecisionObserver, DecisionOutcome};
use crate::snapshot::RulesInForce;
use arc_swap::ArcSwapOption;
pub(crate) use identity_copy::{CopyMemory, IdentityCopy};
pub(crate) use pace::{DueSamples, ObservationPace, RecordRate, SampleSchedule};
use parking_lot::Mutex;
use rapidhash::v3::rapidhash_v3;
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::decision::Outcome;
use tollgate_core::key::{Identity, KeySeed, identity};
use tollgate_core::rate::SECOND_US;
use tollgate_core::request::Request;
use tollgate_core::rules::{LimitId, Rule};
use tollgate_core::time::UnixTime;
use top_keys::TopTables;
pub use top_keys::{TopKey, TopKeys, TopRest, TopRoute};
use traffic_samples::TrafficSamples;

/// Which decisions an observer receives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObservationSettings {
    /// The share of the admitted decisions, from 0 to 1. At high rates it may be less: a thread records at most about a
    /// thousand of them a second.
    pub admitted_share: f64,
    /// The most refusals in each second, of each thread. Others are dropped and counted.
    pub refusals_per_second: u32,
}

impl Default for ObservationSettings {
    fn default() -> Self {
        Self { admitted_share: 0.01, refusals_per_second: 1_000 }
    }
}

/// The observations of a limiter.
#[derive(Debug)]
pub(crate) struct Observation {
    observer: Option<Arc<dyn DecisionObserver>>,
    settings: ObservationSettings,
    /// In a box of its own: it is written with every observation, and the fields beside it are read with every check.
    top: Box<Mutex<TopTables>>,
    samples: Option<Box<TrafficSamples>>,
    /// The seed of the fingerprints that the nodes of a fleet have in common.
    fleet_seed: ArcSwapOption<KeySeed>,
}

impl Default for Observation {
    fn default() -> Self {
        Self {
            observer: None,
            settings: ObservationSettings::default(),
            top: Box::new(Mutex::new(TopTables::new())),
            samples: None,
            fleet_seed: ArcSwapOption::empty(),
        }
    }
}

impl Observation {
    /// Ends periods that are over.
    pub(crate) fn tidy(&self, now: UnixTime) {
        self.top.lock().turn(now);
    }
}

/// What is kept of a request whose decision is made later.
#[derive(Debug, Default)]
pub(crate) struct LateObservation {
    /// Its identities, if they may be needed.
    pub(crate) request: Option<IdentityCopy>,
    /// The weight of the decision, if it is in the sample.
    pub(crate) weight: Option<u32>,
}

impl LateObservation {
    /// Puts the decision on `request` in the sample.
    pub(crate) fn weigh(&mut self, weight: u32, request: &Request<'_>) {
        self.weight = Some(weight);
        self.request = self.request.take().or_else(|| IdentityCopy::new(request, CopyMemory::Any));
    }
}

/// A decision that is final.
#[derive(Clone, Copy)]
pub(crate) struct FinalDecision<'d> {
    pub(crate) rules: &'d RulesInForce,
    pub(crate) labels: RequestLabels,
    pub(crate) decision: &'d Decision,
    pub(crate) outcome: DecisionOutcome,
}

impl<'d> FinalDecision<'d> {
    /// Whether it is recorded like a refusal: also one that is delayed, or that a rule in shadow mode would have refused.
    fn is_refusal(&self) -> bool {
        let is_like_refusal =
            matches!(self.outcome, DecisionOutcome::ShadowLimited | DecisionOutcome::Tarpitted);
        is_like_refusal || !self.decision.allowed()
    }

    /// The limit that determined it, of the rules in force.
    fn limit(&self) -> Option<LimitId> {
        match DecidedBy::of(self.decision, self.outcome) {
            DecidedBy::Limit(limit) => Some(limit),
            DecidedBy::Nothing | DecidedBy::HotKey | DecidedBy::Emergency | DecidedBy::RequestLimit(_) => {
                None
            }
        }
    }

    fn rule(&self) -> Option<&'d Rule> {
        self.limit().map(|limit| self.rules.set.rule_of(limit))
    }
}

impl Limiter {
    /// Reports decisions to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn DecisionObserver>, settings: ObservationSettings) -> Self {
        let share = settings.admitted_share;
        let admitted_share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.observation.observer = Some(observer);
        self.observation.settings = ObservationSettings { admitted_share, ..settings };
        self
    }

    /// The `count` most frequent keys and routes of this node in the last minute.
    pub fn top(&self, count: usize) -> TopKeys {
        self.observation.top.lock().list(count, self.clock().now())
    }

    /// Makes the fingerprints of top keys the same on all nodes with this seed, from now on. Without it, those of a node
    /// are its own.
    pub fn set_fingerprint_seed(&self, seed: [u64; 2]) {
        self.observation.fleet_seed.store(Some(Arc::new(KeySeed::new(seed))));
    }

    /// What distinguishes this identity from others with the same abbreviation; the same as in [`Limiter::top`], for a rule
    /// that counts by it alone.
    pub fn fingerprint(&self, identity: &Identity<'_>) -> String {
        let identities = std::slice::from_ref(identity);
        let fleet_seed = self.observation.fleet_seed.load();
        fingerprint(hash(fleet_seed.as_deref().unwrap_or(self.seed()), identities))
    }

    /// The number of the top limited keys that have been limited without a break for five minutes.
    pub(crate) fn keys_at_zero(&self) -> usize {
        self.observation.top.lock().count_at_zero(self.clock().now())
    }

    /// Observes a refusal by the only limit of a request.
    #[inline(never)]
    pub(crate) fn observe_refused(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        request: &Request<'_>,
        limit: LimitId,
        outcome: Outcome,
        now: UnixTime,
    ) {
        let weight = caches.refusals.next(|| self.clock().counter_ns());
        if weight.is_none() && self.observation.observer.is_none() {
            return;
        }
        let decision = Decision::by_limit(rules, limit, outcome, now);
        let labels = caches.labels(request.door);
        let found = FinalDecision { rules, labels, decision: &decision, outcome: DecisionOutcome::Limited };
        self.report_refusal(caches, &found, request, weight);
    }

    /// Observes a decision if it is a refusal.
    pub(crate) fn observe_refusal(
        &self,
        caches: &mut Caches,
        found: &FinalDecision<'_>,
        request: &Request<'_>,
    ) {
        if !found.is_refusal() {
            return;
        }
        // The deny list is not a limit.
        let weight = match found.decision.outcome {
            Outcome::Limited(_) => caches.refusals.next(|| self.clock().counter_ns()),
            Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => None,
        };
        self.report_refusal(caches, found, request, weight);
    }

    fn report_refusal(
        &self,
        caches: &mut Caches,
        found: &FinalDecision<'_>,
        request: &Request<'_>,
        weight: Option<u32>,
    ) {
        if let Some(weight) = weight {
            let (key, label) = self.key_and_label(found.rule(), request);
            self.observation.top.lock().add_limited(key, &label, weight, found.decision.now);
        }
        let Observation { observer: Some(observer), settings, .. } = &self.observation else { return };
        let second = found.decision.now.as_us() / SECOND_US;
        // Before a record is made: a storm of refusals must stay cheap.
        let report = |records| observer.record_dropped(records);
        if caches.record_rate.take(self.number(), second, settings.refusals_per_second, report) {
            observer.record(record::of(found, request));
        }
    }

    /// Observes a decision that is in the sample, with its weight.
    pub(crate) fn observe(
        &self,
        caches: &mut Caches,
        found: &FinalDecision<'_>,
        request: &Request<'_>,
        weight: u32,
    ) {
        let now = found.decision.now;
        let allowed = found.decision.allowed().then(|| self.key_and_label(found.rule(), request));
        let route = found.labels.route.map(|route| found.rules.set.route_template(route));
        if allowed.is_some() || route.is_some() {
            let mut top = self.observation.top.lock();
            if let Some((key, label)) = &allowed {
                top.add_allowed(*key, label, weight, now);
            }
            if let Some(template) = route {
                top.add_route(rapidhash_v3(template.as_bytes()), template, weight, now);
            }
        }
        let Observation { observer: Some(observer), settings, .. } = &self.observation else { return };
        caches.record_rate.report_dropped(self.number(), |records| observer.record_dropped(records));
        if !found.is_refusal() && fastrand::f64() < settings.admitted_share * f64::from(weight) {
            observer.record(record::of(found, request));
        }
    }

    /// Observes a check that is in the sample, and that took so long if it is decided. One that waits for the shared store is
    /// observed when it is decided.
    pub(crate) fn observe_check(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        request: &Request<'_>,
        check: &mut Check<'_>,
        weight: u32,
        elapsed_ns: u64,
    ) {
        self.keep_sample(request, weight);
        self.observe_unsampled(rules, caches, request, check, weight, elapsed_ns);
    }

    /// The same for a check that the rules do not decide, and that is no sample of their traffic.
    pub(crate) fn observe_unsampled(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        request: &Request<'_>,
        check: &mut Check<'_>,
        weight: u32,
        elapsed_ns: u64,
    ) {
        match check {
            Check::Decided(decision) => {
                self.counters.local.observe_weighted(elapsed_ns, weight);
                self.observe_decided(rules, caches, request, decision, weight);
            }
            Check::Pending(pending) => pending.observe_with(weight, request),
        }
    }

    /// Samples and observes a decision that was made at once and is not timed, if that is due.
    pub(crate) fn sample_decided(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        request: &Request<'_>,
        decision: Decision,
    ) {
        let due = caches.next_due(self.clock());
        if due.is_sampled {
            self.note_sample(request, &mut decision.into());
        }
        if let Some(weight) = due.weight.filter(|_| self.is_counting()) {
            self.keep_sample(request, weight);
            self.observe_decided(rules, caches, request, &decision, weight);
        }
    }

    /// Observes a decision that was made at once and is in the sample.
    fn observe_decided(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        request: &Request<'_>,
        decision: &Decision,
        weight: u32,
    ) {
        let labels = caches.labels(request.door);
        self.observe_labelled(rules, caches, labels, request, decision, weight);
    }

    /// The same for a request with these labels.
    pub(crate) fn observe_labelled(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        labels: RequestLabels,
        request: &Request<'_>,
        decision: &Decision,
        weight: u32,
    ) {
        let found = FinalDecision { rules, labels, decision, outcome: DecisionOutcome::of(decision) };
        self.observe(caches, &found, request, weight);
    }

    /// A copy of the identities of a request that is decided later, if they may be needed then.
    pub(crate) fn copy_for_later(&self, request: &Request<'_>) -> Option<IdentityCopy> {
        if !self.is_counting() {
            return None;
        }
        // A record needs the key; for the top keys, one that needs no allocation is enough.
        let has_observer = self.observation.observer.is_some();
        IdentityCopy::new(request, if has_observer { CopyMemory::Any } else { CopyMemory::Inline })
    }

    /// The key of `request` under `rule` without the route, and its label; without a rule, those of the client.
    fn key_and_label(&self, rule: Option<&Rule>, request: &Request<'_>) -> (u64, Label) {
        let identities = rule.map(|rule| identities(rule, request)).unwrap_or_default();
        let (key, label, identities) = match identities.as_slice() {
            // No rule, or one that counts by route alone.
            [] => {
                let (key, identity) = watched(self.seed(), request);
                (key, Label::new(&identity), SmallVec::from_slice(&[identity]))
            }
            [identity] => (hash(self.seed(), &identities), Label::new(identity), identities),
            several => (hash(self.seed(), several), Label::joined(several), identities),
        };
        match &*self.observation.fleet_seed.load() {
            Some(seed) => (key, label.marked((hash(seed, &identities) >> 32) as u32)),
            None => (key, label),
        }
    }
}

fn hash(seed: &KeySeed, identities: &[Identity<'_>]) -> u64 {
    identities.iter().fold(0, |chain, identity| seed.chain(chain, identity))
}

/// The identities by which `rule` counts `request`, without route and other properties of the request. Two dimensions are the same identity where a request
/// lacks both.
pub(crate) fn identities<'r>(rule: &Rule, request: &Request<'r>) -> SmallVec<[Identity<'r>; 2]> {
    let mut found = SmallVec::new();
    for dimension in rule.key.iter().filter(|dimension| dimension.is_of_client()) {
        let identity = identity(dimension, rule.ipv6_prefix, request, 0);
        if !found.contains(&identity) {
            found.push(identity);
        }
    }
    found
}
