//! The ways in which files change.

use crate::setting::{Followed, rules};
use std::os::unix::fs::symlink;
use std::path::Path;

#[tokio::test]
async fn overwritten() {
    let mut file = Followed::with_rules(&rules(5));
    for capacity in [6, 7, 8] {
        file.write(rules(capacity));
        file.until_quota(capacity).await;
    }
    assert_eq!(file.revision(), 4);
    assert!(file.error().is_none());
}

#[tokio::test]
async fn replaced_by_a_rename() {
    let mut file = Followed::with_rules(&rules(5));
    for capacity in [6, 7, 8] {
        file.replace(&rules(capacity));
        file.until_quota(capacity).await;
    }
    assert_eq!(file.revision(), 4);
}

/// Kubernetes mounts `rules.yaml → ..data/rules.yaml` and `..data → ..<time>`, and swaps the latter.
#[tokio::test]
async fn swapped_behind_a_symlink() {
    let release = |folder: &Path, capacity: u32| {
        let version = format!("..version-{capacity}");
        std::fs::create_dir(folder.join(&version)).unwrap();
        std::fs::write(folder.join(&version).join("rules.yaml"), rules(capacity)).unwrap();
        symlink(&version, folder.join("..data_tmp")).unwrap();
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    let mut file = Followed::start(|folder| {
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

/// The folder that is watched is not the one in which the file changes: it is noticed by looking.
#[tokio::test]
async fn changed_in_another_folder() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("target.yaml");
    std::fs::write(&target, rules(5)).unwrap();
    let mut file = Followed::start(|folder| {
        symlink(&target, folder.join("rules.yaml")).unwrap();
        folder.join("rules.yaml")
    });
    std::fs::write(&target, rules(6)).unwrap();
    file.until_quota(6).await;
}

#[tokio::test]
async fn deleted_and_back() {
    let mut file = Followed::with_rules(&rules(5));
    std::fs::remove_file(&file.path).unwrap();
    let message = file.until_error().await;
    assert!(message.contains("cannot read "), "{message}");
    file.until_quota(5).await;
    assert_eq!(file.revision(), 1);
    file.write(rules(6));
    file.until_quota(6).await;
    assert!(file.error().is_none(), "all is well again");
}

/// The same content again after it was gone: that, too, is worth a word.
#[tokio::test]
async fn deleted_and_back_as_it_was() {
    let mut file = Followed::with_rules(&rules(5));
    std::fs::remove_file(&file.path).unwrap();
    file.until_error().await;
    file.write(rules(5));
    file.until_well().await;
    file.until_quota(5).await;
}
