//! The rule repository: all revisions of the rules, the control state beside them, the audit log and the access tokens.
//!
//! A node alone keeps it in a file ([`EmbeddedRepository`]), a fleet in Redis ([`SharedRepository`]). Both promise the same: a publish names the revision that it replaces, and is refused
//! if that is not the newest one any more, so that of two writers one wins and the other is told. What was acknowledged is
//! durable.

mod embedded;
mod shared;

use crate::access_token::StoredToken;
use crate::audit::AuditEntry;
use crate::control_state::{ControlState, EmergencySwitch};
use crate::revision::{RevisionDraft, RevisionId, RevisionSummary, StoredRevision};
use crate::source_thread::SourceHealth;
pub use embedded::EmbeddedRepository;
pub use shared::{
    MOST_SHARED_AUDIT, MOST_SHARED_BYTES, MOST_SHARED_REVISIONS, NewestRevision, SharedRepository,
    SharedRepositoryTasks,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tollgate_limiter::{Clock, file};
use tollgate_redis::RedisStore;

/// The longest author of a revision, in bytes.
pub const MOST_AUTHOR_BYTES: usize = 256;
/// The longest message of a revision, in bytes.
pub const MOST_MESSAGE_BYTES: usize = 4 << 10;
/// The most entries of a list that are returned at once.
pub const MOST_LISTED: usize = 1_000;
/// The most access tokens.
pub const MOST_TOKENS: usize = 1_000;
/// The largest control state, in bytes of JSON.
const MOST_DOCUMENT_BYTES: usize = 1 << 20;
/// The largest token, in bytes of JSON.
const MOST_TOKEN_BYTES: usize = 2 << 10;
/// How often a change of the control state is tried while others change it too.
const STATE_ATTEMPTS: usize = 20;

/// Where revisions are kept. Clones share one repository.
#[derive(Clone, Debug)]
pub enum RuleRepository {
    /// In a file, or in the memory of this node.
    Embedded(EmbeddedRepository),
    /// In Redis.
    Shared(SharedRepository),
}

/// What became of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishOutcome {
    /// It is the newest revision. Publishing the text of the newest published revision again changes nothing.
    Published(RevisionSummary),
    /// The newest revision is not the expected one but this; none if there is no revision.
    Stale(Option<RevisionSummary>),
}

/// What became of a switch of the emergency limit that could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switched {
    /// It is in force on this node, and is stored later.
    OnThisNode,
    /// It is not in force.
    Refused,
}

/// The control state as a node knows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownControlState {
    /// The state that was read last, with a switch that is not stored yet.
    pub(crate) state: ControlState,
    /// Whether a state was read since the start of the node.
    pub(crate) is_read: bool,
    /// Whether the emergency limit of this node was switched and is not stored yet.
    pub(crate) is_unstored: bool,
}

/// Why the repository did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The file of the repository cannot be used.
    #[error("the rule repository {} cannot be used: {problem}\n  hint: {hint}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// It does not answer, or answers with an error.
    #[error("the rule repository is unavailable: {0}")]
    Unavailable(String),
    /// A change was sent, and no answer came: it may have been made.
    #[error("the rule repository did not answer in time; whether the change was stored is unknown: {0}")]
    OutcomeUnknown(String),
    /// What is stored there cannot be read.
    #[error("the rule repository has an invalid entry: {0}")]
    Invalid(String),
    /// Something is longer than may be stored.
    #[error("{what} is longer than {most} bytes")]
    TooLarge {
        /// What.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// There are as many as may be stored.
    #[error("there are {most} {what} already; remove some first")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// Other changes came in between, again and again.
    #[error("the repository is being changed by others; try again")]
    Contention,
}

impl RuleRepository {
    /// Opens the repository in `folder`, or, without a folder, one in memory that is lost at the end of the process.
    ///
    /// May block on the disk.
    pub fn open_embedded(folder: Option<&Path>, clock: Clock) -> Result<Self, RepositoryError> {
        Ok(Self::Embedded(EmbeddedRepository::open(folder, clock)?))
    }

    /// Opens the repository in `store`, and follows its changes with a poll at this interval. The tasks must be kept
    /// as long as changes are to be noticed. That the store cannot be reached is no error. Needs a tokio runtime.
    pub fn open_shared(
        store: &RedisStore,
        poll_every: Duration,
        clock: Clock,
    ) -> (Self, SharedRepositoryTasks) {
        let (repository, tasks) = SharedRepository::open(store, poll_every, clock);
        (Self::Shared(repository), tasks)
    }

    /// The newest revision.
    pub async fn newest(&self) -> Result<Option<StoredRevision>, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.newest().await,
            Self::Shared(repository) => repository.newest().await,
        }
    }

    /// The newest revision, unless it is `known`.
    pub async fn newest_unless(&self, known: Option<&RevisionId>) -> Result<NewestRevision, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.newest_unless(known.cloned()).await,
            Self::Shared(repository) => repository.newest_unless(known).await,
        }
    }

    /// The revision with this number.
    pub async fn get(&self, number: u64) -> Result<Option<StoredRevision>, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.get(number).await,
            Self::Shared(repository) => repository.get(number).await,
        }
    }

    /// The revisions below `before`, or all, newest first: at most `count`, and at most [`MOST_LISTED`].
    pub async fn history(
        &self,
        before: Option<u64>,
        count: usize,
    ) -> Result<Vec<RevisionSummary>, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.history(before, count.min(MOST_LISTED)).await,
            Self::Shared(repository) => repository.history(before, count.min(MOST_LISTED)).await,
        }
    }

    /// Makes `draft` the newest revision, if the newest one now is `expected` (none: there is none). A draft from a file
    /// never replaces a published revision. When this returns, the revision is durable.
    pub async fn publish(
        &self,
        expected: Option<u64>,
        draft: RevisionDraft,
    ) -> Result<PublishOutcome, RepositoryError> {
        check_length("the text of the rules", draft.text.len(), file::MOST_BYTES as usize)?;
        check_length("the author", draft.author.len(), MOST_AUTHOR_BYTES)?;
        check_length("the message", draft.message.len(), MOST_MESSAGE_BYTES)?;
        match self {
            Self::Embedded(repository) => repository.publish(expected, draft).await,
            Self::Shared(repository) => repository.publish(expected, draft).await,
        }
    }

    /// Stores a revision that the repository has lost, such as after a failover, as it was: if the newest one now is
    /// `expected`, which has a lower number.
    pub(crate) async fn restore(
        &self,
        expected: Option<u64>,
        revision: StoredRevision,
    ) -> Result<PublishOutcome, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.restore(expected, revision).await,
            Self::Shared(repository) => repository.restore(expected, &revision).await,
        }
    }

    /// The last revision that was published at this node, if the store might lose it.
    pub(crate) fn acknowledged(&self) -> Option<Arc<StoredRevision>> {
        match self {
            Self::Embedded(_) => None,
            Self::Shared(repository) => repository.acknowledged(),
        }
    }

    /// Notes the rules that are in force on this node, and tells the other nodes their number. The number is 0 if they
    /// are not a revision yet.
    pub(crate) fn note_in_force(&self, revision: StoredRevision) {
        match self {
            Self::Embedded(repository) => repository.note_in_force(revision),
            Self::Shared(repository) => repository.note_in_force(revision),
        }
    }

    /// The rules that are in force on this node; none if it has none of a repository.
    pub(crate) fn in_force(&self) -> Option<Arc<StoredRevision>> {
        match self {
            Self::Embedded(repository) => repository.in_force(),
            Self::Shared(repository) => repository.in_force(),
        }
    }

    /// How the polls of a repository in Redis fare.
    pub fn health(&self) -> SourceHealth {
        match self {
            Self::Embedded(_) => SourceHealth::default(),
            Self::Shared(repository) => repository.health(),
        }
    }

    /// Where it is: a file, memory, or a store.
    pub fn place(&self) -> String {
        match self {
            Self::Embedded(repository) => match repository.path() {
                Some(path) => path.display().to_string(),
                None => "memory".to_owned(),
            },
            Self::Shared(repository) => repository.place(),
        }
    }

    /// Tells the repository of a revision number that a node has seen: later revisions get higher ones.
    pub fn note_number(&self, number: u64) {
        match self {
            Self::Embedded(repository) => repository.note_number(number),
            Self::Shared(repository) => repository.note_number(number),
        }
    }

    /// Changes whenever the newest revision or the control state may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        match self {
            Self::Embedded(repository) => repository.changes(),
            Self::Shared(repository) => repository.changes(),
        }
    }

    /// The control state.
    pub async fn control_state(&self) -> Result<ControlState, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.control_state().await,
            Self::Shared(repository) => repository.control_state().await,
        }
    }

    /// Changes the control state. `change` is called again if another change came in between.
    pub async fn update_control_state(
        &self,
        change: impl Fn(&mut ControlState),
    ) -> Result<ControlState, RepositoryError> {
        for _ in 0..STATE_ATTEMPTS {
            let mut state = self.control_state().await?;
            let version = state.version;
            change(&mut state);
            state.version = version + 1;
            let is_stored = match self {
                Self::Embedded(repository) => {
                    repository.replace_control_state(version, to_json("the control state", &state)?).await?
                }
                Self::Shared(repository) => repository.replace_control_state(version, &state).await?,
            };
            if is_stored {
                return Ok(state);
            }
        }
        Err(RepositoryError::Contention)
    }

    /// Switches the emergency limit of this node only, because the store does not answer: it is stored as soon as the
    /// store answers again. A file has no such outages.
    pub(crate) fn switch_unstored(&self, switch: Option<EmergencySwitch>) -> Switched {
        match self {
            Self::Embedded(_) => Switched::Refused,
            Self::Shared(repository) => {
                repository.switch_unstored(switch);
                Switched::OnThisNode
            }
        }
    }

    /// The control state as this node knows it, without asking the store.
    pub(crate) fn known_control_state(&self) -> KnownControlState {
        match self {
            Self::Embedded(_) => KnownControlState::default(),
            Self::Shared(repository) => repository.known_control_state(),
        }
    }

    /// Appends an entry to the audit log, and logs it. Its id is given by the repository; long texts are cut.
    pub async fn append_audit(&self, entry: AuditEntry) -> Result<(), RepositoryError> {
        let entry = entry.bounded();
        let logged = match self {
            Self::Embedded(repository) => repository.append_audit(entry.clone()).await,
            Self::Shared(repository) => repository.append_audit(entry.clone()).await,
        };
        match logged {
            Ok(id) => {
                AuditEntry { id, ..entry }.log();
                Ok(())
            }
            Err(error) => {
                entry.log();
                tracing::error!(%error, "audit entry cannot be stored");
                Err(error)
            }
        }
    }

    /// The audit entries with ids below `before`, or all, newest first: at most `count`, and at most [`MOST_LISTED`].
    pub async fn audit(&self, before: Option<u64>, count: usize) -> Result<Vec<AuditEntry>, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.audit(before, count.min(MOST_LISTED)).await,
            Self::Shared(repository) => repository.audit(before, count.min(MOST_LISTED)).await,
        }
    }

    /// All access tokens.
    pub async fn tokens(&self) -> Result<Vec<StoredToken>, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.tokens().await,
            Self::Shared(repository) => repository.tokens().await,
        }
    }

    /// The tokens that this node has read, whether or not the store answers; none if they are in a file.
    pub(crate) fn known_tokens(&self) -> Option<Vec<StoredToken>> {
        match self {
            Self::Embedded(_) => None,
            Self::Shared(repository) => Some(repository.known_tokens()),
        }
    }

    /// Stores a token; one with the same id is replaced.
    pub async fn put_token(&self, token: StoredToken) -> Result<(), RepositoryError> {
        let document = to_json("the token", &token)?;
        check_length("the token", document.len(), MOST_TOKEN_BYTES)?;
        match self {
            Self::Embedded(repository) => repository.put_token(token.id, document).await,
            Self::Shared(repository) => repository.put_token(token).await,
        }
    }

    /// Removes a token. Returns whether it was there.
    pub async fn remove_token(&self, id: &str) -> Result<bool, RepositoryError> {
        match self {
            Self::Embedded(repository) => repository.remove_token(id.to_owned()).await,
            Self::Shared(repository) => repository.remove_token(id).await,
        }
    }
}

fn check_length(what: &'static str, bytes: usize, most: usize) -> Result<(), RepositoryError> {
    if bytes > most { Err(RepositoryError::TooLarge { what, most }) } else { Ok(()) }
}

/// A document as it is stored.
fn to_json(what: &'static str, document: &impl serde::Serialize) -> Result<String, RepositoryError> {
    let json =
        serde_json::to_string(document).map_err(|error| RepositoryError::Invalid(error.to_string()))?;
    check_length(what, json.len(), MOST_DOCUMENT_BYTES)?;
    Ok(json)
}

/// A document as it was stored.
fn from_json<T: serde::de::DeserializeOwned>(what: &str, json: &str) -> Result<T, RepositoryError> {
    serde_json::from_str(json).map_err(|error| RepositoryError::Invalid(format!("{what}: {error}")))
}
