//! The tests in a rule file, run before its rules are used.

use crate::followed_file::{FollowedFile, limiter, quota, rules};
use std::path::PathBuf;
use tempfile::TempDir;
use tollgate_control::{FailedTestPolicy, InstallSettings, RuleSourceError, WatchedRuleFile};

/// One limit, and a test that expects `expected` of it.
fn tested(capacity: u32, expected: u32) -> String {
    let test = format!(
        "tests:\n  - name: at once\n    request: {{ key: a }}\n    steps: [{{ send: 100, pass: {expected} }}]\n"
    );
    rules(capacity) + &test
}

fn written(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

#[tokio::test]
async fn a_change_whose_tests_fail_is_not_used() {
    let mut file = FollowedFile::with_rules(&tested(5, 5));
    file.replace(&tested(6, 5));
    let message = file.until_error().await;
    for part in [
        "rules.yaml: error: of 1 tests, 1 failed\n",
        "rules.yaml:4: at once: step 1, at 0s: expected 5 of 100 to pass, found 6\n",
        "hint: run `tollgate rules test ",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!((file.revision(), quota(&file.limiter, "a")), (1, Some(5)));
    file.replace(&tested(6, 6));
    file.until_quota(6).await;
    assert!(file.error().is_none());
}

#[test]
fn a_start_whose_tests_fail_is_an_error() {
    let (_folder, path) = written(&tested(6, 5));
    let error = WatchedRuleFile::open(path, InstallSettings::default(), limiter()).unwrap_err();
    assert!(matches!(error, RuleSourceError::Tests(_)), "{error}");
}

#[tokio::test]
async fn failed_tests_can_be_a_warning() {
    let (folder, path) = written(&tested(6, 5));
    let settings = InstallSettings { failed_tests: FailedTestPolicy::Warn, ..InstallSettings::default() };
    let mut file = FollowedFile::open(folder, path, settings).unwrap();
    assert_eq!(quota(&file.limiter, "a"), Some(6));
    file.replace(&tested(7, 5));
    file.until_quota(7).await;
    assert!(file.error().is_none());
}

/// Tests that would take minutes delay neither a change nor the start of a node.
#[tokio::test]
async fn tests_that_take_too_long_are_skipped() {
    let many: String = (0..9)
        .map(|number| {
            format!("  - name: long {number}\n    request: {{ key: a }}\n    steps: [{{ send: 1000000, pass: 1 }}]\n")
        })
        .collect();
    let text = |capacity| format!("{}{many}", tested(capacity, capacity));
    let mut file = FollowedFile::with_rules(&text(5));
    file.replace(&text(6));
    file.until_quota(6).await;
    file.replace(&(tested(7, 8) + &many));
    let message = file.until_error().await;
    assert!(message.contains("of 1 tests, 1 failed"), "those that fit are run: {message}");
}

#[test]
fn a_long_list_of_failures_is_cut() {
    let failing: String = (0..30)
        .map(|number| {
            format!("  - name: case {number}\n    request: {{ key: a }}\n    steps: [{{ expect: denied }}]\n")
        })
        .collect();
    let (_folder, path) = written(&format!("{}tests:\n{failing}", rules(5)));
    let message = WatchedRuleFile::open(path, InstallSettings::default(), limiter()).unwrap_err().to_string();
    assert!(message.contains("of 30 tests, 30 failed") && message.contains("and 20 more"), "{message}");
    assert!(message.lines().count() < 20, "{message}");
}
