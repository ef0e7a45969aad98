//! Clients that send or read bodies slower than allowed.

use crate::fixture::{self, Lines, Pair};
use crate::http2;
use crate::raw_client::RawClient;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use hyper::client::conn::http2 as client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::{BodyLimits, GatewaySettings};
use tollgate_listen::MinRate;
use tollgate_testbed::{PATIENCE, TestUpstream, eventually};

const GRACE: Duration = Duration::from_millis(300);
const LEAST: BodyLimits =
    BodyLimits { min_rate: Some(MinRate { bytes_per_second: 1_000, grace: GRACE }), total_time: None };
/// For responses: the kernel may have buffered some of the body.
const MUCH: BodyLimits =
    BodyLimits { min_rate: Some(MinRate { bytes_per_second: 1_000_000, grace: GRACE }), total_time: None };
const NO_LEAST: BodyLimits = BodyLimits { min_rate: None, total_time: None };
const GIGABYTE: u64 = 1 << 30;

/// Waits for the entry of a request for `target` whose response is incomplete.
async fn wait_for_incomplete(lines: &Lines, target: &str) {
    let target = format!("\"target\":\"{target}\"");
    eventually("it is cut", async || {
        let text = lines.text();
        text.lines().any(|line| line.contains(&target) && line.contains("\"complete\":false"))
    })
    .await;
}

async fn start(bodies: BodyLimits, route: Option<BodyLimits>) -> Pair {
    logging(bodies, route, &Lines::default()).await
}

/// A gateway that inspects connections often.
async fn logging(bodies: BodyLimits, route: Option<BodyLimits>, lines: &Lines) -> Pair {
    let server = TestUpstream::start("one").await;
    let mut settings = GatewaySettings::to(fixture::upstream(&[&server]));
    (settings.bodies, settings.routes[0].bodies) = (bodies, route);
    let mut listen = fixture::listen();
    listen.options.head_time = Duration::from_millis(50);
    listen.log = Some(fixture::access_log(lines, |_| ()));
    let gateway = Gateway::start(&settings, &fixture::limits("allow_empty: true"), &listen).unwrap();
    Pair { server, gateway }
}

#[tokio::test]
async fn a_slow_body_is_a_408() {
    for (framing, piece) in [("Content-Length: 100000", "x"), ("Transfer-Encoding: chunked", "1\r\nx\r\n")] {
        let pair = start(LEAST, None).await;
        let mut client = pair.client().await;
        client.send(format!("POST /count HTTP/1.1\r\nHost: test\r\n{framing}\r\n\r\n")).await;
        // Until the gateway responds.
        let start = Instant::now();
        while client.is_silent() {
            assert!(start.elapsed() < PATIENCE, "{framing}: the body may trickle for ever");
            client.send(piece).await;
            tokio::time::sleep(GRACE / 20).await;
        }
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.code()), (408, "REQUEST_TIMEOUT"), "{framing}");
        client.closed().await;
        assert_eq!(pair.client().await.get("/").await.status, 200);
    }
}

#[tokio::test]
async fn a_slow_http2_body_is_a_408() {
    let pair = start(LEAST, None).await;
    let stream = TcpStream::connect(pair.gateway.address()).await.unwrap();
    let (mut sender, connection) =
        client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (pieces, taken) = mpsc::channel(1);
    let request = Request::post("http://test/count").body(Pieces(taken)).unwrap();
    let answer = tokio::spawn(sender.send_request(request));
    let start = Instant::now();
    while !answer.is_finished() && pieces.send(Bytes::from_static(b"x")).await.is_ok() {
        assert!(start.elapsed() < PATIENCE, "the body may trickle for ever");
        tokio::time::sleep(GRACE / 20).await;
    }
    assert_eq!(answer.await.unwrap().unwrap().status(), 408);
}

/// A body of the pieces that are sent to it.
struct Pieces(mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

#[tokio::test]
async fn a_route_may_allow_slow_bodies() {
    let pair = start(LEAST, Some(NO_LEAST)).await;
    let mut client = pair.client().await;
    client.send("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\n").await;
    for _ in 0..10 {
        tokio::time::sleep(GRACE / 5).await;
        client.send("x").await;
    }
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "10"));
}

/// A client with a small receive buffer.
async fn with_small_window(gateway: &Gateway) -> RawClient {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    RawClient::over(socket.connect(gateway.address()).await.unwrap())
}

#[tokio::test]
async fn a_response_read_too_slowly_is_cut() {
    // The gateway's limit, and a stricter one of a route.
    for (bodies, route) in [(MUCH, None), (NO_LEAST, Some(MUCH))] {
        let lines = Lines::default();
        let pair = logging(bodies, route, &lines).await;
        let mut client = with_small_window(&pair.gateway).await;
        let target = format!("/big/{GIGABYTE}");
        client.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        assert_eq!(client.head().await.status, 200);
        let reading = tokio::spawn(async move {
            let mut bytes = [0; 2];
            while client.stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {
                tokio::time::sleep(GRACE / 20).await;
            }
        });
        wait_for_incomplete(&lines, &target).await;
        reading.abort();
    }
}

#[tokio::test]
async fn an_http2_stream_read_too_slowly_is_reset_alone() {
    let lines = Lines::default();
    let pair = logging(MUCH, None, &lines).await;
    let mut sender = http2::plain(&pair).await;
    let target = format!("/big/{GIGABYTE}");
    let stuck = sender.send_request(http2::request(&target, "")).await.unwrap();
    // Other streams of the connection are active meanwhile.
    let mut other = sender.clone();
    let asking = tokio::spawn(async move {
        loop {
            assert_eq!(other.send_request(http2::request("/", "")).await.unwrap().status(), 200);
            tokio::time::sleep(GRACE / 10).await;
        }
    });
    wait_for_incomplete(&lines, &target).await;
    assert!(!asking.is_finished());
    asking.abort();
    let mut body = stuck.into_body();
    let ended = loop {
        match body.frame().await {
            Some(Ok(_)) => {}
            ended => break ended,
        }
    };
    assert!(ended.is_some_and(|frame| frame.is_err()), "the buffered frames, then a reset");
    assert_eq!(sender.send_request(http2::request("/", "")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_response_sent_slowly_by_its_server_is_not_cut() {
    // Events at intervals, for many times the grace period.
    let server = crate::raw_upstream::EventUpstream::start(GRACE / 2, 10).await;
    let mut settings = GatewaySettings::to(fixture::at([server.address]));
    settings.bodies = MUCH;
    let mut listen = fixture::listen();
    listen.options.head_time = Duration::from_millis(50);
    let gateway = Gateway::start(&settings, &fixture::limits("allow_empty: true"), &listen).unwrap();
    let mut http1 = RawClient::connect(gateway.address()).await;
    assert_eq!(http1.get("/").await.body, "event;".repeat(10));
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let (mut sender, connection) =
        client::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let answer = sender.send_request(http2::request("/", "")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "event;".repeat(10));
}

#[tokio::test]
async fn requests_have_a_total_timeout() {
    let total = BodyLimits { total_time: Some(GRACE), ..NO_LEAST };
    let pair = start(NO_LEAST, Some(total)).await;
    let mut client = pair.client().await;
    let reply = client.get("/gated").await;
    assert_eq!((reply.status, reply.code()), (504, "UPSTREAM_TIMEOUT"), "no response");
    let mut client = pair.client().await;
    client.send("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nx").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.code()), (408, "REQUEST_TIMEOUT"), "an incomplete body");
    let mut client = pair.client().await;
    client.send("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nx").await;
    assert_eq!(client.head().await.status, 200);
    assert_eq!(client.closed().await, b"x", "an incomplete response");
    let mut sender = http2::plain(&pair).await;
    let answer = sender.send_request(http2::request(&format!("/big/{GIGABYTE}"), "")).await.unwrap();
    assert!(answer.into_body().collect().await.is_err(), "HTTP/2");
    // Each request on a connection has its own timeout.
    let mut client = pair.client().await;
    for _ in 0..4 {
        assert_eq!(client.get("/").await.status, 200);
        tokio::time::sleep(GRACE / 2).await;
    }
}

#[tokio::test]
async fn idle_tunnels_and_clients_that_only_ping_are_closed() {
    let idle = Duration::from_millis(200);
    let pair = Pair::listening(|listen| {
        listen.options.head_time = Duration::from_millis(50);
        listen.options.idle_time = idle;
    })
    .await;
    let mut tunnel = pair.client().await;
    tunnel.send("GET /ws HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await;
    assert_eq!(tunnel.head().await.status, 101);
    assert!(tunnel.closed().await.is_empty());
    // An HTTP/2 client that sends pings and no requests.
    let mut client = pair.client().await;
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let ping = b"\0\0\x08\x06\0\0\0\0\0pingpong";
    let (mut reading, mut writing) = client.stream.into_inner().into_split();
    let pinging = tokio::spawn(async move {
        while tokio::io::AsyncWriteExt::write_all(&mut writing, ping).await.is_ok() {
            tokio::time::sleep(idle / 20).await;
        }
    });
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut rest);
    let _ = tokio::time::timeout(PATIENCE, read).await.expect("the connection was not closed");
    pinging.abort();
}
