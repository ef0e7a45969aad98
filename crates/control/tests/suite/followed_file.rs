//! A rule file in its own folder, and a limiter that follows it.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use tollgate_control::{FileWatcher, InstallSettings, RuleSourceError, RuleStatus, WatchedRuleFile};
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore, Request};

const START_US: u64 = 1_800_000_000_000_000;
/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs what must not block, in a thread of its own.
pub fn without_blocking(run: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel::<()>();
    let running = thread::spawn(move || {
        // Dropped at the end, whether it is reached or not.
        let _tell = tell;
        run();
    });
    assert_eq!(told.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected), "it blocks");
    running.join().unwrap_or_else(|panic| resume_unwind(panic));
}

/// A rule file with one limit.
pub fn rules(capacity: u32) -> String {
    format!("rules:\n  - {{ id: one, params: {{ capacity: {capacity}, refill_rate: 1 }} }}\n")
}

pub fn limiter() -> Arc<Limiter> {
    Arc::new(Limiter::new(MemoryStore::new(1 << 24), Clock::Manual(ManualClock::new(START_US))))
}

/// The limit in force for the client `name`, if there is one.
pub fn quota(limiter: &Limiter, name: &str) -> Option<u32> {
    let request = Request { api_key: Some(name), endpoint: "/", ..Request::default() };
    limiter.check(&request).unwrap().now().unwrap().terms.map(|terms| terms.quota)
}

pub struct FollowedFile {
    pub folder: TempDir,
    pub path: PathBuf,
    pub limiter: Arc<Limiter>,
    status: watch::Receiver<RuleStatus>,
    pub watcher: FileWatcher,
}

impl FollowedFile {
    /// Follows the file that `prepare` creates in a new folder; `prepare` returns its path.
    pub fn start(prepare: impl FnOnce(&Path) -> PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = prepare(folder.path());
        Self::open(folder, path, InstallSettings::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Follows a rule file in `folder`.
    pub fn open(folder: TempDir, path: PathBuf, settings: InstallSettings) -> Result<Self, RuleSourceError> {
        let limiter = limiter();
        let file = WatchedRuleFile::open(&path, settings, Arc::clone(&limiter))?;
        let status = file.status();
        Ok(Self { folder, path, limiter, status, watcher: file.follow().unwrap() })
    }

    pub fn with_rules(text: &str) -> Self {
        Self::start(|folder| {
            let path = folder.join("rules.yaml");
            std::fs::write(&path, text).unwrap();
            path
        })
    }

    pub fn write(&self, text: impl AsRef<[u8]>) {
        std::fs::write(&self.path, text).unwrap();
    }

    /// Writes a new file and renames it, as editors do.
    pub fn replace(&self, text: &str) {
        let beside = self.folder.path().join(".rules.yaml.new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &self.path).unwrap();
    }

    pub fn revision(&self) -> u64 {
        self.status.borrow().revision
    }

    pub fn error(&self) -> Option<Arc<RuleSourceError>> {
        self.status.borrow().error.clone()
    }

    /// Waits until the limit in force is `expected`. Each load changes the status.
    pub async fn until_quota(&mut self, expected: u32) {
        let limiter = Arc::clone(&self.limiter);
        let is_there = self.status.wait_for(|_| quota(&limiter, "watcher") == Some(expected));
        let waited = tokio::time::timeout(PATIENCE, is_there).await.map(|status| status.is_ok());
        assert_eq!(waited, Ok(true), "the limit did not become {expected}");
    }

    /// Waits until the newest content is in force.
    pub async fn until_good(&mut self) {
        let good = self.status.wait_for(|status| status.error.is_none());
        let waited = tokio::time::timeout(PATIENCE, good).await.map(|status| status.is_ok());
        assert_eq!(waited, Ok(true), "the error stays");
    }

    /// Waits until the newest content is an error, and returns the message.
    pub async fn until_error(&mut self) -> String {
        self.until_error_with("").await
    }

    /// Waits for an error message that ends with `end`, and returns it.
    pub async fn until_error_with(&mut self, end: &str) -> String {
        let is_it = |error: &Arc<RuleSourceError>| error.to_string().ends_with(end);
        let failed = self.status.wait_for(|status| status.error.as_ref().is_some_and(is_it));
        let status = tokio::time::timeout(PATIENCE, failed).await.expect("no error is reported").unwrap();
        status.error.as_ref().unwrap().to_string()
    }
}
