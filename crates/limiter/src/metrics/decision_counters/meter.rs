//! Reads how many decisions were made since the last reading, for live figures.
//!
//! The meter keeps the list of series, and takes the lock of the registry only when that list has changed: a decision
//! takes that lock for the first of a series on its thread, and never again. Counts never go back, as those of a metric do
//! when a rule is removed: a series that disappears is read once more.

use super::super::decision_outcome::DecisionOutcome;
use super::super::histogram::HistogramSnapshot;
use super::collection::outcome_total;
use super::{DecisionCounters, Series};
use crate::limiter::Limiter;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Counts of decisions by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts([u64; DecisionOutcome::ALL.len()]);

impl OutcomeCounts {
    /// The decisions with this outcome.
    pub fn of(&self, outcome: DecisionOutcome) -> u64 {
        self.0[outcome as usize]
    }

    /// All decisions.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds decisions with this outcome.
    pub fn add(&mut self, outcome: DecisionOutcome, count: u64) {
        self.0[outcome as usize] += count;
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }
}

/// The decisions since the last reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecisionIncrements {
    /// All of them.
    pub outcomes: OutcomeCounts,
    /// By the rule that determined them; empty for none.
    pub rules: BTreeMap<Arc<str>, OutcomeCounts>,
    /// The durations of all decisions since the start: those made on the node, which are a weighted sample, and those that
    /// waited for the shared store.
    pub durations: HistogramSnapshot,
}

/// Reads the counters of a limiter again and again. It belongs to a thread that makes no decisions.
#[derive(Debug)]
pub struct DecisionMeter {
    limiter: Arc<Limiter>,
    /// The version of the list of series.
    version: u64,
    series: Vec<MeteredSeries>,
}

#[derive(Debug)]
struct MeteredSeries {
    rule: Arc<str>,
    series: Arc<Series>,
    /// What was read last.
    last: OutcomeCounts,
}

impl DecisionMeter {
    /// A meter that counts from now on.
    pub fn new(limiter: Arc<Limiter>) -> Self {
        let mut meter = Self { limiter, version: 0, series: Vec::new() };
        meter.take();
        meter
    }

    /// The decisions since the last call.
    pub fn take(&mut self) -> DecisionIncrements {
        let mut found = DecisionIncrements::default();
        self.read(&mut found);
        let limiter = Arc::clone(&self.limiter);
        let counters = &limiter.counters;
        if counters.version.load(Ordering::Acquire) != self.version {
            self.refresh(counters);
            self.read(&mut found);
        }
        found.durations = counters.local.snapshot();
        found.durations.add(&counters.remote.snapshot());
        found
    }

    fn read(&mut self, found: &mut DecisionIncrements) {
        for metered in &mut self.series {
            let totals = metered.series.totals();
            let mut added = OutcomeCounts::default();
            for outcome in DecisionOutcome::ALL {
                let total = outcome_total(&totals, outcome);
                let last = &mut metered.last.0[outcome as usize];
                added.add(outcome, total.saturating_sub(*last));
                *last = total;
            }
            if !added.is_empty() {
                let rule = found.rules.entry(Arc::clone(&metered.rule)).or_default();
                for outcome in DecisionOutcome::ALL {
                    found.outcomes.add(outcome, added.of(outcome));
                    rule.add(outcome, added.of(outcome));
                }
            }
        }
    }

    /// Takes the list of series anew.
    fn refresh(&mut self, counters: &DecisionCounters) {
        let known: HashMap<*const Series, OutcomeCounts> =
            self.series.iter().map(|metered| (Arc::as_ptr(&metered.series), metered.last)).collect();
        let series = counters.series.lock();
        self.version = counters.version.load(Ordering::Acquire);
        let listed: Vec<_> =
            series.iter().map(|(labels, series)| (Arc::clone(&labels.rule), Arc::clone(series))).collect();
        drop(series);
        // The old list is dropped last: until then no new series can have the address of an old one.
        let metered = listed.into_iter().map(|(rule, series)| {
            let last = known.get(&Arc::as_ptr(&series)).copied().unwrap_or_default();
            MeteredSeries { rule, series, last }
        });
        self.series = metered.collect();
    }
}
