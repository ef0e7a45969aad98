//! FIFOs, devices, folders and huge files in place of a rule file. They must block neither the watcher nor a decision.

use crate::followed_file::{FollowedFile, limiter, quota, rules, without_blocking};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use tollgate_control::{InstallSettings, WatchedRuleFile};

/// Puts something else in place of the file.
type Make = fn(&Path);

/// Each kind, and its error.
const KINDS: [(Make, &str); 5] = [
    (fifo, "it is not a regular file"),
    (|path| symlink("/dev/zero", path).unwrap(), "it is not a regular file"),
    (|path| symlink("/dev/tty", path).unwrap(), "it is not a regular file"),
    (|path| fs::create_dir(path).unwrap(), "it is not a regular file"),
    (|path| File::create(path).unwrap().set_len((16 << 20) + 1).unwrap(), "it is larger than 16 MiB"),
];

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn an_irregular_file_is_an_error_at_the_start() {
    for (make, expected) in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        make(&path);
        without_blocking(move || {
            let message =
                WatchedRuleFile::open(&path, InstallSettings::default(), limiter()).unwrap_err().to_string();
            assert!(message.ends_with(expected), "{message}");
        });
    }
}

#[tokio::test]
async fn an_irregular_file_keeps_the_rules_in_force_until_a_good_one_comes() {
    let mut file = FollowedFile::with_rules(&rules(5));
    for (capacity, (make, expected)) in (6..).zip(KINDS) {
        fs::rename(&file.path, file.folder.path().join("old.yaml")).unwrap();
        make(&file.path);
        let message = file.until_error_with(expected).await;
        assert!(message.contains("rules.yaml"), "{message}");
        assert_eq!(quota(&file.limiter, "a"), Some(capacity - 1));
        if file.path.is_dir() {
            fs::remove_dir(&file.path).unwrap();
        }
        file.replace(&rules(capacity));
        file.until_quota(capacity).await;
        assert!(file.error().is_none());
    }
    assert_eq!(Arc::strong_count(&file.limiter), 2, "the watcher still runs");
}
