//! A change that cannot be used: the old rules stay, and somebody is told where it is wrong.

use crate::setting::{Followed, quota, rules};

#[tokio::test]
async fn keeps_the_old_rules_and_says_where() {
    let mut file = Followed::with_rules(&rules(5));
    file.replace("rules:\n  - id: one\n    limt: 5/min\n");
    let message = file.until_error().await;
    assert!(message.contains("rules.yaml:3:5: error: unknown field `limt`"), "{message}");
    assert!(message.contains("hint: did you mean `limit`?"), "{message}");
    file.until_quota(5).await;
    assert_eq!(file.revision(), 1, "nothing new is in force");

    file.replace(&rules(6));
    file.until_quota(6).await;
    assert!(file.error().is_none(), "the repair ends the complaint");
    assert_eq!(file.revision(), 2);
}

#[tokio::test]
async fn every_kind_of_broken() {
    let mut file = Followed::with_rules(&rules(5));
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
async fn a_file_without_rules_is_used_if_it_says_so() {
    let mut file = Followed::with_rules(&rules(5));
    file.replace("deny: [a]\n");
    let message = file.until_error().await;
    assert!(message.contains("there is no rule") && message.contains("allow_empty: true"), "{message}");
    file.replace("allow_empty: true\n");
    file.until_well().await;
    assert_eq!(quota(&file.limiter, "a"), None);
    assert_eq!(file.revision(), 2);
}

/// Back to what is in force: there is nothing to install, but the complaint has to end.
#[tokio::test]
async fn undone() {
    let mut file = Followed::with_rules(&rules(5));
    file.replace("rules: 7\n");
    file.until_error().await;
    file.replace(&rules(5));
    file.until_well().await;
    file.until_quota(5).await;
}
