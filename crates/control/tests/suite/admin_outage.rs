//! The admin API while Redis is down: what is in force is shown, and the emergency limit can be switched.

use crate::admin_node::AdminNode;
use serde_json::json;
use tollgate_control::{ControlState, EmergencySwitch};
use tollgate_limiter::{Clock, Limiter, Request};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{RedisServer, eventually};

const RULES: &str = "rules:\n  - { id: api, key: api_key, limit: 1000/h }\ndeny: [mallory]\n";

/// Whether 15 requests of a new address are limited.
fn is_limited(limiter: &Limiter, ip: &str) -> bool {
    let request = Request { api_key: Some("sk_1"), ip: ip.parse().ok(), endpoint: "/", ..Request::default() };
    (0..15).any(|_| !limiter.check(&request).unwrap().now().unwrap().allowed())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_emergency_limit_is_switched_while_redis_is_down() {
    let mut server = RedisServer::start(&[]);
    let one = AdminNode::start(&server.url(), RULES).await;
    let other = AdminNode::start(&server.url(), RULES).await;
    assert_eq!(one.emergency().await, (json!("default"), json!(true)));
    server.kill();
    assert_eq!(one.switch("on").await, (json!("on"), json!(false)));
    assert!(is_limited(&one.node.limiter, "203.0.113.1"), "in force at once");
    assert!(!is_limited(&other.node.limiter, "203.0.113.1"), "on the node that was asked");
    assert_eq!(one.emergency().await, (json!("on"), json!(false)));
    assert_eq!(one.get("/v1/control-state").await["emergency"], "on", "also for nodes that follow");
    assert_eq!(other.emergency().await, (json!("default"), json!(true)));
    server.restart_empty();
    for node in [&one, &other] {
        node.until_mode("on").await;
        eventually("it is in force on all nodes", async || is_limited(&node.node.limiter, "203.0.113.9"))
            .await;
    }
    eventually("the audit log has it", async || {
        let audit = one.admin.get("/v1/audit").await.json();
        let entries = audit["entries"].as_array().cloned().unwrap_or_default();
        entries.iter().filter(|entry| entry["action"] == "emergency.set").count() == 1
            && entries[0]["detail"].as_str().unwrap().starts_with("on, on this node only")
    })
    .await;
}

/// A switch that was stored during the outage of a node counts more than the switch of that node.
#[tokio::test(flavor = "multi_thread")]
async fn a_switch_that_was_stored_meanwhile_wins() {
    let mut server = RedisServer::start(&[]);
    let one = AdminNode::start(&server.url(), RULES).await;
    let other = AdminNode::start(&server.url(), RULES).await;
    assert_eq!(one.switch("on_outage").await, (json!("on_outage"), json!(true)));
    other.until_mode("on_outage").await;
    server.save();
    server.kill();
    assert_eq!(one.switch("on").await, (json!("on"), json!(false)));
    assert_eq!(other.switch("off").await, (json!("off"), json!(false)));
    // One of the two is first. The other one takes its setting over.
    server.restart_saved();
    eventually("both agree", async || {
        let (first, second) = (one.emergency().await, other.emergency().await);
        first == second && first.1 == true && first.0 != "on_outage"
    })
    .await;
    let mode = one.emergency().await.0;
    for node in [&one, &other] {
        eventually("it is in force", async || {
            is_limited(&node.node.limiter, "203.0.113.77") == (mode == "on")
        })
        .await;
    }
    // The next switch is stored as usual.
    assert_eq!(one.switch("default").await, (json!("default"), json!(true)));
    other.until_mode("default").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_force_is_shown_while_redis_is_down() {
    let mut server = RedisServer::start(&[]);
    let node = AdminNode::start(&server.url(), RULES).await;
    let grant = node.admin.call("POST", "/v1/keys/user/ana/grant", "", r#"{"tokens":5,"for":"1h"}"#).await;
    assert_eq!(grant.status, 200, "{grant:?}");
    let on = |state: &mut ControlState| state.emergency = Some(EmergencySwitch::OnOutage);
    node.node.repository.update_control_state(on).await.unwrap();
    let paths =
        ["/v1/rules", "/v1/rules/api", "/v1/lists", "/v1/grants", "/v1/emergency", "/v1/control-state"];
    let mut before = Vec::new();
    for path in paths {
        before.push(node.get(path).await);
    }
    server.kill();
    for (path, before) in paths.into_iter().zip(before) {
        assert_eq!(node.get(path).await, before, "{path}");
    }
    let key = node.get("/v1/keys/user/mallory").await;
    assert_eq!(key["lists"][0]["list"], "deny", "{key}");
    let explained = node.admin.call("POST", "/v1/rules/explain", "", r#"{"key":"k","endpoint":"/"}"#).await;
    assert_eq!(explained.status, 200, "{explained:?}");
    // Changes of the rules are refused, and so is the history.
    let block = node.admin.call("POST", "/v1/keys/user/eve/block", "", r#"{"for":"1h"}"#).await;
    assert_eq!(block.status, 503, "{block:?}");
    assert_eq!(node.admin.get("/v1/revisions").await.status, 503);
}

/// A node that started during the outage shows its own rules. Nodes that follow wait for numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_started_during_the_outage_shows_its_rules() {
    let mut server = RedisServer::start(&[]);
    let (url, other) = (server.url(), AdminNode::start(&server.url(), RULES).await);
    drop(other);
    server.kill();
    let settings = RedisSettings::default();
    let store = RedisStore::open(&url.parse().unwrap(), settings, Clock::system()).await.unwrap();
    let AdminNode { admin, .. } = &AdminNode::start_on(store, RULES).await;
    let rules = admin.get("/v1/rules").await;
    assert_eq!((rules.status, &rules.json()["revision"]), (200, &json!(0)), "{rules:?}");
    assert_eq!(admin.get("/v1/emergency").await.json()["mode"], "default");
    assert_eq!(admin.get("/v1/control-state").await.status, 503, "no state was read");
}
