//! The limits in front of the forwarder, and connection limits.

use crate::fixture::{self, Pair};
use crate::raw_client::RawClient;
use std::sync::Arc;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::GatewaySettings;
use tollgate_http::{HeaderOptions, RateLimitLayer, UnavailableStatus};
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore};
use tollgate_listen::{ConnectionLimitOptions, ConnectionLimits};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::TestUpstream;

const LOGIN: &str = "rules: [{ id: login, endpoint: /login, key: ip, limit: 2/hour }]";

/// A server behind limits.
pub async fn behind(rules: &str, connection_limits: Option<Arc<ConnectionLimits>>) -> Pair {
    let server = TestUpstream::start("one").await;
    let mut listen = fixture::listen();
    listen.setup.limits = connection_limits;
    let settings = GatewaySettings::to(fixture::upstream(&[&server]));
    let gateway = Gateway::start(&settings, &fixture::limits(rules), &listen).unwrap();
    Pair { server, gateway }
}

#[tokio::test]
async fn refused_requests_do_not_reach_the_server() {
    let pair = behind("rules: [{ id: all, limit: 3/hour }]", None).await;
    let mut client = pair.client().await;
    for left in ["2", "1", "0"] {
        let reply = client.get("/hello").await;
        assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, left));
        assert_eq!(reply.header("x-served-by"), "one");
    }
    let reply = client.get("/hello").await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, "1200"));
    assert!(reply.body.contains("RATE_LIMIT_EXCEEDED"), "{}", reply.body);
    assert_eq!(pair.server.seen().len(), 3);
    let other = client.ask("GET /hello HTTP/1.1\r\nHost: test\r\nX-Api-Key: another\r\n\r\n").await;
    assert_eq!(other.status, 200, "another client, over the same connection");
}

#[tokio::test]
async fn threads_share_the_limits() {
    let pair = behind("rules: [{ id: all, limit: 10/hour }]", None).await;
    let mut passed = 0;
    for _ in 0..40 {
        passed += usize::from(pair.client().await.get("/").await.status == 200);
    }
    assert_eq!(passed, 10);
}

#[tokio::test]
async fn a_path_is_limited_and_forwarded_in_one_form() {
    let pair = behind(LOGIN, None).await;
    for (path, forwarded) in [("//login?a=%2f", "/login?a=%2f"), ("/x/../%6cogin", "/login")] {
        let reply = pair.client().await.get(path).await;
        assert_eq!((reply.status, pair.server.last().target.as_str()), (200, forwarded), "{path}");
    }
    assert_eq!(pair.server.seen().len(), 2);
}

#[tokio::test]
async fn an_untrusted_peer_cannot_forge_its_address() {
    let pair = behind(LOGIN, None).await;
    let mut passed = 0;
    for number in 0..10 {
        let lines =
            format!("X-Forwarded-For: 203.0.113.{number}\r\nX-Forwarded-For: 198.51.100.{number}\r\n");
        let request =
            format!("GET /login HTTP/1.1\r\nHost: test\r\n{lines}Forwarded: for={number}.1.1.1\r\n\r\n");
        passed += usize::from(pair.client().await.ask(&request).await.status == 200);
    }
    assert_eq!(passed, 2);
    assert_eq!(pair.server.last().header("x-forwarded-for"), "127.0.0.1");
}

#[tokio::test]
async fn too_many_refusals_close_the_connection() {
    let connection_limits = ConnectionLimits::new(ConnectionLimitOptions {
        most_rejections: 20,
        ..ConnectionLimitOptions::default()
    });
    let pair = behind(LOGIN, Some(connection_limits)).await;
    let mut client = pair.client().await;
    assert_eq!([client.get("/login").await.status, client.get("/login").await.status], [200, 200]);
    for _ in 0..19 {
        assert_eq!(client.get("/login").await.status, 429);
    }
    let mut other = pair.client().await;
    let last = other.get("/login").await;
    assert_eq!((last.status, last.header("connection")), (429, "close"), "on any connection");
    assert!(other.closed().await.is_empty());
}

#[tokio::test]
async fn connections_of_a_trusted_proxy_are_never_closed() {
    let trusted = vec!["127.0.0.0/8".parse().unwrap()];
    let connection_limits = ConnectionLimits::new(ConnectionLimitOptions {
        most_rejections: 5,
        trusted,
        ..ConnectionLimitOptions::default()
    });
    let pair = behind(LOGIN, Some(connection_limits)).await;
    let mut client = RawClient::connect(pair.gateway.address()).await;
    for _ in 0..50 {
        client.get("/login").await;
    }
    assert_eq!(client.get("/other").await.status, 200);
}

/// The client gets the reason, and its connection stays open.
#[tokio::test]
async fn an_unavailable_store_does_not_count_against_the_client() {
    let url = "redis://127.0.0.1:1".parse().unwrap();
    let store = RedisStore::open(&url, RedisSettings::default(), Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(store.shared_store(), FailureSettings::default());
    let rules = "rules: [{ id: login, limit: 5/hour, on_store_failure: deny }]";
    let loaded = tollgate_core::rules::load("rules.yaml", rules).unwrap();
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let limiter = Arc::new(limiter);
    for status in [UnavailableStatus::ServiceUnavailable, UnavailableStatus::TooManyRequests] {
        let headers = HeaderOptions { store_unavailable: status, ..HeaderOptions::default() };
        let limits = RateLimitLayer::new(Arc::clone(&limiter)).headers(headers);
        let server = TestUpstream::start("one").await;
        let mut listen = fixture::listen();
        let most_rejections =
            ConnectionLimitOptions { most_rejections: 3, ..ConnectionLimitOptions::default() };
        listen.setup.limits = Some(ConnectionLimits::new(most_rejections));
        let settings = GatewaySettings::to(fixture::upstream(&[&server]));
        let pair = Pair { gateway: Gateway::start(&settings, &limits, &listen).unwrap(), server };
        let mut client = pair.client().await;
        let expected = if status == UnavailableStatus::ServiceUnavailable { 503 } else { 429 };
        for _ in 0..10 {
            let reply = client.get("/login").await;
            assert_eq!((reply.status, reply.header("retry-after")), (expected, "1"));
            assert!(reply.body.starts_with(r#"{"error":{"code":"STORE_UNAVAILABLE","#), "{}", reply.body);
            assert_eq!((reply.header("connection"), reply.header("x-ratelimit-remaining")), ("", "-1"));
        }
        assert!(pair.server.seen().is_empty());
    }
}

#[tokio::test]
async fn a_shaper_spaces_requests() {
    let rule = "{ id: paced, algorithm: leaky_bucket, limit: 50/s, on_exceed: { queue: { max_wait: 5s, length: 8 } } }";
    let pair = behind(&format!("rules: [{rule}]"), None).await;
    let begin = tokio::time::Instant::now();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut client = pair.client().await;
        asking.spawn(async move { client.get("/hello").await.status });
    }
    let statuses = asking.join_all().await;
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!(
        (9..20).contains(&passed),
        "one at once, eight in the queue, and some after others had left: {statuses:?}"
    );
    assert_eq!(passed + statuses.iter().filter(|status| **status == 429).count(), 20);
    assert!(begin.elapsed().as_millis() >= (passed as u128 - 1) * 20, "20 ms apart");
}

#[tokio::test]
async fn flags_reach_the_server_and_cannot_be_forged() {
    let pair = behind("rules: [{ id: odd, limit: 1/hour, on_exceed: flag }]", None).await;
    let forged = "GET /hello HTTP/1.1\r\nHost: test\r\nX-RateLimit-Flag: odd\r\n\r\n";
    let mut client = pair.client().await;
    assert_eq!(client.ask(forged).await.status, 200);
    assert_eq!(pair.server.last().header("x-ratelimit-flag"), "");
    let reply = client.ask(forged).await;
    assert_eq!(reply.status, 200);
    assert_eq!(pair.server.last().header("x-ratelimit-flag"), "odd");
    let told =
        ["x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit-policy"].map(|name| reply.header(name));
    assert_eq!(told, ["1", "0", "\"odd\";q=1;w=3600"], "the client gets the limit");
    assert!(!reply.header("x-ratelimit-reset").is_empty() && reply.header("retry-after").is_empty());
}
