//! `/v1/lists` on a running node: entries of every kind, and what they do.

use crate::operated_node::OperatedNode;
use serde_json::json;
use tollgate_core::decision::Outcome;
use tollgate_limiter::Request;

const RULES: &str = "# The limits.\nrules:\n  - { id: api, key: ip, limit: 5/h }   # by address\n";

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_every_kind_take_effect() {
    let (node, clock) = OperatedNode::start(RULES).await;
    for (key, api_key, ip, other) in [
        ("sk_exact", "sk_exact", "203.0.113.1", "sk_exact2"),
        ("sk_stolen_*", "sk_stolen_7", "203.0.113.1", "sk_stole_7"),
        ("schlüssel 🔑", "schlüssel 🔑", "203.0.113.1", "schlussel"),
        ("198.51.100.0/24", "any", "198.51.100.77", "any"),
        ("2001:db8:7::/48", "any", "2001:db8:7:1::5", "any"),
        ("192.0.2.9", "any", "::ffff:192.0.2.9", "any"),
    ] {
        let verdict = |api_key: &str, ip: &str| {
            let request =
                Request { api_key: Some(api_key), ip: ip.parse().ok(), endpoint: "/", ..Request::default() };
            node.limiter.check(&request).unwrap().now().unwrap().outcome
        };
        assert_ne!(verdict(api_key, ip), Outcome::Denied, "{key}");
        let body = json!({ "key": key, "for": "1h", "reason": "test" }).to_string();
        node.in_force(&node.call("POST", "/v1/lists/deny", "", &body).await).await;
        assert_eq!(verdict(api_key, ip), Outcome::Denied, "{key}");
        assert_ne!(verdict(other, "203.0.113.200"), Outcome::Denied, "{key}");
        let entry = node.get("/v1/lists").await.json()["deny"][0].clone();
        assert_eq!((&entry["key"], &entry["by"]), (&json!(key), &json!("operate.token")));
        // The reason is the message of the revision.
        assert_eq!(node.get("/v1/revisions?count=1").await.json()["revisions"][0]["message"], "test");
        // It ends by itself.
        clock.advance_us(3_601_000_000);
        assert_ne!(verdict(api_key, ip), Outcome::Denied, "{key}");
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/v1/lists/deny?key={encoded}");
        node.in_force(&node.call("DELETE", &path, "", "").await).await;
        assert_eq!(node.call("DELETE", &path, "", "").await.status, 404, "{key}");
    }
    let yaml = node.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "").await.body;
    assert!(yaml.contains("# The limits.") && yaml.contains("# by address"), "{yaml}");
    assert_eq!(node.audited().await.len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_entries_are_no_error_of_the_server() {
    let (node, _) = OperatedNode::start(RULES).await;
    for (entry, status) in [
        (json!({ "key": "x".repeat(1_024) }), 200),
        (json!({ "key": "x".repeat(1_025) }), 422),
        (json!({ "key": " " }), 422),
        (json!({ "key": "a\nb" }), 422),
        (json!({ "key": "a", "reason": "r".repeat(1_024) }), 200),
        (json!({ "key": "a", "reason": "r".repeat(1_025) }), 422),
        (json!({ "key": "a", "reason": "two\nlines" }), 422),
        (json!({ "key": "'quoted' \"twice\": [x], {y} #z & *w !v | > %u @t `" }), 200),
        (json!({ "key": "- item" }), 200),
        (json!({ "key": "10.0.0.0/99" }), 422),
        (json!({ "key": "10.0.0" }), 200),
        (json!({ "key": "0.0.0.0/0" }), 422),
        (json!({ "key": "::/0" }), 422),
        (json!({ "key": "**" }), 422),
        (json!({ "key": "a", "for": "0s" }), 422),
        (json!({ "key": "a", "for": "999999999999999d" }), 400),
        (json!({ "key": "a", "expires": "tomorrow" }), 400),
        (json!({ "key": "a", "by": "mallory" }), 400),
        (json!({ "key": null }), 400),
        (json!({}), 400),
    ] {
        let reply = node.call("POST", "/v1/lists/deny", "", &entry.to_string()).await;
        assert_eq!(reply.status, status, "{entry}: {reply:?}");
    }
    for query in ["", "?key=", "?key=%FF", "?key=a%00", "?kee=a", "?key=unknown"] {
        let status = node.call("DELETE", &format!("/v1/lists/deny{query}"), "", "").await.status;
        assert!((400..500).contains(&status), "{query}: {status}");
    }
}
