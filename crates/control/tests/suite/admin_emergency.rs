//! The emergency limit over REST.

use crate::operated_node::{OperatedNode, START_US};
use serde_json::json;
use std::sync::Arc;
use tollgate_control::RuleRepository;
use tollgate_limiter::{Clock, ManualClock, Request};
use tollgate_testbed::eventually;

const WIDE: &str =
    "rules:\n  - { id: api, key: api_key, limit: 1000000/h }\ndeny: [sk_denied]\nallow: [sk_internal]\n";

/// How many of 15 requests from this address are admitted, and the rule that refused the last.
fn send(node: &OperatedNode, api_key: &str, ip: Option<&str>) -> (usize, Option<String>) {
    let ip = ip.and_then(|ip| ip.parse().ok());
    let request = Request { api_key: Some(api_key), ip, endpoint: "/", ..Request::default() };
    let mut refused_by = None;
    let admitted = (0..15).filter(|_| {
        let decision = node.limiter.check(&request).unwrap().now().unwrap();
        if !decision.allowed() {
            refused_by = decision.terms.map(|terms| terms.names.rule.clone());
        }
        decision.allowed()
    });
    (admitted.count(), refused_by)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_emergency_limit_is_switched_on_and_off() {
    let (node, clock) = OperatedNode::start(WIDE).await;
    let mode = async || node.get("/v1/emergency").await.json()["mode"].clone();
    let switch = async |mode: &str, expected: usize| {
        let body = json!({ "mode": mode }).to_string();
        let reply = node.call("PUT", "/v1/emergency", "", &body).await;
        assert_eq!((reply.status, &reply.json()["mode"]), (200, &json!(mode)));
        eventually("it is applied", async || {
            clock.advance_us(1_000_000);
            send(&node, "sk_1", Some("203.0.113.1")).0 == expected
        })
        .await;
    };
    assert_eq!(mode().await, "default");
    assert_eq!(send(&node, "sk_1", Some("203.0.113.1")), (15, None));
    switch("on", 10).await;
    assert_eq!(mode().await, "on");
    let by_emergency = Some("emergency".to_owned());
    assert_eq!(send(&node, "sk_2", Some("203.0.113.2")), (10, by_emergency.clone()), "each address has 10");
    assert_eq!(send(&node, "sk_3", Some("203.0.113.2")), (0, by_emergency.clone()), "whatever its key");
    assert_eq!(send(&node, "sk_4", Some("2001:db8::1")).0, 10);
    assert_eq!(send(&node, "sk_5", Some("2001:db8::2")), (0, by_emergency), "an IPv6 network counts as one");
    assert_eq!(send(&node, "sk_6", None), (15, None), "without an address there is nothing to count by");
    assert_eq!(send(&node, "sk_internal", Some("203.0.113.3")), (15, None), "the allow list comes first");
    assert_eq!(send(&node, "sk_denied", Some("203.0.113.3")).0, 0);
    // The same again changes nothing; on an outage there is none here.
    switch("on", 10).await;
    switch("on_outage", 15).await;
    switch("on", 10).await;
    switch("off", 15).await;
    switch("default", 15).await;
    let audit = node.get("/v1/audit").await.json();
    let entries = audit["entries"].as_array().unwrap();
    let details: Vec<&str> = entries.iter().map(|entry| entry["detail"].as_str().unwrap()).collect();
    assert_eq!(details, ["default", "off", "on", "on_outage", "on", "on"]);
    assert!(entries.iter().all(|entry| entry["action"] == "emergency.set"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_modes_are_refused() {
    let (node, _) = OperatedNode::start(WIDE).await;
    for body in [
        r#"{"mode":"ON"}"#,
        r#"{"mode":null}"#,
        r#"{"mode":true}"#,
        "{}",
        "",
        "[]",
        r#"{"mode":"on","more":1}"#,
    ] {
        assert_eq!(node.call("PUT", "/v1/emergency", "", body).await.status, 400, "{body}");
    }
    assert_eq!(node.get("/v1/emergency").await.json()["mode"], "default");
    assert!(node.audited().await.is_empty());
}

/// A switch that was set is set after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn the_switch_is_durable() {
    let data = tempfile::tempdir().unwrap();
    let clock = Clock::Manual(ManualClock::new(START_US));
    let repository = RuleRepository::open_embedded(Some(data.path()), clock.clone()).unwrap();
    let on = Some(tollgate_control::EmergencySwitch::On);
    repository.update_control_state(|state| state.emergency = on).await.unwrap();
    drop(repository);
    let repository = RuleRepository::open_embedded(Some(data.path()), clock.clone()).unwrap();
    let state = Arc::new(repository.control_state().await.unwrap());
    assert_eq!((state.emergency, state.version), (on, 1));
}
