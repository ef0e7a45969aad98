//! The last good rules, kept for a restart.

use crate::followed_file::{FollowedFile, limiter, quota, rules};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tollgate_control::{InstallSettings, WatchedRuleFile};
use tollgate_limiter::file::MOST_BYTES;
use tollgate_testbed::wait_until;

const KEPT: &str = "last-good-rules.yaml";

/// A rule file and a data folder.
struct DataFolder {
    folder: TempDir,
}

impl DataFolder {
    fn new(text: &str) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(node.rules(), text).unwrap();
        node
    }

    fn rules(&self) -> PathBuf {
        self.folder.path().join("rules.yaml")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn kept(&self) -> PathBuf {
        self.data().join(KEPT)
    }

    fn settings(&self) -> InstallSettings {
        InstallSettings { data: Some(self.data()), ..InstallSettings::default() }
    }

    /// Runs a node until its rules are kept.
    fn run_until_kept(&self) {
        let _file = WatchedRuleFile::open(self.rules(), self.settings(), limiter()).unwrap();
        self.until_kept(&fs::read_to_string(self.rules()).unwrap());
    }

    fn until_kept(&self, text: &str) {
        wait_until("the rules are kept", || {
            fs::read_to_string(self.kept()).is_ok_and(|kept| kept.ends_with(text))
        });
    }
}

#[test]
fn last_good_rules_are_used_at_a_start_without_a_good_file() {
    let node = DataFolder::new(&rules(5));
    node.run_until_kept();
    let broken: [fn(&Path); 6] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "rules: [").unwrap(),
        |path| fs::write(path, "").unwrap(),
        |path| fs::write(path, "# rules: […]").unwrap(),
        |path| {
            fs::write(path, "rules: [{ id: a, limit: 1/s }]\ntests: [{ name: n, request: { key: a }, steps: [{ expect: denied }] }]").unwrap()
        },
        |path| fs::write(path, b"\xff").unwrap(),
    ];
    for damage in broken {
        damage(&node.rules());
        let limiter = limiter();
        let file = WatchedRuleFile::open(node.rules(), node.settings(), limiter.clone()).unwrap();
        assert_eq!(quota(&limiter, "a"), Some(5));
        let status = file.status().borrow().clone();
        assert!(status.error.is_some() && status.revision == 1, "{status:?}");
    }
    let message =
        WatchedRuleFile::open(node.rules(), InstallSettings::default(), limiter()).unwrap_err().to_string();
    assert!(message.contains("it is not UTF-8 text"), "without a folder it is an error: {message}");
}

#[tokio::test]
async fn a_good_file_replaces_the_last_good_rules() {
    let node = DataFolder::new(&rules(5));
    node.run_until_kept();
    fs::remove_file(node.rules()).unwrap();
    let (path, settings) = (node.rules(), node.settings());
    let mut file = FollowedFile::open(node.folder, path, settings).unwrap();
    assert!(file.error().is_some());
    file.write(rules(6));
    file.until_quota(6).await;
    assert!(file.error().is_none());
    let kept = file.folder.path().join("data").join(KEPT);
    wait_until("the new rules are kept", || fs::read_to_string(&kept).unwrap().ends_with(&rules(6)));
}

#[test]
fn last_good_rules_are_private_and_unchanged() {
    let node = DataFolder::new("\u{feff}# by hand\nrules: [{ id: one, limit: 5/s }]\r\n");
    node.run_until_kept();
    let mode = fs::metadata(node.kept()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode & !0o640, 0, "{mode:o}");
    assert_eq!(fs::read_dir(node.data()).unwrap().count(), 1, "nothing else is left there");
    fs::remove_file(node.rules()).unwrap();
    let limiter = limiter();
    let _file = WatchedRuleFile::open(node.rules(), node.settings(), limiter.clone()).unwrap();
    assert_eq!(quota(&limiter, "a"), Some(5));
}

#[test]
fn last_good_rules_of_the_largest_file_can_be_read() {
    let mut text = rules(5) + "# ";
    text.extend(std::iter::repeat_n('x', MOST_BYTES as usize - text.len()));
    let node = DataFolder::new(&text);
    node.run_until_kept();
    fs::remove_file(node.rules()).unwrap();
    WatchedRuleFile::open(node.rules(), node.settings(), limiter()).unwrap();
}

#[test]
fn last_good_rules_of_another_file_or_damaged_ones_are_not_used() {
    let node = DataFolder::new(&rules(5));
    node.run_until_kept();
    let elsewhere = node.folder.path().join("typo.yaml");
    let message = WatchedRuleFile::open(elsewhere, node.settings(), limiter()).unwrap_err().to_string();
    assert!(message.contains("typo.yaml: No such file"), "{message}");
    fs::remove_file(node.rules()).unwrap();
    let title = fs::read_to_string(node.kept()).unwrap().lines().next().unwrap().to_owned() + "\n";
    for damaged in ["", "rules: []", &title, &format!("{title}rules: [")] {
        fs::write(node.kept(), damaged).unwrap();
        let message =
            WatchedRuleFile::open(node.rules(), node.settings(), limiter()).unwrap_err().to_string();
        assert!(message.contains("rules.yaml: No such file"), "{damaged}: {message}");
    }
}

#[tokio::test]
async fn a_data_folder_that_cannot_be_written_blocks_nothing() {
    let node = DataFolder::new(&rules(5));
    fs::write(node.data(), "not a folder").unwrap();
    let (path, settings) = (node.rules(), node.settings());
    let mut file = FollowedFile::open(node.folder, path, settings).unwrap();
    file.write(rules(6));
    file.until_quota(6).await;
}
