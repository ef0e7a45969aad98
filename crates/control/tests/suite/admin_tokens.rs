//! Access tokens on several nodes.

use crate::admin_fixture::request;
use crate::admin_node::AdminNode;
use crate::client::Client;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate_testbed::{RedisServer, eventually};

const RULES: &str = "rules:\n  - { id: api, key: api_key, limit: 1000/h }\n";

async fn status_with(node: &AdminNode, token: &str) -> u16 {
    let header = format!("Authorization: Bearer {token}\r\n");
    node.admin.send("GET", "/v1/session", &header, "").await.status
}

/// The other node has read the tokens a moment before.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_valid_on_every_node_at_once() {
    let server = RedisServer::start(&[]);
    let one = AdminNode::start(&server.url(), RULES).await;
    let other = AdminNode::start(&server.url(), RULES).await;
    for round in 0..6 {
        let token = one.admin.create_token(&format!("ci {round}"), "read").await;
        assert_eq!(status_with(&other, &token).await, 200, "round {round}");
        assert_eq!(status_with(&one, &token).await, 200, "round {round}");
        assert_eq!(status_with(&other, "tg_unknown").await, 401);
    }
}

/// How many script calls the server has served.
fn script_calls(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = calls.filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_tokens_cause_a_bounded_number_of_reads() {
    let server = RedisServer::start(&[]);
    let node = AdminNode::start(&server.url(), RULES).await;
    let token = node.admin.create_token("ci", "read").await;
    let (before, start) = (script_calls(&server), Instant::now());
    let address = node.admin.address;
    let mut attempts = JoinSet::new();
    for number in 0..300 {
        attempts.spawn(async move {
            let header = format!("Authorization: Bearer tg_{number}\r\n");
            let mut client = Client::connect(address).await;
            client.send(request("GET", "/v1/session", &header, "")).await;
            client.reply().await.status
        });
    }
    // A known token is not kept waiting for them.
    assert_eq!(status_with(&node, &token).await, 200);
    assert!(attempts.join_all().await.iter().all(|status| *status == 401));
    // Twenty a second, beside those of the node itself: its polls, five a second.
    let most = 20 + start.elapsed().as_millis() as u64 / 25;
    let calls = script_calls(&server) - before;
    assert!(calls <= most, "{calls} calls in {:?}", start.elapsed());
}

/// A token that no node can read is not created.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_permission_to_read_tokens_none_is_created() {
    let server = RedisServer::start(&[]);
    let user = ["ACL", "SETUSER", "half", "on", ">pw", "~tg:*", "&tg:*", "+@all", "-hvals"];
    assert_eq!(server.cli(&user), "OK");
    let node = AdminNode::start(&format!("redis://half:pw@{}", server.address()), RULES).await;
    let reply = node.admin.call("POST", "/v1/tokens", "", r#"{"name":"ci","role":"read"}"#).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.json()["detail"].as_str().unwrap().contains("docs/redis.md"), "{reply:?}");
    assert_eq!(server.cli(&["HLEN", "tg:control:{rules}:tokens"]), "0");
    // Everything else works.
    let (path, body) = ("/v1/keys/user/mallory/block", r#"{"for":"1h"}"#);
    assert_eq!(node.admin.call("POST", path, "", body).await.status, 200);
}

/// The nodes have read the tokens before, whether or not a request came with one.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_stay_valid_while_redis_is_down() {
    let mut server = RedisServer::start(&[]);
    let one = AdminNode::start(&server.url(), RULES).await;
    let other = AdminNode::start(&server.url(), RULES).await;
    let token = one.admin.create_token("ci", "read").await;
    eventually("the other node has read it", async || {
        other.node.repository.tokens().await.is_ok_and(|tokens| tokens.len() == 1)
    })
    .await;
    server.kill();
    for node in [&one, &other] {
        assert_eq!(status_with(node, &token).await, 200);
        assert_eq!(status_with(node, "tg_unknown").await, 401);
    }
}
