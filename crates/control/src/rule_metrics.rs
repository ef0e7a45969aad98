//! The metrics of a rule source.

use crate::revision::text_digest;
use crate::rule_installer::RuleStatus;
use crate::source_thread::SourceHealth;
use tokio::sync::watch;
use tollgate_core::time::UnixTime;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};

/// The digits of the digest in a label: enough to compare rules.
const DIGEST_DIGITS: usize = 16;

/// The revision in force, its age, what could not be installed, and polls that failed.
#[derive(Debug)]
pub struct RuleMetrics {
    status: watch::Receiver<RuleStatus>,
    health: SourceHealth,
}

impl RuleMetrics {
    /// The metrics of the source with this status and health.
    pub fn new(status: watch::Receiver<RuleStatus>, health: SourceHealth) -> Self {
        Self { status, health }
    }

    /// The metrics of rules with this text that never change, installed at `now`.
    pub fn constant(text: &str, now: UnixTime) -> Self {
        let digest = text_digest(text);
        let status = RuleStatus { revision: 1, installed: now, digest, ..RuleStatus::default() };
        Self { status: watch::channel(status).1, health: SourceHealth::default() }
    }
}

impl MetricSource for RuleMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        let status = self.status.borrow();
        samples.number(&catalog::RULES_REVISION, &[], status.revision as f64);
        let digest = status.digest.get(..DIGEST_DIGITS).unwrap_or_default();
        samples.number(&catalog::RULES_INFO, &[digest], 1.0);
        samples.number(&catalog::RULES_LOADED, &[], status.installed.as_us() as f64 / 1e6);
        samples.count(&catalog::RULES_RELOAD_FAILURES, &[], status.failures);
        samples.number(&catalog::RULES_FAILED_POLLS, &[], self.health.failed_polls() as f64);
        samples.number(&catalog::RULES_STALE, &[], f64::from(u8::from(status.error.is_some())));
    }
}
