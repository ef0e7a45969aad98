//! Failed exports: each is counted, and few are logged.

use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};

/// The shortest time between two log lines of one exporter.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The failures of one exporter.
#[derive(Debug)]
pub(crate) struct ExportFailures {
    /// The label `exporter`.
    exporter: &'static str,
    count: AtomicU64,
    log: Mutex<FailureLog>,
}

#[derive(Debug, Default)]
struct FailureLog {
    last_line: Option<Instant>,
    /// Failures since the last line.
    unlogged: u64,
}

impl ExportFailures {
    pub(crate) fn new(exporter: &'static str) -> Self {
        Self { exporter, count: AtomicU64::new(0), log: Mutex::default() }
    }

    /// Counts a failed export of `signal`: metrics, logs or spans.
    pub(crate) fn record(&self, signal: &'static str, error: &dyn fmt::Display) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(failures) = self.failures_to_log() else { return };
        tracing::warn!(exporter = self.exporter, signal, failures, %error, "telemetry export failed");
    }

    /// The number of failures since the last line, if a line is due.
    fn failures_to_log(&self) -> Option<u64> {
        let mut log = self.log.lock();
        log.unlogged += 1;
        if log.last_line.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return None;
        }
        log.last_line = Some(Instant::now());
        Some(std::mem::take(&mut log.unlogged))
    }
}

impl MetricSource for ExportFailures {
    fn collect(&self, samples: &mut MetricSamples) {
        samples.count(&catalog::EXPORT_FAILURES, &[self.exporter], self.count.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_in_ten_seconds_has_the_number_of_failures() {
        let failures = ExportFailures::new("otlp");
        assert_eq!(failures.failures_to_log(), Some(1));
        for _ in 0..5 {
            tokio::time::advance(Duration::from_millis(1999)).await;
            assert_eq!(failures.failures_to_log(), None);
        }
        tokio::time::advance(Duration::from_millis(5)).await;
        assert_eq!(failures.failures_to_log(), Some(6));
    }
}
