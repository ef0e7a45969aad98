//! Servers that are down, slow or rude.

use crate::setting::{self, Pair};
use crate::wire::Wire;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_gateway::settings::{HealthCheck, Settings};
use tollgate_testbed::{NetworkMode, NetworkProxy, TestUpstream, eventually};

#[tokio::test]
async fn a_server_that_is_down_and_comes_back() {
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
    assert!(codes.contains(&(503, "UPSTREAM_UNAVAILABLE".into())), "left alone: {codes:?}");
    assert!(codes.iter().all(|(status, _)| [502, 503].contains(status)), "{codes:?}");
    let back = TestUpstream::start_at(address, "back").await;
    eventually("it is asked again", async || client.get("/").await.status == 200).await;
    assert!(!back.seen().is_empty());
}

#[tokio::test]
async fn another_server_takes_over() {
    let (good, gone) = (TestUpstream::start("good").await, TestUpstream::start("gone").await);
    let gateway = setting::start(&Settings::to(setting::upstream(&[&gone, &good])));
    gone.end().await;
    let mut client = Wire::connect(gateway.address()).await;
    for number in 0..40 {
        // Nothing was sent, so any request may go to the other one.
        let reply = client.ask("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "3"), "{number}");
    }
    assert_eq!(good.seen().len(), 40);
}

#[tokio::test]
async fn only_what_does_no_harm_is_sent_again() {
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
        assert_eq!(client.get("/").await.status, 200, "the client's connection stays");
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
    assert!((100..=131).contains(&sent), "ten in hand and a fifth of the rest: {sent}");
}

#[tokio::test]
async fn a_server_that_takes_too_long() {
    let pair = Pair::with(|settings| settings.upstreams[0].response_time = Duration::from_millis(50)).await;
    let mut client = pair.client().await;
    let reply = client.get("/gated").await;
    assert_eq!((reply.status, reply.code()), (504, "UPSTREAM_TIMEOUT"));
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(pair.server.seen().len(), 2, "late is not sent again");
    let reply = client.ask("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nabc").await;
    assert_eq!((reply.status, reply.code()), (408, "REQUEST_TIMEOUT"), "it is the client that is late");
}

#[tokio::test]
async fn each_request_on_a_connection_has_the_whole_time() {
    let time = Duration::from_millis(200);
    let pair = Pair::with(|settings| settings.upstreams[0].response_time = time).await;
    let mut client = pair.client().await;
    assert_eq!(client.get("/").await.status, 200);
    // Longer than an answer may take, while nobody asks.
    tokio::time::sleep(time * 2).await;
    assert_eq!(client.get("/").await.status, 200);
    let asked = Instant::now();
    assert_eq!(client.get("/gated").await.status, 504, "and no more than that");
    assert!(asked.elapsed() >= time, "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_connection_that_does_not_come_about() {
    // It listens, but says nothing, so TLS does not come about.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut upstream = setting::at([]);
    upstream.addresses = vec![format!("https://{}", silent.local_addr().unwrap()).parse().unwrap()];
    upstream.connect_time = Duration::from_millis(50);
    upstream.retries = 0;
    let gateway = setting::start(&Settings::to(upstream));
    let mut client = Wire::connect(gateway.address()).await;
    let reply = client.get("/").await;
    assert_eq!((reply.status, reply.code()), (502, "BAD_GATEWAY"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_seen_to_break_off() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    client.send("GET /half HTTP/1.1\r\nHost: test\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    assert_eq!(client.closed().await, b"12345", "cut short, never padded or passed off as whole");
    let mut client = pair.client().await;
    client.send("GET /half-chunked HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert_eq!(client.head().await.header("transfer-encoding"), "chunked");
    assert_eq!(client.closed().await, b"5\r\n12345\r\n", "without the chunk that says it is whole");
}

#[tokio::test]
async fn connections_that_servers_closed_are_not_noticed() {
    let server = TestUpstream::start("one").await;
    let network = NetworkProxy::start(&server.address().to_string()).await;
    let gateway = setting::start(&Settings::to(setting::at([network.address()])));
    let mut client = Wire::connect(gateway.address()).await;
    for _ in 0..20 {
        assert_eq!(client.get("/").await.status, 200);
        network.set(NetworkMode::Reset);
        network.set(NetworkMode::Pass);
    }
}

#[tokio::test]
async fn health_checks_find_out_before_a_request_does() {
    let (well, ill) = (TestUpstream::start("well").await, TestUpstream::start("ill").await);
    let mut upstream = setting::upstream(&[&well, &ill]);
    upstream.health = Some(HealthCheck {
        path: "/status/200".into(),
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(500),
    });
    let gateway = setting::start(&Settings::to(upstream));
    let mut client = Wire::connect(gateway.address()).await;
    let address = ill.address();
    ill.end().await;
    let asked = async || well.seen().iter().filter(|seen| seen.target == "/status/200").count();
    let before = asked().await;
    eventually("several checks have passed", async || asked().await > before + 5).await;
    for _ in 0..20 {
        assert_eq!(client.get("/").await.header("x-served-by"), "well");
    }
    let back = TestUpstream::start_at(address, "back").await;
    eventually("it is used again", async || client.get("/").await.header("x-served-by") == "back").await;
    drop(back);
}
