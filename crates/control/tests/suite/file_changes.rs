//! The ways in which files change.

use crate::followed_file::{FollowedFile, rules};
use std::os::unix::fs::symlink;
use std::path::Path;

#[tokio::test]
async fn an_overwritten_file_is_reloaded() {
    let mut file = FollowedFile::with_rules(&rules(5));
    for capacity in [6, 7, 8] {
        file.write(rules(capacity));
        file.until_quota(capacity).await;
    }
    assert_eq!(file.revision(), 4);
    assert!(file.error().is_none());
}

#[tokio::test]
async fn a_renamed_file_is_reloaded() {
    let mut file = FollowedFile::with_rules(&rules(5));
    for capacity in [6, 7, 8] {
        file.replace(&rules(capacity));
        file.until_quota(capacity).await;
    }
    assert_eq!(file.revision(), 4);
}

/// Kubernetes mounts `rules.yaml → ..data/rules.yaml` and `..data → ..<time>`, and swaps the latter.
#[tokio::test]
async fn a_swapped_symlink_is_followed() {
    let release = |folder: &Path, capacity: u32| {
        let version = format!("..version-{capacity}");
        std::fs::create_dir(folder.join(&version)).unwrap();
        std::fs::write(folder.join(&version).join("rules.yaml"), rules(capacity)).unwrap();
        symlink(&version, folder.join("..data_tmp")).unwrap();
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    let mut file = FollowedFile::start(|folder| {
        release(folder, 5);
        symlink("..data/rules.yaml", folder.join("rules.yaml")).unwrap();
        folder.join("rules.yaml")
    });
    for capacity in [6, 7, 8] {
        release(file.folder.path(), capacity);
        file.until_quota(capacity).await;
        std::fs::remove_dir_all(file.folder.path().join(format!("..version-{}", capacity - 1))).unwrap();
    }
    assert!(file.error().is_none());
}

/// The file changes in another folder than the watched one: it is noticed by reading.
#[tokio::test]
async fn a_change_in_another_folder_is_noticed() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("target.yaml");
    std::fs::write(&target, rules(5)).unwrap();
    let mut file = FollowedFile::start(|folder| {
        symlink(&target, folder.join("rules.yaml")).unwrap();
        folder.join("rules.yaml")
    });
    std::fs::write(&target, rules(6)).unwrap();
    file.until_quota(6).await;
}

#[tokio::test]
async fn a_deleted_file_is_an_error_until_it_is_back() {
    let mut file = FollowedFile::with_rules(&rules(5));
    std::fs::remove_file(&file.path).unwrap();
    let message = file.until_error().await;
    assert!(message.contains("cannot read "), "{message}");
    file.until_quota(5).await;
    assert_eq!(file.revision(), 1);
    file.write(rules(6));
    file.until_quota(6).await;
    assert!(file.error().is_none(), "the error is cleared");
}

/// The same content after a deletion: the error must be cleared, too.
#[tokio::test]
async fn the_same_content_after_a_deletion_clears_the_error() {
    let mut file = FollowedFile::with_rules(&rules(5));
    std::fs::remove_file(&file.path).unwrap();
    file.until_error().await;
    file.write(rules(5));
    file.until_good().await;
    file.until_quota(5).await;
}
