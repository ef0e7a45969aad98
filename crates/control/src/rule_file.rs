//! A watched rule file. Good content is in force within two seconds; bad content is reported, and the rules in force
//! stay.

use crate::file_watcher::{FileContents, FileWatcher, ReadCause, WatchedFiles};
use crate::last_good_rules::LastGoodRules;
use crate::rule_tests::{FailedTestPolicy, RuleTestFailures};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;
use tollgate_core::diagnostic::DiagnosticReport;
use tollgate_core::rules::{self, LoadedRules, OpenDoor};
use tollgate_limiter::{LimitNamesFull, Limiter, file};

/// Why a rule file is not used.
#[derive(Debug, thiserror::Error)]
pub enum RuleFileError {
    /// The file cannot be read.
    #[error("error: cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
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

/// Which rule file is loaded, and how.
#[derive(Clone, Debug)]
pub struct RuleFileSettings {
    /// The file.
    pub path: PathBuf,
    /// What happens if its tests fail.
    pub failed_tests: FailedTestPolicy,
    /// The folder in which the last good rules are kept; none to keep none.
    pub data: Option<PathBuf>,
    /// The open doors: a rule with a feature that one of them does not support gets a warning at every load.
    pub doors: Vec<OpenDoor>,
}

impl RuleFileSettings {
    /// The file at `path`, with default settings and without a data folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), failed_tests: FailedTestPolicy::default(), data: None, doors: Vec::new() }
    }
}

/// The state of a watched rule file.
#[derive(Clone, Debug, Default)]
pub struct RuleFileStatus {
    /// The number of rule sets that were put in force since the start.
    pub revision: u64,
    /// Why the newest content is not in force.
    pub error: Option<Arc<RuleFileError>>,
}

/// A rule file whose rules are in force in a limiter.
pub struct WatchedRuleFile {
    files: WatchedFiles,
    installer: RuleInstaller,
}

/// Loads contents of the file into the limiter.
#[derive(Debug)]
struct RuleInstaller {
    path: PathBuf,
    failed_tests: FailedTestPolicy,
    limiter: Arc<Limiter>,
    last_good: Option<LastGoodRules>,
    doors: Vec<OpenDoor>,
    status: watch::Sender<RuleFileStatus>,
}

impl fmt::Debug for WatchedRuleFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedRuleFile").field("installer", &self.installer).finish_non_exhaustive()
    }
}

impl WatchedRuleFile {
    /// Reads the file and puts its rules in force, or, if it cannot be used, the last good ones. Without these it is
    /// an error, and no rules are in force.
    pub fn open(settings: RuleFileSettings, limiter: Arc<Limiter>) -> Result<Self, RuleFileError> {
        let RuleFileSettings { path, failed_tests, data, doors } = settings;
        let read_error = |error| RuleFileError::Read { path: path.clone(), error };
        let last_good =
            data.map(|folder| LastGoodRules::open(&folder, &path)).transpose().map_err(read_error)?;
        let mut files = WatchedFiles::new(vec![path.clone()]);
        let contents = files.read();
        files.record(&contents);
        let installer =
            RuleInstaller { path, failed_tests, limiter, last_good, doors, status: watch::Sender::default() };
        if let Err(error) = installer.install(contents) {
            installer.fall_back(error)?;
        }
        Ok(Self { files, installer })
    }

    /// The state of the file, now and after every change.
    pub fn status(&self) -> watch::Receiver<RuleFileStatus> {
        self.installer.status.subscribe()
    }

    /// Follows the file, in a thread of its own, until the watcher is dropped.
    pub fn follow(self) -> io::Result<FileWatcher> {
        let installer = self.installer;
        FileWatcher::start_from("rule-file", self.files, move |contents, cause| {
            installer.reload(contents, cause);
        })
    }
}

impl RuleInstaller {
    /// Puts new content in force if it is good.
    fn reload(&self, contents: FileContents, cause: ReadCause) {
        if cause == ReadCause::Requested && self.status.borrow().error.is_none() {
            let file = self.path.display();
            return tracing::info!(%file, "rule file unchanged");
        }
        if let Err(error) = self.install(contents) {
            tracing::error!("rule reload failed; the previous rules stay in force:\n{error}");
            self.status.send_modify(|status| status.error = Some(Arc::new(error)));
        }
    }

    fn load(&self, mut contents: FileContents) -> Result<(LoadedRules, String), RuleFileError> {
        let content = contents.pop().expect("one file is watched");
        let text = content.and_then(file::text);
        let text = text.map_err(|error| RuleFileError::Read { path: self.path.clone(), error })?;
        let loaded = self.parse(&self.path, &text)?;
        match (RuleTestFailures::find(&self.path, &loaded), self.failed_tests) {
            (None, _) => {}
            (Some(failures), FailedTestPolicy::Refuse) => return Err(RuleFileError::Tests(failures)),
            (Some(failures), FailedTestPolicy::Warn) => {
                tracing::warn!("rules with failed tests are used:\n{failures}");
            }
        }
        Ok((loaded, text))
    }

    fn parse(&self, source: &Path, text: &str) -> Result<LoadedRules, RuleFileError> {
        let loaded = rules::load_for(&source.display().to_string(), text, &self.doors)
            .map_err(RuleFileError::Rules)?;
        if !loaded.warnings.is_empty() {
            tracing::warn!("{}", loaded.warnings);
        }
        Ok(loaded)
    }

    /// Loads `contents` and puts the rules in force.
    fn install(&self, contents: FileContents) -> Result<(), RuleFileError> {
        let (loaded, text) = self.load(contents)?;
        let rules = loaded.rules.rules().len();
        self.limiter.install(loaded.rules, loaded.lists)?;
        if let Some(last_good) = &self.last_good {
            last_good.keep(text);
        }
        let mut revision = 0;
        self.status.send_modify(|status| {
            status.revision += 1;
            status.error = None;
            revision = status.revision;
        });
        tracing::info!(revision, rules, file = %self.path.display(), "rules in force");
        Ok(())
    }

    /// Puts the last good rules in force. Without any, returns `error`, the error of the rule file.
    fn fall_back(&self, error: RuleFileError) -> Result<(), RuleFileError> {
        let kept = self.last_good.as_ref().map(LastGoodRules::read).transpose();
        let kept = match kept.map(Option::flatten) {
            Ok(Some(kept)) => kept,
            Ok(None) => return Err(error),
            Err(problem) => {
                tracing::error!(error = %problem, "last good rules cannot be read");
                return Err(error);
            }
        };
        let loaded = match self.parse(&kept.path, &kept.text) {
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
        self.status.send_replace(RuleFileStatus { revision: 1, error: Some(Arc::new(error)) });
        Ok(())
    }
}
