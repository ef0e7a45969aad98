//! Puts the rules of a source in force: validation, their tests, installation, and the last good rules for a restart.
//!
//! A source reads rules from somewhere and follows their changes, in a thread or a task of its own. It passes what it
//! reads to a [`RuleInstaller`], also if it cannot read: [`RuleInstaller::open`] the first time, then
//! [`RuleInstaller::update`]. Everything else is the same for all sources and is done here.

use crate::last_good_rules::LastGoodRules;
use crate::rule_tests::{FailedTestPolicy, RuleTestFailures};
use aws_lc_rs::digest;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tollgate_core::diagnostic::DiagnosticReport;
use tollgate_core::rules::{self, LoadedRules, OpenDoor};
use tollgate_core::time::UnixTime;
use tollgate_limiter::{LimitNamesFull, Limiter};

/// Rules as a source yields them.
#[derive(Clone, Debug)]
pub struct SourcedRules {
    /// The rules, in YAML.
    pub text: String,
    /// The number of this version in the source; none if the source has no numbers, and the node counts.
    pub revision: Option<u64>,
    /// Where they were read, such as the path of a file. Messages begin with it.
    pub origin: String,
}

/// Why the rules of a source are not used.
#[derive(Debug, thiserror::Error)]
pub enum RuleSourceError {
    /// The source cannot be read.
    #[error("error: cannot read {origin}: {error}")]
    Read {
        /// Where the rules are.
        origin: String,
        /// The cause.
        error: io::Error,
    },
    /// The rules are invalid.
    #[error("{0}")]
    Rules(DiagnosticReport),
    /// Tests of the rules failed.
    #[error("{0}")]
    Tests(RuleTestFailures),
    /// The names of the limits do not fit into the memory for names.
    #[error("{0}")]
    Names(#[from] LimitNamesFull),
}

/// How rules are put in force.
#[derive(Clone, Debug, Default)]
pub struct InstallSettings {
    /// What happens if their tests fail.
    pub failed_tests: FailedTestPolicy,
    /// The folder in which the last good rules are kept; none to keep none.
    pub data: Option<PathBuf>,
    /// The open doors: a rule with a feature that one of them does not support gets a warning at every load.
    pub doors: Vec<OpenDoor>,
}

/// The state of a source.
#[derive(Clone, Debug, Default)]
pub struct RuleStatus {
    /// The revision in force. Unless the source has its own numbers, it counts the rule sets since the start.
    pub revision: u64,
    /// Why the newest rules of the source are not in force.
    pub error: Option<Arc<RuleSourceError>>,
    /// When the rules in force were installed.
    pub installed: UnixTime,
    /// The digest of the text of the rules in force ([`digest_of`]).
    pub digest: String,
    /// How often rules were read and not installed.
    pub failures: u64,
}

/// The first 16 digits of the SHA-256 of rules, as `sha256sum` prints it: nodes with equal digests have equal rules.
pub fn digest_of(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Puts the rules of one source in force in a limiter.
#[derive(Debug)]
pub struct RuleInstaller {
    failed_tests: FailedTestPolicy,
    limiter: Arc<Limiter>,
    last_good: Option<LastGoodRules>,
    doors: Vec<OpenDoor>,
    status: watch::Sender<RuleStatus>,
}

impl RuleInstaller {
    /// Puts the rules of `read`, the first that were read from `source`, in force. If they cannot be used, the last good
    /// ones of this source are; without these it is an error, and no rules are in force.
    ///
    /// `source` names the source wherever the node is started: an absolute path, or a URL.
    pub fn open(
        source: &str,
        read: Result<SourcedRules, RuleSourceError>,
        settings: InstallSettings,
        limiter: Arc<Limiter>,
    ) -> Result<Self, RuleSourceError> {
        let InstallSettings { failed_tests, data, doors } = settings;
        let last_good = data.map(|folder| LastGoodRules::open(&folder, source)).transpose();
        let last_good =
            last_good.map_err(|error| RuleSourceError::Read { origin: source.to_owned(), error })?;
        let installer = Self { failed_tests, limiter, last_good, doors, status: watch::Sender::default() };
        if let Err(error) = read.and_then(|rules| installer.load_and_install(rules)) {
            installer.fall_back(error)?;
        }
        Ok(installer)
    }

    /// Puts newer rules in force if they are good. Otherwise the rules in force stay, and the error is logged.
    pub fn update(&self, read: Result<SourcedRules, RuleSourceError>) {
        if let Err(error) = read.and_then(|rules| self.load_and_install(rules)) {
            tracing::error!("rule reload failed; the previous rules stay in force:\n{error}");
            self.status.send_modify(|status| {
                status.error = Some(Arc::new(error));
                status.failures += 1;
            });
        }
    }

    /// The state of the source, now and after every change.
    pub fn status(&self) -> watch::Receiver<RuleStatus> {
        self.status.subscribe()
    }

    /// Whether the newest rules of the source are in force.
    pub fn is_current(&self) -> bool {
        self.status.borrow().error.is_none()
    }

    fn load(&self, rules: SourcedRules) -> Result<(LoadedRules, SourcedRules), RuleSourceError> {
        let loaded = self.parse(&rules.origin, &rules.text)?;
        match (RuleTestFailures::find(&rules.origin, &loaded), self.failed_tests) {
            (None, _) => {}
            (Some(failures), FailedTestPolicy::Refuse) => return Err(RuleSourceError::Tests(failures)),
            (Some(failures), FailedTestPolicy::Warn) => {
                tracing::warn!("rules with failed tests are used:\n{failures}");
            }
        }
        Ok((loaded, rules))
    }

    fn parse(&self, origin: &str, text: &str) -> Result<LoadedRules, RuleSourceError> {
        let loaded = rules::load_for(origin, text, &self.doors).map_err(RuleSourceError::Rules)?;
        if !loaded.warnings.is_empty() {
            tracing::warn!("{}", loaded.warnings);
        }
        Ok(loaded)
    }

    /// Loads the rules and puts them in force.
    fn load_and_install(&self, sourced: SourcedRules) -> Result<(), RuleSourceError> {
        let (loaded, sourced) = self.load(sourced)?;
        let rules = loaded.rules.rules().len();
        self.limiter.install(loaded.rules, loaded.lists)?;
        let digest = digest_of(&sourced.text);
        if let Some(last_good) = &self.last_good {
            last_good.keep(sourced.text);
        }
        let mut revision = 0;
        self.status.send_modify(|status| {
            status.revision = sourced.revision.unwrap_or(status.revision + 1);
            status.error = None;
            status.installed = self.limiter.clock().now();
            status.digest.clone_from(&digest);
            revision = status.revision;
        });
        tracing::info!(revision, rules, %digest, file = %sourced.origin, "rules in force");
        Ok(())
    }

    /// Puts the last good rules in force. Without any, returns `error`, the error of the source.
    fn fall_back(&self, error: RuleSourceError) -> Result<(), RuleSourceError> {
        let kept = self.last_good.as_ref().map(LastGoodRules::read).transpose();
        let kept = match kept.map(Option::flatten) {
            Ok(Some(kept)) => kept,
            Ok(None) => return Err(error),
            Err(problem) => {
                tracing::error!(error = %problem, "last good rules cannot be read");
                return Err(error);
            }
        };
        let loaded = match self.parse(&kept.path.display().to_string(), &kept.text) {
            Ok(loaded) => loaded,
            Err(problem) => {
                tracing::error!("last good rules are invalid:\n{problem}");
                return Err(error);
            }
        };
        self.limiter.install(loaded.rules, loaded.lists)?;
        tracing::error!(
            "rule file cannot be used; the last good rules are in force, from {} of {}:\n{error}",
            kept.path.display(),
            kept.written
        );
        let (error, installed) = (Some(Arc::new(error)), self.limiter.clock().now());
        let digest = digest_of(&kept.text);
        self.status.send_replace(RuleStatus { revision: 1, error, installed, digest, failures: 1 });
        Ok(())
    }
}
