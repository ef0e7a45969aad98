//! The rules of a repository, and the rule file beside it.
//!
//! A rule file owns the rules until the first publish; from then on the repository does. As long as the newest revision
//! came from a file, each node uses its own file and records its changes as revisions: nodes with different files do not
//! adopt each other's. Once the newest revision was published by an operator, every node follows the repository, and a
//! file that differs is only a warning.
//!
//! A revision is a number and a digest. A node never goes back to a lower number. A failover of Redis can lose the newest
//! revisions; a node that has one of them stores it again as it was, because its publish was acknowledged. With equal
//! numbers and different digests the repository is right.

mod sync;

use crate::file_watcher::{FileWatcher, WatchedFiles};
use crate::last_good_rules::KeptRules;
use crate::repository::{RepositoryError, RuleRepository};
use crate::revision::{RevisionDraft, RevisionId, RevisionOrigin, StoredRevision, text_digest};
use crate::rule_file::{source_name, text_in};
use crate::rule_installer::{
    FirstRules, InstallSettings, RuleInstaller, RuleSourceError, RuleStatus, SourcedRevision, SourcedRules,
};
use crate::source_thread::FollowedRules;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use sync::{SeedRead, SeedReads};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tollgate_limiter::Limiter;

/// The author of revisions that came from a file.
const FILE_AUTHOR: &str = "file";

/// Where the rules come from until the first publish.
#[derive(Clone, Debug)]
pub enum RuleSeed {
    /// A watched rule file.
    File(PathBuf),
    /// A built-in example.
    Example(&'static str),
}

/// The rules of a repository, in force in a limiter.
pub struct RepositoryRules {
    seed: RuleSeed,
    /// The name of the seed as a source.
    seed_source: String,
    files: WatchedFiles,
    follower: RuleFollower,
}

/// What follows the repository.
struct RuleFollower {
    repository: RuleRepository,
    /// The name of the repository as a source.
    place: String,
    installer: RuleInstaller,
    /// The revision in force, if the repository has it or had it.
    current: Option<StoredRevision>,
    /// The rules in force, if they are the seed's.
    seeded: Option<SeedText>,
    /// The newest revision of the repository that was looked at.
    seen: Option<RevisionId>,
    /// Whether the newest revision was published: then the file is not used.
    is_owned: bool,
}

/// The rules of the seed.
#[derive(Clone, Debug)]
struct SeedText {
    source: String,
    origin: RevisionOrigin,
    /// Where the text was read, for messages and as the message of the revision.
    place: String,
    text: String,
}

impl fmt::Debug for RepositoryRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepositoryRules").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl RepositoryRules {
    /// Puts the first rules in force: the newest revision if it was published, else those of `seed`, which become a
    /// revision. While the repository is unavailable: the last good revision if it was published, else those of the seed.
    /// If the rules cannot be used, the last good ones of their source are; without these it is an error.
    ///
    /// May block on the disk.
    pub async fn open(
        repository: RuleRepository,
        seed: RuleSeed,
        settings: InstallSettings,
        limiter: Arc<Limiter>,
    ) -> Result<Self, RuleSourceError> {
        let place = repository.place();
        let seed_source = match &seed {
            RuleSeed::File(path) => source_name(path)?,
            RuleSeed::Example(_) => "the built-in example".to_owned(),
        };
        let installer = RuleInstaller::new(settings, limiter);
        let installer = installer.map_err(|error| RuleSourceError::Read { origin: place.clone(), error })?;
        let mut files = WatchedFiles::new(match &seed {
            RuleSeed::File(path) => vec![path.clone()],
            RuleSeed::Example(_) => Vec::new(),
        });
        let text = match &seed {
            RuleSeed::File(path) => {
                let contents = files.read();
                files.record(&contents);
                text_in(path, contents)
            }
            RuleSeed::Example(text) => Ok((*text).to_owned()),
        };
        let text = text.map(|text| seed_text(&seed, &seed_source, text));
        let mut follower = RuleFollower {
            repository,
            place,
            installer,
            current: None,
            seeded: None,
            seen: None,
            is_owned: false,
        };
        follower.load_first(&seed_source, text).await?;
        Ok(Self { seed, seed_source, files, follower })
    }

    /// The state of the source, now and after every change.
    pub fn status(&self) -> watch::Receiver<RuleStatus> {
        self.follower.installer.status()
    }

    /// Where the rules in force come from, for a start message.
    pub fn origin(&self) -> Option<RevisionOrigin> {
        let seeded = self.follower.seeded.as_ref().map(|seeded| seeded.origin);
        seeded.or(self.follower.current.as_ref().map(|current| current.summary.origin))
    }

    /// Follows the repository and the file, each in a thread of its own, until both are dropped. Needs a tokio runtime.
    pub fn follow(self) -> io::Result<(FollowedRules, Option<FileWatcher>)> {
        let Self { seed, seed_source, files, follower } = self;
        let reads = Arc::new(SeedReads::default());
        let told = Arc::clone(&reads);
        let watcher = match seed.clone() {
            RuleSeed::Example(_) => None,
            RuleSeed::File(path) => {
                Some(FileWatcher::start_from("rule-file", files, move |contents, cause| {
                    let text = text_in(&path, contents);
                    told.put(SeedRead { seed: text.map(|text| seed_text(&seed, &seed_source, text)), cause });
                })?)
            }
        };
        let followed = FollowedRules::start(Handle::current(), |signals| follower.run(signals, reads))?;
        Ok((followed, watcher))
    }
}

fn seed_text(seed: &RuleSeed, source: &str, text: String) -> SeedText {
    let (origin, place) = match seed {
        RuleSeed::File(path) => (RevisionOrigin::File, path.display().to_string()),
        RuleSeed::Example(_) => (RevisionOrigin::Example, source.to_owned()),
    };
    SeedText { source: source.to_owned(), origin, place, text }
}

impl SeedText {
    fn draft(&self) -> RevisionDraft {
        RevisionDraft {
            text: self.text.clone(),
            author: FILE_AUTHOR.to_owned(),
            message: shortened(&self.place),
            origin: self.origin,
        }
    }

    fn sourced(&self) -> SourcedRules {
        SourcedRules {
            text: self.text.clone(),
            revision: SourcedRevision::Unrecorded,
            origin: self.place.clone(),
        }
    }
}

/// A message must not exceed its bound.
fn shortened(text: &str) -> String {
    text.chars().take(crate::repository::MOST_MESSAGE_BYTES / 4).collect()
}

impl RuleFollower {
    /// See [`RepositoryRules::open`].
    async fn load_first(
        &mut self,
        seed_source: &str,
        seed: Result<SeedText, RuleSourceError>,
    ) -> Result<(), RuleSourceError> {
        let newest = self.repository.newest().await;
        let kept = self.installer.last_good(&self.place).and_then(published);
        match newest {
            Ok(newest) => {
                let number = newest.as_ref().map_or(0, |newest| newest.summary.number);
                let kept = kept.filter(|(_, kept)| kept.summary.number > number && self.restores_kept());
                let newest_published =
                    newest.filter(|newest| newest.summary.origin == RevisionOrigin::Published);
                if let Some((_, lost)) = kept {
                    tracing::warn!(
                        stored = number,
                        kept = lost.summary.number,
                        "the repository lost the newest revision; using the last good rules and storing them again"
                    );
                    self.load_first_revision(lost)?;
                    self.sync().await;
                } else if let Some(newest) = newest_published {
                    self.load_first_revision(newest)?;
                    self.warn_of_difference(seed.as_ref().ok());
                } else {
                    self.load_first_seed(seed_source, seed)?;
                    self.sync().await;
                }
                Ok(())
            }
            Err(error) => match kept {
                Some((kept, revision)) => {
                    self.installer.install_kept(&kept, self.unavailable(error))?;
                    self.repository.note_in_force(revision.clone());
                    self.is_owned = true;
                    self.current = Some(revision);
                    Ok(())
                }
                None => {
                    tracing::warn!(%error, "rule repository is unavailable; starting with the rules of this node");
                    self.load_first_seed(seed_source, seed)?;
                    self.installer.log_in_force();
                    Ok(())
                }
            },
        }
    }

    /// Whether a revision that only the disk of this node has is stored again. The embedded repository is on that disk
    /// itself: if it has less, it was removed on purpose.
    fn restores_kept(&self) -> bool {
        matches!(self.repository, RuleRepository::Shared(_))
    }

    fn load_first_revision(&mut self, revision: StoredRevision) -> Result<(), RuleSourceError> {
        match self.installer.load_first(&self.place, Ok(self.sourced(&revision)))? {
            FirstRules::OfSource => self.adopt(revision),
            FirstRules::LastGood(kept) => {
                self.is_owned = true;
                self.seen = Some(revision.summary.id());
                self.note_kept(&kept);
                self.current = published(kept).map(|(_, revision)| revision);
            }
        }
        Ok(())
    }

    fn load_first_seed(
        &mut self,
        seed_source: &str,
        seed: Result<SeedText, RuleSourceError>,
    ) -> Result<(), RuleSourceError> {
        let (sourced, text) = match seed {
            Ok(seed) => (Ok(seed.sourced()), Some(seed)),
            Err(error) => (Err(error), None),
        };
        match self.installer.load_first(seed_source, sourced)? {
            FirstRules::OfSource => {
                self.seeded = text;
                self.note_seed();
            }
            FirstRules::LastGood(kept) => self.note_kept(&kept),
        }
        Ok(())
    }

    /// Notes that the rules of the seed are in force. They are not a revision yet.
    fn note_seed(&self) {
        let Some(seed) = &self.seeded else { return };
        let installed = self.installer.status().borrow().installed;
        self.repository.note_in_force(seed.draft().numbered(0, installed));
    }

    /// Notes that rules which were kept are in force.
    fn note_kept(&self, kept: &KeptRules) {
        let text = kept.text.clone();
        self.repository.note_in_force(match kept.revision.clone() {
            Some(summary) => StoredRevision { summary, text },
            None => {
                let (author, message) = (FILE_AUTHOR.to_owned(), shortened(&kept.path.display().to_string()));
                let draft = RevisionDraft { text, author, message, origin: RevisionOrigin::File };
                draft.numbered(0, self.installer.status().borrow().installed)
            }
        });
    }

    fn unavailable(&self, error: RepositoryError) -> RuleSourceError {
        RuleSourceError::Read { origin: self.place.clone(), error: io::Error::other(error.to_string()) }
    }

    fn sourced(&self, revision: &StoredRevision) -> SourcedRules {
        let StoredRevision { summary, text } = revision;
        let origin = format!("revision {}", summary.number);
        SourcedRules { text: text.clone(), revision: SourcedRevision::Stored(summary.clone()), origin }
    }

    /// Notes that `revision`, which was installed, is in force.
    fn adopt(&mut self, revision: StoredRevision) {
        self.repository.note_in_force(revision.clone());
        self.is_owned = true;
        self.seen = Some(revision.summary.id());
        self.seeded = None;
        self.current = Some(revision);
    }

    /// Warns of a file that is not used.
    fn warn_of_difference(&self, seed: Option<&SeedText>) {
        let (Some(seed), Some(current)) = (seed, &self.current) else { return };
        if seed.origin == RevisionOrigin::File && text_digest(&seed.text) != current.summary.digest {
            tracing::warn!(
                file = seed.place,
                revision = current.summary.number,
                "rule file differs from the published rules and is not used; publish it with \
                 `tollgate rules publish`, or remove the setting `rules`"
            );
        }
    }
}

/// Kept rules that were a published revision.
fn published(kept: KeptRules) -> Option<(KeptRules, StoredRevision)> {
    let summary = kept.revision.clone()?;
    let text = kept.text.clone();
    (summary.origin == RevisionOrigin::Published).then_some((kept, StoredRevision { summary, text }))
}
