//! Redis loses changes that were acknowledged: tokens, revocations and the control state come back from the nodes.

use crate::fleet_node::{FleetNode, NodeStart};
use std::time::Duration;
use tollgate_control::{
    AuditEntry, ControlState, ControlStateFollower, EmergencySwitch, GrantRecord, RuleRepository,
    StoredToken, TokenRole,
};
use tollgate_core::time::UnixTime;
use tollgate_testbed::{NetworkMode, NetworkProxy, RedisServer, eventually};

const POLL: Duration = Duration::from_millis(500);
const NOW: UnixTime = UnixTime::from_us(1_800_000_000_000_000);

async fn start(url: &str) -> FleetNode {
    NodeStart { poll: POLL, ..NodeStart::new(url) }.start().await
}

fn token(id: &str) -> StoredToken {
    StoredToken {
        id: id.to_owned(),
        name: format!("token {id}"),
        role: TokenRole::Operate,
        hash: "00ff".to_owned(),
        created: NOW,
        expires: None,
    }
}

async fn create(node: &FleetNode, id: &str) {
    node.repository.put_token(token(id)).await.unwrap();
}

/// The ids of the tokens, separated by spaces; none while the store is unavailable.
async fn ids(repository: &RuleRepository) -> Option<String> {
    let tokens = repository.tokens().await.ok()?;
    Some(tokens.iter().map(|token| token.id.as_str()).collect::<Vec<_>>().join(" "))
}

async fn until_ids(node: &FleetNode, expected: &str) {
    eventually(&format!("the tokens are {expected}"), async || {
        ids(&node.repository).await.as_deref() == Some(expected)
    })
    .await;
}

/// The ids of the tokens in Redis itself.
fn stored_ids(server: &RedisServer) -> String {
    let ids = server.cli(&["HKEYS", "tg:control:{rules}:tokens"]);
    let mut ids: Vec<&str> = ids.split_whitespace().collect();
    ids.sort_unstable();
    ids.join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_revocations_that_were_lost_are_stored_again() {
    let mut server = RedisServer::start(&[]);
    let nodes = [start(&server.url()).await, start(&server.url()).await];
    create(&nodes[0], "a").await;
    create(&nodes[0], "b").await;
    until_ids(&nodes[1], "a b").await;
    server.save();
    create(&nodes[1], "c").await;
    assert!(nodes[0].repository.remove_token("a").await.unwrap());
    for node in &nodes {
        until_ids(node, "b c").await;
    }
    for restart in [RedisServer::restart_saved, RedisServer::restart_empty] {
        restart(&mut server);
        eventually("the store has the tokens again", async || {
            for node in &nodes {
                // A node never believes in a token that it knows to be revoked, nor forgets one.
                if let Some(ids) = ids(&node.repository).await {
                    assert_eq!(ids, "b c");
                }
            }
            stored_ids(&server) == "b c"
        })
        .await;
        until_ids(&start(&server.url()).await, "b c").await;
    }
}

/// A token of a later version, or garbage, does not keep revocations from being read.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_read_is_skipped() {
    let server = RedisServer::start(&[]);
    let nodes = [start(&server.url()).await, start(&server.url()).await];
    create(&nodes[0], "a").await;
    create(&nodes[0], "b").await;
    until_ids(&nodes[1], "a b").await;
    server.cli(&["HSET", "tg:control:{rules}:tokens", "later", r#"{"id":"later","role":"owner"}"#]);
    assert!(nodes[0].repository.remove_token("a").await.unwrap());
    until_ids(&nodes[1], "b").await;
}

/// A token is acknowledged by a node, and the store loses it before any other node has read it.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_that_acknowledged_a_change_is_enough() {
    let mut server = RedisServer::start(&[]);
    let node = start(&server.url()).await;
    create(&node, "a").await;
    server.restart_empty();
    eventually("the token is stored again", async || stored_ids(&server) == "a").await;
    // A token that the store has lost can be revoked, and stays so.
    server.restart_empty();
    eventually("it is revoked", async || node.repository.remove_token("a").await.is_ok()).await;
    assert_eq!(ids(&node.repository).await.as_deref(), Some(""));
    assert_eq!(stored_ids(&server), "");
}

/// After the loss, another control plane changes the tokens before a node that knows of the revocation is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_does_not_come_back_with_a_change_after_the_loss() {
    let mut server = RedisServer::start(&[]);
    let proxy = NetworkProxy::start(&server.address()).await;
    let node = start(&proxy.url()).await;
    create(&node, "a").await;
    server.save();
    create(&node, "b").await;
    assert!(node.repository.remove_token("a").await.unwrap());
    proxy.set(NetworkMode::Reset);
    eventually("the node is cut off", async || node.repository.tokens().await.is_err()).await;
    server.restart_saved();
    let other = start(&server.url()).await;
    until_ids(&other, "a").await;
    create(&other, "c").await;
    proxy.set(NetworkMode::Pass);
    until_ids(&node, "b c").await;
    until_ids(&other, "b c").await;
    assert_eq!(stored_ids(&server), "b c");
}

fn grant(id: &str) -> GrantRecord {
    GrantRecord {
        id: id.to_owned(),
        kind: "api_key".to_owned(),
        value: "k1".to_owned(),
        rule: None,
        tokens: 500,
        created: NOW,
        expires: NOW + 3_600_000_000,
        author: "ana".to_owned(),
        reason: String::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_state_that_was_lost_is_stored_again() {
    let mut server = RedisServer::start(&[]);
    let nodes = [start(&server.url()).await, start(&server.url()).await];
    let followers = nodes.each_ref().map(|node| {
        let limiter = std::sync::Arc::clone(&node.limiter);
        ControlStateFollower::start(node.repository.clone(), limiter, POLL)
    });
    let add = |state: &mut ControlState| state.grants.push(grant("a"));
    nodes[0].repository.update_control_state(add).await.unwrap();
    server.save();
    let change = |state: &mut ControlState| {
        state.emergency = Some(EmergencySwitch::On);
        state.grants = vec![grant("b")];
    };
    let acknowledged = nodes[1].repository.update_control_state(change).await.unwrap();
    assert_eq!(acknowledged.version, 2);
    for restart in [RedisServer::restart_saved, RedisServer::restart_empty] {
        restart(&mut server);
        eventually("the store has the state again", async || {
            server.cli(&["HGET", "tg:control:{rules}:state", "version"]) == "2"
        })
        .await;
        let fresh = start(&server.url()).await;
        assert_eq!(fresh.repository.control_state().await.unwrap(), acknowledged);
    }
    // The next change is made to the state that was restored, also by a node that has to restore it first.
    drop(followers);
    server.restart_empty();
    eventually("a change is made", async || {
        let off = |state: &mut ControlState| state.emergency = None;
        nodes[1].repository.update_control_state(off).await.is_ok()
    })
    .await;
    let state = nodes[0].repository.control_state().await.unwrap();
    assert_eq!((state.version, state.emergency, state.grants), (3, None, vec![grant("b")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_entries_that_were_lost_are_appended_again() {
    let mut server = RedisServer::start(&[]);
    let nodes = [start(&server.url()).await, start(&server.url()).await];
    let append = async |node: &FleetNode, detail: &str| {
        let entry = AuditEntry { time: NOW, detail: detail.to_owned(), ..AuditEntry::default() };
        node.repository.append_audit(entry).await.unwrap();
    };
    // Newest first; empty while the store is unavailable.
    let details = async |node: &FleetNode| {
        let entries = node.repository.audit(None, 100).await.unwrap_or_default();
        assert!(entries.is_sorted_by(|one, other| one.id > other.id), "{entries:?}");
        assert!(entries.iter().all(|entry| entry.time == NOW), "{entries:?}");
        entries.into_iter().map(|entry| entry.detail).collect::<Vec<_>>()
    };
    append(&nodes[0], "first").await;
    append(&nodes[1], "second").await;
    server.save();
    append(&nodes[0], "third").await;
    append(&nodes[0], "fourth").await;
    server.restart_saved();
    let all = ["fourth", "third", "second", "first"];
    eventually("all entries are there", async || details(&nodes[1]).await == all).await;
    append(&nodes[1], "fifth").await;
    // Everything is lost. The entries of a node keep their order.
    server.restart_empty();
    eventually("all entries are there again", async || {
        let found = details(&nodes[0]).await;
        let of_first = found.iter().filter(|detail| !["second", "fifth"].contains(&detail.as_str()));
        found.len() == 5 && of_first.eq(&["fourth", "third", "first"])
    })
    .await;
}
