//! `POST /v1/check/batch`: many decisions in one response.

use crate::fixture::DoorFixture;
use serde_json::{Value, json};

const BATCH: &str = "/v1/check/batch";

#[tokio::test]
async fn items_are_decided_independently_and_in_order() {
    let fixture = DoorFixture::start().await;
    let body = r#"[
        {"key":"sk_1","endpoint":"/v1/orders","cost":99},
        {"key":"sk_1","endpoint":"/v1/orders"},
        {"key":"sk_1","endpoint":"/v1/orders"},
        {"key":"sk_2","endpoint":"/v1/orders"},
        {"key":"sk_1"},
        {"key":"sk_bad"},
        {"endpoint":"/v1/orders"},
        {"key":"sk_1","endpoint":"/v1/orders","cost":101},
        {"key":"sk_1",
         "cots":1},
        ["sk_1"], 17, {"key":"sk_2","endpoint":"/v1/orders"}
    ]"#;
    let reply = fixture.client().await.post(BATCH, body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.limit_headers(), [""; 0]);
    let verdict = |allowed: bool, remaining: u32, reset: u64, retry: u64| {
        json!({"allowed": allowed, "limit": 100, "remaining": remaining, "reset_after_ms": reset,
               "retry_after_ms": retry, "rule": "orders", "degraded": false})
    };
    let unlimited = json!({"allowed": true, "limit": null, "remaining": null, "reset_after_ms": 0,
                           "retry_after_ms": 0, "rule": null, "degraded": false});
    let mut denied = unlimited.clone();
    denied["allowed"] = json!(false);
    denied["error"] = json!({"code": "DENIED", "message": "This client is on the deny list"});
    let items = reply.json();
    assert_eq!(items.as_array().unwrap().len(), 12);
    let decided = [
        verdict(true, 1, 59_282, 0),
        verdict(true, 0, 59_881, 0),
        verdict(false, 0, 59_881, 599),
        verdict(true, 99, 599, 0),
        unlimited,
        denied,
    ];
    for (index, expected) in decided.iter().enumerate() {
        assert_eq!(&items[index], expected, "item {index}");
    }
    let error = |index: usize| &items[index]["error"];
    assert_eq!(error(6)["code"], "BAD_REQUEST");
    assert_eq!(error(7)["code"], "COST_ABOVE_LIMIT");
    // The position is relative to the whole body.
    let details = &error(8)["details"];
    assert_eq!((&details["line"], &details["field"]), (&json!(11), &json!("cots")), "{details}");
    assert_eq!(details["hint"], "did you mean `cost`?");
    assert_eq!((&error(9)["details"]["line"], &error(9)["details"]["column"]), (&json!(12), &json!(9)));
    assert!(error(10)["message"].as_str().unwrap().ends_with("at line 12 column 20"), "{}", error(10));
    assert_eq!(items[11], verdict(true, 98, 1_198, 0));
}

#[tokio::test]
async fn a_batch_holds_up_to_a_thousand_checks() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let batch = |count: usize| {
        let item = r#"{"key":"sk_1","endpoint":"/v1/orders"}"#;
        format!("[{}]", vec![item; count].join(","))
    };
    assert_eq!(client.post(BATCH, "[]").await.body, "[]");
    let reply = client.post(BATCH, batch(1_000)).await;
    let allowed = |item: &&Value| item["allowed"] == true;
    assert_eq!(reply.json().as_array().unwrap().iter().filter(allowed).count(), 100);
    let reply = client.post(BATCH, batch(1_001)).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("more than 1000 checks"), "{}", reply.body);
}

#[tokio::test]
async fn a_malformed_batch_decides_nothing() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let table = [
        ("", "EOF while parsing a value at line 1 column 1"),
        (r#"{"key":"sk_1"}"#, "expected an array of checks"),
        (r#"[{"key":"sk_1","endpoint":"/v1/orders"}"#, "EOF while parsing a list"),
        (r#"[{"key":"sk_1","endpoint":"/v1/orders"},]"#, "trailing comma"),
        (r#"[{"key":"sk_1","endpoint":"/v1/orders"}] []"#, "trailing characters"),
        (r#"[{"key":"sk_1","endpoint":"/v1/orders"},{"key":}]"#, "expected value"),
    ];
    for (body, says) in table {
        let reply = client.post(BATCH, body).await;
        assert_eq!(reply.status, 400, "{body}");
        let error = &reply.json()["error"];
        assert!(error["message"].as_str().unwrap().contains(says), "{body}: {error}");
        assert!(error["details"]["line"].is_u64(), "{body}: {error}");
    }
    let reply = client.post("/v1/check", r#"{"key":"sk_1","endpoint":"/v1/orders"}"#).await;
    assert_eq!(reply.json()["remaining"], 99);
}
