//! The watch itself.

use crate::setting::{Followed, rules};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tollgate_control::{Cause, FileWatch};
use tollgate_testbed::wait_until;

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn hands_over_all_files_at_once_on_a_change_and_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (tell, told) = mpsc::channel();
    std::fs::write(path("a"), "1").unwrap();
    let watch = FileWatch::start("test", vec![path("a"), path("b")], move |contents, cause| {
        let texts: Vec<_> =
            contents.into_iter().map(|content| content.map_err(|error| error.kind())).collect();
        let _ = tell.send((texts, cause));
    })
    .unwrap();
    let next = || told.recv_timeout(PATIENCE).unwrap();
    let gone = Err(std::io::ErrorKind::NotFound);
    assert_eq!(next(), (vec![Ok(b"1".to_vec()), gone], Cause::Changed));
    std::fs::write(path("b"), "2").unwrap();
    assert_eq!(next(), (vec![Ok(b"1".to_vec()), Ok(b"2".to_vec())], Cause::Changed));
    watch.reload();
    assert_eq!(next(), (vec![Ok(b"1".to_vec()), Ok(b"2".to_vec())], Cause::Asked));
    wait_until("the look has ended", || watch.has_looked());
    drop(watch);
    assert_eq!(told.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected), "the thread ends");
}

/// As with a disk that hangs: the thread of the watch does not come back.
#[test]
fn one_that_hangs_keeps_nothing_from_going_on() {
    let (tell, told) = mpsc::channel();
    let (_hold, held) = mpsc::channel::<()>();
    let watch = FileWatch::start("test", vec![PathBuf::from("nowhere")], move |_, _| {
        let _ = tell.send(());
        let _ = held.recv();
    })
    .unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    for _ in 0..3 {
        watch.reload();
        assert!(!watch.has_looked(), "and it is known");
    }
    drop(watch);
}

#[tokio::test]
async fn asked_without_a_change_the_rules_stay_and_an_error_is_looked_at_again() {
    let mut file = Followed::with_rules(&rules(5));
    file.watch.reload();
    file.replace(&rules(6));
    file.until_quota(6).await;
    assert_eq!(file.revision(), 2, "what has not changed is not a revision");
    file.replace("rules: [");
    file.until_error().await;
    file.watch.reload();
    file.replace(&rules(6));
    file.until_well().await;
}
