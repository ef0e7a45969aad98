//! A watched rule file. Good content is in force within two seconds; bad content is reported, and the rules in force
//! stay.

use crate::file_watcher::{FileContents, FileWatcher, ReadCause, WatchedFiles};
use crate::rule_installer::{
    InstallSettings, RuleInstaller, RuleSourceError, RuleStatus, SourcedRevision, SourcedRules,
};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;
use tollgate_limiter::{Limiter, file};

/// A rule file whose rules are in force in a limiter.
pub struct WatchedRuleFile {
    path: PathBuf,
    /// The name of the source.
    source: String,
    files: WatchedFiles,
    installer: RuleInstaller,
}

impl fmt::Debug for WatchedRuleFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedRuleFile").field("installer", &self.installer).finish_non_exhaustive()
    }
}

impl WatchedRuleFile {
    /// Reads the file and puts its rules in force, or, if it cannot be used, the last good ones. Without these it is
    /// an error, and no rules are in force.
    pub fn open(
        path: impl Into<PathBuf>,
        settings: InstallSettings,
        limiter: Arc<Limiter>,
    ) -> Result<Self, RuleSourceError> {
        let path = path.into();
        let source = source_name(&path)?;
        let mut files = WatchedFiles::new(vec![path.clone()]);
        let contents = files.read();
        files.record(&contents);
        let rules = sourced(&path, contents);
        let installer = RuleInstaller::open(&source, rules, settings, limiter)?;
        Ok(Self { path, source, files, installer })
    }

    /// The state of the file, now and after every change.
    pub fn status(&self) -> watch::Receiver<RuleStatus> {
        self.installer.status()
    }

    /// Follows the file, in a thread of its own, until the watcher is dropped.
    pub fn follow(self) -> io::Result<FileWatcher> {
        let Self { path, source, files, installer } = self;
        FileWatcher::start_from("rule-file", files, move |contents, cause| {
            if cause == ReadCause::Requested && installer.is_current() {
                return tracing::info!(file = %path.display(), "rule file unchanged");
            }
            installer.update(&source, sourced(&path, contents));
        })
    }
}

/// The name of a rule file as a source. It must not depend on the folder in which the node is started.
pub(crate) fn source_name(path: &Path) -> Result<String, RuleSourceError> {
    let absolute = std::path::absolute(path).map_err(|error| read_error(path, error))?;
    Ok(absolute.to_string_lossy().into_owned())
}

/// The rules in the content of the file.
fn sourced(path: &Path, contents: FileContents) -> Result<SourcedRules, RuleSourceError> {
    let (text, origin) = (text_in(path, contents)?, path.display().to_string());
    Ok(SourcedRules { text, revision: SourcedRevision::Counted, origin })
}

/// The text of the only file.
pub(crate) fn text_in(path: &Path, mut contents: FileContents) -> Result<String, RuleSourceError> {
    let content = contents.pop().expect("one file is watched");
    content.and_then(file::text).map_err(|error| read_error(path, error))
}

fn read_error(path: &Path, error: io::Error) -> RuleSourceError {
    RuleSourceError::Read { origin: path.display().to_string(), error }
}
