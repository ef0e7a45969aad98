//! Servers that are down, slow or send invalid responses.

use crate::fixture::{self, Pair};
use crate::raw_client::RawClient;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_gateway::settings::{GatewaySettings, HealthCheckSettings};
use tollgate_testbed::{NetworkMode, NetworkProxy, TestUpstream, eventually};

#[tokio::test]
async fn a_server_is_ejected_and_used_again() {
    let pair = Pair::with(|settings| {
        settings.upstreams[0].first_ejection = Duration::from_millis(50);
    })
    .await;
    let mut client = pair.client().await;
    assert_eq!(client.get("/").await.status, 200);
    let address = pair.server.address();
    pair.server.end().await;
    let mut codes = Vec::new();
    for _ in 0..10 {
        let reply = client.get("/").await;
        codes.push((reply.status, reply.code().to_owned()));
    }
    assert!(codes.contains(&(502, "BAD_GATEWAY".into())), "{codes:?}");
    assert!(codes.contains(&(503, "UPSTREAM_UNAVAILABLE".into())), "ejected: {codes:?}");
    assert!(codes.iter().all(|(status, _)| [502, 503].contains(status)), "{codes:?}");
    let back = TestUpstream::start_at(address, "back").await;
    eventually("it is used again", async || client.get("/").await.status == 200).await;
    assert!(!back.seen().is_empty());
}

#[tokio::test]
async fn requests_fail_over_to_another_server() {
    let (good, gone) = (TestUpstream::start("good").await, TestUpstream::start("gone").await);
    let gateway = fixture::start(&GatewaySettings::to(fixture::upstream(&[&gone, &good])));
    gone.end().await;
    let mut client = RawClient::connect(gateway.address()).await;
    for number in 0..40 {
        // Nothing was sent, so any request may be retried.
        let reply = client.ask("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "3"), "{number}");
    }
    assert_eq!(good.seen().len(), 40);
}

#[tokio::test]
async fn only_idempotent_requests_without_a_body_are_retried() {
    for (request, times) in [
        ("GET /cut HTTP/1.1\r\nHost: test\r\n\r\n", 2),
        ("PUT /cut HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n", 2),
        ("POST /cut HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n", 1),
        ("PATCH /cut HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n", 1),
        ("PUT /cut HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc", 1),
    ] {
        let pair = Pair::start().await;
        let mut client = pair.client().await;
        let reply = client.ask(request).await;
        assert_eq!((reply.status, reply.code()), (502, "BAD_GATEWAY"), "{request}");
        assert_eq!(pair.server.seen().len(), times, "{request}");
        assert_eq!(client.get("/").await.status, 200, "the client's connection stays open");
    }
}

#[tokio::test]
async fn retries_have_a_budget() {
    let pair = Pair::with(|settings| settings.upstreams[0].most_failures = u32::MAX).await;
    let mut client = pair.client().await;
    for _ in 0..100 {
        assert_eq!(client.get("/cut").await.status, 502);
    }
    let sent = pair.server.seen().len();
    assert!((100..=131).contains(&sent), "a reserve of ten and a fifth of the requests: {sent}");
}

#[tokio::test]
async fn a_late_response_is_a_504() {
    let pair = Pair::with(|settings| settings.upstreams[0].response_time = Duration::from_millis(50)).await;
    let mut client = pair.client().await;
    let reply = client.get("/gated").await;
    assert_eq!((reply.status, reply.code()), (504, "UPSTREAM_TIMEOUT"));
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(pair.server.seen().len(), 2, "a timeout is not retried");
    let reply = client.ask("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nabc").await;
    assert_eq!((reply.status, reply.code()), (408, "REQUEST_TIMEOUT"), "the client is slow");
}

#[tokio::test]
async fn each_request_on_a_connection_has_its_own_timeout() {
    let time = Duration::from_millis(200);
    let pair = Pair::with(|settings| settings.upstreams[0].response_time = time).await;
    let mut client = pair.client().await;
    assert_eq!(client.get("/").await.status, 200);
    // The connection is idle for longer than the response timeout.
    tokio::time::sleep(time * 2).await;
    assert_eq!(client.get("/").await.status, 200);
    let asked = Instant::now();
    assert_eq!(client.get("/gated").await.status, 504, "the timeout still applies");
    assert!(asked.elapsed() >= time, "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_connect_timeout_is_a_502() {
    // The TLS handshake gets no response.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut upstream = fixture::at([]);
    upstream.addresses = vec![format!("https://{}", silent.local_addr().unwrap()).parse().unwrap()];
    upstream.connect_time = Duration::from_millis(50);
    upstream.retries = 0;
    let gateway = fixture::start(&GatewaySettings::to(upstream));
    let mut client = RawClient::connect(gateway.address()).await;
    let reply = client.get("/").await;
    assert_eq!((reply.status, reply.code()), (502, "BAD_GATEWAY"));
}

#[tokio::test]
async fn a_truncated_response_is_visible_to_the_client() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    client.send("GET /half HTTP/1.1\r\nHost: test\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    assert_eq!(client.closed().await, b"12345", "truncated, and not padded");
    let mut client = pair.client().await;
    client.send("GET /half-chunked HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert_eq!(client.head().await.header("transfer-encoding"), "chunked");
    assert_eq!(client.closed().await, b"5\r\n12345\r\n", "without the last chunk");
}

#[tokio::test]
async fn idle_connections_closed_by_servers_cause_no_errors() {
    let server = TestUpstream::start("one").await;
    let network = NetworkProxy::start(&server.address().to_string()).await;
    let gateway = fixture::start(&GatewaySettings::to(fixture::at([network.address()])));
    let mut client = RawClient::connect(gateway.address()).await;
    // A request may be on its way when its connection is reset, which takes a retry: the budget has ten in reserve.
    for _ in 0..10 {
        assert_eq!(client.get("/").await.status, 200);
        network.set(NetworkMode::Reset);
        network.set(NetworkMode::Pass);
    }
}

#[tokio::test]
async fn a_failed_health_check_excludes_a_server() {
    let (healthy, failing) = (TestUpstream::start("healthy").await, TestUpstream::start("failing").await);
    let mut upstream = fixture::upstream(&[&healthy, &failing]);
    upstream.health = Some(HealthCheckSettings {
        path: "/status/200".into(),
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(500),
    });
    let gateway = fixture::start(&GatewaySettings::to(upstream));
    let mut client = RawClient::connect(gateway.address()).await;
    let address = failing.address();
    failing.end().await;
    let asked = async || healthy.seen().iter().filter(|seen| seen.target == "/status/200").count();
    let before = asked().await;
    eventually("several checks have passed", async || asked().await > before + 5).await;
    for _ in 0..20 {
        assert_eq!(client.get("/").await.header("x-served-by"), "healthy");
    }
    let back = TestUpstream::start_at(address, "back").await;
    eventually("it is used again", async || client.get("/").await.header("x-served-by") == "back").await;
    drop(back);
}
