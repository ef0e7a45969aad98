//! Which rules are in force: those of the rule file until the first publish, then those of the repository.

use crate::fleet_node::{EXAMPLE, draft};
use crate::followed_file::{limiter, quota, rules};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::watch;
use tollgate_control::{
    FileWatcher, FollowedRules, InstallSettings, PublishOutcome, RepositoryRules, RevisionOrigin,
    RuleRepository, RuleSeed, RuleStatus,
};
use tollgate_limiter::{Clock, Limiter};
use tollgate_testbed::{PATIENCE, eventually};

/// A node with an embedded repository.
struct AloneNode {
    repository: RuleRepository,
    limiter: Arc<Limiter>,
    status: watch::Receiver<RuleStatus>,
    _followed: FollowedRules,
    watcher: Option<FileWatcher>,
}

impl AloneNode {
    async fn start(repository: RuleRepository, seed: RuleSeed) -> Self {
        let limiter = limiter();
        let settings = InstallSettings::default();
        let opened = RepositoryRules::open(repository.clone(), seed, settings, Arc::clone(&limiter)).await;
        let opened = opened.unwrap_or_else(|error| panic!("{error}"));
        let status = opened.status();
        let (followed, watcher) = opened.follow().unwrap();
        Self { repository, limiter, status, _followed: followed, watcher }
    }

    async fn until(&self, number: u64, capacity: u32) {
        let mut status = self.status.clone();
        let reached = status.wait_for(|status| status.revision == number);
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{number}")).unwrap();
        assert_eq!(quota(&self.limiter, "a"), Some(capacity));
    }

    async fn publish(&self, expected: u64, text: String) {
        let outcome = self.repository.publish(Some(expected), draft(text)).await.unwrap();
        assert!(matches!(outcome, PublishOutcome::Published(_)), "{outcome:?}");
    }

    async fn history(&self) -> Vec<(u64, RevisionOrigin)> {
        let listed = self.repository.history(None, 100).await.unwrap();
        listed.into_iter().map(|summary| (summary.number, summary.origin)).collect()
    }
}

fn in_memory() -> RuleRepository {
    RuleRepository::open_embedded(None, Clock::system()).unwrap()
}

fn rule_file(folder: &TempDir, name: &str, text: String) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Editors write a new file and rename it.
fn replace(path: &Path, text: String) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_file_owns_the_rules_until_the_first_publish() {
    let folder = tempfile::tempdir().unwrap();
    let path = rule_file(&folder, "rules.yaml", rules(5));
    let node = AloneNode::start(in_memory(), RuleSeed::File(path.clone())).await;
    node.until(1, 5).await;
    replace(&path, rules(6));
    node.until(2, 6).await;
    let newest = node.repository.newest().await.unwrap().unwrap();
    assert_eq!((newest.text, newest.summary.author.as_str()), (rules(6), "file"));
    // A broken file is not recorded.
    replace(&path, "rules: [".to_owned());
    eventually("it is noticed", async || node.status.borrow().error.is_some()).await;
    replace(&path, rules(6));
    eventually("it is good again", async || node.status.borrow().error.is_none()).await;
    node.until(2, 6).await;

    node.publish(2, rules(7)).await;
    node.until(3, 7).await;
    // From now on a change of the file is only a warning.
    replace(&path, rules(8));
    let reads = node.watcher.as_ref().unwrap();
    reads.take_has_read();
    eventually("the file is read", async || reads.take_has_read()).await;
    node.publish(3, rules(9)).await;
    node.until(4, 9).await;
    use RevisionOrigin::{File, Published};
    assert_eq!(node.history().await, [(4, Published), (3, Published), (2, File), (1, File)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_the_published_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = rule_file(&folder, "rules.yaml", rules(5));
    let open = || RuleRepository::open_embedded(Some(folder.path()), Clock::system());
    let node = AloneNode::start(open().unwrap(), RuleSeed::File(path.clone())).await;
    node.publish(1, rules(7)).await;
    node.until(2, 7).await;
    drop(node);
    // The threads of the node hold the file for a moment.
    eventually("the file is closed", async || open().is_ok()).await;
    std::fs::remove_file(&path).unwrap();
    let node = AloneNode::start(open().unwrap(), RuleSeed::File(path)).await;
    node.until(2, 7).await;
    assert_eq!(node.history().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_different_files_do_not_adopt_each_others() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [rule_file(&folder, "a.yaml", rules(5)), rule_file(&folder, "b.yaml", rules(6))];
    let repository = in_memory();
    let one = AloneNode::start(repository.clone(), RuleSeed::File(paths[0].clone())).await;
    let other = AloneNode::start(repository.clone(), RuleSeed::File(paths[1].clone())).await;
    let example = AloneNode::start(repository.clone(), RuleSeed::Example(EXAMPLE)).await;
    one.until(1, 5).await;
    other.until(2, 6).await;
    example.until(3, 1).await;
    // The same file is the same revision.
    let same = AloneNode::start(repository, RuleSeed::Example(EXAMPLE)).await;
    same.until(3, 1).await;
    assert_eq!(one.history().await.len(), 3);
    one.publish(3, rules(9)).await;
    for node in [&one, &other, &example, &same] {
        node.until(4, 9).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_revision_that_a_node_cannot_use_leaves_the_old_one_in_force() {
    let node = AloneNode::start(in_memory(), RuleSeed::Example(EXAMPLE)).await;
    node.publish(1, rules(5)).await;
    node.until(2, 5).await;
    node.publish(2, "rules: [".to_owned()).await;
    eventually("it is noticed", async || node.status.borrow().error.is_some()).await;
    assert_eq!((node.status.borrow().revision, quota(&node.limiter, "a")), (2, Some(5)));
    node.publish(3, rules(6)).await;
    node.until(4, 6).await;
    assert!(node.status.borrow().error.is_none());
}

#[tokio::test]
async fn a_start_without_any_usable_rules_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typo.yaml");
    let settings = InstallSettings::default();
    let opened = RepositoryRules::open(in_memory(), RuleSeed::File(path), settings, limiter()).await;
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("typo.yaml: No such file"), "{error}");
}
