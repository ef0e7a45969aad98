//! Keeps node and repository in agreement.

use super::{RuleFollower, SeedText};
use crate::file_watcher::ReadCause;
use crate::repository::{NewestRevision, PublishOutcome, RepositoryError};
use crate::revision::{RevisionOrigin, RevisionSummary, StoredRevision, text_digest};
use crate::rule_installer::RuleSourceError;
use crate::source_thread::SourceSignals;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// How often an exchange with the repository is begun again because another node was faster.
const ATTEMPTS: usize = 20;
/// After a failed exchange. The repository also says when it answers again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The last read of the rule file that was not looked at yet.
#[derive(Default)]
pub(super) struct SeedReads {
    last: Mutex<Option<SeedRead>>,
    is_new: Notify,
}

/// A read of the rule file.
pub(super) struct SeedRead {
    pub(super) seed: Result<SeedText, RuleSourceError>,
    pub(super) cause: ReadCause,
}

impl SeedReads {
    pub(super) fn put(&self, read: SeedRead) {
        *self.last.lock() = Some(read);
        self.is_new.notify_one();
    }
}

/// What is left to do after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncOutcome {
    Agreed,
    /// The repository did not answer.
    Failed,
    /// Another node was faster.
    Again,
}

impl RuleFollower {
    /// Follows the repository and the reads of the rule file until it is stopped.
    pub(super) async fn run(mut self, mut signals: SourceSignals, seeds: Arc<SeedReads>) {
        let reload = signals.reload();
        tokio::select! {
            biased;
            () = signals.stopped() => {}
            () = self.follow(&reload, &seeds) => {}
        }
    }

    async fn follow(&mut self, reload: &Notify, seeds: &SeedReads) {
        let mut changes = self.repository.changes();
        loop {
            // Also the first time: there may have been changes since the start.
            let outcome = self.sync().await;
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = reload.notified() => self.seen = None,
                () = seeds.is_new.notified() => {
                    let read = seeds.last.lock().take();
                    if let Some(read) = read {
                        self.update_seed(read);
                    }
                }
                () = sleep(RETRY_AFTER), if outcome != SyncOutcome::Agreed => {}
            }
        }
    }

    /// Brings node and repository into agreement.
    pub(super) async fn sync(&mut self) -> SyncOutcome {
        self.install_acknowledged();
        for _ in 0..ATTEMPTS {
            let newest = self.repository.newest_unless(self.seen.as_ref()).await;
            let result = match newest {
                Ok(NewestRevision::Known) if self.is_unrecorded() => self.record_seed().await,
                Ok(NewestRevision::Known) => Ok(SyncOutcome::Agreed),
                Ok(NewestRevision::None) => self.refill().await,
                Ok(NewestRevision::Other(newest)) => self.consider(*newest).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(SyncOutcome::Again) => {}
                Ok(outcome) => return outcome,
                Err(error) => {
                    tracing::debug!(%error, "rule repository does not answer; retrying");
                    self.installer.log_in_force();
                    return SyncOutcome::Failed;
                }
            }
        }
        SyncOutcome::Again
    }

    /// Puts a revision that was published at this node in force without reading it from the store, which may have lost it.
    fn install_acknowledged(&mut self) {
        let Some(acknowledged) = self.repository.acknowledged() else { return };
        let number = acknowledged.summary.number;
        let is_newer = |known: u64| known < number;
        if acknowledged.summary.origin == RevisionOrigin::Published
            && self.seen.as_ref().is_none_or(|seen| is_newer(seen.number))
            && self.current.as_ref().is_none_or(|current| is_newer(current.summary.number))
        {
            self.install(StoredRevision::clone(&acknowledged));
        }
    }

    /// Whether the rules of the seed are in force, and not a revision yet.
    fn is_unrecorded(&self) -> bool {
        self.seeded.is_some() && self.current.is_none() && !self.is_owned
    }

    /// The repository is empty: it is new, or has lost everything.
    async fn refill(&mut self) -> Result<SyncOutcome, RepositoryError> {
        match self.current.clone() {
            Some(current) => self.restore(None, current).await,
            None if self.is_unrecorded() => self.record_seed().await,
            None => Ok(SyncOutcome::Agreed),
        }
    }

    /// Looks at the newest revision, which may be older than the one in force.
    async fn consider(&mut self, newest: StoredRevision) -> Result<SyncOutcome, RepositoryError> {
        let is_published = |summary: &RevisionSummary| summary.origin == RevisionOrigin::Published;
        let number = newest.summary.number;
        self.repository.note_number(number);
        let Some(current) = self.current.clone() else {
            if is_published(&newest.summary) {
                return Ok(self.install(newest));
            }
            return self.record_seed().await;
        };
        let (is_newest_published, is_current_published) =
            (is_published(&newest.summary), is_published(&current.summary));
        if is_current_published && !is_newest_published && number >= current.summary.number {
            // A repository that had lost the published rules was filled from a file.
            return self.restore(Some(number), renumbered(current, number + 1)).await;
        }
        if !is_current_published && is_newest_published && number < current.summary.number {
            let newest = renumbered(newest, current.summary.number + 1);
            return self.restore(Some(number), newest).await;
        }
        if number < current.summary.number {
            return self.restore(Some(number), current).await;
        }
        if is_newest_published {
            if number == current.summary.number && newest.summary.digest != current.summary.digest {
                tracing::warn!(
                    revision = number,
                    stored = newest.summary.digest,
                    in_force = current.summary.digest,
                    "the repository has another revision of this number than this node; using the one of the repository"
                );
            }
            return Ok(self.install(newest));
        }
        // Every node has its own file.
        self.is_owned = false;
        self.seen = Some(newest.summary.id());
        Ok(SyncOutcome::Agreed)
    }

    /// Puts a published revision in force, if it is good. It is not tried again otherwise.
    fn install(&mut self, revision: StoredRevision) -> SyncOutcome {
        self.is_owned = true;
        self.seen = Some(revision.summary.id());
        let is_same = self.current.as_ref().is_some_and(|current| current.summary == revision.summary);
        let is_in_force = is_same && self.installer.is_current();
        if is_in_force || self.installer.update(&self.place, Ok(self.sourced(&revision))) {
            self.adopt(revision);
        }
        SyncOutcome::Agreed
    }

    /// Stores a revision that the repository has lost.
    async fn restore(
        &mut self,
        expected: Option<u64>,
        revision: StoredRevision,
    ) -> Result<SyncOutcome, RepositoryError> {
        let outcome = self.repository.restore(expected, revision.clone()).await?;
        let PublishOutcome::Published(summary) = outcome else { return Ok(SyncOutcome::Again) };
        tracing::warn!(
            revision = summary.number,
            found = expected,
            "the repository had lost this revision; it was stored again"
        );
        if summary.origin == RevisionOrigin::Published {
            return Ok(self.install(StoredRevision { summary, text: revision.text }));
        }
        self.seen = Some(summary.id());
        Ok(SyncOutcome::Agreed)
    }

    /// Records the rules of the seed, which are in force, as a revision, unless the newest one is equal or published.
    pub(super) async fn record_seed(&mut self) -> Result<SyncOutcome, RepositoryError> {
        let Some(seed) = self.seeded.clone() else { return Ok(SyncOutcome::Agreed) };
        let newest = self.repository.newest().await?;
        let (expected, is_equal) = match &newest {
            Some(newest) if newest.summary.origin == RevisionOrigin::Published => {
                let outcome = self.install(newest.clone());
                self.warn_of_difference(Some(&seed));
                return Ok(outcome);
            }
            Some(newest) => (Some(newest.summary.number), newest.summary.digest == text_digest(&seed.text)),
            None => (None, false),
        };
        let summary = match newest {
            Some(newest) if is_equal => newest.summary,
            _ => match self.repository.publish(expected, seed.draft()).await? {
                PublishOutcome::Published(summary) => summary,
                PublishOutcome::Stale(_) => return Ok(SyncOutcome::Again),
            },
        };
        self.installer.set_revision(&seed.source, &summary, &seed.text);
        self.seen = Some(summary.id());
        let recorded = StoredRevision { summary, text: seed.text };
        self.repository.note_in_force(recorded.clone());
        self.current = Some(recorded);
        Ok(SyncOutcome::Agreed)
    }

    /// The rule file was read.
    fn update_seed(&mut self, read: SeedRead) {
        let SeedRead { seed, cause } = read;
        if self.is_owned {
            return self.warn_of_difference(seed.as_ref().ok());
        }
        if cause == ReadCause::Requested && self.installer.is_current() {
            return tracing::info!("rule file unchanged");
        }
        let (source, seed, sourced) = match seed {
            Ok(seed) => (seed.source.clone(), Some(seed.clone()), Ok(seed.sourced())),
            Err(error) => (String::new(), None, Err(error)),
        };
        if self.installer.update(&source, sourced) {
            self.seeded = seed;
            self.current = None;
            self.note_seed();
        }
    }
}

fn renumbered(revision: StoredRevision, number: u64) -> StoredRevision {
    let StoredRevision { summary, text } = revision;
    StoredRevision { summary: RevisionSummary { number, ..summary }, text }
}
