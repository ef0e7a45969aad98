//! A node of a fleet in this process: a store, a limiter, and the rules of the repository in Redis.

use crate::followed_file::{quota, rules};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_control::{
    FileWatcher, FollowedRules, InstallSettings, PublishOutcome, RepositoryRules, RevisionDraft,
    RevisionOrigin, RuleRepository, RuleSeed, RuleStatus, SharedRepositoryTasks,
};
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{PATIENCE, eventually};

/// The rules of a node before anything is published.
pub const EXAMPLE: &str = "rules:\n  - { id: one, params: { capacity: 1, refill_rate: 1 } }\n";
/// A poll that no test waits for.
pub const NO_POLL: Duration = Duration::from_secs(3600);

/// A running node.
pub struct FleetNode {
    _store: Arc<RedisStore>,
    pub repository: RuleRepository,
    pub limiter: Arc<Limiter>,
    pub status: watch::Receiver<RuleStatus>,
    /// The revisions in force so far.
    seen: Arc<Mutex<Vec<u64>>>,
    recorder: JoinHandle<()>,
    _tasks: SharedRepositoryTasks,
    _followed: FollowedRules,
    _watcher: Option<FileWatcher>,
}

/// How a node is started.
pub struct NodeStart<'a> {
    pub url: &'a str,
    pub poll: Duration,
    pub seed: RuleSeed,
    pub data: Option<&'a Path>,
}

impl<'a> NodeStart<'a> {
    pub fn new(url: &'a str) -> Self {
        Self { url, poll: NO_POLL, seed: RuleSeed::Example(EXAMPLE), data: None }
    }

    pub async fn start(self) -> FleetNode {
        let settings = RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() };
        let store = RedisStore::open(&self.url.parse().unwrap(), settings, Clock::system()).await.unwrap();
        self.start_on(Arc::new(store)).await
    }

    /// Starts a node on a store that others use too.
    pub async fn start_on(self, store: Arc<RedisStore>) -> FleetNode {
        let Self { poll, seed, data, .. } = self;
        let (repository, tasks) = RuleRepository::open_shared(&store, poll, Clock::system());
        let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 20), Clock::system()));
        let settings = InstallSettings { data: data.map(Path::to_owned), ..InstallSettings::default() };
        let opened = RepositoryRules::open(repository.clone(), seed, settings, Arc::clone(&limiter)).await;
        let opened = opened.unwrap_or_else(|error| panic!("{error}"));
        let status = opened.status();
        let seen = Arc::new(Mutex::new(vec![status.borrow().revision]));
        let recorder = tokio::spawn(record(opened.status(), Arc::clone(&seen)));
        let (followed, watcher) = opened.follow().unwrap();
        FleetNode {
            _store: store,
            repository,
            limiter,
            status,
            seen,
            recorder,
            _tasks: tasks,
            _followed: followed,
            _watcher: watcher,
        }
    }
}

async fn record(mut status: watch::Receiver<RuleStatus>, seen: Arc<Mutex<Vec<u64>>>) {
    while status.changed().await.is_ok() {
        seen.lock().push(status.borrow_and_update().revision);
    }
}

impl Drop for FleetNode {
    fn drop(&mut self) {
        self.recorder.abort();
    }
}

pub fn draft(text: String) -> RevisionDraft {
    let (author, message) = ("ana".to_owned(), "a change".to_owned());
    RevisionDraft { text, author, message, origin: RevisionOrigin::Published }
}

impl FleetNode {
    pub fn revision(&self) -> u64 {
        self.status.borrow().revision
    }

    /// Publishes a limit of this capacity over the revision `expected`, and returns the number.
    pub async fn publish(&self, expected: u64, capacity: u32) -> u64 {
        match self.repository.publish(Some(expected), draft(rules(capacity))).await.unwrap() {
            PublishOutcome::Published(summary) => summary.number,
            PublishOutcome::Stale(newest) => panic!("{expected} is not the newest: {newest:?}"),
        }
    }

    /// Waits until this revision, a limit of this capacity, is in force.
    pub async fn until(&self, number: u64, capacity: u32) {
        self.until_revision(number).await;
        assert_eq!(quota(&self.limiter, "a"), Some(capacity), "revision {number}");
    }

    pub async fn until_revision(&self, number: u64) {
        let mut status = self.status.clone();
        let reached = status.wait_for(|status| status.revision == number && status.error.is_none());
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            panic!("revision {number} is not in force: {:?}", self.status.borrow());
        }
    }

    /// The newest revision in the repository is this one.
    pub async fn until_stored(&self, number: u64) {
        eventually("the revision is stored", async || {
            let newest = self.repository.newest().await;
            newest.is_ok_and(|newest| newest.is_some_and(|newest| newest.summary.number == number))
        })
        .await;
    }

    /// No revision in force was followed by a lower one. The rules before the first revision have the number 0.
    pub fn assert_no_regress(&self) {
        let seen = self.seen.lock();
        assert!(seen.is_sorted(), "{seen:?}");
    }
}
