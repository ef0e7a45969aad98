//! Bodies that the admin API does not read to the end.

use crate::admin_fixture::AdminFixture;

#[tokio::test]
async fn long_bodies_are_refused_without_reading_them() {
    let admin = AdminFixture::start().await;
    // Rules are as long as a rule file may be.
    for (method, path, most_mib) in
        [("PUT", "/v1/rules", 16), ("POST", "/v1/rules/validate", 16), ("POST", "/v1/tokens", 1)]
    {
        let mut client = admin.client().await;
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nIf-Match: *\r\n\
                 Content-Length: 100000000\r\n\r\n",
                admin.token
            ))
            .await;
        let reply = client.reply().await;
        assert_eq!(
            (reply.status, reply.json()["code"].as_str()),
            (413, Some("BODY_TOO_LARGE")),
            "{method} {path}"
        );
        // Chunks without an end: only the first megabytes are read.
        let mut client = admin.client().await;
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nIf-Match: *\r\n\
                 Transfer-Encoding: chunked\r\n\r\n",
                admin.token
            ))
            .await;
        let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
        for _ in 0..16 * most_mib + 1 {
            client.send(&chunk).await;
        }
        assert_eq!(client.reply().await.status, 413, "{method} {path} in chunks");
    }
}

/// A long rule file can be published, also as JSON, and is read again.
#[tokio::test]
async fn long_rules_are_published() {
    let admin = AdminFixture::start().await;
    let mut text = String::from("rules:\n  - { id: api, key: api_key, limit: 60/min }\ndeny:\n");
    for number in 0..40_000 {
        text += &format!("  - {{ key: client-{number:06}, reason: one of many }}\n");
    }
    assert!(text.len() > 1_800_000, "{}", text.len());
    let reply = admin.call("PUT", "/v1/rules", "If-Match: *\r\n", &text).await;
    assert_eq!((reply.status, reply.json()["revision"].as_u64()), (200, Some(2)), "{reply:?}");
    let json = serde_json::json!({ "yaml": text }).to_string();
    let verdict = admin.call("POST", "/v1/rules/validate", "Content-Type: application/json\r\n", &json).await;
    assert_eq!((verdict.status, &verdict.json()["valid"]), (200, &true.into()));
    assert_eq!(admin.get("/v1/rules").await.json()["yaml"], text);
}

#[tokio::test]
async fn deep_documents_are_refused() {
    let admin = AdminFixture::start().await;
    let deep_json = format!("{}{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let deep_array = "[".repeat(200_000);
    for (method, path) in [
        ("PUT", "/v1/rules/api"),
        ("PATCH", "/v1/rules/api"),
        ("PUT", "/v1/rules/tier/pro"),
        ("POST", "/v1/lists/deny"),
    ] {
        for body in [&deep_json, &deep_array] {
            let reply = admin.call(method, path, "If-Match: *\r\n", body).await;
            assert!([400, 422].contains(&reply.status), "{method} {path}: {}", reply.status);
        }
    }
    for kind in ["application/json", "application/yaml"] {
        for body in [&deep_json, &deep_array] {
            let headers = format!("If-Match: *\r\nContent-Type: {kind}\r\n");
            let reply = admin.call("PUT", "/v1/rules", &headers, body).await;
            assert!([400, 422].contains(&reply.status), "{kind}: {}", reply.status);
        }
    }
    let not_text = admin.client().await;
    drop(not_text);
    assert_eq!(admin.get("/v1/rules").await.status, 200, "it still answers");
}
