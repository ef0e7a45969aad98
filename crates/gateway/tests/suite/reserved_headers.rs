//! Headers that Tollgate writes or reads: a client can neither remove, nor extend, nor imitate them.

use crate::fixture;
use crate::raw_client::RawClient;
use crate::raw_upstream::{End, RawUpstream};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_core::document::Document;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::{GatewaySettings, LookalikeHeaders};
use tollgate_http::{IdentityExtractor, IdentityOptions};
use tollgate_testbed::{PATIENCE, ReceivedRequest, TestUpstream};

/// The first request gets a soft flag, the others exceed the limit.
const RULES: &str = "
rules:
  - id: told
    limit: 1/hour
    soft: { at: 10%, then: { flag: { header: X-Captcha } } }
    on_exceed: { flag: { header: X-Captcha } }
";
const IDENTITY: &str =
    "{ api_key: { header: X-Api-Key }, user: { trusted_header: X-User }, tenant: { cookie: t },
    tier: { header: X-Tier }, cost: { header: X-Cost }, client_ip: { trusted: [127.0.0.0/8] } }";

/// Whether the gateway trusts its clients as proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peers {
    Trusted,
    Untrusted,
}

/// A gateway with the identities of [`IDENTITY`].
struct Fixture {
    server: TestUpstream,
    gateway: Gateway,
}

impl Fixture {
    /// All clients have one address, so `peers` says whether it is trusted.
    async fn new(peers: Peers, change: impl FnOnce(&mut GatewaySettings)) -> Self {
        let server = TestUpstream::start("one").await;
        let mut settings = GatewaySettings::to(fixture::upstream(&[&server]));
        settings.forwarded.forwarded = true;
        let trusted = match peers {
            Peers::Trusted => "127.0.0.0/8",
            Peers::Untrusted => "10.0.0.0/8",
        };
        let identity = IDENTITY.replace("127.0.0.0/8", trusted);
        settings.trusted = vec![trusted.parse().unwrap()];
        change(&mut settings);
        let options: IdentityOptions = Document::parse("identity.yaml", &identity).unwrap().decode().unwrap();
        let identities = IdentityExtractor::open(&options, Path::new("")).unwrap();
        let limits = fixture::limits(RULES).identities(identities);
        Self { gateway: Gateway::start(&settings, &limits, &fixture::listen()).unwrap(), server }
    }

    /// The request with these header lines, as the server gets it.
    async fn seen(&self, lines: &str) -> ReceivedRequest {
        let mut client = RawClient::connect(self.gateway.address()).await;
        let reply = client.ask(&format!("GET / HTTP/1.1\r\nHost: test\r\n{lines}\r\n")).await;
        assert_eq!(reply.status, 200, "{lines}");
        self.server.last()
    }
}

#[tokio::test]
async fn connection_cannot_remove_reserved_headers() {
    let ours = [
        ("X-Captcha", "told"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Host", "test"),
        ("Forwarded", "for=127.0.0.1;proto=http"),
        ("X-Api-Key", "k"),
        ("Cookie", "t=1"),
        ("Host", "test"),
    ];
    let fixture = Fixture::new(Peers::Untrusted, |_| {}).await;
    let sent = "X-Api-Key: k\r\nCookie: t=1\r\nX-Private: x\r\nX-Captcha: forged\r\n";
    let first = fixture.seen(&format!("{sent}Connection: X-Captcha\r\n")).await;
    assert_eq!(first.header("x-captcha"), "told;soft", "the soft part of a limit");
    let all = ours.map(|(name, _)| name).join(", ");
    let one_by_one = ours.map(|(name, _)| name.to_owned());
    let spelt =
        ["x-captcha", "X-CAPTCHA,,\tx-private ", "close, X-Captcha", "keep-alive\r\nConnection: x-captcha"];
    for named in one_by_one.into_iter().chain(spelt.map(str::to_owned)).chain([all]) {
        let seen = fixture.seen(&format!("{sent}Connection: X-Private, {named}\r\n")).await;
        for (name, value) in ours {
            assert_eq!(seen.header(name), value, "{name} of {named:?}");
        }
        assert_eq!(
            (seen.header("x-private").as_str(), seen.header("connection").as_str()),
            ("", ""),
            "{named}"
        );
    }
}

#[tokio::test]
async fn connection_of_a_trusted_proxy_removes_no_reserved_header() {
    let fixture = Fixture::new(Peers::Trusted, |_| {}).await;
    let names = "X-Forwarded-For, X-Forwarded-Port, X-User, X-Tier, X-Cost, Forwarded";
    let sent = "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Port: 443\r\nX-User: ann\r\nX-Tier: gold\r\nX-Cost: 1\r\n";
    let seen = fixture.seen(&format!("{sent}Connection: {names}\r\n")).await;
    for (name, value) in [
        ("x-forwarded-for", "203.0.113.9, 127.0.0.1"),
        ("x-forwarded-port", "443"),
        ("x-user", "ann"),
        ("x-tier", "gold"),
        ("x-cost", "1"),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn untrusted_peers_cannot_set_trusted_headers() {
    let fixture = Fixture::new(Peers::Untrusted, |_| {}).await;
    for lines in [
        "X-User: ann\r\nX-Tier: gold\r\nX-Cost: 9\r\n",
        "x-user: ann\r\nX-USER: ben\r\nX-Tier:\r\nX-Cost: -1\r\n",
        "X-User: ann\r\nConnection: X-User\r\n",
        "X-Forwarded-Port: 443\r\nX-Forwarded-Prefix: /admin\r\nX-Forwarded-Ssl: on\r\n",
    ] {
        let seen = fixture.seen(lines).await;
        for name in
            ["x-user", "x-tier", "x-cost", "x-forwarded-port", "x-forwarded-prefix", "x-forwarded-ssl"]
        {
            assert_eq!(seen.header(name), "", "{name} of {lines:?}");
        }
    }
}

#[tokio::test]
async fn lookalike_headers_are_dropped() {
    let lookalikes = [
        "X_Forwarded_For",
        "X-Forwarded_For",
        "x_forwarded-proto",
        "X.Forwarded.Host",
        "X_FORWARDED_PORT",
        "X_Api_Key",
        "X-Api_Key",
        "X_User",
        "x_tier",
        "X_Cost",
        "X_Captcha",
        "X~Captcha",
        "Content_Length",
        "Transfer_Encoding",
        "Proxy_Authorization",
        "Keep_Alive",
    ];
    let others = ["X_Public", "user_id", "x.y", "X_Forwarded", "_"];
    for (peers, setting, is_there) in [
        (Peers::Untrusted, LookalikeHeaders::Drop, false),
        (Peers::Trusted, LookalikeHeaders::Drop, false),
        (Peers::Trusted, LookalikeHeaders::Pass, true),
    ] {
        let fixture = Fixture::new(peers, |settings| settings.lookalikes = setting).await;
        for name in lookalikes {
            let seen = fixture.seen(&format!("{name}: 1\r\n")).await;
            // Lookalikes of flags are always dropped.
            let is_flag = name.ends_with("Captcha");
            assert_eq!(seen.headers.contains_key(name), is_there && !is_flag, "{name} {setting:?}");
        }
        for name in others {
            assert_eq!(fixture.seen(&format!("{name}: 1\r\n")).await.header(name), "1", "{name}");
        }
    }
}

/// Trailers that are dropped, and two that are forwarded.
const DROPPED_TRAILERS: [&str; 16] = [
    "content-length",
    "transfer-encoding",
    "host",
    "connection",
    "x-forwarded-for",
    "x-forwarded-port",
    "forwarded",
    "x-api-key",
    "x_api_key",
    "x-user",
    "x-cost",
    "cookie",
    "x-captcha",
    "x_captcha",
    "authorization",
    "x-ratelimit-remaining",
];
const KEPT_TRAILERS: &str = "x-sum,y_sum";

#[tokio::test]
async fn request_trailers_contain_no_reserved_names() {
    for peers in [Peers::Untrusted, Peers::Trusted] {
        let fixture = Fixture::new(peers, |_| {}).await;
        let names = format!("{},{KEPT_TRAILERS}", DROPPED_TRAILERS.join(","));
        let lines: String = names.split(',').map(|name| format!("{name}: 1\r\n")).collect();
        let mut client = RawClient::connect(fixture.gateway.address()).await;
        let reply = client
            .ask(&format!(
                "POST /late HTTP/1.1\r\nHost: test\r\nTrailer: {names}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{lines}\r\n"
            ))
            .await;
        assert_eq!((reply.status, reply.body.as_str()), (200, KEPT_TRAILERS), "HTTP/1.1");
        // The client library refuses these in HTTP/2.
        let names: Vec<&str> =
            names.split(',').filter(|name| !["connection", "transfer-encoding"].contains(name)).collect();
        let announced = names.join(",");
        let trailers: HeaderMap = names
            .iter()
            .map(|name| (http::HeaderName::try_from(*name).unwrap(), "1".parse().unwrap()))
            .collect();
        let body = TrailerBody { frames: vec![Frame::trailers(trailers), Frame::data(Bytes::from("abc"))] };
        let (_, answer) = over_http2(&fixture.gateway, "/late", &announced, body.boxed()).await;
        assert_eq!(answer, KEPT_TRAILERS, "HTTP/2");
    }
}

#[tokio::test]
async fn response_trailers_contain_no_reserved_names() {
    let fixture = Fixture::new(Peers::Untrusted, |_| {}).await;
    let path = format!("/trailers?{},{KEPT_TRAILERS}", DROPPED_TRAILERS.join(","));
    let mut client = RawClient::connect(fixture.gateway.address()).await;
    let reply = client.ask(&format!("GET {path} HTTP/1.1\r\nHost: test\r\nTE: trailers\r\n\r\n")).await;
    let mut names: Vec<&str> = reply.trailers.iter().map(|line| line.split(':').next().unwrap()).collect();
    names.sort_unstable();
    assert_eq!((reply.body.as_str(), names.join(",").as_str()), ("12345", KEPT_TRAILERS), "HTTP/1.1");
    let (trailers, _) = over_http2(&fixture.gateway, &path, "", Full::default().boxed()).await;
    let mut names: Vec<&str> = trailers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names.join(","), KEPT_TRAILERS, "HTTP/2");
}

/// A body without a length: these frames, the last one first.
struct TrailerBody {
    frames: Vec<Frame<Bytes>>,
}

impl Body for TrailerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.frames.pop().map(Ok))
    }
}

/// The trailers and the body of the response.
async fn over_http2(
    gateway: &Gateway,
    path: &str,
    announced: &str,
    body: BoxBody<Bytes, Infallible>,
) -> (HeaderMap, String) {
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("http://shop.example{path}");
    let request =
        Request::post(uri).header("te", "trailers").header("trailer", announced).body(body).unwrap();
    let collected = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    (trailers, String::from_utf8(collected.to_bytes().to_vec()).unwrap())
}

/// The outcome of a request whose frames are written by hand.
#[derive(Debug, PartialEq, Eq)]
enum RawOutcome {
    Status(u16),
    Reset,
}

/// Sends a request over HTTP/2 with these headers and this body.
async fn by_hand(gateway: &Gateway, headers: &[(&str, &str)], body: &str) -> RawOutcome {
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    // :method POST, :scheme http, :path /, :authority "a", and literals that are not indexed.
    let mut block = b"\x83\x86\x84\x41\x01a".to_vec();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    let mut frame = |kind: u8, flags: u8, payload: &[u8]| {
        bytes.extend_from_slice(&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1]);
        bytes.extend_from_slice(payload);
    };
    frame(1, if body.is_empty() { 5 } else { 4 }, &block);
    if !body.is_empty() {
        frame(0, 1, body.as_bytes());
    }
    stream.write_all(&bytes).await.unwrap();
    let fate = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload).await.unwrap();
            let is_ours = head[8] == 1;
            match head[3] {
                1 if is_ours => {
                    // Statuses in the static table: 200 is 8, 400 is 12. An update of the table size comes before.
                    let status = payload.iter().find(|byte| **byte & 0xe0 != 0x20).unwrap();
                    return match status {
                        0x88 => RawOutcome::Status(200),
                        0x8c => RawOutcome::Status(400),
                        other => panic!("another status: {other:x}"),
                    };
                }
                3 if is_ours => return RawOutcome::Reset,
                7 => panic!("the connection ends: {payload:?}"),
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, fate).await.expect("no response")
}

const LENGTH: &str = "content-length";

#[tokio::test]
async fn http2_lengths_have_one_spelling() {
    let fixture = Fixture::new(Peers::Untrusted, |_| {}).await;
    for (headers, body) in [
        (&[][..], ""),
        (&[], "12345"),
        (&[(LENGTH, "0")], ""),
        (&[(LENGTH, "5")], "12345"),
        (&[(LENGTH, "10")], "1234567890"),
    ] {
        assert_eq!(by_hand(&fixture.gateway, headers, body).await, RawOutcome::Status(200), "{headers:?}");
    }
    let served = fixture.server.seen().len();
    for (headers, body) in [
        (&[(LENGTH, "")][..], ""),
        (&[(LENGTH, "0005")], "12345"),
        (&[(LENGTH, "00")], ""),
        (&[(LENGTH, "+5")], "12345"),
        (&[(LENGTH, " 5")], "12345"),
        (&[(LENGTH, "5,5")], "12345"),
        (&[(LENGTH, "0x5")], "12345"),
        (&[(LENGTH, "18446744073709551621")], "12345"),
        (&[(LENGTH, "5"), (LENGTH, "5")], "12345"),
        (&[(LENGTH, "0"), (LENGTH, "0")], ""),
        (&[(LENGTH, "5"), (LENGTH, "")], "12345"),
        (&[(LENGTH, ""), (LENGTH, "0")], ""),
        (&[(LENGTH, "0"), (LENGTH, "44")], ""),
        (&[(LENGTH, "44")], ""),
        (&[(LENGTH, "4")], "12345"),
        (&[("transfer-encoding", "chunked")], "12345"),
    ] {
        assert_ne!(by_hand(&fixture.gateway, headers, body).await, RawOutcome::Status(200), "{headers:?}");
    }
    assert!(
        fixture.server.seen().len() <= served + 1,
        "only a body that is too long is detected while it is sent"
    );
    for headers in [&[(LENGTH, "")][..], &[(LENGTH, "0"), (LENGTH, "0")], &[(LENGTH, "00")]] {
        assert_eq!(by_hand(&fixture.gateway, headers, "").await, RawOutcome::Status(400), "{headers:?}");
    }
}

/// A server that reads lengths strictly refuses these by itself: only one that does not shows what reaches it.
#[tokio::test]
async fn ambiguous_http2_length_reaches_no_upstream() {
    let answer = |_: &str| ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", End::Stay);
    let server = RawUpstream::start(answer).await;
    let gateway = fixture::start(&GatewaySettings::to(fixture::at([server.address])));
    assert_eq!(by_hand(&gateway, &[(LENGTH, "0")], "").await, RawOutcome::Status(200));
    for headers in [
        &[(LENGTH, "")][..],
        &[(LENGTH, ""), (LENGTH, "")],
        &[(LENGTH, ""), (LENGTH, "0")],
        &[(LENGTH, "0"), (LENGTH, "")],
        &[(LENGTH, "0"), (LENGTH, "0")],
        &[(LENGTH, "00")],
    ] {
        assert_eq!(by_hand(&gateway, headers, "").await, RawOutcome::Status(400), "{headers:?}");
        assert_eq!(server.requests(), 1, "{headers:?}");
    }
}
