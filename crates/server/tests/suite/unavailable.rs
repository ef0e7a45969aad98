//! The check API and forward-auth while their store is unavailable, and cross-origin requests.

use crate::auth::asked_at;
use crate::client::Client;
use crate::fixture::{DoorFixture, serve};
use tollgate_core::rules::load;
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore};
use tollgate_redis::{RedisSettings, RedisStore};

/// A door whose store is unreachable: nothing listens on its port.
async fn without_store() -> DoorFixture {
    let url = "redis://127.0.0.1:1".parse().unwrap();
    let store = RedisStore::open(&url, RedisSettings::default(), Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(store.shared_store(), FailureSettings::default());
    let rules = "rules:
  - { id: login, endpoint: /login, limit: 5/h, on_store_failure: deny }
  - { id: orders, endpoint: /orders, limit: 5/h }";
    let loaded = load("test.yaml", rules).unwrap_or_else(|report| panic!("{report}"));
    limiter.install(loaded.rules, loaded.lists).unwrap();
    serve(limiter).await
}

const LOGIN: &str = r#"{"key":"sk","endpoint":"/login"}"#;
const ORDERS: &str = r#"{"key":"sk","endpoint":"/orders"}"#;

#[tokio::test]
async fn an_unavailable_store_is_not_reported_as_an_exceeded_limit() {
    let fixture = without_store().await;
    let mut client = fixture.client().await;
    for _ in 0..3 {
        let reply = client.post("/v1/check", LOGIN).await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
        assert_eq!(reply.json()["error"]["code"], "STORE_UNAVAILABLE");
        assert!(!reply.body.contains("exceeded"), "{}", reply.body);
    }
    let reply = client.post("/v1/check", ORDERS).await;
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, "-1"));
    let open = r#"{"allowed":true,"limit":5,"remaining":null,"reset_after_ms":0,"retry_after_ms":0,"rule":"orders","degraded":true}"#;
    assert_eq!(reply.body, open);
    let reply = client.post("/v1/check/batch", format!("[{LOGIN},{ORDERS}]")).await;
    let closed = r#"{"allowed":false,"limit":5,"remaining":null,"reset_after_ms":1000,"retry_after_ms":1000,"rule":"login","degraded":true,"error":{"code":"STORE_UNAVAILABLE","message":"The store of the rate limits is unavailable; try again later"}}"#;
    assert_eq!((reply.status, reply.body), (200, format!("[{closed},{open}]")));
}

#[tokio::test]
async fn proxies_are_told_that_the_store_is_unavailable() {
    let fixture = without_store().await;
    let mut client = fixture.client().await;
    let body = r#"{"error":{"code":"STORE_UNAVAILABLE","message":"The store of the rate limits is unavailable; try again later","details":{"retry_after_seconds":1}}}"#;
    // No limit is known to be exceeded, so `503` leaves this status as it is, and so does `429`, the default.
    for (query, status, own) in [
        ("", 503, ""),
        ("?deny_status=429", 503, ""),
        ("?deny_status=403", 403, "503"),
        ("?deny_status=401", 401, "503"),
        ("?deny_status=503", 503, "503"),
    ] {
        let target = format!("/v1/auth{query}");
        let reply = asked_at(&mut client, &target, "sk", "/login").await;
        assert_eq!((reply.status, reply.header("x-tollgate-status")), (status, own), "{query}");
        let headers = [
            "ratelimit-policy: \"login\";q=5;w=3600",
            "retry-after: 1",
            "x-ratelimit-limit: 5",
            "x-ratelimit-policy: degraded",
            "x-ratelimit-remaining: -1",
        ];
        assert_eq!(reply.limit_headers(), headers, "{query}");
        assert_eq!((reply.header("content-type"), &*reply.body), ("application/json", body), "{query}");
        let reply = asked_at(&mut client, &target, "sk", "/orders").await;
        assert_eq!((reply.status, reply.header("x-tollgate-status"), &*reply.body), (200, "", ""), "{query}");
        let headers = [reply.header("x-ratelimit-remaining"), reply.header("x-ratelimit-policy")];
        assert_eq!(headers, ["-1", "degraded"], "{query}");
    }
}

#[tokio::test]
async fn cross_origin_pages_cannot_spend() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let post = async |client: &mut Client, path: &str, headers: &str| {
        let body = if path.ends_with("batch") { r#"[{"key":"sk"}]"# } else { r#"{"key":"sk"}"# };
        client.post_with(path, headers, body).await
    };
    for (headers, is_served) in [
        ("", true),
        ("Content-Type: application/x-www-form-urlencoded\r\n", true),
        ("Content-Type: text/plain\r\n", true),
        ("Content-Type: application/json\r\n", true),
        ("Origin: https://app.example\r\nContent-Type: application/json\r\n", true),
        ("Origin: https://app.example\r\nContent-Type: Application/JSON; charset=utf-8\r\n", true),
        ("Origin: https://app.example\r\nContent-Type: application/vnd.check+json\r\n", true),
        ("Origin: https://evil.example\r\n", false),
        ("Origin: null\r\n", false),
        ("Origin:\r\n", false),
        ("Origin: https://evil.example\r\nContent-Type: text/plain\r\n", false),
        ("Origin: https://evil.example\r\nContent-Type: text/plain; application/json\r\n", false),
        ("Origin: https://evil.example\r\nContent-Type: text/plain, application/json\r\n", false),
        ("Origin: https://evil.example\r\nContent-Type: application/x-www-form-urlencoded\r\n", false),
        ("Origin: https://evil.example\r\nContent-Type: multipart/form-data; boundary=json\r\n", false),
        ("Origin: https://evil.example\r\nContent-Type: application/jsonp\r\n", false),
        ("Origin: https://evil.example\r\nContent-Type: text/x+json\r\n", false),
        (
            "Origin: https://evil.example\r\nContent-Type: text/plain\r\nContent-Type: application/json\r\n",
            false,
        ),
        (
            "Origin: https://evil.example\r\nContent-Type: application/json\r\nContent-Type: text/plain\r\n",
            false,
        ),
    ] {
        for path in ["/v1/check", "/v1/check/batch"] {
            let reply = post(&mut client, path, headers).await;
            if is_served {
                assert_eq!(reply.status, 200, "{headers:?}");
                continue;
            }
            let error = &reply.json()["error"];
            assert_eq!(
                (reply.status, error["code"].as_str()),
                (415, Some("UNSUPPORTED_MEDIA_TYPE")),
                "{headers:?}"
            );
            assert!(error["message"].as_str().unwrap().contains("application/json"), "{}", reply.body);
        }
    }
    // A preflight request is not granted.
    client.send("OPTIONS /v1/check HTTP/1.1\r\nHost: test\r\nOrigin: https://evil.example\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (405, ""));
}
