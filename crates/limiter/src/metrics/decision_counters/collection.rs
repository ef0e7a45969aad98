//! Adds up the counters of decisions for an exporter.

use super::super::catalog;
use super::super::decision_outcome::DecisionOutcome;
use super::super::histogram::HistogramSnapshot;
use super::super::samples::{LabelValues, MetricSamples, MetricValue};
use super::{
    ALLOWED_BY_REMAINING, ALLOWED_UNLIMITED, CELLS, DecisionCounters, LIMITED_BY_RETRY,
    LIMITED_UNKNOWN_RETRY, OTHERS, REMAINING_SUM, REMAINING_TENTHS, REMAINING_UNIT, RETRY_BOUNDS_US,
    RETRY_SUM_US, SHADOW_BY_REMAINING, Series, SeriesLabels,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_core::request::Door;

impl DecisionCounters {
    /// Adds the values of all series.
    pub(crate) fn collect(&self, samples: &mut MetricSamples) {
        let mut by_rule: BTreeMap<Arc<str>, RuleTotals> = BTreeMap::new();
        let names = DecisionOutcome::ALL.map(|outcome| Arc::<str>::from(outcome.name()));
        let doors = Door::ALL.map(|door| (door, Arc::<str>::from(door.name())));
        let mut algorithms: HashMap<&'static str, Arc<str>> = HashMap::new();
        for (labels, series) in self.sorted_series() {
            let totals = series.totals();
            let algorithm = algorithms.entry(labels.algorithm).or_insert_with(|| labels.algorithm.into());
            let door = doors.iter().find(|(door, _)| *door == labels.door).map(|(_, name)| name);
            let texts: LabelValues = [
                Arc::clone(&labels.rule),
                Arc::clone(algorithm),
                Arc::clone(&labels.tier),
                Arc::clone(&labels.route),
                door.map_or_else(|| labels.door.name().into(), Arc::clone),
            ]
            .into_iter()
            .collect();
            for (outcome, name) in DecisionOutcome::ALL.into_iter().zip(&names) {
                let count = outcome_total(&totals, outcome);
                // A rate cannot be computed from a series that begins above zero: those of alerts begin at zero.
                let is_usual = matches!(
                    outcome,
                    DecisionOutcome::Allowed | DecisionOutcome::Limited | DecisionOutcome::Degraded
                );
                if count > 0 || is_usual && !labels.rule.is_empty() {
                    let mut texts = texts.clone();
                    texts.push(Arc::clone(name));
                    samples.add(&catalog::DECISIONS, texts, MetricValue::Count(count));
                }
            }
            if !labels.rule.is_empty() {
                by_rule.entry(labels.rule).or_default().add(&totals);
            }
        }
        for (rule, totals) in by_rule {
            totals.collect(&rule, samples);
        }
        for door in Door::ALL {
            let count = self.invalid[door as usize].load(Ordering::Relaxed);
            samples.count(&catalog::INVALID_REQUESTS, &[door.name()], count);
        }
        samples.histogram(&catalog::DECISION_DURATION, &["local"], self.local.snapshot());
        samples.histogram(&catalog::DECISION_DURATION, &["remote"], self.remote.snapshot());
    }

    /// All series, in the order of their labels.
    fn sorted_series(&self) -> Vec<(SeriesLabels, Arc<Series>)> {
        let series = self.series.lock();
        let mut all: Vec<_> =
            series.iter().map(|(labels, series)| (labels.clone(), Arc::clone(series))).collect();
        drop(series);
        all.sort_unstable_by(|(a, _), (b, _)| a.sort_key().cmp(&b.sort_key()));
        all
    }
}

impl SeriesLabels {
    fn sort_key(&self) -> (&str, &str, &str, &str, Door) {
        (&self.rule, &self.route, &self.tier, self.algorithm, self.door)
    }
}

/// How many decisions had this outcome.
pub(super) fn outcome_total(totals: &[u64; CELLS], outcome: DecisionOutcome) -> u64 {
    match outcome {
        DecisionOutcome::Allowed => totals[ALLOWED_BY_REMAINING..=ALLOWED_UNLIMITED].iter().sum(),
        DecisionOutcome::Limited => totals[LIMITED_BY_RETRY..=LIMITED_UNKNOWN_RETRY].iter().sum(),
        other => totals[OTHERS + other as usize - 2],
    }
}

/// What is shown of a rule over all of its series.
#[derive(Default)]
struct RuleTotals {
    remaining: [u64; REMAINING_TENTHS + 1],
    remaining_sum: u64,
    exhausted: u64,
    retries: [u64; RETRY_BOUNDS_US.len() + 1],
    retry_sum_us: u64,
}

impl RuleTotals {
    fn add(&mut self, totals: &[u64; CELLS]) {
        for first in [ALLOWED_BY_REMAINING, SHADOW_BY_REMAINING] {
            for (count, added) in self.remaining.iter_mut().zip(&totals[first..]) {
                *count += added;
            }
        }
        self.exhausted += totals[ALLOWED_BY_REMAINING];
        for (count, added) in self.retries.iter_mut().zip(&totals[LIMITED_BY_RETRY..]) {
            *count += added;
        }
        self.remaining_sum = self.remaining_sum.wrapping_add(totals[REMAINING_SUM]);
        self.retry_sum_us = self.retry_sum_us.wrapping_add(totals[RETRY_SUM_US]);
    }

    fn collect(&self, rule: &str, samples: &mut MetricSamples) {
        let retries = HistogramSnapshot {
            bounds: RETRY_BOUNDS_US.iter().map(|bound_us| *bound_us as f64 / 1e6).collect(),
            counts: self.retries.to_vec(),
            sum: self.retry_sum_us as f64 / 1e6,
        };
        samples.histogram(&catalog::RETRY_AFTER, &[rule], retries);
        let tenth = |tenth: usize| tenth as f64 / REMAINING_TENTHS as f64;
        let remaining = HistogramSnapshot {
            bounds: (0..=REMAINING_TENTHS).map(tenth).collect(),
            counts: self.remaining.iter().copied().chain([0]).collect(),
            sum: self.remaining_sum as f64 * REMAINING_UNIT,
        };
        samples.histogram(&catalog::REMAINING, &[rule], remaining);
        samples.count(&catalog::BURST_EXHAUSTED, &[rule], self.exhausted);
    }
}
