//! The values of all metrics at one time, collected from the parts of a node. Every exporter writes the same values.

use super::catalog::{MetricDefinition, MetricKind};
use super::histogram::HistogramSnapshot;
use smallvec::SmallVec;
use std::sync::Arc;

/// A part of a node that has metrics.
pub trait MetricSource: Send + Sync {
    /// Adds the current values to `samples`. Called by exporters, on their own threads.
    fn collect(&self, samples: &mut MetricSamples);
}

/// The values of metrics, by metric.
#[derive(Clone, Debug, Default)]
pub struct MetricSamples {
    families: Vec<MetricFamily>,
}

/// The values of one metric.
#[derive(Clone, Debug)]
pub struct MetricFamily {
    /// The metric.
    pub definition: &'static MetricDefinition,
    /// One value for each combination of labels.
    pub samples: Vec<MetricSample>,
}

/// One value of a metric.
#[derive(Clone, Debug)]
pub struct MetricSample {
    /// The values of the labels, in the order of the definition.
    pub labels: LabelValues,
    /// The value.
    pub value: MetricValue,
}

/// The values of the labels of one sample.
pub type LabelValues = SmallVec<[Arc<str>; 6]>;

/// A value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricValue {
    /// Of a counter that counts things.
    Count(u64),
    /// Of a counter of seconds, or a gauge.
    Number(f64),
    /// Of a histogram.
    Histogram(HistogramSnapshot),
}

impl MetricSamples {
    /// The values of all `sources`, with the metrics in the order of the catalog.
    pub fn of<'s>(sources: impl IntoIterator<Item = &'s (dyn MetricSource + 's)>) -> Self {
        let mut samples = Self::default();
        for source in sources {
            source.collect(&mut samples);
        }
        let position = |family: &MetricFamily| {
            super::catalog::ALL.iter().position(|known| std::ptr::eq(*known, family.definition))
        };
        samples.families.sort_by_key(position);
        samples
    }

    /// Adds the value of a counter.
    pub fn count(&mut self, definition: &'static MetricDefinition, labels: &[&str], value: u64) {
        self.add(definition, texts(labels), MetricValue::Count(value));
    }

    /// Adds the value of a gauge, or of a counter of seconds.
    pub fn number(&mut self, definition: &'static MetricDefinition, labels: &[&str], value: f64) {
        self.add(definition, texts(labels), MetricValue::Number(value));
    }

    /// Adds the state of a histogram.
    pub fn histogram(
        &mut self,
        definition: &'static MetricDefinition,
        labels: &[&str],
        value: HistogramSnapshot,
    ) {
        self.add(definition, texts(labels), MetricValue::Histogram(value));
    }

    /// Adds a value.
    pub fn add(&mut self, definition: &'static MetricDefinition, labels: LabelValues, value: MetricValue) {
        debug_assert_eq!(labels.len(), definition.labels.len(), "{}", definition.name);
        debug_assert_eq!(
            definition.kind == MetricKind::Histogram,
            matches!(value, MetricValue::Histogram(_)),
            "{}",
            definition.name
        );
        let sample = MetricSample { labels, value };
        // Values of one metric mostly come one after the other.
        let known = self.families.iter().rposition(|family| std::ptr::eq(family.definition, definition));
        match known {
            Some(known) => self.families[known].samples.push(sample),
            None => self.families.push(MetricFamily { definition, samples: vec![sample] }),
        }
    }

    /// The metrics that have values.
    pub fn families(&self) -> &[MetricFamily] {
        &self.families
    }

    /// The values of one metric.
    pub fn of_metric(&self, definition: &MetricDefinition) -> &[MetricSample] {
        let family = self.families.iter().find(|family| std::ptr::eq(family.definition, definition));
        family.map_or(&[], |family| &family.samples)
    }
}

impl MetricSample {
    /// The count, of a counter that counts things.
    pub fn as_count(&self) -> Option<u64> {
        match &self.value {
            MetricValue::Count(count) => Some(*count),
            MetricValue::Number(_) | MetricValue::Histogram(_) => None,
        }
    }
}

fn texts(labels: &[&str]) -> LabelValues {
    labels.iter().map(|label| Arc::from(*label)).collect()
}
