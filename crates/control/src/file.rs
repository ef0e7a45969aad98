//! A rule file that is watched. Each good change is in force within a moment; a bad one is reported, and
//! the rules before it stay.

use crate::last_good::LastGood;
use crate::trial::{FailedTests, TestFailures};
use crate::watch::{Cause, Contents, FileWatch, Files};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;
use tollgate_core::diagnostic::DiagnosticReport;
use tollgate_core::rules::{self, LoadedRules, OpenDoor};
use tollgate_limiter::{Limiter, file};

/// Why a rule file is not used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("error: cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It can be read, but not used.
    #[error("{0}")]
    Rules(DiagnosticReport),
    /// It could be used, but does not do what its tests say.
    #[error("{0}")]
    Tests(TestFailures),
}

/// Which rule file is used, and how.
#[derive(Clone, Debug)]
pub struct RuleSource {
    /// The file.
    pub path: PathBuf,
    /// What becomes of it if its tests fail.
    pub failed_tests: FailedTests,
    /// The folder in which the last good rules are kept; none if they are not.
    pub data: Option<PathBuf>,
    /// The open doors: what they cannot do for a rule is a warning, now and with each change.
    pub doors: Vec<OpenDoor>,
}

impl<P: Into<PathBuf>> From<P> for RuleSource {
    fn from(path: P) -> Self {
        Self { path: path.into(), failed_tests: FailedTests::default(), data: None, doors: Vec::new() }
    }
}

/// How a watched file fares.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Counts the rule sets that were put in force.
    pub revision: u64,
    /// Why the newest content is not in force.
    pub error: Option<Arc<LoadError>>,
}

/// A rule file and the limiter that follows it.
pub struct RuleFile {
    files: Files,
    install: Install,
}

/// What becomes of a file's content.
#[derive(Debug)]
struct Install {
    path: PathBuf,
    failed_tests: FailedTests,
    limiter: Arc<Limiter>,
    last_good: Option<LastGood>,
    /// Where requests come from: rules that ask too much of them get a warning.
    doors: Vec<OpenDoor>,
    status: watch::Sender<Status>,
}

impl fmt::Debug for RuleFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleFile").field("install", &self.install).finish_non_exhaustive()
    }
}

impl RuleFile {
    /// Reads the file and puts its rules in force, or, if it cannot be used, the last good ones. Without these it is
    /// an error, and nothing is in force.
    pub fn open(source: impl Into<RuleSource>, limiter: Arc<Limiter>) -> Result<Self, LoadError> {
        let RuleSource { path, failed_tests, data, doors } = source.into();
        let cannot = |error| LoadError::Read { path: path.clone(), error };
        let last_good = data.map(|folder| LastGood::open(&folder, &path)).transpose().map_err(cannot)?;
        let mut files = Files::new(vec![path.clone()]);
        let contents = files.read();
        files.note(&contents);
        let install =
            Install { path, failed_tests, limiter, last_good, doors, status: watch::Sender::default() };
        match install.load(contents) {
            Ok((loaded, text)) => install.put_in_force(loaded, text),
            Err(error) => install.fall_back(error)?,
        }
        Ok(Self { files, install })
    }

    /// How the file fares, now and later.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.install.status.subscribe()
    }

    /// Follows the file, in a thread of its own, until the answer is dropped.
    pub fn follow(self) -> io::Result<FileWatch> {
        let install = self.install;
        FileWatch::start_with("rule-file", self.files, move |contents, cause| install.take(contents, cause))
    }
}

impl Install {
    /// Puts new content in force if it is good.
    fn take(&self, contents: Contents, cause: Cause) {
        if cause == Cause::Asked && self.status.borrow().error.is_none() {
            let file = self.path.display();
            return tracing::info!(%file, "the rule file has not changed, its rules stay in force");
        }
        match self.load(contents) {
            Ok((loaded, text)) => self.put_in_force(loaded, text),
            Err(error) => {
                tracing::error!("the new rules are not used, the old ones stay in force:\n{error}");
                self.status.send_modify(|status| status.error = Some(Arc::new(error)));
            }
        }
    }

    fn load(&self, mut contents: Contents) -> Result<(LoadedRules, String), LoadError> {
        let content = contents.pop().expect("one file is watched");
        let text = content.and_then(file::text);
        let text = text.map_err(|error| LoadError::Read { path: self.path.clone(), error })?;
        let loaded = self.parse(&self.path, &text)?;
        match (TestFailures::find(&self.path, &loaded), self.failed_tests) {
            (None, _) => {}
            (Some(failures), FailedTests::Refuse) => return Err(LoadError::Tests(failures)),
            (Some(failures), FailedTests::Warn) => {
                tracing::warn!("the rules are used although their tests fail:\n{failures}");
            }
        }
        Ok((loaded, text))
    }

    fn parse(&self, source: &Path, text: &str) -> Result<LoadedRules, LoadError> {
        let loaded =
            rules::load_for(&source.display().to_string(), text, &self.doors).map_err(LoadError::Rules)?;
        if !loaded.warnings.problems().is_empty() {
            tracing::warn!("{}", loaded.warnings);
        }
        Ok(loaded)
    }

    fn put_in_force(&self, loaded: LoadedRules, text: String) {
        let rules = loaded.rules.rules().len();
        self.limiter.install(loaded.rules, loaded.lists);
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
    }

    /// Puts the last good rules in force, for `error` keeps the file from being used.
    fn fall_back(&self, error: LoadError) -> Result<(), LoadError> {
        let kept = self.last_good.as_ref().map(LastGood::read).transpose();
        let kept = match kept.map(Option::flatten) {
            Ok(Some(kept)) => kept,
            Ok(None) => return Err(error),
            Err(problem) => {
                tracing::error!(error = %problem, "the last good rules cannot be read");
                return Err(error);
            }
        };
        let loaded = match self.parse(&kept.path, &kept.text) {
            Ok(loaded) => loaded,
            Err(problem) => {
                tracing::error!("the last good rules cannot be used:\n{problem}");
                return Err(error);
            }
        };
        self.limiter.install(loaded.rules, loaded.lists);
        tracing::error!(
            "the rule file cannot be used, the last good rules are in force, from {} of {}:\n{error}",
            kept.path.display(),
            kept.written
        );
        self.status.send_replace(Status { revision: 1, error: Some(Arc::new(error)) });
        Ok(())
    }
}
