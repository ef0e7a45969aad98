//! Grants over REST: to a key and to a tenant, used up, expired, undone, repeated.

use crate::operated_node::{HOUR_US, OperatedNode, admitted, decide};
use serde_json::json;
use tollgate_limiter::Request;

const FIVE: &str =
    "rules:\n  - { id: api, key: api_key, limit: 5/h }\n  - { id: spare, key: user, limit: 50/h }\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_exactly_so_many_requests_more() {
    let (node, _) = OperatedNode::start(FIVE).await;
    assert_eq!(admitted(&node.limiter, "sk_live_secret", 9), 5);
    let body = r#"{"tokens":3,"for":"1h","reason":"launch"}"#;
    let id = node.grant("api_key/sk_live_secret", body).await;
    node.until_grants("api_key/sk_live_secret", 1).await;
    assert!(decide(&node.limiter, "sk_live_secret").granted);
    let grant = node.key("api_key/sk_live_secret").await["grants"][0].clone();
    let expected = json!({ "id": id, "tokens": 3, "remaining": 2, "rule": null, "expires": "2027-01-15T09:00:00Z",
        "author": "operate.token", "reason": "launch" });
    assert_eq!(grant, expected);
    assert_eq!(admitted(&node.limiter, "sk_live_secret", 9), 2, "it is used up");
    assert_eq!(node.key("api_key/sk_live_secret").await["grants"][0]["remaining"], 0);
    assert_eq!(admitted(&node.limiter, "sk_another", 9), 5, "it is of one key");

    // All grants are listed without the key, and so is the audit log.
    let listed = node.get("/v1/grants").await.json();
    assert_eq!((&listed["grants"][0]["id"], &listed["grants"][0]["value"]), (&json!(id), &json!("sk_live…")));
    let audited = node.audited().await;
    assert_eq!(audited, [("grant.add".to_owned(), format!("api_key sk_live…, grant {id}"))]);
    assert!(!node.get("/v1/audit").await.body.contains("secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_a_pool_for_all_of_its_clients() {
    let (node, clock) = OperatedNode::start(FIVE).await;
    let send = |api_key: &str, requests: usize| {
        let request =
            Request { api_key: Some(api_key), tenant: Some("acme"), endpoint: "/", ..Request::default() };
        let decide = |_: &usize| node.limiter.check(&request).unwrap().now().unwrap().allowed();
        (0..requests).filter(decide).count()
    };
    assert_eq!((send("a", 9), send("b", 9)), (5, 5));
    node.grant("tenant/acme", r#"{"tokens":4,"expires":"2027-01-15T08:30:00Z"}"#).await;
    node.until_grants("tenant/acme", 1).await;
    assert_eq!((send("a", 1), send("b", 9)), (1, 3), "four in all");
    // What is left expires.
    node.grant("tenant/acme", r#"{"tokens":4,"for":"1m"}"#).await;
    node.until_grants("tenant/acme", 2).await;
    assert_eq!(send("a", 1), 1);
    clock.advance_us(60_000_000);
    assert_eq!(send("a", 9), 0, "it has expired");
    clock.advance_us(HOUR_US);
    assert_eq!(node.get("/v1/grants").await.json()["grants"], json!([]), "both have");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_undone_by_its_key_or_by_its_id() {
    let (node, _) = OperatedNode::start(FIVE).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 9), 5);
    let body = r#"{"tokens":3,"for":"1h"}"#;
    let first = node.grant("api_key/sk_1", body).await;
    let second = node.grant("api_key/sk_1", body).await;
    assert_ne!(first, second, "without an id each request is a grant");
    node.until_grants("api_key/sk_1", 2).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 1), 1);
    // It is of this key only.
    let of_another = format!("/v1/keys/api_key/sk_2/grant/{first}");
    assert_eq!(node.call("DELETE", &of_another, "", "").await.status, 404);
    let by_key = format!("/v1/keys/api_key/sk_1/grant/{first}");
    assert_eq!(node.call("DELETE", &by_key, "", "").await.json()["id"], first.as_str());
    assert_eq!(node.call("DELETE", &by_key, "", "").await.status, 404, "it has ended");
    let by_id = format!("/v1/grants/{second}");
    assert_eq!(node.call("DELETE", &by_id, "", "").await.json()["id"], second.as_str());
    assert_eq!(node.call("DELETE", &by_id, "", "").await.status, 404, "it has ended");
    node.until_grants("api_key/sk_1", 0).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 9), 0, "what was left is gone");
    let audited: Vec<_> = node.audited().await.into_iter().take(2).collect();
    let ended = |id: &str| ("grant.end".to_owned(), format!("api_key sk…, grant {id}"));
    assert_eq!(audited, [ended(&second), ended(&first)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_with_an_id_is_given_once() {
    let (node, clock) = OperatedNode::start(FIVE).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 9), 5);
    let body = r#"{"id":"ticket-4711","tokens":3,"for":"1h"}"#;
    for _ in 0..3 {
        assert_eq!(node.grant("api_key/sk_1", body).await, "ticket-4711");
        // A repetition after a while has another end, and changes nothing.
        clock.advance_us(1_000_000);
    }
    node.until_grants("api_key/sk_1", 1).await;
    assert_eq!(node.key("api_key/sk_1").await["grants"][0]["expires"], "2027-01-15T09:00:00Z");
    assert_eq!(admitted(&node.limiter, "sk_1", 9), 3);
    assert_eq!(node.audited().await.len(), 1);
    for (path, body) in [
        ("api_key/sk_1", r#"{"id":"ticket-4711","tokens":4,"for":"1h"}"#),
        ("api_key/sk_2", body),
        ("api_key/sk_1", r#"{"id":"ticket-4711","tokens":3,"for":"1h","rule":"api"}"#),
    ] {
        let reply = node.call("POST", &format!("/v1/keys/{path}/grant"), "", body).await;
        assert_eq!(reply.status, 409, "{path} {body}: {reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_may_be_for_one_rule() {
    let (node, _) = OperatedNode::start(FIVE).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 9), 5);
    node.grant("api_key/sk_1", r#"{"tokens":9,"for":"1h","rule":"spare"}"#).await;
    node.until_grants("api_key/sk_1", 1).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 9), 0, "it is for another rule");
    node.grant("api_key/sk_1", r#"{"tokens":2,"for":"1h","rule":"api"}"#).await;
    node.until_grants("api_key/sk_1", 2).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 9), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_grants_are_no_error_of_the_server() {
    let (node, _) = OperatedNode::start(FIVE).await;
    for (body, status) in [
        (json!({ "tokens": 1_000_000_000_u64, "for": "1h" }), 200),
        (json!({ "tokens": 1_000_000_001_u64, "for": "1h" }), 422),
        (json!({ "tokens": 0, "for": "1h" }), 422),
        (json!({ "tokens": -1, "for": "1h" }), 400),
        (json!({ "tokens": 1.5, "for": "1h" }), 400),
        (json!({ "tokens": "3", "for": "1h" }), 400),
        (json!({ "tokens": 3 }), 422),
        (json!({ "for": "1h" }), 400),
        (json!({ "tokens": 3, "for": "0s" }), 422),
        (json!({ "tokens": 3, "for": "soon" }), 400),
        (json!({ "tokens": 3, "expires": "2027-01-15T08:00:00Z" }), 422),
        (json!({ "tokens": 3, "expires": "2027-01-15T08:30:00Z", "for": "1h" }), 422),
        (json!({ "tokens": 3, "for": "1h", "rule": "unknown" }), 422),
        (json!({ "tokens": 3, "for": "1h", "rule": "" }), 422),
        (json!({ "tokens": 3, "for": "1h", "reason": "two\nlines" }), 422),
        (json!({ "tokens": 3, "for": "1h", "reason": "ü".repeat(512) }), 200),
        (json!({ "tokens": 3, "for": "1h", "reason": "ü".repeat(513) }), 422),
        (json!({ "tokens": 3, "for": "1h", "id": "" }), 422),
        (json!({ "tokens": 3, "for": "1h", "id": "a/b" }), 422),
        (json!({ "tokens": 3, "for": "1h", "id": "x".repeat(65) }), 422),
        (json!({ "tokens": 3, "for": "1h", "colour": "red" }), 400),
        (json!([]), 400),
    ] {
        let reply = node.call("POST", "/v1/keys/tenant/acme/grant", "", &body.to_string()).await;
        assert_eq!(reply.status, status, "{body}: {reply:?}");
    }
    for id in ["unknown", "%20", "%FF", "%F0%9F%94%91", &"x".repeat(5_000)] {
        for path in [format!("/v1/grants/{id}"), format!("/v1/keys/tenant/acme/grant/{id}")] {
            let status = node.call("DELETE", &path, "", "").await.status;
            assert!((400..500).contains(&status), "{path}: {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_grants_is_bounded() {
    let (node, clock) = OperatedNode::start(FIVE).await;
    node.repository
        .update_control_state(|state| {
            let record = |index: usize| tollgate_control::GrantRecord {
                id: format!("g{index}"),
                kind: "user".to_owned(),
                value: format!("u{index}"),
                rule: None,
                tokens: 1,
                created: clock_time(&clock),
                expires: clock_time(&clock) + HOUR_US,
                author: "ana".to_owned(),
                reason: String::new(),
            };
            state.grants = (0..tollgate_control::MOST_GRANTS).map(record).collect();
        })
        .await
        .unwrap();
    let path = "/v1/keys/user/one-more/grant";
    let body = r#"{"tokens":1,"for":"2h"}"#;
    let reply = node.call("POST", path, "", body).await;
    assert_eq!(reply.status, 409, "{reply:?}");
    assert_eq!(node.get("/v1/grants").await.json()["grants"].as_array().unwrap().len(), 1_000);
    // Those that have expired make room.
    clock.advance_us(HOUR_US);
    assert_eq!(node.call("POST", path, "", body).await.status, 200);
    assert_eq!(node.get("/v1/grants").await.json()["grants"].as_array().unwrap().len(), 1);
}

fn clock_time(clock: &tollgate_limiter::ManualClock) -> tollgate_core::time::UnixTime {
    tollgate_limiter::Clock::Manual(clock.clone()).now()
}

/// What has happened is not in the future; a grant does not end before the time that is shown.
#[tokio::test(flavor = "multi_thread")]
async fn audit_entries_of_grants_are_written_for_people() {
    let (node, clock) = OperatedNode::start(FIVE).await;
    clock.advance_us(400_000);
    node.grant("user/ana", r#"{"tokens":5000,"for":"1h"}"#).await;
    node.grant("user/ben", r#"{"tokens":3,"expires":"2027-01-15T09:30:00Z","reason":"launch"}"#).await;
    let audit = node.get("/v1/audit").await.json();
    let shown = |index: usize| (&audit["entries"][index]["detail"], &audit["entries"][index]["time"]);
    let time = json!("2027-01-15T08:00:00Z");
    assert_eq!(shown(0), (&json!("3 tokens, until 2027-01-15T09:30:00Z; launch"), &time));
    assert_eq!(shown(1), (&json!("5,000 tokens, until 2027-01-15T09:00:01Z"), &time));
    let grants = node.get("/v1/grants").await.json();
    assert_eq!(grants["grants"][0]["created"], time);
    let block = node.call("POST", "/v1/keys/user/eve/block", "", r#"{"for":"1h"}"#).await;
    let revision = node.in_force(&block).await;
    let revision = node.get(&format!("/v1/revisions/{revision}")).await.json();
    assert_eq!(revision["time"], time);
}
