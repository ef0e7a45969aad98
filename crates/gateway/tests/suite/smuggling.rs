//! Request smuggling: requests with an ambiguous length are refused, and nothing of them reaches the server.

use crate::fixture::Pair;

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: test\r\n\r\n";

/// Ways to hide a second request behind the first, with a name for each.
fn tricks() -> Vec<(&'static str, String)> {
    let head = "POST /count HTTP/1.1\r\nHost: test\r\n";
    let with = |headers: &str, body: &str| format!("{head}{headers}\r\n{body}{HIDDEN}");
    vec![
        ("length, then chunked", with("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")),
        ("chunked, then length", with("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n")),
        ("the same length twice", with("Content-Length: 3\r\nContent-Length: 3\r\n", "abc")),
        ("two lengths", with("Content-Length: 3\r\nContent-Length: 0\r\n", "abc")),
        ("two lengths in a line", with("Content-Length: 3, 3\r\n", "abc")),
        ("a length with a sign", with("Content-Length: +3\r\n", "abc")),
        ("a negative length", with("Content-Length: -1\r\n", "")),
        ("a length in hex", with("Content-Length: 0x3\r\n", "abc")),
        ("an empty length", with("Content-Length:\r\n", "")),
        ("a length with leading zeros", with("Content-Length: 0003\r\n", "abc")),
        ("a length of two zeros", with("Content-Length: 00\r\n", "")),
        ("a length that overflows", with("Content-Length: 18446744073709551619\r\n", "abc")),
        ("a space before the colon", with("Content-Length : 3\r\n", "abc")),
        ("a tab before the colon", with("Transfer-Encoding\t: chunked\r\n", "0\r\n\r\n")),
        ("a folded line", with("X: y\r\n Content-Length: 3\r\n", "abc")),
        ("a folded coding", with("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n")),
        ("a space before the first name", with(" Content-Length: 3\r\n", "abc")),
        ("xchunked", with("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n")),
        ("chunked, identity", with("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n")),
        ("identity", with("Transfer-Encoding: identity\r\n", "")),
        ("gzip, chunked", with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")),
        ("chunked twice", with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")),
        ("quoted", with("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n")),
        ("a control character", with("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n")),
        (
            "coding on 1.0",
            format!(
                "POST /count HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        ("lines without CR", format!("POST /count HTTP/1.1\nHost: test\nContent-Length: 0\n\n{HIDDEN}")),
        ("one line without CR", with("X: y\nContent-Length: 3\r\n", "abc")),
        ("a bare CR", with("X: y\rContent-Length: 3\r\n", "abc")),
        ("a head that ends without CR", format!("{head}Content-Length: 0\r\n\n{HIDDEN}")),
        ("a nul", with("X: a\0b\r\n", "")),
        ("no colon", with("Content-Length 3\r\n", "abc")),
        ("no name", with(": 3\r\n", "abc")),
        ("two hosts", with("Host: other\r\n", "")),
        ("a host with a path", format!("GET / HTTP/1.1\r\nHost: test/x\r\n\r\n{HIDDEN}")),
        ("no host", format!("GET / HTTP/1.1\r\n\r\n{HIDDEN}")),
        ("two spaces in the request line", format!("GET  / HTTP/1.1\r\nHost: test\r\n\r\n{HIDDEN}")),
        ("another version", format!("GET / HTTP/3.0\r\nHost: test\r\n\r\n{HIDDEN}")),
    ]
}

#[tokio::test]
async fn ambiguous_requests_are_refused_and_the_connection_is_closed() {
    let pair = Pair::start().await;
    for (trick, request) in tricks() {
        let mut client = pair.client().await;
        client.send(&request).await;
        assert_eq!(client.reply().await.status, 400, "{trick}");
        assert!(client.closed().await.is_empty(), "{trick}");
    }
    assert!(pair.server.seen().is_empty(), "{:?}", pair.server.seen());
}

#[tokio::test]
async fn malformed_chunked_bodies_are_refused() {
    let pair = Pair::start().await;
    let table = [
        ("a size that is none", "xyz\r\nabc\r\n0\r\n\r\n"),
        ("a size with a sign", "+3\r\nabc\r\n0\r\n\r\n"),
        ("a size with 0x", "0x3\r\nabc\r\n0\r\n\r\n"),
        ("a size that overflows", "fffffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
        ("no size", "\r\nabc\r\n0\r\n\r\n"),
        ("a size that ends without CR", "3\nabc\r\n0\r\n\r\n"),
        ("a chunk that is longer", "3\r\nabcd\r\n0\r\n\r\n"),
        ("a chunk that ends without CR", "3\r\nabc\n0\r\n\r\n"),
        ("an end without CR", "3\r\nabc\r\n0\r\n\n"),
        ("a space after the size", "3 \r\nabc\r\n0\r\n\r\n"),
    ];
    for (trick, body) in table {
        let mut client = pair.client().await;
        let head = "POST /count HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("{head}{body}{HIDDEN}")).await;
        assert_eq!(client.reply().await.status, 400, "{trick}");
        assert!(client.closed().await.is_empty(), "{trick}");
    }
    assert!(pair.server.seen().iter().all(|seen| seen.target != "/hidden"));
}

#[tokio::test]
async fn pipelined_requests_are_forwarded() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let first =
        "POST /count HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\na\nb\r\n0\r\n\r\n";
    let second = "POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n\r\n\r\n";
    client.send(format!("{first}{second}{HIDDEN}")).await;
    for expected in ["3", "4", "hello"] {
        assert_eq!(client.reply().await.body, expected);
    }
    let targets: Vec<String> = pair.server.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/count", "/count", "/hidden"]);
}
