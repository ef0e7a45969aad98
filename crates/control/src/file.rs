//! A rule file that is watched. Each good change is in force within a moment; a bad one is reported, and
//! the rules before it stay.
//!
//! The *folder* is watched rather than the file: editors write beside and rename, and Kubernetes swaps a
//! symlink. Because not every file system tells of changes, the file is also looked at every second.

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tollgate_core::problem::Report;
use tollgate_core::rules::{self, Loaded, OpenDoor};
use tollgate_limiter::Limiter;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A save is often several events; this long after the first, it is usually complete.
const SETTLE: Duration = Duration::from_millis(20);
/// A rule file is written by people.
const LARGEST_FILE: u64 = 16 << 20;

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
    Rules(Report),
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
    path: PathBuf,
    limiter: Arc<Limiter>,
    /// Where requests come from: rules that ask too much of them get a warning.
    doors: Vec<OpenDoor>,
    /// What was seen last, good or bad.
    seen: Option<Vec<u8>>,
    status: watch::Sender<Status>,
}

/// Without what was read, which has API keys in it.
impl fmt::Debug for RuleFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleFile")
            .field("path", &self.path)
            .field("doors", &self.doors)
            .finish_non_exhaustive()
    }
}

impl RuleFile {
    /// Reads the file and puts its rules in force. Nothing is in force if it cannot be used.
    pub fn open(path: impl Into<PathBuf>, limiter: Arc<Limiter>) -> Result<Self, LoadError> {
        Self::open_for(path, limiter, Vec::new())
    }

    /// The same, with warnings about what these doors cannot do, now and with each change.
    pub fn open_for(
        path: impl Into<PathBuf>,
        limiter: Arc<Limiter>,
        doors: Vec<OpenDoor>,
    ) -> Result<Self, LoadError> {
        let status = watch::Sender::new(Status::default());
        let mut file = Self { path: path.into(), limiter, doors, seen: None, status };
        let text = file.read()?;
        let loaded = file.load(&text)?;
        file.seen = Some(text);
        file.install(loaded);
        Ok(file)
    }

    /// How the file fares, now and later.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Follows the file until the task is dropped.
    pub async fn follow(mut self) {
        let (changed, mut changes) = mpsc::channel(1);
        // Without a watcher a change is noticed by looking.
        let watcher = watch_folder(&self.path, changed);
        if let Err(error) = &watcher {
            tracing::warn!(%error, "the rule file's folder cannot be watched; looking every second instead");
        }
        loop {
            tokio::select! {
                Some(()) = changes.recv() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if self.read().ok() == self.seen {
                continue;
            }
            // It may have been seen half written, however it was noticed.
            tokio::time::sleep(SETTLE).await;
            while changes.try_recv().is_ok() {}
            self.look();
        }
    }

    /// Reads the file again and puts it in force if it is new and good.
    fn look(&mut self) {
        let result = match self.read() {
            Ok(text) if self.seen.as_ref() == Some(&text) => return,
            Ok(text) => {
                // Whoever wants no rules says so with `rules: []`; nothing at all is a write cut short.
                let loaded = if text.trim_ascii().is_empty() {
                    let error = io::Error::other("it is empty; for no rules at all, write `rules: []`");
                    Err(LoadError::Read { path: self.path.clone(), error })
                } else {
                    self.load(&text)
                };
                self.seen = Some(text);
                loaded
            }
            Err(error) => {
                // A file that is gone for a moment is being replaced; the old rules hold in any case.
                if self.seen.take().is_none() {
                    return;
                }
                Err(error)
            }
        };
        match result {
            Ok(loaded) => self.install(loaded),
            Err(error) => {
                tracing::error!("the new rules are not used, the old ones stay in force:\n{error}");
                self.status.send_modify(|status| status.error = Some(Arc::new(error)));
            }
        }
    }

    fn install(&mut self, loaded: Loaded) {
        if !loaded.warnings.problems().is_empty() {
            tracing::warn!("{}", loaded.warnings);
        }
        let rules = loaded.rules.rules().len();
        self.limiter.install(loaded.rules, loaded.lists);
        self.status.send_modify(|status| {
            status.revision += 1;
            status.error = None;
        });
        let revision = self.status.borrow().revision;
        tracing::info!(revision, rules, file = %self.path.display(), "rules in force");
    }

    fn read(&self) -> Result<Vec<u8>, LoadError> {
        let read = || {
            if std::fs::metadata(&self.path)?.len() > LARGEST_FILE {
                return Err(io::Error::other("it is larger than 16 MiB"));
            }
            std::fs::read(&self.path)
        };
        read().map_err(|error| LoadError::Read { path: self.path.clone(), error })
    }

    fn load(&self, text: &[u8]) -> Result<Loaded, LoadError> {
        let source = self.path.display().to_string();
        let text = std::str::from_utf8(text).map_err(|_| LoadError::Read {
            path: self.path.clone(),
            error: io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"),
        })?;
        rules::load_for(&source, text, &self.doors).map_err(LoadError::Rules)
    }
}

/// Sends a word whenever something in the folder of `path` changes. Stops when it is dropped.
fn watch_folder(path: &Path, changed: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            // If a word is already waiting, one more says nothing new.
            let _ = changed.try_send(());
        }
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
