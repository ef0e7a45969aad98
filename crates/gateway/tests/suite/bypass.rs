//! The table of limit bypasses, over HTTP/1.1 and HTTP/2. Targets that are admitted reach the server as a path.

use crate::fixture::Pair;
use crate::limits::behind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_testbed::PATIENCE;
use tollgate_testbed::bypass::{self, Bypass, BypassOutcome, BypassSpelling};

/// Spends the only token of the row's limit.
async fn spend(pair: &Pair, row: &Bypass, key: &str) {
    let host = if matches!(row.spelling, BypassSpelling::Host(_)) { bypass::HOST } else { "test" };
    assert_eq!(http1(pair, row.limited, host, key).await, 200, "{row:?}");
    assert!(pair.server.last().target.starts_with('/'), "{row:?}");
}

async fn http1(pair: &Pair, target: &str, host: &str, key: &str) -> u16 {
    let mut client = pair.client().await;
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nX-Api-Key: {key}\r\n\r\n");
    client.ask(&request).await.status
}

fn expected(outcome: BypassOutcome) -> u16 {
    match outcome {
        BypassOutcome::Limited => 429,
        BypassOutcome::Refused => 400,
    }
}

#[tokio::test]
async fn no_spelling_bypasses_a_limit_over_http1() {
    let pair = behind(bypass::RULES, None).await;
    for (number, row) in bypass::bypasses().enumerate() {
        let (target, host) = match row.spelling {
            BypassSpelling::Path(path) | BypassSpelling::Target(path) => (path, "test"),
            BypassSpelling::Host(host) => (row.limited, host),
            BypassSpelling::PseudoPath(_) => continue,
        };
        let key = format!("row-{number}");
        spend(&pair, &row, &key).await;
        let before = pair.server.seen().len();
        assert_eq!(http1(&pair, target, host, &key).await, expected(row.outcome), "{row:?}");
        assert_eq!(pair.server.seen().len(), before, "{row:?}");
        // With an unspent limit the request reaches the server as a path.
        if row.outcome == BypassOutcome::Limited {
            assert_eq!(http1(&pair, target, host, &format!("fresh-{number}")).await, 200, "{row:?}");
            assert!(pair.server.last().target.starts_with('/'), "{row:?}: {:?}", pair.server.last());
        }
    }
}

#[tokio::test]
async fn no_spelling_bypasses_a_limit_over_http2() {
    let pair = behind(bypass::RULES, None).await;
    for (number, row) in bypass::bypasses().enumerate() {
        let (path, authority) = match row.spelling {
            BypassSpelling::Path(path) | BypassSpelling::PseudoPath(path) => (path, "test"),
            BypassSpelling::Host(host) => (row.limited, host),
            BypassSpelling::Target(_) => continue,
        };
        let key = format!("row-{number}");
        spend(&pair, &row, &key).await;
        let before = pair.server.seen().len();
        assert_eq!(http2(&pair, path, authority, &key).await, expected(row.outcome), "{row:?}");
        assert_eq!(pair.server.seen().len(), before, "{row:?}");
        if row.outcome == BypassOutcome::Limited {
            assert_eq!(http2(&pair, path, authority, &format!("fresh-{number}")).await, 200, "{row:?}");
            assert!(pair.server.last().target.starts_with('/'), "{row:?}: {:?}", pair.server.last());
        }
    }
}

/// The status of one request on a new connection. The frames are written by hand, because a client library would not
/// send all of these. A malformed stream that is reset counts as 400.
async fn http2(pair: &Pair, path: &str, authority: &str, key: &str) -> u16 {
    let mut block = b"\x82\x86".to_vec(); // :method GET, :scheme http
    for (name, value) in [(&b"\x04"[..], path), (b"\x01", authority), (b"\x00\x09x-api-key", key)] {
        block.extend_from_slice(name);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend_from_slice(value.as_bytes());
    }
    let mut text = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    text.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 5, 0, 0, 0, 1]);
    text.extend_from_slice(&block);
    let mut stream = TcpStream::connect(pair.gateway.address()).await.unwrap();
    stream.write_all(&text).await.unwrap();
    tokio::time::timeout(PATIENCE, status(&mut stream)).await.expect("no response")
}

async fn status(stream: &mut TcpStream) -> u16 {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];
        match (head[3], payload.as_slice()) {
            (1, [0x88, ..]) => return 200,
            (1, [0x8c, ..]) => return 400,
            // A literal value with the indexed name `:status`: "429" in the Huffman code of HPACK.
            (1, [0x48, 0x83, 0x68, 0x4f, 0xff, ..]) => return 429,
            (1, other) => panic!("another status: {other:x?}"),
            (3, code) => {
                assert_eq!(code, PROTOCOL_ERROR);
                return 400;
            }
            (7, _) => panic!("the connection ends: {payload:x?}"),
            _ => {}
        }
    }
}
