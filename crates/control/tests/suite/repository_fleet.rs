//! Nodes that share a repository in Redis: how fast a publish is in force, and what failures do to it.

use crate::fleet_node::{EXAMPLE, FleetNode, NodeStart, draft};
use crate::followed_file::{quota, rules};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_control::{PublishOutcome, RevisionOrigin};
use tollgate_limiter::Clock;
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{
    NetworkMode, NetworkProxy, PATIENCE, RedisServer, SentinelGroup, eventually, wait_until,
};

const POLL: Duration = Duration::from_millis(500);

async fn fleet(url: &str, nodes: usize) -> Vec<FleetNode> {
    let mut fleet = Vec::new();
    for _ in 0..nodes {
        fleet.push(NodeStart::new(url).start().await);
    }
    fleet
}

/// Publishes `count` revisions, each at the next node, and returns how long each took until it was in force on all,
/// sorted.
async fn publish_in_a_row(fleet: &[FleetNode], first: u64, count: u64) -> Vec<Duration> {
    let mut durations = Vec::new();
    for number in first..first + count {
        let publisher = &fleet[number as usize % fleet.len()];
        let start = Instant::now();
        assert_eq!(publisher.publish(number - 1, 10 + number as u32).await, number);
        for node in fleet {
            node.until(number, 10 + number as u32).await;
        }
        durations.push(start.elapsed());
    }
    durations.sort_unstable();
    fleet.iter().for_each(FleetNode::assert_no_regress);
    durations
}

fn print(what: &str, durations: &[Duration]) {
    let at = |share: usize| durations[(durations.len() * share / 100).min(durations.len() - 1)];
    println!("{what}: p50 {:?}, p99 {:?}, most {:?}", at(50), at(99), durations[durations.len() - 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_publishes_are_in_force_on_five_nodes_at_once() {
    let server = RedisServer::start(&[]);
    let fleet = fleet(&server.url(), 5).await;
    let durations = publish_in_a_row(&fleet, 2, 100).await;
    print("5 nodes", &durations);
    assert!(durations[99] < Duration::from_secs(2));
    assert_eq!(fleet[0].repository.history(None, 1_000).await.unwrap().len(), 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_reaches_twenty_nodes_within_two_seconds_and_two_hundred_within_five() {
    let server = RedisServer::start(&[]);
    let fleet = fleet(&server.url(), 20).await;
    let durations = publish_in_a_row(&fleet, 2, 5).await;
    print("20 nodes", &durations);
    assert!(durations[4] < Duration::from_secs(2));
    drop(fleet);
    // Each follows the repository on connections of its own.
    let settings = RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() };
    let store = RedisStore::open(&server.url().parse().unwrap(), settings, Clock::system()).await.unwrap();
    let store = Arc::new(store);
    let mut followers = Vec::new();
    for _ in 0..200 {
        followers.push(NodeStart::new("").start_on(Arc::clone(&store)).await);
    }
    let durations = publish_in_a_row(&followers, 7, 3).await;
    print("200 followers", &durations);
    assert!(durations[2] < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_messages_a_publish_is_in_force_within_the_poll() {
    let server = RedisServer::start(&[]);
    let user = ["ACL", "SETUSER", "deaf", "on", ">pw", "~tg:*", "&tg:*", "+@all", "-subscribe"];
    assert_eq!(server.cli(&user), "OK");
    let url = format!("redis://deaf:pw@{}", server.address());
    let mut fleet = Vec::new();
    for _ in 0..3 {
        fleet.push(NodeStart { poll: POLL, ..NodeStart::new(&url) }.start().await);
    }
    let durations = publish_in_a_row(&fleet, 2, 5).await;
    print("poll of 500 ms", &durations);
    assert!(durations[4] < Duration::from_secs(2));
    assert!(durations[4] > POLL / 10, "it was not the poll: {durations:?}");
}

/// Publishing needs no permission beyond those of decisions, also when old revisions are removed.
#[tokio::test(flavor = "multi_thread")]
async fn without_permissions_of_the_control_plane_rules_are_published() {
    let server = RedisServer::start(&[]);
    let denied = ["-hstrlen", "-hvals", "-publish", "-subscribe"];
    let user = ["ACL", "SETUSER", "bare", "on", ">pw", "~tg:*", "+@all"];
    assert_eq!(server.cli(&[&user[..], &denied[..]].concat()), "OK");
    let url = format!("redis://bare:pw@{}", server.address());
    let node = NodeStart { poll: POLL, ..NodeStart::new(&url) }.start().await;
    for number in 2..=6 {
        // Five of them are more than the 64 MiB that are kept.
        let text = format!("{}{}", rules(number as u32), "#\n".repeat(15 << 19));
        let published = node.repository.publish(Some(number - 1), draft(text)).await.unwrap();
        assert!(matches!(published, PublishOutcome::Published(summary) if summary.number == number));
    }
    node.until(6, 6).await;
    assert_eq!(node.repository.history(None, 10).await.unwrap().len(), 4, "the oldest are removed");
    let bytes: u64 = server.cli(&["HGET", "tg:control:{rules}:summaries", "bytes"]).parse().unwrap();
    assert!((60 << 20..64 << 20).contains(&bytes), "{bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_control_planes_one_wins_and_the_other_is_told() {
    let server = RedisServer::start(&[]);
    let fleet = fleet(&server.url(), 3).await;
    for round in 1..=20u64 {
        let publish = async |node: &FleetNode, capacity| {
            node.repository.publish(Some(round), draft(rules(capacity))).await.unwrap()
        };
        let (one, other) =
            tokio::join!(publish(&fleet[0], 1_000 + round as u32), publish(&fleet[1], 2_000 + round as u32));
        let (capacity, lost) = match &one {
            PublishOutcome::Published(_) => (1_000 + round as u32, other),
            PublishOutcome::Stale(_) => (2_000 + round as u32, one),
        };
        assert!(matches!(lost, PublishOutcome::Stale(Some(newest)) if newest.number == round + 1));
        for node in &fleet {
            node.until(round + 1, capacity).await;
        }
    }
    fleet.iter().for_each(FleetNode::assert_no_regress);
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_one_of_three_control_planes_loses_no_publish() {
    let server = RedisServer::start(&[]);
    let mut fleet = fleet(&server.url(), 3).await;
    for number in 2..=6 {
        let killed = fleet.remove(0);
        assert_eq!(killed.publish(number - 1, 10 + number as u32).await, number);
        drop(killed);
        fleet.push(NodeStart::new(&server.url()).start().await);
        for node in &fleet {
            node.until(number, 10 + number as u32).await;
        }
    }
}

/// A primary with a replica, behind an address that a failover moves.
struct FailoverPair {
    primary: RedisServer,
    replica: RedisServer,
    proxy: NetworkProxy,
}

impl FailoverPair {
    async fn start() -> Self {
        let primary = RedisServer::start(&[]);
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        let proxy = NetworkProxy::start(&primary.address()).await;
        Self { primary, replica, proxy }
    }

    /// Waits until the replica has everything, and promotes it: it gets nothing more from the primary.
    fn separate(&self) {
        wait_until("the replica follows", || {
            self.replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
        });
        assert_eq!(self.primary.cli(&["WAIT", "1", "5000"]), "1");
        assert_eq!(self.replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    }

    /// From now on the address leads to the replica. The nodes have lost their connections meanwhile.
    async fn fail_over(&self, nodes: &[&FleetNode]) {
        self.proxy.set_target(&self.replica.address());
        self.proxy.set(NetworkMode::Reset);
        for node in nodes {
            eventually("the connection is lost", async || node.repository.newest().await.is_err()).await;
        }
        self.proxy.set(NetworkMode::Pass);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_a_failover_lost_is_stored_again() {
    let pair = FailoverPair::start().await;
    let mut fleet = Vec::new();
    for _ in 0..3 {
        fleet.push(NodeStart { poll: POLL, ..NodeStart::new(&pair.proxy.url()) }.start().await);
    }
    fleet[0].publish(1, 12).await;
    pair.separate();
    fleet[1].publish(2, 13).await;
    for node in &fleet {
        node.until(3, 13).await;
    }
    let before = fleet[0].repository.newest().await.unwrap().unwrap();
    pair.fail_over(&fleet.iter().collect::<Vec<_>>()).await;
    // Another control plane sees what the new primary has.
    let other = NodeStart { poll: POLL, ..NodeStart::new(&pair.replica.url()) }.start().await;
    other.until(3, 13).await;
    eventually("the revision is there again", async || {
        fleet[0].repository.newest().await.is_ok_and(|newest| newest.as_ref() == Some(&before))
    })
    .await;
    other.publish(3, 14).await;
    for node in fleet.iter().chain([&other]) {
        node.until(4, 14).await;
        node.assert_no_regress();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_revisions_with_one_number_that_of_the_store_wins() {
    let pair = FailoverPair::start().await;
    let node = NodeStart { poll: POLL, ..NodeStart::new(&pair.proxy.url()) }.start().await;
    node.publish(1, 12).await;
    pair.separate();
    // The new primary gets a third revision that the node does not see, the old one another.
    let other = NodeStart { poll: POLL, ..NodeStart::new(&pair.replica.url()) }.start().await;
    assert_eq!(other.publish(2, 99).await, 3);
    assert_eq!(node.publish(2, 13).await, 3);
    node.until(3, 13).await;
    pair.fail_over(&[&node]).await;
    eventually("the revision of the store is in force", async || quota(&node.limiter, "a") == Some(99)).await;
    node.until(3, 99).await;
    assert_eq!(node.publish(3, 15).await, 4);
    other.until(4, 15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_failover_keeps_nodes_and_store_in_agreement() {
    let mut group = SentinelGroup::start(1);
    let node = NodeStart { poll: POLL, ..NodeStart::new(&group.url()) }.start().await;
    node.publish(1, 12).await;
    node.until(2, 12).await;
    group.servers[0].kill();
    eventually("the new primary has the revision", async || {
        let newest = node.repository.newest().await;
        newest.is_ok_and(|newest| newest.is_some_and(|newest| newest.summary.number == 2))
    })
    .await;
    eventually("it takes the next", async || {
        let next = node.repository.publish(Some(2), draft(rules(13))).await;
        matches!(next, Ok(PublishOutcome::Published(summary)) if summary.number == 3)
    })
    .await;
    node.until(3, 13).await;
    node.assert_no_regress();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_while_redis_is_down_serves_its_last_good_rules() {
    let mut server = RedisServer::start(&[]);
    let data = tempfile::tempdir().unwrap();
    let start = || NodeStart { poll: POLL, data: Some(data.path()), ..NodeStart::new("") };
    let url = server.url();
    let node = NodeStart { url: &url, ..start() }.start().await;
    node.publish(1, 12).await;
    node.until(2, 12).await;
    let kept = data.path().join("last-good-rules.yaml");
    wait_until("the rules are kept", || {
        std::fs::read_to_string(&kept).is_ok_and(|text| text.ends_with(&rules(12)))
    });
    drop(node);
    server.kill();
    let node = NodeStart { url: &url, ..start() }.start().await;
    assert_eq!(node.revision(), 2);
    assert_eq!(quota(&node.limiter, "a"), Some(12));
    assert!(node.status.borrow().error.is_some());
    eventually("failed polls are counted", async || node.repository.health().failed_polls() >= 3).await;
    // The store has lost everything; the node has the last revision.
    server.restart_empty();
    node.until_stored(2).await;
    node.until(2, 12).await;
    eventually("polls are answered", async || node.repository.health().failed_polls() == 0).await;
    let newest = node.repository.newest().await.unwrap().unwrap();
    assert_eq!((newest.summary.author.as_str(), newest.summary.origin), ("ana", RevisionOrigin::Published));
    // A node without a data folder gets it from there, not from its own rules.
    let fresh = NodeStart { url: &url, ..NodeStart::new("") }.start().await;
    fresh.until(2, 12).await;
    assert_ne!(EXAMPLE, rules(12));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_revision_survives_the_store_and_a_node_that_starts_meanwhile() {
    let mut server = RedisServer::start(&[]);
    let url = server.url();
    let publisher = NodeStart::new(&url).start().await;
    publisher.publish(1, 12).await;
    // The store is lost before any node has read the revision from it; the control plane that acknowledged it has it.
    server.kill();
    publisher.until(2, 12).await;
    let node = NodeStart { poll: POLL, ..NodeStart::new(&url) }.start().await;
    assert_eq!((node.revision(), quota(&node.limiter, "a")), (0, Some(1)));
    server.restart_empty();
    // The first of the two that is connected again fills the repository, perhaps from its own rules; the published ones win.
    eventually("the published rules are in force", async || {
        quota(&node.limiter, "a") == Some(12) && node.revision() == publisher.revision()
    })
    .await;
    let newest = node.repository.newest().await.unwrap().unwrap();
    assert_eq!((newest.summary.origin, newest.text), (RevisionOrigin::Published, rules(12)));
}
