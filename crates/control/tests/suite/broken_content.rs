//! Changes that cannot be used: the rules in force stay, and the error has a position.

use crate::followed_file::{FollowedFile, quota, rules};

#[tokio::test]
async fn a_broken_change_is_reported_with_its_position() {
    let mut file = FollowedFile::with_rules(&rules(5));
    file.replace("rules:\n  - id: one\n    limt: 5/min\n");
    let message = file.until_error().await;
    assert!(message.contains("rules.yaml:3:5: error: unknown field `limt`"), "{message}");
    assert!(message.contains("hint: did you mean `limit`?"), "{message}");
    file.until_quota(5).await;
    assert_eq!(file.revision(), 1, "nothing new is in force");

    file.replace(&rules(6));
    file.until_quota(6).await;
    assert!(file.error().is_none(), "a good change clears the error");
    assert_eq!(file.revision(), 2);
}

#[tokio::test]
async fn no_broken_content_is_used() {
    let mut file = FollowedFile::with_rules(&rules(5));
    for (capacity, text) in (6u32..).zip([
        &b"rules: [\n"[..],
        b"\xff\xfe",
        b"rules:\n  - { id: a, limit: 5/min }\n  - { id: a, limit: 6/min }\n",
        b"just a text",
        b"",
        b"# rules:\n#   - { id: one, limit: 5/min }\n",
        b"rules: []\n",
        b"deny: [sk_revoked_1]\n",
    ]) {
        file.write(text);
        file.until_error().await;
        assert_eq!(file.revision(), u64::from(capacity) - 5);
        file.replace(&rules(capacity));
        file.until_quota(capacity).await;
        assert!(file.error().is_none());
    }
}

#[tokio::test]
async fn a_file_without_rules_needs_allow_empty() {
    let mut file = FollowedFile::with_rules(&rules(5));
    file.replace("deny: [a]\n");
    let message = file.until_error().await;
    assert!(message.contains("there are no rules") && message.contains("allow_empty: true"), "{message}");
    file.replace("allow_empty: true\n");
    file.until_good().await;
    assert_eq!(quota(&file.limiter, "a"), None);
    assert_eq!(file.revision(), 2);
}

/// The content in force again: there is nothing to install, but the error must be cleared.
#[tokio::test]
async fn undoing_a_broken_change_clears_the_error() {
    let mut file = FollowedFile::with_rules(&rules(5));
    file.replace("rules: 7\n");
    file.until_error().await;
    file.replace(&rules(5));
    file.until_good().await;
    file.until_quota(5).await;
}
