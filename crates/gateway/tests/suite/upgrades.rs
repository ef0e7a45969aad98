//! Upgrades: WebSocket and other protocols are tunneled in both directions.

use crate::fixture::Pair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const HANDSHAKE: &str = "GET /ws HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A text frame as a client sends it.
fn frame(text: &str) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let masked = text.bytes().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    [0x81, 0x80 | text.len() as u8].into_iter().chain(mask).chain(masked).collect()
}

#[tokio::test]
async fn a_websocket_is_tunneled() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    client.send(HANDSHAKE).await;
    let head = client.head().await;
    assert_eq!(head.status, 101);
    assert_eq!((head.header("upgrade"), head.header("connection")), ("websocket", "upgrade"));
    let seen = pair.server.last();
    assert_eq!(
        (seen.header("upgrade").as_str(), seen.header("connection").as_str()),
        ("websocket", "upgrade")
    );
    assert_eq!(seen.header("sec-websocket-key"), "dGhlIHNhbXBsZSBub25jZQ==");
    // Including bytes that are not HTTP, and more than a buffer holds.
    for text in ["hello", "GET / HTTP/1.1\n\n", "\n\r\n\0", ""] {
        let sent = frame(text);
        client.send(&sent).await;
        let mut echoed = vec![0; sent.len()];
        client.stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(echoed, sent, "{text:?}");
    }
    let much = vec![b'\n'; 1 << 20];
    let (mut reading, mut writing) = tokio::io::split(client.stream.into_inner());
    let sending = async {
        writing.write_all(&much).await.unwrap();
        writing.shutdown().await.unwrap();
    };
    let mut echoed = Vec::new();
    let (_, read) = tokio::join!(sending, reading.read_to_end(&mut echoed));
    read.unwrap();
    assert_eq!(echoed.len(), much.len(), "the end of one side ends the other");
}

#[tokio::test]
async fn a_server_may_decline_an_upgrade() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let request = HANDSHAKE.replace("/ws", "/");
    let reply = client.ask(&request).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "hello"));
    assert_eq!(client.get("/").await.status, 200, "the connection still uses HTTP");
}

#[tokio::test]
async fn a_disconnect_ends_the_tunnel() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    client.send(HANDSHAKE).await;
    assert_eq!(client.head().await.status, 101);
    drop(client);
    // The server gets the end of the stream, or its task would hold the connection forever.
    let mut next = pair.client().await;
    assert_eq!(next.get("/").await.status, 200);
}
