//! The metrics of a rule source.

use crate::rule_installer::{self, RuleStatus};
use tokio::sync::watch;
use tollgate_core::time::UnixTime;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};

/// The revision in force, its age, and what could not be installed.
#[derive(Debug)]
pub struct RuleMetrics(watch::Receiver<RuleStatus>);

impl RuleMetrics {
    /// The metrics of the source with this status.
    pub fn new(status: watch::Receiver<RuleStatus>) -> Self {
        Self(status)
    }

    /// The metrics of rules with this text that never change, installed at `now`.
    pub fn constant(text: &str, now: UnixTime) -> Self {
        let digest = rule_installer::digest_of(text);
        let status = RuleStatus { revision: 1, installed: now, digest, ..RuleStatus::default() };
        Self(watch::channel(status).1)
    }
}

impl MetricSource for RuleMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        let status = self.0.borrow();
        samples.number(&catalog::RULES_REVISION, &[], status.revision as f64);
        samples.number(&catalog::RULES_INFO, &[&status.digest], 1.0);
        samples.number(&catalog::RULES_LOADED, &[], status.installed.as_us() as f64 / 1e6);
        samples.count(&catalog::RULES_RELOAD_FAILURES, &[], status.failures);
        samples.number(&catalog::RULES_STALE, &[], f64::from(u8::from(status.error.is_some())));
    }
}
