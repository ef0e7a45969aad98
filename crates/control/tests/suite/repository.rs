//! What every rule repository promises: in a file, in memory and in Redis.

use std::sync::Arc;
use tempfile::TempDir;
use tollgate_control::{
    AuditEntry, ControlState, EmergencySwitch, GrantRecord, MOST_AUTHOR_BYTES, NewestRevision,
    PublishOutcome, RepositoryError, RevisionDraft, RevisionOrigin, RuleRepository, SharedRepositoryTasks,
    StoredToken, TokenRole, text_digest,
};
use tollgate_core::time::UnixTime;
use tollgate_limiter::file::MOST_BYTES;
use tollgate_limiter::{Clock, ManualClock};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{PATIENCE, RedisCluster, RedisServer};

const NOW: UnixTime = UnixTime::from_us(1_700_000_000_000_000);

/// A repository, with what it needs to live.
struct TestRepository {
    repository: RuleRepository,
    _folder: Option<TempDir>,
    _shared: Option<(Arc<RedisStore>, SharedRepositoryTasks)>,
}

fn clock() -> Clock {
    Clock::Manual(ManualClock::new(NOW.as_us()))
}

fn in_memory() -> TestRepository {
    let repository = RuleRepository::open_embedded(None, clock()).unwrap();
    TestRepository { repository, _folder: None, _shared: None }
}

fn in_file() -> TestRepository {
    let folder = tempfile::tempdir().unwrap();
    let repository = RuleRepository::open_embedded(Some(folder.path()), clock()).unwrap();
    TestRepository { repository, _folder: Some(folder), _shared: None }
}

async fn in_redis(url: &str) -> TestRepository {
    let settings = RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() };
    let store = RedisStore::open(&url.parse().unwrap(), settings, Clock::system()).await.unwrap();
    let (repository, tasks) = RuleRepository::open_shared(&store, PATIENCE, clock());
    TestRepository { repository, _folder: None, _shared: Some((Arc::new(store), tasks)) }
}

/// Runs `test` on a repository of each kind.
async fn on_each(test: impl AsyncFn(&RuleRepository)) {
    let server = RedisServer::start(&[]);
    let cluster = RedisCluster::start(2, 0);
    for kept in [in_memory(), in_file(), in_redis(&server.url()).await, in_redis(&cluster.url()).await] {
        test(&kept.repository).await;
    }
}

fn draft(text: &str, origin: RevisionOrigin) -> RevisionDraft {
    let message = format!("publish {}", text.chars().take(20).collect::<String>());
    let author = "ana".to_owned();
    RevisionDraft { text: text.to_owned(), author, message, origin }
}

async fn publish(repository: &RuleRepository, expected: Option<u64>, text: &str) -> PublishOutcome {
    repository.publish(expected, draft(text, RevisionOrigin::Published)).await.unwrap()
}

fn published(outcome: PublishOutcome) -> u64 {
    match outcome {
        PublishOutcome::Published(summary) => summary.number,
        PublishOutcome::Stale(newest) => panic!("the newest is {newest:?}"),
    }
}

fn stale(outcome: PublishOutcome) -> Option<u64> {
    match outcome {
        PublishOutcome::Published(summary) => panic!("{summary:?} was published"),
        PublishOutcome::Stale(newest) => newest.map(|summary| summary.number),
    }
}

#[tokio::test]
async fn revisions_are_numbered_and_kept() {
    on_each(async |repository| {
        assert_eq!(repository.newest().await.unwrap(), None);
        assert_eq!(repository.history(None, 10).await.unwrap(), []);
        for number in 1..=5 {
            let expected = (number > 1).then_some(number - 1);
            assert_eq!(published(publish(repository, expected, &format!("text {number}")).await), number);
        }
        let newest = repository.newest().await.unwrap().unwrap();
        assert_eq!((newest.summary.number, newest.text.as_str()), (5, "text 5"));
        assert_eq!(newest.summary.digest, text_digest("text 5"));
        assert_eq!((newest.summary.author.as_str(), newest.summary.time), ("ana", NOW));
        assert_eq!(newest.summary.message, "publish text 5");
        assert_eq!(repository.get(2).await.unwrap().unwrap().text, "text 2");
        assert_eq!(repository.get(6).await.unwrap(), None);
        let numbers = async |before, count| {
            let listed = repository.history(before, count).await.unwrap();
            listed.iter().map(|summary| summary.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(None, 2).await, [5, 4]);
        assert_eq!(numbers(Some(4), 10).await, [3, 2, 1]);
        assert_eq!(numbers(Some(1), 10).await, [0u64; 0]);
        let id = newest.summary.id();
        assert!(matches!(repository.newest_unless(Some(&id)).await.unwrap(), NewestRevision::Known));
        repository.note_number(40);
        assert_eq!(
            published(publish(repository, Some(5), "text 41").await),
            41,
            "a number that was seen is used up"
        );
    })
    .await;
}

#[tokio::test]
async fn of_two_writers_one_wins_and_the_other_is_told() {
    on_each(async |repository| {
        assert_eq!(stale(publish(repository, Some(3), "too early").await), None);
        assert_eq!(published(publish(repository, None, "first").await), 1);
        assert_eq!(stale(publish(repository, None, "second").await), Some(1));
        for round in 1..=20u64 {
            let (one, other) = (format!("one {round}"), format!("other {round}"));
            let (one, other) = tokio::join!(
                publish(repository, Some(round), &one),
                publish(repository, Some(round), &other)
            );
            let (won, lost) = match &one {
                PublishOutcome::Published(_) => (one, other),
                PublishOutcome::Stale(_) => (other, one),
            };
            assert_eq!((published(won), stale(lost)), (round + 1, Some(round + 1)));
        }
    })
    .await;
}

#[tokio::test]
async fn publishing_the_same_again_changes_nothing() {
    on_each(async |repository| {
        assert_eq!(published(publish(repository, None, "same").await), 1);
        // The answer to the first may have been lost, or a writer came late.
        for expected in [None, Some(1), Some(7)] {
            assert_eq!(published(publish(repository, expected, "same").await), 1);
        }
        assert_eq!(repository.history(None, 10).await.unwrap().len(), 1);
        assert_eq!(published(publish(repository, Some(1), "other").await), 2);
        assert_eq!(published(publish(repository, Some(2), "same").await), 3, "a rollback is a new revision");
    })
    .await;
}

#[tokio::test]
async fn a_file_never_replaces_a_published_revision() {
    on_each(async |repository| {
        let of_file = async |expected, text| {
            repository.publish(expected, draft(text, RevisionOrigin::File)).await.unwrap()
        };
        assert_eq!(published(of_file(None, "seed").await), 1);
        assert_eq!(published(of_file(Some(1), "changed").await), 2);
        assert_eq!(
            published(publish(repository, Some(2), "changed").await),
            3,
            "an operator takes the rules over"
        );
        assert_eq!(stale(of_file(Some(3), "file").await), Some(3));
        assert_eq!(stale(of_file(Some(3), "changed").await), Some(3));
    })
    .await;
}

#[tokio::test]
async fn the_largest_text_is_kept_and_a_larger_one_refused() {
    on_each(async |repository| {
        // Not one byte per character, and not the same everywhere.
        let unit = "# zwölf Boxkämpfer 0123456789\n";
        let mut text = unit.repeat(MOST_BYTES as usize / unit.len());
        text.extend(std::iter::repeat_n('x', MOST_BYTES as usize - text.len()));
        assert_eq!(published(publish(repository, None, &text).await), 1);
        assert!(repository.newest().await.unwrap().unwrap().text == text);
        text.push('x');
        let error = repository.publish(Some(1), draft(&text, RevisionOrigin::Published)).await.unwrap_err();
        assert!(matches!(error, RepositoryError::TooLarge { .. }), "{error}");
        let mut long = draft("text", RevisionOrigin::Published);
        long.author = "a".repeat(MOST_AUTHOR_BYTES + 1);
        let error = repository.publish(Some(1), long).await.unwrap_err();
        assert_eq!(error.to_string(), "the author is longer than 256 bytes");
    })
    .await;
}

#[tokio::test]
async fn changes_are_announced() {
    on_each(async |repository| {
        let mut changes = repository.changes();
        changes.mark_unchanged();
        publish(repository, None, "first").await;
        tokio::time::timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    })
    .await;
}

fn grant(id: &str) -> GrantRecord {
    GrantRecord {
        id: id.to_owned(),
        kind: "api_key".to_owned(),
        value: "k1".to_owned(),
        rule: None,
        tokens: 500,
        created: NOW,
        expires: NOW + 60_000_000,
        author: "ana".to_owned(),
        reason: "migration".to_owned(),
    }
}

#[tokio::test]
async fn the_control_state_loses_no_change() {
    on_each(async |repository| {
        assert_eq!(repository.control_state().await.unwrap(), ControlState::default());
        let add = async |id: String| {
            repository.update_control_state(|state| state.grants.push(grant(&id))).await.unwrap();
        };
        tokio::join!(add("a".to_owned()), add("b".to_owned()), add("c".to_owned()), async {
            let on = |state: &mut ControlState| state.emergency = Some(EmergencySwitch::On);
            repository.update_control_state(on).await.unwrap();
        });
        let state = repository.control_state().await.unwrap();
        let mut ids: Vec<_> = state.grants.iter().map(|grant| grant.id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(
            (state.version, state.emergency, ids),
            (4, Some(EmergencySwitch::On), vec!["a", "b", "c"])
        );
        let gone = repository.update_control_state(|state| state.grants.clear()).await.unwrap();
        assert_eq!((gone.version, gone.grants.len()), (5, 0));
    })
    .await;
}

#[tokio::test]
async fn audit_entries_are_numbered_and_kept() {
    on_each(async |repository| {
        let entry = |action: &str| AuditEntry {
            time: NOW,
            actor: "ana".to_owned(),
            action: action.to_owned(),
            ..AuditEntry::default()
        };
        for action in ["publish", "publish", "rollback"] {
            repository.append_audit(entry(action)).await.unwrap();
        }
        let listed = repository.audit(None, 10).await.unwrap();
        let listed: Vec<_> =
            listed.iter().map(|entry| (entry.id, entry.action.as_str(), entry.time)).collect();
        assert_eq!(listed, [(3, "rollback", NOW), (2, "publish", NOW), (1, "publish", NOW)]);
        assert_eq!(repository.audit(Some(2), 10).await.unwrap().len(), 1);
        assert_eq!(repository.audit(None, 1).await.unwrap()[0].id, 3);
    })
    .await;
}

#[tokio::test]
async fn tokens_are_stored_and_removed() {
    on_each(async |repository| {
        let token = |id: &str, role| StoredToken {
            id: id.to_owned(),
            name: "ci".to_owned(),
            role,
            hash: "00ff".to_owned(),
            created: NOW,
            expires: None,
        };
        assert_eq!(repository.tokens().await.unwrap(), []);
        repository.put_token(token("b", TokenRole::Read)).await.unwrap();
        repository.put_token(token("a", TokenRole::Read)).await.unwrap();
        repository.put_token(token("b", TokenRole::Operate)).await.unwrap();
        let expected = [token("a", TokenRole::Read), token("b", TokenRole::Operate)];
        assert_eq!(repository.tokens().await.unwrap(), expected);
        assert!(repository.remove_token("a").await.unwrap());
        assert!(!repository.remove_token("a").await.unwrap());
        assert_eq!(repository.tokens().await.unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_locked_for_a_moment_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| RuleRepository::open_embedded(Some(path), Clock::system());
    let ending = open(folder.path()).unwrap();
    let path = folder.path().to_owned();
    let (waits, is_waiting) = std::sync::mpsc::channel();
    let opening = std::thread::spawn(move || {
        waits.send(()).unwrap();
        open(&path).map(drop).map_err(|error| error.to_string())
    });
    is_waiting.recv().unwrap();
    drop(ending);
    assert_eq!(opening.join().unwrap(), Ok(()));
}
