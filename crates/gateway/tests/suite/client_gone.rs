//! Requests that count as in flight whose client disconnects (`on_client_gone`).

use crate::fixture::{self, Pair};
use crate::http2;
use crate::raw_client::RawClient;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::{GatewaySettings, OnClientGone};
use tollgate_testbed::{TestUpstream, eventually};

const TWO: &str = "rules: [{ id: busy, algorithm: concurrency, limit: 2 }]";

async fn behind(rules: &str, on_client_gone: OnClientGone) -> Pair {
    let server = TestUpstream::start("one").await;
    let mut settings = GatewaySettings::to(fixture::upstream(&[&server]));
    settings.upstreams[0].on_client_gone = on_client_gone;
    let gateway = Gateway::start(&settings, &fixture::limits(rules), &fixture::listen()).unwrap();
    Pair { server, gateway }
}

impl Pair {
    /// A request that its server holds.
    async fn gated(&self) -> RawClient {
        let before = self.server.seen().len();
        let mut client = self.client().await;
        client.send("GET /gated HTTP/1.1\r\nHost: test\r\n\r\n").await;
        eventually("it is in flight", async || self.server.seen().len() > before).await;
        client
    }

    async fn is_full(&self) -> bool {
        let reply = self.client().await.get("/hello").await;
        if reply.status == 429 {
            assert_eq!(reply.header("x-ratelimit-remaining"), "0");
            assert_eq!((reply.header("retry-after"), reply.header("x-ratelimit-reset")), ("", ""));
        }
        reply.status == 429
    }

    /// Repeats the check until the gateway has certainly noticed the disconnect.
    async fn stays_full(&self) {
        for _ in 0..50 {
            assert!(self.is_full().await);
        }
    }
}

#[tokio::test]
async fn a_disconnected_request_counts_until_the_server_responds() {
    let pair = behind(TWO, OnClientGone::Finish).await;
    for _ in 0..3 {
        let before = pair.server.seen().len();
        drop((pair.gated().await, pair.gated().await));
        pair.stays_full().await;
        assert_eq!(pair.server.seen().len(), before + 2, "no more than two reach the server");
        pair.server.release_gated();
        eventually("one is done", async || !pair.is_full().await).await;
        pair.server.release_gated();
        let (one, two) = (pair.gated().await, pair.gated().await);
        pair.stays_full().await;
        pair.server.release_gated();
        pair.server.release_gated();
        drop((one, two));
        eventually("all are done", async || !pair.is_full().await).await;
    }
}

#[tokio::test]
async fn a_disconnect_during_the_upload_counts_until_the_server_responds() {
    for head in ["Content-Length: 10\r\n\r\n12", "Transfer-Encoding: chunked\r\n\r\n5\r\nab"] {
        let pair = behind(TWO, OnClientGone::Finish).await;
        for number in 1..=2 {
            let mut client = pair.client().await;
            client.send(&format!("POST /gated HTTP/1.1\r\nHost: test\r\n{head}")).await;
            eventually("it is in flight", async || pair.server.seen().len() == number).await;
        }
        pair.stays_full().await;
        assert_eq!(pair.server.seen().len(), 2, "no more than two reach the server");
    }
}

#[tokio::test]
async fn reset_streams_count_until_the_server_responds() {
    let pair = behind(TWO, OnClientGone::Finish).await;
    let mut client = http2::plain(&pair).await;
    for number in 1..=2 {
        let asked = tokio::spawn(client.send_request(http2::request("/gated", "")));
        eventually("it is in flight", async || pair.server.seen().len() == number).await;
        asked.abort();
    }
    pair.stays_full().await;
    pair.server.release_gated();
    eventually("one is done", async || !pair.is_full().await).await;
}

#[tokio::test]
async fn cancel_releases_the_slot_at_once() {
    let pair = behind(TWO, OnClientGone::Cancel).await;
    let (one, mut two) = (pair.gated().await, pair.gated().await);
    assert!(pair.is_full().await);
    drop(one);
    eventually("its slot is free", async || !pair.is_full().await).await;
    pair.server.release_gated();
    pair.server.release_gated();
    assert_eq!(two.reply().await.status, 200);
    for _ in 0..5 {
        assert_eq!(two.get("/hello").await.status, 200, "the slot is free");
    }
}

#[tokio::test]
async fn a_slot_without_a_client_expires() {
    let rules = "rules: [{ id: busy, algorithm: concurrency, params: { limit: 1, timeout: 3s } }]";
    let pair = behind(rules, OnClientGone::Finish).await;
    drop(pair.gated().await);
    assert!(pair.is_full().await);
    eventually("its slot has expired", async || !pair.is_full().await).await;
}

#[tokio::test]
async fn an_unread_response_is_discarded_or_cut() {
    let pair = behind("rules: [{ id: busy, algorithm: concurrency, limit: 1 }]", OnClientGone::Finish).await;
    for bytes in [100_000_u64, 1 << 40] {
        let mut client = pair.client().await;
        client.send(format!("GET /big/{bytes} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        assert_eq!(client.head().await.status, 200);
        drop(client);
        eventually("it is over", async || !pair.is_full().await).await;
    }
}

#[tokio::test]
async fn a_tunnel_counts_until_it_ends() {
    let pair = behind("rules: [{ id: busy, algorithm: concurrency, limit: 1 }]", OnClientGone::Finish).await;
    let mut client = pair.client().await;
    client.send("GET /ws HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await;
    assert_eq!(client.head().await.status, 101);
    pair.stays_full().await;
    drop(client);
    eventually("it ended", async || !pair.is_full().await).await;
}

#[tokio::test]
async fn a_drain_does_not_wait_for_disconnected_clients() {
    let pair = behind(TWO, OnClientGone::Finish).await;
    drop(pair.gated().await);
    drop(pair.gated().await);
    pair.stays_full().await;
    assert_eq!(pair.gateway.stop().await, 0);
}
