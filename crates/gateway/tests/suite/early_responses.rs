//! Servers that respond and close before they have read the body: the client gets the whole response.

use crate::fixture;
use crate::raw_client::RawClient;
use crate::raw_upstream::{End, RawUpstream};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::GatewaySettings;

/// More than all buffers in between hold.
const LARGE: usize = 24 << 20;
const ROUNDS: usize = 12;
const ENDS: [(&str, End); 2] = [("/close", End::Close), ("/reset", End::Reset)];

fn script(target: &str) -> (&'static str, End) {
    match target {
        "/close" => {
            ("HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 9\r\n\r\ntoo large", End::Close)
        }
        "/reset" => ("HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n\r\ntoo large", End::Reset),
        _ => ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", End::Stay),
    }
}

async fn start() -> (RawUpstream, Gateway) {
    let upstream = RawUpstream::start(script).await;
    let gateway = fixture::start(&GatewaySettings::to(fixture::at([upstream.address])));
    (upstream, gateway)
}

/// Sends a body while the response is read.
async fn post(gateway: &Gateway, target: &str, framing: &str, piece: Vec<u8>, times: usize) -> (u16, String) {
    let mut client = RawClient::connect(gateway.address()).await;
    client.send(format!("POST {target} HTTP/1.1\r\nHost: test\r\n{framing}\r\n\r\n")).await;
    let (reading, mut writing) = client.stream.into_inner().into_split();
    let mut reading = RawClient::over(tokio::io::join(reading, tokio::io::sink()));
    let sending = tokio::spawn(async move {
        for _ in 0..times {
            if tokio::io::AsyncWriteExt::write_all(&mut writing, &piece).await.is_err() {
                break;
            }
        }
        writing
    });
    let reply = reading.reply().await;
    sending.abort();
    (reply.status, reply.body)
}

async fn assert_healthy(gateway: &Gateway) {
    let mut client = RawClient::connect(gateway.address()).await;
    assert_eq!(client.get("/").await.body, "hello", "the upstream is still healthy");
}

#[tokio::test]
async fn http1_clients_get_an_early_response() {
    let piece = 64 << 10;
    let chunk = [format!("{piece:x}\r\n").into_bytes(), vec![b'x'; piece], b"\r\n".to_vec()].concat();
    for (target, end) in ENDS {
        let (_upstream, gateway) = start().await;
        for (framing, bytes) in [
            (format!("Content-Length: {LARGE}"), vec![b'x'; piece]),
            ("Transfer-Encoding: chunked".to_owned(), chunk.clone()),
        ] {
            for round in 0..ROUNDS {
                let (status, body) = post(&gateway, target, &framing, bytes.clone(), LARGE / piece).await;
                assert_eq!((status, body.as_str()), (413, "too large"), "{end:?} {framing} {round}");
            }
            assert_healthy(&gateway).await;
        }
    }
}

#[tokio::test]
async fn http2_clients_get_an_early_response() {
    for (target, end) in ENDS {
        let (_upstream, gateway) = start().await;
        for round in 0..ROUNDS {
            let stream = TcpStream::connect(gateway.address()).await.unwrap();
            let (mut client, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let body = Full::new(Bytes::from(vec![b'x'; LARGE]));
            let request = Request::post(format!("http://test{target}")).body(body).unwrap();
            let answer = client.send_request(request).await.unwrap();
            assert_eq!(answer.status(), 413, "{end:?} {round}");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, "too large", "{end:?} {round}");
        }
        assert_healthy(&gateway).await;
    }
}

#[tokio::test]
async fn the_connection_stays_open_after_a_complete_body() {
    let (_upstream, gateway) = start().await;
    let mut client = RawClient::connect(gateway.address()).await;
    for (target, _) in ENDS {
        let size = 1 << 20;
        client.send(format!("POST {target} HTTP/1.1\r\nHost: test\r\nContent-Length: {size}\r\n\r\n")).await;
        client.send(vec![b'x'; size]).await;
        assert_eq!(client.reply().await.status, 413);
        assert_eq!(client.get("/").await.status, 200);
    }
}
