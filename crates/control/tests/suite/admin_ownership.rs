//! Edits while each node has a rule file of its own: no node gets the rules of another one by an edit.

use crate::admin_node::AdminNode;
use crate::followed_file::quota;
use tollgate_testbed::RedisServer;

const NARROW: &str = "rules:\n  - { id: one, params: { capacity: 5, refill_rate: 1 } }\n";
const WIDE: &str = "rules:\n  - { id: one, params: { capacity: 500, refill_rate: 1 } }\n";

/// Two nodes with rules of their own. The newest revision, 2, is that of the second.
async fn two_nodes(server: &RedisServer) -> (AdminNode, AdminNode) {
    let one = AdminNode::start(&server.url(), NARROW).await;
    one.node.until_stored(1).await;
    let other = AdminNode::start(&server.url(), WIDE).await;
    one.node.until_stored(2).await;
    (one, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_the_rules_of_another_node_is_refused() {
    let server = RedisServer::start(&[]);
    let (one, other) = two_nodes(&server).await;
    let edits = [
        ("POST", "/v1/keys/user/mallory/block", "", r#"{"for":"10s"}"#),
        ("POST", "/v1/keys/user/mallory/allow", "", r#"{"for":"10s"}"#),
        ("POST", "/v1/lists/deny", "", r#"{"key":"203.0.113.0/24"}"#),
        ("DELETE", "/v1/lists/deny?key=203.0.113.0/24", "", ""),
        ("PUT", "/v1/rules/tier/pro", "", r#"{"limit":500}"#),
        ("PATCH", "/v1/rules/one", "If-Match: *\r\n", r#"{"limit":"7/min"}"#),
        ("DELETE", "/v1/rules/one", "If-Match: *\r\n", ""),
    ];
    for (method, path, headers, body) in edits {
        let reply = one.admin.call(method, path, headers, body).await;
        let (status, problem) = (reply.status, reply.json());
        assert_eq!((status, problem["current"].as_u64()), (409, Some(2)), "{method} {path}: {reply:?}");
        assert!(problem["detail"].as_str().unwrap().contains("tollgate rules publish"), "{problem}");
    }
    assert_eq!(one.node.repository.newest().await.unwrap().unwrap().summary.number, 2);
    // The operator has seen the newest revision, and means it.
    let (path, body) = ("/v1/keys/user/mallory/block", r#"{"for":"10s"}"#);
    let named = one.admin.call("POST", path, "If-Match: \"2\"\r\n", body).await;
    assert_eq!((named.status, named.json()["revision"].as_u64()), (200, Some(3)), "{named:?}");
    for node in [&one, &other] {
        node.node.until(3, 500).await;
    }
    // From then on the repository owns the rules.
    for (number, node) in [(4, &one), (5, &other)] {
        let edited = node.admin.call("POST", &format!("/v1/keys/user/eve{number}/block"), "", body).await;
        assert_eq!((edited.status, edited.json()["revision"].as_u64()), (200, Some(number)), "{edited:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_are_published_first_can_be_edited() {
    let server = RedisServer::start(&[]);
    let (one, other) = two_nodes(&server).await;
    let published = one.admin.call("PUT", "/v1/rules", "If-Match: *\r\n", NARROW).await;
    assert_eq!((published.status, published.json()["revision"].as_u64()), (200, Some(3)), "{published:?}");
    let body = r#"{"for":"10s"}"#;
    let blocked = one.admin.call("POST", "/v1/keys/user/mallory/block", "", body).await;
    assert_eq!(blocked.status, 200, "{blocked:?}");
    for node in [&one, &other] {
        node.node.until(4, 5).await;
    }
}

/// The node whose rules are the newest revision can be asked.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_of_the_rules_in_force_is_made() {
    let server = RedisServer::start(&[]);
    let (one, other) = two_nodes(&server).await;
    assert_eq!((quota(&one.node.limiter, "a"), quota(&other.node.limiter, "a")), (Some(5), Some(500)));
    let body = r#"{"for":"10s"}"#;
    let blocked = other.admin.call("POST", "/v1/keys/user/mallory/block", "", body).await;
    assert_eq!((blocked.status, blocked.json()["revision"].as_u64()), (200, Some(3)), "{blocked:?}");
}
