//! The metrics of a node, for all exporters.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use tollgate_limiter::metrics::{MetricSamples, MetricSource};

/// The parts of a node that have metrics. Every exporter collects their values from here, so all of them export the same
/// totals.
#[derive(Default)]
pub struct MetricRegistry {
    sources: Mutex<Vec<Arc<dyn MetricSource>>>,
}

impl MetricRegistry {
    /// Adds a part. No two sources may have values of the same metric with the same labels.
    pub fn register(&self, source: Arc<dyn MetricSource>) {
        self.sources.lock().push(source);
    }

    /// The values of all metrics now.
    pub fn collect(&self) -> MetricSamples {
        // Sources are asked without the lock: one of them may take its time.
        let sources = self.sources.lock().clone();
        MetricSamples::of(sources.iter().map(|source| -> &dyn MetricSource { source.as_ref() }))
    }
}

impl fmt::Debug for MetricRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricRegistry").field("sources", &self.sources.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::metrics::catalog;

    struct Constant(u64);

    impl MetricSource for Constant {
        fn collect(&self, samples: &mut MetricSamples) {
            samples.count(&catalog::STORE_CALLS, &["a"], self.0);
        }
    }

    #[test]
    fn values_of_all_sources_are_collected() {
        let registry = MetricRegistry::default();
        registry.register(Arc::new(Constant(3)));
        registry.register(Arc::new(crate::ProcessMetrics::new("1.2.3")));
        let samples = registry.collect();
        assert_eq!(samples.of_metric(&catalog::STORE_CALLS)[0].as_count(), Some(3));
        assert_eq!(samples.of_metric(&catalog::BUILD_INFO).len(), 1);
    }
}
