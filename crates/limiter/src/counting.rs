//! Counting decisions: each exactly once, where it is final.

use crate::decision::{Check, Decision};
use crate::limiter::Limiter;
use crate::memo::Caches;
use crate::metrics::decision_counters::{DecidedBy, RequestLabels};
use crate::metrics::{DecisionOutcome, MetricSamples, MetricSource, catalog};
use crate::observe::{FinalDecision, LateObservation};
use crate::snapshot::{RulesInForce, Snapshot};
use std::sync::atomic::Ordering;
use tollgate_core::decision::InvalidRequest;
use tollgate_core::request::{Door, Request};
use tollgate_core::rules::LimitId;

/// Whether a limiter counts its decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// It does, for metrics.
    #[default]
    On,
    /// It does not.
    Off,
}

impl Limiter {
    /// Counts an invalid request. Called where the error arises: a look at every result would cost every check.
    #[cold]
    #[inline(never)]
    pub(crate) fn count_invalid(&self, door: Door, error: InvalidRequest) -> InvalidRequest {
        self.counters.count_invalid(door);
        error
    }

    /// Counts a check that is decided; one that waits for the shared store is counted when it is.
    pub(crate) fn count_check(
        &self,
        snapshot: &Snapshot,
        caches: &mut Caches,
        request: &Request<'_>,
        check: &mut Check<'_>,
    ) {
        match check {
            Check::Decided(decision) => self.count(&snapshot.rules, caches, request, decision),
            Check::Pending(pending) => {
                pending.count_as(caches.labels(request.door), self.copy_for_later(request));
            }
        }
    }

    /// Counts a decision that was made at once.
    pub(crate) fn count(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        request: &Request<'_>,
        decision: &Decision,
    ) {
        self.count_labelled(rules, caches, caches.labels(request.door), request, decision);
    }

    /// The same for a request with these labels.
    pub(crate) fn count_labelled(
        &self,
        rules: &RulesInForce,
        caches: &mut Caches,
        labels: RequestLabels,
        request: &Request<'_>,
        decision: &Decision,
    ) {
        if !self.is_counting() {
            return;
        }
        let found = FinalDecision { rules, labels, decision, outcome: DecisionOutcome::of(decision) };
        self.count_final(caches, &found);
        self.observe_refusal(caches, &found, request);
    }

    fn count_final(&self, caches: &mut Caches, found: &FinalDecision<'_>) {
        let FinalDecision { rules, labels, decision, outcome } = *found;
        let decided_by = DecidedBy::of(decision, outcome).under(rules);
        caches.handle(&self.counters, rules, decided_by, labels).count(outcome, decision);
        let noted = decision.noted;
        // A shadow rule that did not determine the outcome: what is left of it is of interest nevertheless.
        if noted.limit != LimitId::NONE
            && decision.shadowed_by.is_none()
            && decision.flagged_by.is_none()
            && decision.soft.is_none()
            && decided_by != DecidedBy::Limit(noted.limit)
        {
            let handle = caches.handle(&self.counters, rules, DecidedBy::Limit(noted.limit), labels);
            handle.observe_shadow(noted.remaining);
        }
    }

    /// Counts a decision that was made some time after its request was selected, maybe on another thread.
    pub(crate) fn count_late(&self, found: &FinalDecision<'_>, late: &LateObservation) {
        if !self.is_counting() {
            return;
        }
        self.with_snapshot(|_, caches| {
            self.count_final(caches, found);
            let Some(request) = &late.request else { return };
            request.with_request(|request| {
                self.observe_refusal(caches, found, request);
                if let Some(weight) = late.weight {
                    self.observe(caches, found, request, weight);
                }
            });
        });
    }
}

impl MetricSource for Limiter {
    fn collect(&self, samples: &mut MetricSamples) {
        self.counters.collect(samples);
        let usage = self.store().usage();
        samples.number(&catalog::MEMORY_STATES, &[], usage.states as f64);
        samples.number(&catalog::MEMORY_BYTES, &[], usage.bytes as f64);
        samples.number(&catalog::MEMORY_LIMIT, &[], self.store().most_bytes() as f64);
        samples.count(&catalog::MEMORY_EVICTIONS, &[], usage.evicted);
        samples.count(&catalog::MEMORY_OVERFLOW, &[], usage.overflowed);
        samples.number(&catalog::RULES, &[], self.rule_count() as f64);
        let abuse = self.abuse_counts();
        let hot_keys = self.hot_keys();
        samples.number(&catalog::HELD_CLIENTS, &[], abuse.held as f64);
        samples.count(&catalog::PENALTIES, &[], abuse.cooldowns);
        samples.number(&catalog::HOT_KEYS, &[], hot_keys.len() as f64);
        let hottest = hot_keys.first().map_or(0, |key| key.per_second);
        samples.number(&catalog::HOTTEST_KEY, &[], hottest as f64);
        samples.number(&catalog::KEYS_AT_ZERO, &[], self.keys_at_zero() as f64);
        samples.count(&catalog::HOT_KEY_DENIALS, &[], abuse.denials);
        samples.number(&catalog::QUEUED, &[], self.admissions.wait_queues.waiting() as f64);
        samples.number(&catalog::IN_FLIGHT, &[], self.admissions.slots.load(Ordering::Relaxed) as f64);
    }
}
