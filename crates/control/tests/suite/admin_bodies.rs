//! Bodies that the admin API does not read to the end.

use crate::admin_fixture::AdminFixture;

#[tokio::test]
async fn long_bodies_are_refused_without_reading_them() {
    let admin = AdminFixture::start().await;
    for (method, path) in [("PUT", "/v1/rules"), ("POST", "/v1/rules/validate"), ("POST", "/v1/tokens")] {
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
        // Chunks without an end: only the first megabyte is read.
        let mut client = admin.client().await;
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nIf-Match: *\r\n\
                 Transfer-Encoding: chunked\r\n\r\n",
                admin.token
            ))
            .await;
        let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
        for _ in 0..17 {
            client.send(&chunk).await;
        }
        assert_eq!(client.reply().await.status, 413, "{method} {path} in chunks");
    }
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
