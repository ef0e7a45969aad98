//! The repository of a fleet, in Redis: each change is one script call, so that of two writers one wins and the other is told.
//!
//! All keys are below `{prefix}control:{rules}:`, with one hash tag: one shard has them all.
//!
//! | key | type | content |
//! |---|---|---|
//! | `numbers` | sorted set | the numbers of the revisions |
//! | `summaries` | hash | number → summary; `bytes` → the size of all texts |
//! | `texts` | hash | number → rules, in YAML |
//! | `state` | hash | `document` → control state, `version` → its version, `tokens` → the version of tokens and revocations |
//! | `audit` | sorted set | the entries of the audit log, by id |
//! | `tokens` | hash | id → access token, hashed |
//! | `revoked` | sorted set | the ids of revoked tokens, by time |
//!
//! Nodes are told of changes on the channel `changes`, and poll for those that they missed. The oldest revisions and audit
//! entries are removed beyond a bound; each audit entry is also in the log of the node that made it.
//!
//! A failover can lose the last changes although they were acknowledged. A node keeps the newest revision, the control
//! state and the tokens that it has seen and its own last audit entries, and stores what was lost again.

mod audit;
mod loss_follower;
mod polling;
mod scripts;
mod state;
mod token_set;
mod tokens;

use super::{PublishOutcome, RepositoryError, from_json, to_json};
use crate::control_state::ControlState;
use crate::revision::{RevisionDraft, RevisionId, RevisionSummary, StoredRevision, text_digest};
use crate::source_thread::SourceHealth;
use audit::RecentAudit;
use loss_follower::LossFollower;
use parking_lot::Mutex;
use polling::ChangePoller;
use scripts::SCRIPTS;
use state::UnstoredSwitch;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use token_set::TokenSet;
use tokio::sync::watch;
use tollgate_limiter::{Clock, file};
use tollgate_redis::{
    ControlChannel, ControlError, ControlScript, ControlSubscription, ControlValue, RedisStore,
};

/// The most revisions that Redis keeps.
pub const MOST_SHARED_REVISIONS: usize = 2_000;
/// The most bytes of texts that Redis keeps; the newest revision is kept whatever its size.
pub const MOST_SHARED_BYTES: usize = 64 << 20;
/// The most audit entries that Redis keeps.
pub const MOST_SHARED_AUDIT: usize = 10_000;
/// How much of a text is read in one call.
const PIECE_BYTES: usize = 1 << 20;
/// How many entries of a list are read in one call: at most some 30 KB each, if every character is escaped.
const LISTED_AT_ONCE: usize = 50;

/// A repository in Redis.
#[derive(Clone)]
pub struct SharedRepository(Arc<SharedCore>);

pub(super) struct SharedCore {
    control: ControlChannel,
    keys: RepositoryKeys,
    clock: Clock,
    /// The highest revision number that this node has seen.
    known: AtomicU64,
    changes: watch::Sender<u64>,
    /// The last revision that was published here: this node has it, even if the store loses it at once.
    acknowledged: Mutex<Option<Arc<StoredRevision>>>,
    /// The rules in force on this node.
    in_force: Mutex<Option<Arc<StoredRevision>>>,
    /// The newest control state that this node has seen.
    state: Mutex<Option<ControlState>>,
    /// A switch of the emergency limit that could not be stored yet.
    unstored: Mutex<Option<UnstoredSwitch>>,
    /// The tokens that this node has seen.
    tokens: Mutex<TokenSet>,
    /// The last audit entries that this node has made.
    recent_audit: Mutex<RecentAudit>,
    health: SourceHealth,
}

/// The names of the keys.
struct RepositoryKeys {
    numbers: String,
    summaries: String,
    texts: String,
    state: String,
    audit: String,
    tokens: String,
    revoked: String,
    channel: String,
    probe: String,
}

/// The tasks that notice changes. They end when this is dropped.
#[derive(Debug)]
pub struct SharedRepositoryTasks {
    _subscription: ControlSubscription,
    _poller: ChangePoller,
    _losses: LossFollower,
}

impl fmt::Debug for SharedRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRepository").field("control", &self.0.control).finish_non_exhaustive()
    }
}

impl RepositoryKeys {
    fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{prefix}control:{{rules}}:{name}");
        Self {
            numbers: key("numbers"),
            summaries: key("summaries"),
            texts: key("texts"),
            state: key("state"),
            audit: key("audit"),
            tokens: key("tokens"),
            revoked: key("revoked"),
            channel: key("changes"),
            probe: key("probe"),
        }
    }
}

impl SharedRepository {
    /// The repository in `store`. The tasks must be kept as long as changes are to be noticed. Needs a tokio runtime.
    pub(super) fn open(
        store: &RedisStore,
        poll_every: Duration,
        clock: Clock,
    ) -> (Self, SharedRepositoryTasks) {
        let control = store.control_channel();
        let keys = RepositoryKeys::new(control.prefix());
        let core = Arc::new(SharedCore {
            control,
            keys,
            clock,
            known: AtomicU64::new(0),
            changes: watch::Sender::new(0),
            acknowledged: Mutex::default(),
            in_force: Mutex::default(),
            state: Mutex::default(),
            unstored: Mutex::default(),
            tokens: Mutex::default(),
            recent_audit: Mutex::default(),
            health: SourceHealth::default(),
        });
        let told = Arc::clone(&core);
        let subscription = core.control.subscribe(core.keys.channel.clone(), move || told.note_change());
        let poller = ChangePoller::start(Self(Arc::clone(&core)), poll_every);
        let losses = LossFollower::start(Self(Arc::clone(&core)));
        let tasks = SharedRepositoryTasks { _subscription: subscription, _poller: poller, _losses: losses };
        (Self(core), tasks)
    }

    /// Where it is, without a password.
    pub fn place(&self) -> String {
        format!("{}, keys {}control:*", self.0.control.store_name(), self.0.control.prefix())
    }

    pub(super) fn health(&self) -> SourceHealth {
        self.0.health.clone()
    }

    pub(super) fn note_number(&self, number: u64) {
        self.0.known.fetch_max(number, Ordering::Relaxed);
    }

    pub(super) fn note_in_force(&self, revision: StoredRevision) {
        let number = revision.summary.number;
        *self.0.in_force.lock() = Some(Arc::new(revision));
        if number > 0 {
            self.note_number(number);
            self.0.control.set_rules_version(number);
        }
    }

    pub(super) fn in_force(&self) -> Option<Arc<StoredRevision>> {
        self.0.in_force.lock().clone()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    pub(super) async fn newest(&self) -> Result<Option<StoredRevision>, RepositoryError> {
        match self.newest_unless(None).await? {
            NewestRevision::Other(revision) => Ok(Some(*revision)),
            NewestRevision::None | NewestRevision::Known => Ok(None),
        }
    }

    /// The newest revision. The text is not read again if `known` has it.
    pub(super) async fn newest_unless(
        &self,
        known: Option<&RevisionId>,
    ) -> Result<NewestRevision, RepositoryError> {
        self.0.read(None, known).await
    }

    pub(super) async fn get(&self, number: u64) -> Result<Option<StoredRevision>, RepositoryError> {
        match self.0.read(Some(number), None).await? {
            NewestRevision::Other(revision) => Ok(Some(*revision)),
            NewestRevision::None | NewestRevision::Known => Ok(None),
        }
    }

    pub(super) async fn history(
        &self,
        before: Option<u64>,
        count: usize,
    ) -> Result<Vec<RevisionSummary>, RepositoryError> {
        let keys = [self.0.keys.numbers.clone(), self.0.keys.summaries.clone()];
        let mut listed: Vec<RevisionSummary> = Vec::new();
        let mut before = before;
        while listed.len() < count {
            let wanted = (count - listed.len()).min(LISTED_AT_ONCE);
            let reply = self.0.list(&SCRIPTS.list_revisions, &keys, before, wanted).await?;
            let is_last = reply.len() < wanted;
            for json in reply {
                listed.push(from_json("revision", &json)?);
            }
            before = listed.last().map(|summary| summary.number);
            if is_last {
                break;
            }
        }
        Ok(listed)
    }

    pub(super) async fn publish(
        &self,
        expected: Option<u64>,
        draft: RevisionDraft,
    ) -> Result<PublishOutcome, RepositoryError> {
        let core = &self.0;
        let known = core.known.load(Ordering::Relaxed).max(core.control.highest_rules_version().await);
        let number = expected.unwrap_or(0).max(known) + 1;
        let revision = draft.numbered(number, core.clock.now());
        let outcome = core.store(expected, &revision, "publish").await?;
        if outcome == PublishOutcome::Published(revision.summary.clone()) {
            *core.acknowledged.lock() = Some(Arc::new(revision));
            core.note_change();
        }
        Ok(outcome)
    }

    pub(super) fn acknowledged(&self) -> Option<Arc<StoredRevision>> {
        self.0.acknowledged.lock().clone()
    }

    /// Stores a revision that the repository has lost, as it was.
    pub(super) async fn restore(
        &self,
        expected: Option<u64>,
        revision: &StoredRevision,
    ) -> Result<PublishOutcome, RepositoryError> {
        self.0.store(expected, revision, "restore").await
    }

    /// Logs the permissions that the control plane lacks. Decisions do not need them.
    pub(super) async fn report_missing_permissions(&self) {
        let core = &self.0;
        let missing = core.control.missing_permissions(&core.keys.probe, &core.keys.channel).await;
        if !missing.is_empty() {
            let (commands, prefix) = (missing.join(", "), core.control.prefix());
            let grants: Vec<String> = missing.iter().map(|command| format!("+{command}")).collect();
            tracing::error!(
                commands,
                "the user of the store lacks permissions of the control plane; decisions are not affected; \
                 allow them: ACL SETUSER name &{prefix}* {}; docs/redis.md has the whole list",
                grants.join(" ")
            );
        }
    }
}

/// What was found at the place of a revision.
pub enum NewestRevision {
    /// There is none.
    None,
    /// The one that the reader has.
    Known,
    /// This one.
    Other(Box<StoredRevision>),
}

impl SharedCore {
    fn note_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    async fn call(
        &self,
        script: &ControlScript,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<ControlValue, RepositoryError> {
        self.control.call(script, keys, arguments).await.map_err(|error| match error {
            ControlError::OutcomeUnknown(text) => RepositoryError::OutcomeUnknown(text),
            other => RepositoryError::Unavailable(other.to_string()),
        })
    }

    fn revision_keys(&self) -> [String; 3] {
        let keys = &self.keys;
        [keys.numbers.clone(), keys.summaries.clone(), keys.texts.clone()]
    }

    async fn store(
        &self,
        expected: Option<u64>,
        revision: &StoredRevision,
        mode: &str,
    ) -> Result<PublishOutcome, RepositoryError> {
        let StoredRevision { summary, text } = revision;
        let arguments = [
            expected.map_or_else(String::new, |number| number.to_string()).into_bytes(),
            summary.number.to_string().into_bytes(),
            to_json("the revision", summary)?.into_bytes(),
            text.clone().into_bytes(),
            summary.digest.clone().into_bytes(),
            summary.origin.name().into(),
            mode.into(),
            self.keys.channel.clone().into_bytes(),
            MOST_SHARED_REVISIONS.to_string().into_bytes(),
            MOST_SHARED_BYTES.to_string().into_bytes(),
        ];
        let reply = self.call(&SCRIPTS.publish, &self.revision_keys(), &arguments).await?;
        let mut reply = reply.into_list().into_iter();
        let outcome = reply.next().and_then(ControlValue::into_text);
        let newest = reply.next().and_then(ControlValue::into_text);
        let newest = newest.map(|json| from_json::<RevisionSummary>("revision", &json)).transpose()?;
        match (outcome.as_deref(), newest) {
            (Some("published"), Some(summary)) => {
                self.known.fetch_max(summary.number, Ordering::Relaxed);
                self.note_change();
                Ok(PublishOutcome::Published(summary))
            }
            (Some("stale"), newest) => {
                self.note_change();
                Ok(PublishOutcome::Stale(newest))
            }
            _ => Err(RepositoryError::Invalid("the reply to a publish".to_owned())),
        }
    }

    /// Reads the revision with this number, or the newest.
    async fn read(
        &self,
        number: Option<u64>,
        known: Option<&RevisionId>,
    ) -> Result<NewestRevision, RepositoryError> {
        let keys = self.revision_keys();
        let known_number = known.map_or_else(String::new, |known| known.number.to_string());
        let known_digest = known.map_or("", |known| known.digest.as_str());
        let mut number = number;
        let mut text = Vec::new();
        loop {
            let arguments = [
                number.map_or_else(String::new, |number| number.to_string()).into_bytes(),
                known_number.clone().into_bytes(),
                known_digest.into(),
                text.len().to_string().into_bytes(),
                PIECE_BYTES.to_string().into_bytes(),
            ];
            let reply = self.call(&SCRIPTS.read_revision, &keys, &arguments).await?;
            let mut reply = reply.into_list().into_iter();
            let Some(json) = reply.next().and_then(ControlValue::into_text) else {
                return Ok(NewestRevision::None);
            };
            let summary: RevisionSummary = from_json("revision", &json)?;
            let Some(length) = reply.next().and_then(|length| length.as_number()) else {
                return Ok(NewestRevision::Known);
            };
            let piece = reply.next().and_then(ControlValue::into_bytes).unwrap_or_default();
            let invalid = || RepositoryError::Invalid(format!("the text of revision {}", summary.number));
            let length = usize::try_from(length).map_err(|_| invalid())?;
            if length > file::MOST_BYTES as usize || (piece.is_empty() && text.len() < length) {
                return Err(invalid());
            }
            text.extend(piece);
            number = Some(summary.number);
            if text.len() < length {
                continue;
            }
            let text = String::from_utf8(text).map_err(|_| invalid())?;
            if text_digest(&text) != summary.digest {
                return Err(invalid());
            }
            return Ok(NewestRevision::Other(Box::new(StoredRevision { summary, text })));
        }
    }

    /// Runs a script that lists what is below a number.
    async fn list(
        &self,
        script: &ControlScript,
        keys: &[String],
        before: Option<u64>,
        count: usize,
    ) -> Result<Vec<String>, RepositoryError> {
        let before = before.map_or_else(|| "+inf".to_owned(), |before| before.to_string());
        let arguments = [before.into_bytes(), count.to_string().into_bytes()];
        Ok(texts(self.call(script, keys, &arguments).await?))
    }
}

/// The texts in a list.
fn texts(reply: ControlValue) -> Vec<String> {
    reply.into_list().into_iter().filter_map(ControlValue::into_text).collect()
}
