//! The file of an embedded repository.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tollgate_control::{PublishOutcome, RevisionDraft, RevisionOrigin, RuleRepository};
use tollgate_limiter::Clock;

fn open(folder: &Path) -> Result<RuleRepository, String> {
    RuleRepository::open_embedded(Some(folder), Clock::system()).map_err(|error| error.to_string())
}

fn draft(text: &str) -> RevisionDraft {
    RevisionDraft {
        text: text.to_owned(),
        author: "ana".to_owned(),
        message: String::new(),
        origin: RevisionOrigin::Published,
    }
}

async fn publish(repository: &RuleRepository, expected: Option<u64>, text: &str) {
    let outcome = repository.publish(expected, draft(text)).await.unwrap();
    assert!(matches!(outcome, PublishOutcome::Published(_)), "{outcome:?}");
}

#[tokio::test]
async fn a_repository_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..3u64 {
        let repository = open(folder.path()).unwrap();
        let newest = repository.newest().await.unwrap();
        assert_eq!(newest.map_or(0, |newest| newest.summary.number), number);
        publish(&repository, (number > 0).then_some(number), &format!("text {number}")).await;
    }
    let mode = fs::metadata(folder.path().join("control.redb")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
}

#[tokio::test]
async fn a_file_that_another_process_has_open_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let _first = open(folder.path()).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(error.contains("control.redb cannot be used: another process has it open"), "{error}");
    assert!(error.contains("hint: each node needs a data folder of its own"), "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    publish(&open(folder.path()).unwrap(), None, &"text ".repeat(10_000)).await;
    let path = folder.path().join("control.redb");
    let good = fs::read(&path).unwrap();
    let mut without_header = good.clone();
    without_header[..512].fill(0xab);
    let mut without_page = good.clone();
    without_page[4096..8192].fill(0);
    let damages: [&[u8]; 6] =
        [b"", b"not a database", &good[..4096], &good[..good.len() / 2], &without_header, &without_page];
    for damaged in damages {
        fs::write(&path, damaged).unwrap();
        let error = open(folder.path()).unwrap_err();
        println!("{} bytes: {error}", damaged.len());
        assert!(error.contains("control.redb cannot be used: "), "{error}");
        assert!(error.contains("\n  hint: "), "{error}");
    }
    fs::write(&path, &good).unwrap();
    assert!(open(folder.path()).unwrap().newest().await.unwrap().is_some());
}

#[tokio::test]
async fn nothing_is_published_to_a_file_that_was_removed_or_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let repository = open(folder.path()).unwrap();
    publish(&repository, None, "one").await;
    let (path, elsewhere) = (folder.path().join("control.redb"), folder.path().join("elsewhere"));
    fs::rename(&path, &elsewhere).unwrap();
    for copies in [false, true] {
        if copies {
            fs::copy(&elsewhere, &path).unwrap();
        }
        let error = repository.publish(Some(1), draft("two")).await.unwrap_err().to_string();
        assert!(error.contains("control.redb was removed or replaced; restart the node"), "{error}");
        assert_eq!(repository.newest().await.unwrap().unwrap().text, "one", "what was published can be read");
    }
    fs::rename(&elsewhere, &path).unwrap();
    publish(&repository, Some(1), "two").await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = open(&file).unwrap_err();
    assert!(error.contains("file/control.redb cannot be used: "), "{error}");
    fs::create_dir(folder.path().join("control.redb")).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(error.contains("control.redb cannot be used: "), "{error}");
}
