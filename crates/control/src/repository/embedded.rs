//! The repository of a node alone: a redb file in the data folder, or the same in memory.
//!
//! Every change is one transaction that is on the disk when it is acknowledged. Nothing is ever removed but tokens.
//! The database blocks, so each operation runs in a thread for that.

use super::shared::NewestRevision;
use super::{MOST_TOKENS, PublishOutcome, RepositoryError, from_json, to_json};
use crate::access_token::StoredToken;
use crate::audit::AuditEntry;
use crate::control_state::ControlState;
use crate::revision::{
    RevisionDraft, RevisionId, RevisionOrigin, RevisionSummary, StoredRevision, text_digest,
};
use parking_lot::Mutex;
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, StorageError, TableDefinition, TableError, WriteTransaction,
};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tollgate_limiter::Clock;

/// The file in the data folder.
const FILE: &str = "control.redb";
/// Its mode: only the node reads and writes it.
const MODE: u32 = 0o600;
/// The format of the tables and documents.
const FORMAT: u64 = 1;
/// How often, and after which pauses, a file is tried again that another process has locked: for two seconds.
const LOCK_ATTEMPTS: usize = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Pages that are kept in memory. Revisions are read rarely.
const CACHE_BYTES: usize = 4 << 20;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Summaries and texts are apart, because a history needs no texts.
const SUMMARIES: TableDefinition<'_, u64, &str> = TableDefinition::new("summaries");
const TEXTS: TableDefinition<'_, u64, &str> = TableDefinition::new("texts");
const DOCUMENTS: TableDefinition<'_, &str, &str> = TableDefinition::new("documents");
const AUDIT: TableDefinition<'_, u64, &str> = TableDefinition::new("audit");
const TOKENS: TableDefinition<'_, &str, &str> = TableDefinition::new("tokens");
/// The key of the control state in [`DOCUMENTS`].
const STATE: &str = "control_state";

/// A repository in a file or in memory.
#[derive(Clone)]
pub struct EmbeddedRepository(Arc<EmbeddedCore>);

struct EmbeddedCore {
    database: Database,
    /// None in memory.
    path: Option<PathBuf>,
    /// The device and the number of the file that is open.
    file: Option<(u64, u64)>,
    clock: Clock,
    /// The highest revision number that was ever seen here.
    known: AtomicU64,
    changes: watch::Sender<u64>,
    /// The rules in force on this node.
    in_force: Mutex<Option<Arc<StoredRevision>>>,
}

impl fmt::Debug for EmbeddedRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedRepository").field("path", &self.0.path).finish_non_exhaustive()
    }
}

impl EmbeddedRepository {
    pub(super) fn open(folder: Option<&Path>, clock: Clock) -> Result<Self, RepositoryError> {
        let path = folder.map(|folder| folder.join(FILE));
        let Some(file) = path.clone() else { return Self::open_at(None, clock) };
        // The database panics on some damages.
        catch_unwind(AssertUnwindSafe(|| Self::open_at(path, clock))).unwrap_or_else(|_| {
            Err(file_error(&file, &redb::Error::Corrupted("the database cannot read it".to_owned())))
        })
    }

    fn open_at(path: Option<PathBuf>, clock: Clock) -> Result<Self, RepositoryError> {
        let database = match &path {
            Some(path) => open_file(path)?,
            None => {
                let database = Builder::new().create_with_backend(InMemoryBackend::new());
                database.map_err(|error| RepositoryError::Unavailable(error.to_string()))?
            }
        };
        let file = path.as_deref().and_then(file_identity);
        let (known, changes) = (AtomicU64::new(0), watch::Sender::new(0));
        let core = EmbeddedCore { database, path, file, clock, known, changes, in_force: Mutex::default() };
        core.prepare().map_err(|error| core.describe(error))?;
        Ok(Self(Arc::new(core)))
    }

    /// The file; none if it is in memory.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    pub(super) async fn newest(&self) -> Result<Option<StoredRevision>, RepositoryError> {
        match self.newest_unless(None).await? {
            NewestRevision::Other(revision) => Ok(Some(*revision)),
            NewestRevision::None | NewestRevision::Known => Ok(None),
        }
    }

    pub(super) async fn newest_unless(
        &self,
        known: Option<RevisionId>,
    ) -> Result<NewestRevision, RepositoryError> {
        self.read(move |transaction| {
            let newest = newest_summary(&transaction.open_table(SUMMARIES)?)?;
            let Some(summary) = newest else { return Ok(NewestRevision::None) };
            if known.is_some_and(|known| known == summary.id()) {
                return Ok(NewestRevision::Known);
            }
            let text = text_of(&transaction.open_table(TEXTS)?, summary.number)?;
            Ok(NewestRevision::Other(Box::new(StoredRevision { summary, text })))
        })
        .await
    }

    pub(super) async fn get(&self, number: u64) -> Result<Option<StoredRevision>, RepositoryError> {
        self.read(move |transaction| {
            let summaries = transaction.open_table(SUMMARIES)?;
            let Some(json) = summaries.get(number)? else { return Ok(None) };
            let summary = from_json("revision", json.value())?;
            let text = text_of(&transaction.open_table(TEXTS)?, number)?;
            Ok(Some(StoredRevision { summary, text }))
        })
        .await
    }

    pub(super) async fn history(
        &self,
        before: Option<u64>,
        count: usize,
    ) -> Result<Vec<RevisionSummary>, RepositoryError> {
        self.read(move |transaction| {
            let summaries = transaction.open_table(SUMMARIES)?;
            let below = summaries.range(..before.unwrap_or(u64::MAX))?.rev().take(count);
            below.map(|entry| Ok(from_json("revision", entry?.1.value())?)).collect()
        })
        .await
    }

    pub(super) async fn publish(
        &self,
        expected: Option<u64>,
        draft: RevisionDraft,
    ) -> Result<PublishOutcome, RepositoryError> {
        let core = Arc::clone(&self.0);
        self.write(move |transaction| {
            let mut summaries = transaction.open_table(SUMMARIES)?;
            let newest = newest_summary(&summaries)?;
            if let Some(newest) = &newest
                && newest.origin == RevisionOrigin::Published
            {
                if draft.origin != RevisionOrigin::Published {
                    return Ok(PublishOutcome::Stale(Some(newest.clone())));
                }
                if newest.digest == text_digest(&draft.text) {
                    return Ok(PublishOutcome::Published(newest.clone()));
                }
            }
            let newest_number = newest.as_ref().map(|newest| newest.number);
            if newest_number != expected {
                return Ok(PublishOutcome::Stale(newest));
            }
            let number = newest_number.unwrap_or(0).max(core.known.load(Ordering::Relaxed)) + 1;
            let StoredRevision { summary, text } = draft.numbered(number, core.clock.now());
            summaries.insert(number, to_json("the revision", &summary)?.as_str())?;
            transaction.open_table(TEXTS)?.insert(number, text.as_str())?;
            Ok(PublishOutcome::Published(summary))
        })
        .await
    }

    /// Stores a revision as it is, if the newest one is the expected one and older.
    pub(super) async fn restore(
        &self,
        expected: Option<u64>,
        revision: StoredRevision,
    ) -> Result<PublishOutcome, RepositoryError> {
        self.write(move |transaction| {
            let mut summaries = transaction.open_table(SUMMARIES)?;
            let newest = newest_summary(&summaries)?;
            let StoredRevision { summary, text } = revision;
            let newest_number = newest.as_ref().map(|newest| newest.number);
            if newest_number != expected || newest_number.is_some_and(|newest| newest >= summary.number) {
                return Ok(PublishOutcome::Stale(newest));
            }
            summaries.insert(summary.number, to_json("the revision", &summary)?.as_str())?;
            transaction.open_table(TEXTS)?.insert(summary.number, text.as_str())?;
            Ok(PublishOutcome::Published(summary))
        })
        .await
    }

    pub(super) fn note_number(&self, number: u64) {
        self.0.known.fetch_max(number, Ordering::Relaxed);
    }

    pub(super) fn note_in_force(&self, revision: StoredRevision) {
        self.note_number(revision.summary.number);
        *self.0.in_force.lock() = Some(Arc::new(revision));
    }

    pub(super) fn in_force(&self) -> Option<Arc<StoredRevision>> {
        self.0.in_force.lock().clone()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    pub(super) async fn control_state(&self) -> Result<ControlState, RepositoryError> {
        self.read(|transaction| state_in(&transaction.open_table(DOCUMENTS)?)).await
    }

    /// Stores the state if the one that is stored has this version.
    pub(super) async fn replace_control_state(
        &self,
        version: u64,
        document: String,
    ) -> Result<bool, RepositoryError> {
        self.write(move |transaction| {
            let mut documents = transaction.open_table(DOCUMENTS)?;
            let is_expected = state_in(&documents)?.version == version;
            if is_expected {
                documents.insert(STATE, document.as_str())?;
            }
            Ok(is_expected)
        })
        .await
    }

    pub(super) async fn append_audit(&self, mut entry: AuditEntry) -> Result<u64, RepositoryError> {
        self.run(move |core| {
            core.commit(|transaction| {
                let mut audit = transaction.open_table(AUDIT)?;
                entry.id = audit.last()?.map_or(0, |(id, _)| id.value()) + 1;
                audit.insert(entry.id, to_json("the audit entry", &entry)?.as_str())?;
                Ok(entry.id)
            })
        })
        .await
    }

    pub(super) async fn audit(
        &self,
        before: Option<u64>,
        count: usize,
    ) -> Result<Vec<AuditEntry>, RepositoryError> {
        self.read(move |transaction| {
            let audit = transaction.open_table(AUDIT)?;
            let below = audit.range(..before.unwrap_or(u64::MAX))?.rev().take(count);
            below.map(|entry| Ok(from_json("audit entry", entry?.1.value())?)).collect()
        })
        .await
    }

    pub(super) async fn tokens(&self) -> Result<Vec<StoredToken>, RepositoryError> {
        self.read(|transaction| {
            let tokens = transaction.open_table(TOKENS)?;
            let mut found = Vec::new();
            for entry in tokens.iter()? {
                match from_json("token", entry?.1.value()) {
                    Ok(token) => found.push(token),
                    Err(error) => tracing::warn!(%error, "access token skipped"),
                }
            }
            Ok(found)
        })
        .await
    }

    pub(super) async fn put_token(&self, id: String, document: String) -> Result<(), RepositoryError> {
        self.write(move |transaction| {
            let mut tokens = transaction.open_table(TOKENS)?;
            if tokens.len()? >= MOST_TOKENS as u64 && tokens.get(id.as_str())?.is_none() {
                return Err(RepositoryError::TooMany { what: "tokens", most: MOST_TOKENS }.into());
            }
            tokens.insert(id.as_str(), document.as_str())?;
            Ok(())
        })
        .await
    }

    pub(super) async fn remove_token(&self, id: String) -> Result<bool, RepositoryError> {
        self.write(move |transaction| {
            let mut tokens = transaction.open_table(TOKENS)?;
            let removed = tokens.remove(id.as_str())?;
            Ok(removed.is_some())
        })
        .await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, DatabaseProblem> + Send + 'static,
    ) -> Result<T, RepositoryError> {
        self.run(move |core| {
            let transaction = core.database.begin_read().map_err(redb::Error::from)?;
            read(&transaction)
        })
        .await
    }

    /// Runs `write` and commits what it wrote, if it was successful. Followers are told.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&WriteTransaction) -> Result<T, DatabaseProblem> + Send + 'static,
    ) -> Result<T, RepositoryError> {
        self.run(move |core| {
            let result = core.commit(write)?;
            core.changes.send_modify(|changes| *changes += 1);
            Ok(result)
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&EmbeddedCore) -> Result<T, DatabaseProblem> + Send + 'static,
    ) -> Result<T, RepositoryError> {
        let core = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&core).map_err(|problem| core.describe(problem)));
        done.await.map_err(|error| RepositoryError::Unavailable(error.to_string()))?
    }
}

impl EmbeddedCore {
    /// Creates the tables of a new file, and checks the format of an old one.
    fn prepare(&self) -> Result<(), DatabaseProblem> {
        let format = self.commit(|transaction| {
            transaction.open_table(SUMMARIES)?;
            transaction.open_table(TEXTS)?;
            transaction.open_table(DOCUMENTS)?;
            transaction.open_table(AUDIT)?;
            transaction.open_table(TOKENS)?;
            let mut meta = transaction.open_table(META)?;
            let format = meta.get("format")?.map(|format| format.value());
            if format.is_none() {
                meta.insert("format", FORMAT)?;
            }
            Ok(format.unwrap_or(FORMAT))
        })?;
        if format == FORMAT {
            return Ok(());
        }
        let problem = format!("it has format {format}, and this version of tollgate reads format {FORMAT}");
        Err(RepositoryError::Unavailable(problem).into())
    }

    fn commit<T>(
        &self,
        write: impl FnOnce(&WriteTransaction) -> Result<T, DatabaseProblem>,
    ) -> Result<T, DatabaseProblem> {
        self.verify_file()?;
        let mut transaction = self.database.begin_write().map_err(redb::Error::from)?;
        // A crashed node opens the file again without reading all of it.
        transaction.set_quick_repair(true);
        let result = write(&transaction)?;
        transaction.commit().map_err(redb::Error::from)?;
        Ok(result)
    }

    /// A removed file can still be written, but not be found after a restart: such a change must not be acknowledged.
    fn verify_file(&self) -> Result<(), RepositoryError> {
        let Some(path) = &self.path else { return Ok(()) };
        if self.file.is_some() && file_identity(path) == self.file {
            return Ok(());
        }
        let problem = format!("{} was removed or replaced; restart the node", path.display());
        Err(RepositoryError::Unavailable(problem))
    }

    fn describe(&self, problem: DatabaseProblem) -> RepositoryError {
        match (problem, &self.path) {
            (DatabaseProblem::Repository(error), _) => error,
            (DatabaseProblem::Database(error), Some(path)) => file_error(path, &error),
            (DatabaseProblem::Database(error), None) => RepositoryError::Unavailable(error.to_string()),
        }
    }
}

/// The device and the number of a file.
fn file_identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Why an operation failed.
enum DatabaseProblem {
    Database(redb::Error),
    Repository(RepositoryError),
}

impl From<redb::Error> for DatabaseProblem {
    fn from(error: redb::Error) -> Self {
        Self::Database(error)
    }
}

impl From<StorageError> for DatabaseProblem {
    fn from(error: StorageError) -> Self {
        Self::Database(error.into())
    }
}

impl From<TableError> for DatabaseProblem {
    fn from(error: TableError) -> Self {
        Self::Database(error.into())
    }
}

impl From<RepositoryError> for DatabaseProblem {
    fn from(error: RepositoryError) -> Self {
        Self::Repository(error)
    }
}

fn newest_summary(
    summaries: &impl ReadableTable<u64, &'static str>,
) -> Result<Option<RevisionSummary>, DatabaseProblem> {
    match summaries.last()? {
        Some((_, json)) => Ok(Some(from_json("revision", json.value())?)),
        None => Ok(None),
    }
}

fn text_of(texts: &impl ReadableTable<u64, &'static str>, number: u64) -> Result<String, DatabaseProblem> {
    let text = texts.get(number)?.map(|text| text.value().to_owned());
    let missing = || RepositoryError::Invalid(format!("revision {number} has no text"));
    Ok(text.ok_or_else(missing)?)
}

fn state_in(
    documents: &impl ReadableTable<&'static str, &'static str>,
) -> Result<ControlState, DatabaseProblem> {
    match documents.get(STATE)? {
        Some(json) => Ok(from_json("control state", json.value())?),
        None => Ok(ControlState::default()),
    }
}

fn open_file(path: &Path) -> Result<Database, RepositoryError> {
    let io_error = |error: io::Error| file_error(path, &redb::Error::Io(error));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io_error)?;
    }
    // A new database would be written into it, over what was lost.
    if fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Err(file_error(path, &redb::Error::Corrupted("it is empty".to_owned())));
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(MODE).open(path);
    let file = file.map_err(io_error)?;
    if !file.metadata().map_err(io_error)?.is_file() {
        return Err(io_error(io::Error::other("it is not a regular file")));
    }
    let mut attempts = LOCK_ATTEMPTS;
    loop {
        let file = file.try_clone().map_err(io_error)?;
        match Builder::new().set_cache_size(CACHE_BYTES).create_file(file) {
            // A process that was killed a moment ago may still be ending, and holds the lock until it has.
            Err(DatabaseError::DatabaseAlreadyOpen) if attempts > 0 => {
                attempts -= 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            opened => return opened.map_err(|error| file_error(path, &error.into())),
        }
    }
}

/// The error of a file, with what to do about it.
fn file_error(path: &Path, error: &redb::Error) -> RepositoryError {
    let (problem, hint) = match error {
        redb::Error::DatabaseAlreadyOpen => (
            "another process has it open".to_owned(),
            "each node needs a data folder of its own; stop the other process, or set another folder with `data`",
        ),
        redb::Error::Corrupted(problem) => (
            format!("it is damaged: {problem}"),
            "restore it from a backup, or move it away to start with an empty repository; a rule file then becomes revision 1",
        ),
        redb::Error::UpgradeRequired(version) => (
            format!("it has an older file format ({version})"),
            "start it once with the version of tollgate that wrote it, or move it away to start with an empty repository",
        ),
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => (
            format!("it is not a rule repository: {error}"),
            "move it away to start with an empty repository; a rule file then becomes revision 1",
        ),
        other => (
            other.to_string(),
            "check that the folder exists, that the user of tollgate may write it, and that the disk is not full",
        ),
    };
    RepositoryError::File { path: path.to_owned(), problem, hint: hint.to_owned() }
}
