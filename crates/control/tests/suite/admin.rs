//! The admin listener: health, readiness, metrics, top keys, and what it refuses.

use crate::admin_fixture::{AdminFixture, request};
use parking_lot::Mutex;
use std::sync::{Arc, mpsc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tollgate_control::{MetricsSource, RenderedMetrics};
use tollgate_limiter::Request;

const OPEN_ENDPOINTS: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/openapi.json"];

/// Metrics that take as long as the test wants.
struct SlowMetrics {
    begun: Arc<Semaphore>,
    gate: Mutex<mpsc::Receiver<()>>,
}

impl MetricsSource for SlowMetrics {
    fn render(&self, _accept: &str) -> RenderedMetrics {
        self.begun.add_permits(1);
        self.gate.lock().recv().unwrap();
        RenderedMetrics { content_type: "text/plain", body: Vec::new() }
    }
}

#[tokio::test]
async fn health_and_readiness() {
    let admin = AdminFixture::start().await;
    let reply = admin.send("GET", "/healthz", "", "").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
    let reply = admin.send("GET", "/readyz", "", "").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "not ready: no rules are installed yet\n"));
    admin.readiness.set_rules_installed();
    let reply = admin.send("GET", "/readyz?verbose", "", "").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "ready"));
    admin.readiness.set_draining();
    assert_eq!(admin.send("GET", "/readyz", "", "").await.body, "not ready: the node is draining\n");
    assert_eq!(admin.send("GET", "/healthz", "", "").await.status, 200);
}

#[tokio::test]
async fn metrics_are_rendered_for_the_accept_header() {
    let admin = AdminFixture::start().await;
    let mut client = admin.client().await;
    for (headers, expected) in [
        ("", "[]\n"),
        ("Accept: text/plain\r\n", "[text/plain]\n"),
        (
            "Accept: application/openmetrics-text\r\nAccept: */*;q=0.1\r\n",
            "[application/openmetrics-text, */*;q=0.1]\n",
        ),
    ] {
        client.send(format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.body.as_str()), (200, expected));
        assert_eq!(reply.header("content-type"), "text/plain; version=0.0.4");
    }
    client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: panic\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.json()["code"].as_str()), (503, Some("UNAVAILABLE")));
    assert_eq!(admin.send("GET", "/metrics", "", "").await.status, 200, "the listener goes on");
}

/// The runtime of this test has one thread: rendering in it would block everything.
#[tokio::test(flavor = "current_thread")]
async fn slow_metrics_block_nothing_else() {
    let (open, gate) = mpsc::channel();
    let begun = Arc::new(Semaphore::new(0));
    let slow = SlowMetrics { begun: Arc::clone(&begun), gate: Mutex::new(gate) };
    let admin = AdminFixture::with_metrics(slow).await;
    let mut scraper = admin.client().await;
    scraper.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    begun.acquire().await.unwrap().forget();
    assert_eq!(admin.send("GET", "/healthz", "", "").await.status, 200);
    open.send(()).unwrap();
    assert_eq!(scraper.reply().await.status, 200);
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let admin = AdminFixture::start().await;
    admin.readiness.set_rules_installed();
    for path in OPEN_ENDPOINTS {
        let length = admin.send("GET", path, "", "").await.header("content-length").to_owned();
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        let request = format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("\r\n\r\n"), "{path}: {reply}");
        assert!(reply.contains(&format!("content-length: {length}\r\n")), "{path}: {reply}");
    }
}

#[tokio::test]
async fn wrong_methods_and_unknown_paths() {
    let admin = AdminFixture::start().await;
    for (method, path, allow) in [
        ("POST", "/metrics", "GET,HEAD"),
        ("DELETE", "/healthz", "GET,HEAD"),
        ("BREW", "/readyz", "GET,HEAD"),
        ("DELETE", "/v1/rules", "GET,HEAD,PUT"),
    ] {
        let reply = admin.call(method, path, "", "").await;
        assert_eq!(reply.status, 405, "{method} {path}: {reply:?}");
        assert_eq!(reply.header("content-type"), "application/problem+json");
        assert_eq!(reply.json()["code"], "METHOD_NOT_ALLOWED");
        let mut allowed: Vec<&str> = reply.header("allow").split(',').map(str::trim).collect();
        allowed.sort_unstable();
        assert_eq!(allowed.join(","), allow, "{method} {path}");
        assert_eq!(admin.send(method, path, "", "").await.status, 401, "{method} {path} without a token");
    }
    for path in ["/metrics/", "/Metrics", "/v1/check", "/v1", "/v1/rules/"] {
        let reply = admin.get(path).await;
        assert_eq!((reply.status, reply.json()["code"].as_str()), (404, Some("NOT_FOUND")), "{path}");
        assert!(reply.json()["detail"].as_str().unwrap().contains(path), "{reply:?}");
        assert_eq!(admin.send("GET", path, "", "").await.status, 401, "{path} without a token");
    }
}

#[tokio::test]
async fn every_response_has_the_headers_for_browsers() {
    let admin = AdminFixture::start().await;
    for (path, status) in [("/healthz", 200), ("/v1/rules", 401), ("/nothing", 401)] {
        let reply = admin.send("GET", path, "", "").await;
        assert_eq!(reply.status, status, "{path}");
        let policy = reply.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert_eq!(reply.header("x-frame-options"), "DENY");
        assert_eq!(reply.header("referrer-policy"), "no-referrer");
        assert_eq!(reply.header("cache-control"), "no-store");
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{path}");
    }
}

#[tokio::test]
async fn top_keys_are_listed() {
    let admin = AdminFixture::start().await;
    let empty = admin.get("/v1/top").await;
    assert_eq!((empty.status, empty.header("content-type")), (200, "application/json"));
    let lists = serde_json::json!({
        "window_seconds": 60,
        "limited": [],
        "allowed": [],
        "routes": [],
        "rest": { "limited": 0, "allowed": 0, "routes": 0 },
    });
    assert_eq!(empty.json(), lists);
    assert_eq!(admin.get("/v1/top?scope=node").await.json(), lists);
    let rules = "routes: [\"/users/{id}\"]\nrules: [{ id: api, key: api_key, limit: 3/h }]";
    let loaded = tollgate_core::rules::load("rules.yaml", rules).unwrap();
    admin.limiter.install(loaded.rules, loaded.lists).unwrap();
    for (key, requests) in [("sk_live_0123456789", 5), ("sk_test_0123456789", 4)] {
        let request = Request { api_key: Some(key), endpoint: "/users/1", ..Request::default() };
        (0..requests).for_each(|_| drop(admin.limiter.check(&request)));
    }
    let reply = admin.get("/v1/top?count=1").await.json();
    let first = &reply["limited"][0];
    assert_eq!((&first["kind"], &first["name"]), (&"api_key".into(), &"sk_live_…".into()));
    assert_eq!((first["count"].as_u64(), first["fingerprint"].as_str().unwrap().len()), (Some(2), 8));
    assert_eq!(reply["limited"].as_array().unwrap().len(), 1);
    assert_eq!(reply["routes"], serde_json::json!([{ "route": "/users/{id}", "count": 9, "at_most": 9 }]));
    assert_eq!(admin.get("/v1/top?other=1").await.json()["allowed"].as_array().unwrap().len(), 2);
    for query in ["count=0", "count=1001", "count=", "count=-1", "count=x"] {
        let reply = admin.get(&format!("/v1/top?{query}")).await;
        assert_eq!((reply.status, reply.json()["code"].as_str()), (400, Some("BAD_REQUEST")), "{query}");
    }
}

#[tokio::test]
async fn a_stop_closes_idle_connections() {
    let admin = AdminFixture::start().await;
    let mut idle = admin.client().await;
    idle.send(request("GET", "/healthz", "", "")).await;
    idle.reply().await;
    admin.stop.send(()).unwrap();
    idle.closed().await;
    assert_eq!(admin.served.await.unwrap(), 0);
}
