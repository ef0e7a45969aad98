//! The file watcher itself.

use crate::followed_file::{FollowedFile, rules, without_blocking};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tollgate_control::{FileWatcher, ReadCause};
use tollgate_testbed::wait_until;

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn all_files_are_passed_on_after_a_change_and_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (tell, told) = mpsc::channel();
    std::fs::write(path("a"), "1").unwrap();
    let watch = FileWatcher::start("test", vec![path("a"), path("b")], move |contents, cause| {
        let texts: Vec<_> =
            contents.into_iter().map(|content| content.map_err(|error| error.kind())).collect();
        let _ = tell.send((texts, cause));
    })
    .unwrap();
    let next = || told.recv_timeout(PATIENCE).unwrap();
    let gone = Err(std::io::ErrorKind::NotFound);
    assert_eq!(next(), (vec![Ok(b"1".to_vec()), gone], ReadCause::Changed));
    std::fs::write(path("b"), "2").unwrap();
    assert_eq!(next(), (vec![Ok(b"1".to_vec()), Ok(b"2".to_vec())], ReadCause::Changed));
    watch.reload();
    assert_eq!(next(), (vec![Ok(b"1".to_vec()), Ok(b"2".to_vec())], ReadCause::Requested));
    wait_until("the read has ended", || watch.take_has_read());
    drop(watch);
    assert_eq!(told.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected), "the thread ends");
}

/// The callback never returns, as with a disk that hangs.
#[test]
fn a_thread_that_hangs_blocks_nothing_else() {
    let (_hold, held) = mpsc::channel::<()>();
    without_blocking(move || {
        let (tell, told) = mpsc::channel();
        let watch = FileWatcher::start("test", vec![PathBuf::from("nowhere")], move |_, _| {
            let _ = tell.send(());
            let _ = held.recv();
        })
        .unwrap();
        told.recv_timeout(PATIENCE).unwrap();
        for _ in 0..3 {
            watch.reload();
            assert!(!watch.take_has_read(), "the hang is visible");
        }
        drop(watch);
    });
}

#[tokio::test]
async fn a_requested_reload_retries_after_an_error() {
    let mut file = FollowedFile::with_rules(&rules(5));
    file.watcher.reload();
    file.replace(&rules(6));
    file.until_quota(6).await;
    assert_eq!(file.revision(), 2, "what has not changed is not a revision");
    file.replace("rules: [");
    file.until_error().await;
    file.watcher.reload();
    file.replace(&rules(6));
    file.until_good().await;
}
