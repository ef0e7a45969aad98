//! The admin listener: health, readiness, metrics, and what it refuses.

use crate::client::Client;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tollgate_control::{AdminListener, MetricsSource, RenderedMetrics, RuleOwner, RuleRepository};
use tollgate_limiter::{Clock, Limiter, MemoryStore, Request};
use tollgate_listen::Readiness;

const ENDPOINTS: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/v1/top"];

/// Metrics that are the `Accept` header. With `panic` in the header, rendering panics.
struct EchoMetrics;

impl MetricsSource for EchoMetrics {
    fn render(&self, accept: &str) -> RenderedMetrics {
        assert!(!accept.contains("panic"), "as the test wants");
        RenderedMetrics {
            content_type: "text/plain; version=0.0.4",
            body: format!("[{accept}]\n").into_bytes(),
        }
    }
}

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

struct AdminFixture {
    address: SocketAddr,
    readiness: Arc<Readiness>,
    limiter: Arc<Limiter>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<usize>,
}

impl AdminFixture {
    async fn start(metrics: impl MetricsSource + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Arc::new(Readiness::default());
        let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 20), Clock::system()));
        let admin = AdminListener {
            readiness: Arc::clone(&readiness),
            metrics: Arc::new(metrics),
            limiter: Arc::clone(&limiter),
            repository: RuleRepository::open_embedded(None, Clock::system()).unwrap(),
            rule_owner: RuleOwner::Repository,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(admin.serve(listener, async { stopped.await.unwrap_or_default() }));
        Self { address, readiness, limiter, stop, served }
    }

    async fn client(&self) -> Client {
        Client::connect(self.address).await
    }
}

#[tokio::test]
async fn health_and_readiness() {
    let admin = AdminFixture::start(EchoMetrics).await;
    let mut client = admin.client().await;
    let reply = client.get("/healthz").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
    let reply = client.get("/readyz").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "not ready: no rules are installed yet\n"));
    admin.readiness.set_rules_installed();
    let reply = client.get("/readyz?verbose").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "ready"));
    admin.readiness.set_draining();
    assert_eq!(client.get("/readyz").await.body, "not ready: the node is draining\n");
    assert_eq!(client.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn metrics_are_rendered_for_the_accept_header() {
    let admin = AdminFixture::start(EchoMetrics).await;
    let mut client = admin.client().await;
    for (headers, expected) in [
        ("", "[]\n"),
        ("Accept: text/plain\r\n", "[text/plain]\n"),
        (
            "Accept: application/openmetrics-text\r\nAccept: */*;q=0.1\r\n",
            "[application/openmetrics-text, */*;q=0.1]\n",
        ),
    ] {
        client.send(format!("GET /metrics HTTP/1.1\r\nHost: test\r\n{headers}\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.body.as_str()), (200, expected));
        assert_eq!(reply.header("content-type"), "text/plain; version=0.0.4");
    }
    client.send("GET /metrics HTTP/1.1\r\nHost: test\r\nAccept: panic\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "the metrics cannot be rendered; see the log\n"));
    assert_eq!(client.get("/metrics").await.status, 200, "the listener goes on");
}

/// The runtime of this test has one thread: rendering in it would block everything.
#[tokio::test(flavor = "current_thread")]
async fn slow_metrics_block_nothing_else() {
    let (open, gate) = mpsc::channel();
    let begun = Arc::new(Semaphore::new(0));
    let slow = SlowMetrics { begun: Arc::clone(&begun), gate: Mutex::new(gate) };
    let admin = AdminFixture::start(slow).await;
    let mut scraper = admin.client().await;
    scraper.send("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").await;
    begun.acquire().await.unwrap().forget();
    assert_eq!(admin.client().await.get("/healthz").await.status, 200);
    open.send(()).unwrap();
    assert_eq!(scraper.reply().await.status, 200);
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    let admin = AdminFixture::start(EchoMetrics).await;
    admin.readiness.set_rules_installed();
    for path in ENDPOINTS {
        let length = admin.client().await.get(path).await.header("content-length").to_owned();
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        let request = format!("HEAD {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("\r\n\r\n"), "{path}: {reply}");
        assert!(reply.contains(&format!("content-length: {length}\r\n")), "{path}: {reply}");
    }
}

#[tokio::test]
async fn wrong_methods_and_unknown_paths() {
    let admin = AdminFixture::start(EchoMetrics).await;
    let mut client = admin.client().await;
    for (method, path) in [("POST", "/metrics"), ("DELETE", "/healthz"), ("BREW", "/readyz")] {
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD"), "{method} {path}");
        assert_eq!(reply.json()["error"]["code"], "METHOD_NOT_ALLOWED");
    }
    for path in ["/", "/metrics/", "/Metrics", "/v1/check", "*"] {
        let reply = client.get(path).await;
        assert_eq!(
            (reply.status, reply.json()["error"]["code"].as_str()),
            (404, Some("NOT_FOUND")),
            "{path}"
        );
        let hint = "the endpoints are GET /healthz, GET /readyz, GET /metrics, GET /v1/top";
        assert_eq!(reply.json()["error"]["details"]["hint"], hint);
    }
}

/// A web page that an operator has open must not read the metrics of the operator's host.
#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let admin = AdminFixture::start(EchoMetrics).await;
    let mut client = admin.client().await;
    for path in ENDPOINTS {
        client
            .send(format!("GET {path} HTTP/1.1\r\nHost: test\r\nOrigin: http://evil.example\r\n\r\n"))
            .await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 415, "{path}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{path}");
    }
    client.send("OPTIONS /metrics HTTP/1.1\r\nHost: test\r\nOrigin: http://evil.example\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 405, "no preflight is granted");
}

#[tokio::test]
async fn top_keys_are_listed() {
    let admin = AdminFixture::start(EchoMetrics).await;
    let mut client = admin.client().await;
    let empty = client.get("/v1/top").await;
    assert_eq!((empty.status, empty.header("content-type")), (200, "application/json"));
    let lists = serde_json::json!({ "window_seconds": 60, "limited": [], "allowed": [], "routes": [] });
    assert_eq!(empty.json(), lists);
    let rules = "routes: [\"/users/{id}\"]\nrules: [{ id: api, key: api_key, limit: 3/h }]";
    let loaded = tollgate_core::rules::load("rules.yaml", rules).unwrap();
    admin.limiter.install(loaded.rules, loaded.lists).unwrap();
    for (key, requests) in [("sk_live_0123456789", 5), ("sk_test_0123456789", 4)] {
        let request = Request { api_key: Some(key), endpoint: "/users/1", ..Request::default() };
        (0..requests).for_each(|_| drop(admin.limiter.check(&request)));
    }
    let reply = client.get("/v1/top?count=1").await.json();
    let first = &reply["limited"][0];
    assert_eq!((&first["kind"], &first["name"]), (&"api_key".into(), &"sk_live_…".into()));
    assert_eq!((first["count"].as_u64(), first["fingerprint"].as_str().unwrap().len()), (Some(2), 8));
    assert_eq!(reply["limited"].as_array().unwrap().len(), 1);
    assert_eq!(reply["routes"], serde_json::json!([{ "route": "/users/{id}", "count": 9 }]));
    assert_eq!(client.get("/v1/top?other=1").await.json()["allowed"].as_array().unwrap().len(), 2);
    for query in ["count=0", "count=1001", "count=", "count=-1", "count=x"] {
        let reply = client.get(&format!("/v1/top?{query}")).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["details"]["field"]),
            (400, &"count".into()),
            "{query}"
        );
    }
}

#[tokio::test]
async fn a_stop_closes_idle_connections() {
    let admin = AdminFixture::start(EchoMetrics).await;
    let mut idle = admin.client().await;
    idle.get("/healthz").await;
    admin.stop.send(()).unwrap();
    idle.closed().await;
    assert_eq!(admin.served.await.unwrap(), 0);
}
