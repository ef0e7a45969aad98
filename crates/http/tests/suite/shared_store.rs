//! The layer with a shared store.

use crate::limited_service::{TestResponse, get};
use base64::Engine;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use std::convert::Infallible;
use std::sync::Arc;
use tollgate_core::rules::load;
use tollgate_http::{HeaderOptions, RateLimitLayer, UnavailableStatus};
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::limit_headers;
use tollgate_testbed::{PATIENCE, RedisServer};
use tower::{Layer, ServiceExt, service_fn};

const RULES: &str = "rules: [{ id: one, key: ip, consistency: strict, limit: 2/h }]";

async fn node(url: &str) -> RateLimitLayer {
    let settings = RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() };
    let store = RedisStore::open(&url.parse().unwrap(), settings, Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(store.shared_store(), FailureSettings::default());
    let loaded = load("test.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
    limiter.install(loaded.rules, loaded.lists).unwrap();
    RateLimitLayer::new(Arc::new(limiter))
}

async fn send(layer: &RateLimitLayer) -> TestResponse {
    let inner = service_fn(|request: Request<_>| async move {
        assert_eq!(request.uri().path(), "/x");
        Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
    });
    let service = layer.for_peer("203.0.113.9:1".parse().unwrap()).layer(inner);
    let (parts, body) = service.oneshot(get("203.0.113.9", "//x").request()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    TestResponse {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body).unwrap(),
    }
}

#[tokio::test]
async fn two_nodes_share_one_limit_and_report_degraded_decisions() {
    let server = RedisServer::start(&[]);
    let (one, two) = (node(&server.url()).await, node(&server.url()).await);
    assert_eq!((send(&one).await.status, send(&two).await.status), (200, 200));
    let response = send(&one).await;
    assert_eq!((response.status, response.headers.contains_key("retry-after")), (429, true));
    assert!(response.body.contains("RATE_LIMIT_EXCEEDED"), "{}", response.body);

    let server = {
        drop(server);
        RedisServer::start(&[])
    };
    let three = node(&server.url()).await;
    drop(server);
    let response = send(&three).await;
    let header = |name: &str| response.headers[name].to_str().unwrap().to_owned();
    assert_eq!(response.status, 200);
    assert_eq!(
        (header("x-ratelimit-remaining"), header("x-ratelimit-policy")),
        ("-1".into(), "degraded".into())
    );
}

/// A layer whose store does not answer: nothing listens on its port.
async fn without_store(rule: &str, headers: HeaderOptions) -> RateLimitLayer {
    let url = "redis://127.0.0.1:1".parse().unwrap();
    let store = RedisStore::open(&url, RedisSettings::default(), Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(store.shared_store(), FailureSettings::default());
    let rules = format!("rules: [{{ id: login, key: ip, {rule} }}]");
    let loaded = load("test.yaml", &rules).unwrap_or_else(|report| panic!("{report}"));
    limiter.install(loaded.rules, loaded.lists).unwrap();
    RateLimitLayer::new(Arc::new(limiter)).headers(headers)
}

async fn send_with(layer: &RateLimitLayer, name: &'static str, value: &str) -> TestResponse {
    let inner = service_fn(|_: Request<_>| async move {
        Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
    });
    let service = layer.for_peer("203.0.113.9:1".parse().unwrap()).layer(inner);
    let asked = get("203.0.113.9", "/x").with(name, value).request();
    let (parts, body) = service.oneshot(asked).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    TestResponse {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body).unwrap(),
    }
}

const MESSAGE: &str = "The store of the rate limits is unavailable; try again later";

#[tokio::test]
async fn refusals_without_the_store_say_so_in_every_format() {
    let as_429 = HeaderOptions {
        store_unavailable: UnavailableStatus::TooManyRequests,
        legacy: true,
        ..HeaderOptions::default()
    };
    for (options, status, reason) in
        [(HeaderOptions::default(), 503, "Service Unavailable"), (as_429, 429, "Too Many Requests")]
    {
        let layer = without_store("limit: 5/h, on_store_failure: deny", options).await;
        let json = format!(
            r#"{{"error":{{"code":"STORE_UNAVAILABLE","message":"{MESSAGE}","details":{{"retry_after_seconds":1}}}}}}"#
        );
        let problem = format!(
            r#"{{"type":"about:blank","title":"{reason}","status":{status},"detail":"{MESSAGE}","code":"STORE_UNAVAILABLE","retry_after_seconds":1}}"#
        );
        for (accept, media_type, body) in [
            ("*/*", "application/json", &json),
            ("application/problem+json", "application/problem+json", &problem),
        ] {
            let response = send_with(&layer, "accept", accept).await;
            assert_eq!((response.status, &response.body), (status, body), "{accept}");
            let mut expected = vec![
                "ratelimit-policy: \"login\";q=5;w=3600",
                "retry-after: 1",
                "x-ratelimit-limit: 5",
                "x-ratelimit-policy: degraded",
                "x-ratelimit-remaining: -1",
            ];
            if options.legacy {
                expected.insert(0, "ratelimit-limit: 5");
            }
            assert_eq!(limit_headers(&response.headers), expected);
            assert_eq!(response.headers["content-type"], media_type);
        }
        let response = send_with(&layer, "content-type", "application/grpc").await;
        let header = |name: &str| response.headers[name].to_str().unwrap();
        let code = if status == 503 { "14" } else { "8" };
        assert_eq!((response.status, header("grpc-status"), header("grpc-message")), (200, code, MESSAGE));
        let details =
            base64::engine::general_purpose::STANDARD_NO_PAD.decode(header("grpc-status-details-bin"));
        let details = details.unwrap();
        assert!(details.windows(9).any(|bytes| bytes == b"RetryInfo"), "{details:?}");
    }
}

#[tokio::test]
async fn a_slot_that_the_store_cannot_give_is_no_exceeded_limit() {
    let rule = "algorithm: concurrency, limit: 2, on_store_failure: deny";
    let layer = without_store(rule, HeaderOptions::default()).await;
    for _ in 0..3 {
        let response = send_with(&layer, "accept", "*/*").await;
        assert_eq!((response.status, response.headers["retry-after"].to_str().unwrap()), (503, "1"));
        assert!(
            response.body.contains("STORE_UNAVAILABLE") && !response.body.contains("exceeded"),
            "{}",
            response.body
        );
    }
}

#[tokio::test]
async fn an_exceeded_local_share_is_an_exceeded_limit() {
    let layer = without_store("limit: 5/h, on_store_failure: local", HeaderOptions::default()).await;
    for _ in 0..5 {
        assert_eq!(send_with(&layer, "accept", "*/*").await.status, 200);
    }
    let response = send_with(&layer, "accept", "*/*").await;
    assert_eq!((response.status, response.headers["x-ratelimit-remaining"].to_str().unwrap()), (429, "-1"));
    assert!(response.body.contains("RATE_LIMIT_EXCEEDED"), "{}", response.body);
}
