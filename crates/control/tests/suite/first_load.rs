//! The first load of a rule file: it is used, or it is an error.

use crate::followed_file::{limiter, quota, rules};
use std::sync::Arc;
use tollgate_control::{InstallSettings, RuleSourceError, WatchedRuleFile};

#[test]
fn the_rules_of_a_good_file_are_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, rules(7)).unwrap();
    let limiter = limiter();
    let file = WatchedRuleFile::open(&path, InstallSettings::default(), Arc::clone(&limiter)).unwrap();
    assert_eq!(quota(&limiter, "a"), Some(7));
    let status = file.status();
    assert_eq!(status.borrow().revision, 1);
    assert!(status.borrow().error.is_none());
}

#[test]
fn a_broken_file_is_an_error_with_a_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let limiter = limiter();
    for (text, expected) in [
        ("rules:\n  - id: one\n    limt: 5/min\n", "rules.yaml:3:5: error: unknown field `limt`"),
        ("rules: [\n", "rules.yaml:"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error =
            WatchedRuleFile::open(&path, InstallSettings::default(), Arc::clone(&limiter)).unwrap_err();
        assert!(matches!(error, RuleSourceError::Rules(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(quota(&limiter, "a"), None);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    let limiter = limiter();
    let open = || {
        WatchedRuleFile::open(&path, InstallSettings::default(), Arc::clone(&limiter))
            .unwrap_err()
            .to_string()
    };
    let message = open();
    assert!(message.contains("cannot read ") && message.contains("rules.yaml: No such file"), "{message}");
    std::fs::write(&path, b"rules: \xff\n").unwrap();
    let message = open();
    assert!(message.ends_with("rules.yaml: it is not UTF-8 text"), "{message}");
    std::fs::File::create(&path).unwrap().set_len((16 << 20) + 1).unwrap();
    let message = open();
    assert!(message.ends_with("it is larger than 16 MiB"), "{message}");
    assert_eq!(quota(&limiter, "a"), None);
}
