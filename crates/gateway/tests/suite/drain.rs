//! Drain: requests in flight are finished, new connections are refused.

use crate::fixture::Pair;
use std::time::Duration;
use tokio::net::TcpStream;
use tollgate_testbed::eventually;

#[tokio::test]
async fn requests_in_flight_are_finished() {
    let pair = Pair::start().await;
    let (mut idle, mut busy) = (pair.client().await, pair.client().await);
    assert_eq!(idle.get("/").await.status, 200);
    busy.send("GET /gated HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it is in flight", async || pair.server.seen().len() == 2).await;
    let address = pair.gateway.address();
    let stopping = tokio::spawn(pair.gateway.stop());
    assert!(idle.closed().await.is_empty());
    eventually("new connections are refused", async || TcpStream::connect(address).await.is_err()).await;
    assert!(busy.is_silent());
    pair.server.release_gated();
    let reply = busy.reply().await;
    assert_eq!((reply.status, reply.body.as_str(), reply.header("connection")), (200, "let go", "close"));
    assert!(busy.closed().await.is_empty());
    assert_eq!(stopping.await.unwrap(), 0);
}

#[tokio::test]
async fn connections_busy_after_the_grace_period_are_cut_and_counted() {
    let pair = Pair::listening(|listen| listen.options.grace = Duration::from_millis(50)).await;
    let mut stuck = Vec::new();
    for number in 1..=4 {
        let mut client = pair.client().await;
        client.send("GET /gated HTTP/1.1\r\nHost: test\r\n\r\n").await;
        eventually("it is in flight", async || pair.server.seen().len() == number).await;
        stuck.push(client);
    }
    // A tunnel counts as well.
    let mut tunnel = pair.client().await;
    tunnel.send("GET /ws HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await;
    assert_eq!(tunnel.head().await.status, 101);
    stuck.push(tunnel);
    assert_eq!(pair.gateway.stop().await, 5, "the sum over both threads");
    for mut client in stuck {
        assert!(client.closed().await.is_empty());
    }
}
