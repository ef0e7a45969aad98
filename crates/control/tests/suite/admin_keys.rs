//! `/v1/keys`: the state of a key, reset, block and allow, roles, and values of every kind.

use crate::operated_node::{HOUR_US, OperatedNode, admitted, decide};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tollgate_core::decision::Outcome;
use tollgate_limiter::Request;

/// Every algorithm, several limits in one rule, a tier, and a rule of one path.
const EVERY_LIMIT: &str = "tiers:
  pro: { api_key_pattern: 'pro_*', limit: 40/h }
rules:
  - { id: plan, key: api_key, tier: pro }
  - { id: bucket, key: api_key, limit: 10/h, burst: 20 }
  - { id: leaky, key: api_key, algorithm: leaky_bucket, params: { capacity: 30, leak_rate: 1/h } }
  - { id: spaced, key: api_key, algorithm: gcra, limit: 12/h, burst: 14 }
  - { id: window, key: api_key, algorithm: fixed_window, limit: 50/h }
  - { id: log, key: api_key, algorithm: sliding_window_log, limit: 60/h }
  - { id: counter, key: api_key, algorithm: sliding_window_counter, limit: 70/h }
  - { id: both, key: api_key, limits: [80/h, 250/day] }
  - { id: told, key: api_key, limit: 90/h, on_exceed: shadow }
  - { id: at_once, key: api_key, endpoint: /v1/stream, algorithm: concurrency, limit: 5 }
  - { id: orders, key: [api_key, route], endpoint: '/v1/orders', limit: 7/h }
  - { id: tenants, key: tenant, limit: 9/h }
";

const FIVE: &str = "rules:\n  - { id: api, key: api_key, limit: 5/h }\n";

fn remaining(key: &Value) -> BTreeMap<String, Option<u64>> {
    let limits = key["limits"].as_array().unwrap().iter();
    limits.map(|limit| (limit["limit"].as_str().unwrap().to_owned(), limit["remaining"].as_u64())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_all_of_its_limits_and_looking_spends_nothing() {
    let (node, clock) = OperatedNode::start(EVERY_LIMIT).await;
    assert_eq!(admitted(&node.limiter, "pro_1", 3), 3);
    let key = node.key("api_key/pro_1").await;
    assert_eq!(
        (&key["kind"], &key["value"], &key["tier"]),
        (&json!("api_key"), &json!("pro_1"), &json!("pro"))
    );
    assert_eq!((&key["lists"], &key["holds"], &key["grants"]), (&json!([]), &json!([]), &json!([])));
    let of = remaining(&key);
    for (limit, left) in [
        ("plan", 37),
        ("bucket", 17),
        ("leaky", 27),
        ("spaced", 12),
        ("window", 47),
        ("log", 57),
        ("counter", 67),
        ("told", 87),
        ("at_once", 5),
        ("orders", 4),
        // A client without a tenant is counted by its key.
        ("tenants", 6),
    ] {
        assert_eq!(of.get(limit), Some(&Some(left)), "{limit}: {key:#}");
    }
    let several: Vec<_> = of.iter().filter(|(name, _)| name.starts_with("both")).collect();
    assert_eq!(several.iter().map(|(_, left)| left.unwrap()).sum::<u64>(), 77 + 247, "{key:#}");
    assert_eq!(of.len(), 13, "{key:#}");
    for limit in key["limits"].as_array().unwrap() {
        assert_eq!(limit["source"], "memory", "{limit}");
        assert!(limit["why"].as_str().unwrap().starts_with("counts by api_key"), "{limit}");
        assert_eq!(limit["retry_after"], 0.0, "{limit}");
    }
    assert_eq!(remaining(&node.key("api_key/pro_1").await), of, "looking spends nothing");

    // A path has fewer limits, and an explanation.
    let path = node.key("api_key/pro_1?endpoint=/v1/other&method=GET").await;
    assert!(!remaining(&path).contains_key("orders") && path["explain"].is_object(), "{path:#}");
    assert_eq!(key["explain"], Value::Null);

    // What a refused client waits for is what the check says.
    assert_eq!(admitted(&node.limiter, "pro_1", 10), 4, "seven of /v1/orders");
    let key = node.key("api_key/pro_1").await;
    let orders =
        key["limits"].as_array().unwrap().iter().find(|limit| limit["route"] == "/v1/orders").unwrap();
    assert_eq!(orders["remaining"], 0);
    let Outcome::Limited(status) = decide(&node.limiter, "pro_1").outcome else { panic!("it is limited") };
    let wait_us = status.wait_us().unwrap();
    assert_eq!(orders["retry_after"].as_f64(), Some(wait_us as f64 / 1e6), "{orders}");
    clock.advance_us(wait_us);
    assert!(decide(&node.limiter, "pro_1").allowed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_lets_a_key_start_fresh_and_is_audited() {
    let (node, _) = OperatedNode::start(FIVE).await;
    assert_eq!(admitted(&node.limiter, "sk_live_secret", 9), 5);
    let reply = node.call("DELETE", "/v1/keys/api_key/sk_live_secret", "", "").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "{\"reset\":1}"));
    assert_eq!(admitted(&node.limiter, "sk_live_secret", 9), 5);
    // A key without a state is no error, and a reset can be repeated.
    for _ in 0..2 {
        assert_eq!(node.call("DELETE", "/v1/keys/api_key/unknown", "", "").await.json()["reset"], 0);
    }
    let audited = node.audited().await;
    assert_eq!(audited.len(), 3);
    assert_eq!(audited[2], ("key.reset".to_owned(), "api_key sk_live…".to_owned()), "a key is not shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_blocked_for_a_while() {
    let (node, clock) = OperatedNode::start(FIVE).await;
    assert_eq!(admitted(&node.limiter, "sk_bad", 1), 1);
    let body = r#"{"for":"10m","reason":"scanner"}"#;
    node.in_force(&node.call("POST", "/v1/keys/api_key/sk_bad/block", "", body).await).await;
    assert_eq!(decide(&node.limiter, "sk_bad").outcome, Outcome::Denied);
    assert!(decide(&node.limiter, "sk_good").allowed());
    let key = node.key("api_key/sk_bad").await;
    let expected = json!([{ "list": "deny", "key": "sk_bad", "expires": "2027-01-15T08:10:00Z",
        "reason": "scanner", "by": "operate.token" }]);
    assert_eq!(key["lists"], expected);
    clock.advance_us(600_000_000 - 1);
    assert_eq!(decide(&node.limiter, "sk_bad").outcome, Outcome::Denied);
    clock.advance_us(1);
    assert!(decide(&node.limiter, "sk_bad").allowed(), "it has expired");
    assert_eq!(node.key("api_key/sk_bad").await["lists"], json!([]));
    assert_eq!(node.get("/v1/lists").await.json()["deny"][0]["expired"], true);

    // Without an end it is for ever, until it is removed.
    node.in_force(&node.call("POST", "/v1/keys/user/mallory/block", "", "{}").await).await;
    let mallory = Request { user: Some("mallory"), endpoint: "/", ..Request::default() };
    let of_mallory = || node.limiter.check(&mallory).unwrap().now().unwrap().outcome;
    clock.advance_us(1_000 * HOUR_US);
    assert_eq!(of_mallory(), Outcome::Denied);
    node.in_force(&node.call("DELETE", "/v1/lists/deny?key=mallory", "", "").await).await;
    assert_ne!(of_mallory(), Outcome::Denied);
    let audited: Vec<_> =
        node.audited().await.into_iter().map(|(action, target)| action + " " + &target).collect();
    let expected = [
        "list.remove deny list: mal…",
        "list.add deny list: user mallory",
        "list.add deny list: api_key sk_…, until 2027-01-15T08:10:00Z",
    ];
    assert_eq!(audited, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_key_has_no_limit_for_a_while() {
    let (node, clock) = OperatedNode::start(FIVE).await;
    node.in_force(&node.call("POST", "/v1/keys/api_key/sk_1/allow", "", r#"{"for":"1h"}"#).await).await;
    assert_eq!(admitted(&node.limiter, "sk_1", 50), 50);
    assert_eq!(node.key("api_key/sk_1").await["lists"][0]["list"], "allow");
    clock.advance_us(HOUR_US);
    assert_eq!(admitted(&node.limiter, "sk_1", 50), 5);
    // Deny wins over allow.
    node.in_force(&node.call("POST", "/v1/keys/ip/203.0.113.9/allow", "", "{}").await).await;
    node.in_force(&node.call("POST", "/v1/keys/ip/203.0.113.9/block", "", "{}").await).await;
    let request = Request { ip: "203.0.113.9".parse().ok(), endpoint: "/", ..Request::default() };
    assert_eq!(node.limiter.check(&request).unwrap().now().unwrap().outcome, Outcome::Denied);
}

/// In an attack an operator must be able to block a client whatever the tests of the rules expect of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_rule_tests_can_be_blocked_and_allowed() {
    const TESTED: &str = "rules:
  - { id: api, key: api_key, limit: 5/h }
deny: [sk_revoked]
tests:
  - name: five an hour, and one that is revoked
    steps:
      - { send: 5, expect: pass, request: { key: sk_tested } }
      - { expect: limited, request: { key: sk_tested } }
      - { expect: pass, request: { key: sk_other, ip: 203.0.113.9 } }
      - { expect: denied, request: { key: sk_revoked } }
";
    let (node, _) = OperatedNode::start(TESTED).await;
    node.in_force(&node.call("POST", "/v1/keys/api_key/sk_tested/block", "", r#"{"for":"1h"}"#).await).await;
    assert_eq!(decide(&node.limiter, "sk_tested").outcome, Outcome::Denied);
    let network = r#"{"key":"203.0.113.0/24","reason":"attack"}"#;
    node.in_force(&node.call("POST", "/v1/lists/deny", "", network).await).await;
    node.in_force(&node.call("POST", "/v1/keys/api_key/sk_other/allow", "", "{}").await).await;
    // An entry of the author stays one: its test goes on to pass.
    node.in_force(&node.call("POST", "/v1/keys/api_key/sk_revoked/block", "", r#"{"reason":"again"}"#).await)
        .await;
    let deny = node.get("/v1/lists").await.json()["deny"].clone();
    assert_eq!(
        (&deny[0]["key"], &deny[0]["by"], &deny[0]["reason"]),
        (&json!("sk_revoked"), &Value::Null, &json!("again"))
    );
    assert_eq!((&deny[1]["key"], &deny[1]["by"]), (&json!("sk_tested"), &json!("operate.token")));
    // The tests still guard everything else.
    let tag = node.get("/v1/rules").await.header("etag").to_owned();
    let yaml = node.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "").await.body;
    let headers = format!("If-Match: {tag}\r\n");
    let broken = yaml.replace("limit: 5/h", "limit: 4/h");
    assert_eq!(node.call("PUT", "/v1/rules", &headers, &broken).await.status, 422);
    let unlisted = yaml.replacen("sk_revoked", "sk_unknown", 1);
    assert_eq!(node.call("PUT", "/v1/rules", &headers, &unlisted).await.status, 422);
    node.in_force(&node.call("PUT", "/v1/rules", &headers, &format!("# reviewed\n{yaml}")).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_brackets_and_backslashes_are_no_patterns() {
    let (node, _) = OperatedNode::start(FIVE).await;
    for (path, user) in
        [("user/CORP%5Cann", "CORP\\ann"), ("user/br%5Ba%5D", "br[a]"), ("user/%7Bx%7D", "{x}")]
    {
        let reply = node.call("POST", &format!("/v1/keys/{path}/block"), "", r#"{"for":"1h"}"#).await;
        node.in_force(&reply).await;
        let listed = node.get("/v1/lists").await.json();
        assert_eq!(listed["deny"].as_array().unwrap().last().unwrap()["key"], *user);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_list_would_read_otherwise_is_not_listed() {
    let (node, _) = OperatedNode::start(FIVE).await;
    for (path, reason) in [
        ("api_key/sk_*", "wildcards"),
        ("user/10.0.0.1", "is an address"),
        ("user/10.0.0.0%2F8", "is an address"),
        ("invoice/7", "can be listed"),
        ("ip/10.0.0.0%2F8", "must be an address"),
        ("ip/somewhere", "must be an address"),
    ] {
        for verb in ["block", "allow"] {
            let reply = node.call("POST", &format!("/v1/keys/{path}/{verb}"), "", "{}").await;
            assert_eq!(reply.status, 422, "{path}: {reply:?}");
            assert!(reply.json()["detail"].as_str().unwrap().contains(reason), "{path}: {reply:?}");
        }
    }
    assert_eq!(node.get("/v1/rules").await.header("etag"), "\"1\"", "nothing was published");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_may_name_the_revision_that_it_changes() {
    let (node, _) = OperatedNode::start(FIVE).await;
    let path = "/v1/keys/api_key/sk_1/block";
    let stale = node.call("POST", path, "If-Match: \"7\"\r\n", "{}").await;
    assert_eq!((stale.status, &stale.json()["current"]), (412, &json!(1)));
    assert_eq!(node.call("POST", path, "If-Match: 1\r\n", "{}").await.status, 400);
    let reply = node.call("POST", path, "If-Match: \"1\"\r\nX-Message: attack\r\n", "{}").await;
    assert_eq!(node.in_force(&reply).await, 2);
    // The same again makes no revision.
    assert_eq!(node.in_force(&node.call("POST", path, "", "{}").await).await, 2);
    let newest = node.get("/v1/revisions/2").await.json();
    assert_eq!((&newest["message"], &newest["author"]), (&json!("attack"), &json!("operate.token")));
    assert_eq!(node.audited().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_may_read_changes_no_key() {
    let (node, _) = OperatedNode::start(FIVE).await;
    let read = format!("Authorization: Bearer {}\r\n", node.create_token("dashboard", "read").await);
    let follow = format!("Authorization: Bearer {}\r\n", node.create_token("edge", "follow").await);
    let id = node.grant("api_key/sk_1", r#"{"tokens":3,"for":"1h"}"#).await;
    let by_key = format!("/v1/keys/api_key/sk_1/grant/{id}");
    let by_id = format!("/v1/grants/{id}");
    for (method, path, body) in [
        ("DELETE", "/v1/keys/api_key/sk_1", ""),
        ("POST", "/v1/keys/api_key/sk_1/block", "{}"),
        ("POST", "/v1/keys/api_key/sk_1/allow", "{}"),
        ("POST", "/v1/keys/api_key/sk_1/grant", r#"{"tokens":3,"for":"1h"}"#),
        ("DELETE", by_key.as_str(), ""),
        ("DELETE", by_id.as_str(), ""),
        ("POST", "/v1/lists/deny", r#"{"key":"a"}"#),
        ("DELETE", "/v1/lists/deny?key=a", ""),
        ("PUT", "/v1/emergency", r#"{"mode":"on"}"#),
    ] {
        for headers in [&read, &follow] {
            let reply = node.send(method, path, headers, body).await;
            assert_eq!(reply.status, 403, "{method} {path}: {reply:?}");
            assert_eq!(reply.header("content-type"), "application/problem+json");
        }
        assert_eq!(node.send(method, path, "", body).await.status, 401, "{method} {path}");
    }
    for path in ["/v1/keys/api_key/sk_1", "/v1/grants", "/v1/lists", "/v1/emergency"] {
        assert_eq!(node.send("GET", path, &read, "").await.status, 200, "{path}");
        assert_eq!(node.send("GET", path, &follow, "").await.status, 403, "{path}");
        assert_eq!(node.send("GET", path, "", "").await.status, 401, "{path}");
    }
    let actions: Vec<String> = node.audited().await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["grant.add", "token.create", "token.create"], "what was refused changed nothing");
}

/// Values that are odd are refused or work; none is an error of the server.
#[tokio::test(flavor = "multi_thread")]
async fn odd_keys_are_no_error_of_the_server() {
    let (node, _) = OperatedNode::start(FIVE).await;
    let long = "x".repeat(1_024);
    let too_long = "x".repeat(1_025);
    for (path, is_valid) in [
        ("api_key/with%20space", true),
        ("api_key/%C3%BC%F0%9F%94%91", true),
        ("api_key/a%2Fb", true),
        ("api_key/a%3Fb%23c%26d", true),
        ("api_key/%22quoted%22%20%27and%27%20%3A%20%7Bmore%7D", true),
        ("api_key/null", true),
        ("api_key/~", true),
        ("api_key/-%20a%3A%20b", true),
        ("api_key/0x10", true),
        ("user/2001-01-01", true),
        ("tenant/true", true),
        ("invoice/7", true),
        ("ip/203.0.113.9", true),
        ("ip/2001:db8::1", true),
        ("ip/2001%3Adb8%3A%3A1", true),
        ("ip/%3A%3Affff%3A203.0.113.9", true),
        (&format!("api_key/{long}"), true),
        ("ip/203.0.113.0%2F24", false),
        ("ip/%5B2001%3Adb8%3A%3A1%5D", false),
        ("ip/fe80%3A%3A1%25eth0", false),
        ("ip/1", false),
        ("api_key/%20", false),
        ("api_key/a%00b", false),
        ("api_key/a%0Ab", false),
        ("api_key/%FF%FE", false),
        ("api_key/%E2%80%A8%0D", false),
        (&format!("api_key/{too_long}"), false),
        (&format!("{too_long}/a"), false),
        ("%20/a", false),
    ] {
        let show = node.get(&format!("/v1/keys/{path}")).await;
        assert_eq!(show.status == 200, is_valid, "{path}: {show:?}");
        for (method, end, body) in [
            ("DELETE", "", ""),
            ("POST", "/grant", r#"{"tokens":1,"for":"1h"}"#),
            ("POST", "/block", r#"{"for":"1h"}"#),
            ("POST", "/allow", r#"{"for":"1h"}"#),
        ] {
            let reply = node.call(method, &format!("/v1/keys/{path}{end}"), "", body).await;
            assert!(reply.status < 500, "{method} {path}{end}: {reply:?}");
            assert!(is_valid || reply.status >= 400, "{method} {path}{end}: {reply:?}");
            if method == "DELETE" || end == "/grant" {
                assert_eq!(reply.status == 200, is_valid, "{method} {path}{end}: {reply:?}");
            }
        }
    }
    for path in
        ["/v1/keys", "/v1/keys/", "/v1/keys/api_key", "/v1/keys/api_key/", "/v1/keys//x", "/v1/keys/a/b/c/d"]
    {
        let status = node.get(path).await.status;
        assert!((400..500).contains(&status), "{path}: {status}");
    }
    for query in [
        "?endpoint=a%00b",
        "?method=GET",
        "?endpoint=",
        "?endpoint=/a/%2e%2e/b",
        "?colour=red",
        "?endpoint=%FF",
    ] {
        let status = node.get(&format!("/v1/keys/api_key/a{query}")).await.status;
        assert!(status < 500, "{query}: {status}");
    }
    // The rules are still good, with all that was listed in them.
    let yaml = node.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "").await.body;
    assert_eq!(node.call("POST", "/v1/rules/validate", "", &yaml).await.json()["valid"], true, "{yaml}");
    assert_eq!(admitted(&node.limiter, "another", 9), 5);
}
