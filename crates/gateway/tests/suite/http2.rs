//! HTTP/2: with prior knowledge and over TLS, concurrent streams, and floods.

use crate::fixture::Pair;
use crate::tls::Files;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use tollgate_testbed::{PATIENCE, eventually};

pub type Client = SendRequest<Full<Bytes>>;

pub async fn client(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Client {
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub async fn plain(pair: &Pair) -> Client {
    connect(pair.gateway.address()).await
}

/// Without TLS.
pub async fn connect(gateway: SocketAddr) -> Client {
    client(TcpStream::connect(gateway).await.unwrap()).await
}

pub fn request(path: &str, body: &str) -> Request<Full<Bytes>> {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let uri = format!("http://shop.example{path}");
    Request::builder().method(method).uri(uri).body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

async fn text(answer: Response<Incoming>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_truncated_response_resets_its_stream() {
    let pair = Pair::start().await;
    let mut client = plain(&pair).await;
    for path in ["/half", "/half-chunked"] {
        let answer = client.send_request(request(path, "")).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "12345");
        assert!(body.frame().await.unwrap().is_err(), "{path}");
    }
    let answer = client.send_request(request("/", "")).await.unwrap();
    assert_eq!(text(answer).await, "hello", "the connection stays open");
}

#[tokio::test]
async fn requests_become_http1_and_responses_http2() {
    let (files, pair) = (Files::new(), Pair::start().await);
    let secure = files.pair().await;
    let over_tls = files.connect(&secure, &[b"h2"]).await;
    assert_eq!(over_tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    for (mut client, pair, proto) in
        [(plain(&pair).await, &pair, "http"), (client(over_tls).await, &secure, "https")]
    {
        let mut asked = request("/x?y", "");
        asked.headers_mut().append("cookie", "a=1".parse().unwrap());
        asked.headers_mut().append("cookie", "b=2".parse().unwrap());
        let answer = client.send_request(asked).await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["x-served-by"].as_bytes()),
            (200, &b"one"[..])
        );
        assert_eq!(text(answer).await, "hello");
        let seen = pair.server.last();
        assert_eq!((seen.target.as_str(), seen.header("host").as_str()), ("/x?y", "shop.example"));
        assert_eq!(seen.header("cookie"), "a=1; b=2");
        assert_eq!(seen.header("x-forwarded-proto"), proto);
        let answer = client.send_request(request("/echo", "12345")).await.unwrap();
        assert_eq!(text(answer).await, "12345");
        let answer = client.send_request(request("/hops", "")).await.unwrap();
        assert!(answer.headers().get("connection").is_none() && answer.headers().get("x-private").is_none());
        let mut asked = request("/trailers", "");
        asked.headers_mut().insert("te", "trailers".parse().unwrap());
        let answer = client.send_request(asked).await.unwrap();
        let collected = answer.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "42");
        let answer = client.send_request(request("/status/204", "")).await.unwrap();
        assert_eq!(answer.status().as_u16(), 204);
    }
}

#[tokio::test]
async fn streams_do_not_wait_for_each_other() {
    let pair = Pair::start().await;
    let mut client = plain(&pair).await;
    let stuck: Vec<_> = (0..20).map(|_| client.send_request(request("/gated", ""))).collect();
    for _ in 0..20 {
        assert_eq!(text(client.send_request(request("/", "")).await.unwrap()).await, "hello");
    }
    // They may reach the server in another order.
    stuck.iter().for_each(|_| pair.server.release_gated());
    for stuck in stuck {
        assert_eq!(text(stuck.await.unwrap()).await, "let go");
    }
}

#[tokio::test]
async fn long_bodies_in_both_directions() {
    let pair = Pair::start().await;
    let mut client = plain(&pair).await;
    let long = "x".repeat(3_000_000);
    assert_eq!(text(client.send_request(request("/count", &long)).await.unwrap()).await, "3000000");
    let answer = client.send_request(request("/big/3000000", "")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), 3_000_000);
}

#[tokio::test]
async fn a_drain_finishes_streams() {
    let pair = Pair::start().await;
    let mut client = plain(&pair).await;
    let stuck = client.send_request(request("/gated", ""));
    eventually("it is in flight", async || pair.server.seen().len() == 1).await;
    let stopping = tokio::spawn(pair.gateway.stop());
    eventually("new streams are refused", async || client.send_request(request("/", "")).await.is_err())
        .await;
    pair.server.release_gated();
    assert_eq!(text(stuck.await.unwrap()).await, "let go");
    assert_eq!(stopping.await.unwrap(), 0);
}

/// Streams that are opened and reset at once. The frames are written by hand, because a client library does not do it.
#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let pair = Pair::start().await;
    let mut flood = TcpStream::connect(pair.gateway.address()).await.unwrap();
    flood.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await.unwrap();
    // :method GET, :scheme http, :path /, :authority "a".
    let block = b"\x82\x86\x84\x41\x01a";
    let mut frames = Vec::new();
    for number in 0..50_000_u32 {
        let stream = (2 * number + 1).to_be_bytes();
        frames.extend_from_slice(&[0, 0, block.len() as u8, 1, 5]);
        frames.extend_from_slice(&stream);
        frames.extend_from_slice(block);
        frames.extend_from_slice(&[0, 0, 4, 3, 0]);
        frames.extend_from_slice(&stream);
        frames.extend_from_slice(&8_u32.to_be_bytes());
        if frames.len() > 16 << 10 {
            if flood.write_all(&frames).await.is_err() {
                break;
            }
            frames.clear();
        }
    }
    // Much of the flood may have been in transit when the connection ended.
    let rest = tokio::time::timeout(PATIENCE, flood.read_to_end(&mut Vec::new())).await;
    assert!(rest.is_ok(), "the connection was not ended");
    assert!(pair.server.seen().len() < 10_000, "{}", pair.server.seen().len());
    let mut client = pair.client().await;
    assert_eq!(client.get("/").await.status, 200);
}
