//! Puts the rules of a source in force: validation, their tests, installation, and the last good rules for a restart.
//!
//! A source reads rules from somewhere and follows their changes, in a thread or a task of its own. It passes what it
//! reads to a [`RuleInstaller`], also if it cannot read: [`RuleInstaller::open`] the first time, then
//! [`RuleInstaller::update`]. Everything else is the same for all sources and is done here.

use crate::last_good_rules::{KeptRules, LastGoodRules};
use crate::revision::{RevisionSummary, text_digest};
use crate::rule_tests::{FailedTestPolicy, RuleTestFailures};
use parking_lot::Mutex;
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
    /// Which revision they are.
    pub revision: SourcedRevision,
    /// Where they were read, such as the path of a file. Messages begin with it.
    pub origin: String,
}

/// Which revision the rules of a source are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcedRevision {
    /// The source has no numbers, and the node counts.
    Counted,
    /// The repository does not have them yet: the number of the previous ones stays, or is 0.
    Unrecorded,
    /// The repository has them.
    Stored(RevisionSummary),
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
    /// The number of the revision in force. 0 if the repository could not be reached since the start. Without a repository
    /// it counts the rule sets since the start.
    pub revision: u64,
    /// The digest of the text in force.
    pub digest: String,
    /// Why the newest rules of the source are not in force.
    pub error: Option<Arc<RuleSourceError>>,
    /// When the rules in force were installed.
    pub installed: UnixTime,
    /// How often rules were read and not installed.
    pub failures: u64,
}

/// Puts the rules of one source in force in a limiter.
#[derive(Debug)]
pub struct RuleInstaller {
    failed_tests: FailedTestPolicy,
    limiter: Arc<Limiter>,
    last_good: Option<LastGoodRules>,
    doors: Vec<OpenDoor>,
    status: watch::Sender<RuleStatus>,
    /// The rules in force, if their line in the log waits for the number of their revision.
    unlogged: Mutex<Option<InstalledRules>>,
}

/// What the log says about rules in force.
#[derive(Debug)]
struct InstalledRules {
    rules: usize,
    origin: String,
}

impl RuleInstaller {
    /// An installer without rules yet.
    pub(crate) fn new(settings: InstallSettings, limiter: Arc<Limiter>) -> io::Result<Self> {
        let InstallSettings { failed_tests, data, doors } = settings;
        let last_good = data.map(|folder| LastGoodRules::open(&folder)).transpose()?;
        Ok(Self {
            failed_tests,
            limiter,
            last_good,
            doors,
            status: watch::Sender::default(),
            unlogged: Mutex::default(),
        })
    }

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
        let installer = Self::new(settings, limiter);
        let installer =
            installer.map_err(|error| RuleSourceError::Read { origin: source.to_owned(), error })?;
        installer.load_first(source, read)?;
        Ok(installer)
    }

    /// As [`open`](Self::open).
    pub(crate) fn load_first(
        &self,
        source: &str,
        read: Result<SourcedRules, RuleSourceError>,
    ) -> Result<FirstRules, RuleSourceError> {
        match read.and_then(|rules| self.load_and_install(source, rules)) {
            Ok(()) => Ok(FirstRules::OfSource),
            Err(error) => self.fall_back(source, error).map(FirstRules::LastGood),
        }
    }

    /// Puts newer rules of `source` in force if they are good, and returns whether they are. Otherwise the rules in
    /// force stay, and the error is logged.
    pub fn update(&self, source: &str, read: Result<SourcedRules, RuleSourceError>) -> bool {
        let Err(error) = read.and_then(|rules| self.load_and_install(source, rules)) else { return true };
        tracing::error!("rule reload failed; the previous rules stay in force:\n{error}");
        self.status.send_modify(|status| {
            status.error = Some(Arc::new(error));
            status.failures += 1;
        });
        false
    }

    /// The rules in force, which came from `source`, are this revision.
    pub(crate) fn set_revision(&self, source: &str, revision: &RevisionSummary, text: &str) {
        if let Some(last_good) = &self.last_good {
            last_good.keep(source, Some(revision), text);
        }
        self.status.send_modify(|status| {
            status.revision = revision.number;
            status.digest.clone_from(&revision.digest);
        });
        self.log_in_force();
    }

    /// Logs the rules in force with the revision that is known, unless that was done.
    pub(crate) fn log_in_force(&self) {
        let Some(InstalledRules { rules, origin }) = self.unlogged.lock().take() else { return };
        tracing::info!(revision = self.status.borrow().revision, rules, file = %origin, "rules in force");
    }

    /// The last good rules of `source`.
    pub(crate) fn last_good(&self, source: &str) -> Option<KeptRules> {
        let kept = self.last_good.as_ref().map(|last_good| last_good.read(source)).transpose();
        match kept.map(Option::flatten) {
            Ok(kept) => kept,
            Err(error) => {
                tracing::error!(%error, "last good rules cannot be read");
                None
            }
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
    fn load_and_install(&self, source: &str, sourced: SourcedRules) -> Result<(), RuleSourceError> {
        let (loaded, sourced) = self.load(sourced)?;
        let rules = loaded.rules.rules().len();
        self.limiter.install(loaded.rules, loaded.lists)?;
        let stored = match &sourced.revision {
            SourcedRevision::Stored(summary) => Some(summary),
            SourcedRevision::Counted | SourcedRevision::Unrecorded => None,
        };
        if let Some(last_good) = &self.last_good {
            last_good.keep(source, stored, &sourced.text);
        }
        self.status.send_modify(|status| {
            status.revision = match &sourced.revision {
                SourcedRevision::Counted => status.revision + 1,
                SourcedRevision::Unrecorded => status.revision,
                SourcedRevision::Stored(summary) => summary.number,
            };
            status.digest = text_digest(&sourced.text);
            status.error = None;
            status.installed = self.limiter.clock().now();
        });
        *self.unlogged.lock() = Some(InstalledRules { rules, origin: sourced.origin });
        if sourced.revision != SourcedRevision::Unrecorded {
            self.log_in_force();
        }
        Ok(())
    }

    /// Puts the last good rules of `source` in force. Without any, returns `error`, the error of the source.
    fn fall_back(&self, source: &str, error: RuleSourceError) -> Result<KeptRules, RuleSourceError> {
        let Some(kept) = self.last_good(source) else { return Err(error) };
        self.install_kept(&kept, error)?;
        Ok(kept)
    }

    /// Puts rules that were kept in force, because of `error`. Returns `error` if they are broken as well.
    pub(crate) fn install_kept(
        &self,
        kept: &KeptRules,
        error: RuleSourceError,
    ) -> Result<(), RuleSourceError> {
        let loaded = match self.parse(&kept.path.display().to_string(), &kept.text) {
            Ok(loaded) => loaded,
            Err(problem) => {
                tracing::error!("last good rules are invalid:\n{problem}");
                return Err(error);
            }
        };
        self.limiter.install(loaded.rules, loaded.lists)?;
        tracing::error!(
            "rule source cannot be used; the last good rules are in force, from {} of {}:\n{error}",
            kept.path.display(),
            kept.written
        );
        let revision = kept.revision.as_ref();
        self.status.send_replace(RuleStatus {
            revision: revision.map_or(1, |revision| revision.number),
            digest: text_digest(&kept.text),
            error: Some(Arc::new(error)),
            installed: self.limiter.clock().now(),
            failures: 1,
        });
        Ok(())
    }
}

/// The first rules in force.
#[derive(Debug)]
pub(crate) enum FirstRules {
    /// Those that were read.
    OfSource,
    /// The last good ones.
    LastGood(KeptRules),
}
