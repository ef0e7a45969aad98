//! Requests that count as in flight: until their server is done with them, or their client has gone.

use crate::http2;
use crate::setting::{self, Pair};
use crate::wire::Wire;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::{OnClientGone, Settings};
use tollgate_testbed::{TestUpstream, eventually};

const TWO: &str = "rules: [{ id: busy, algorithm: concurrency, limit: 2 }]";

async fn behind(rules: &str, on_client_gone: OnClientGone) -> Pair {
    let server = TestUpstream::start("one").await;
    let mut settings = Settings::to(setting::upstream(&[&server]));
    settings.upstreams[0].on_client_gone = on_client_gone;
    let gateway = Gateway::start(&settings, &setting::limits(rules), &setting::listen()).unwrap();
    Pair { server, gateway }
}

impl Pair {
    /// A request that its server does not answer yet.
    async fn gated(&self) -> Wire {
        let before = self.server.seen().len();
        let mut client = self.client().await;
        client.send("GET /gated HTTP/1.1\r\nHost: test\r\n\r\n").await;
        eventually("it is at the server", async || self.server.seen().len() > before).await;
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

    /// Asks until the gateway has certainly noticed that a client has gone.
    async fn stays_full(&self) {
        for _ in 0..50 {
            assert!(self.is_full().await);
        }
    }
}

#[tokio::test]
async fn who_hangs_up_counts_until_the_server_is_done() {
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
async fn who_hangs_up_in_the_middle_of_a_body_counts_until_the_server_is_done() {
    for head in ["Content-Length: 10\r\n\r\n12", "Transfer-Encoding: chunked\r\n\r\n5\r\nab"] {
        let pair = behind(TWO, OnClientGone::Finish).await;
        for number in 1..=2 {
            let mut client = pair.client().await;
            client.send(&format!("POST /gated HTTP/1.1\r\nHost: test\r\n{head}")).await;
            eventually("it is at the server", async || pair.server.seen().len() == number).await;
        }
        pair.stays_full().await;
        assert_eq!(pair.server.seen().len(), 2, "no more than two reach the server");
    }
}

#[tokio::test]
async fn streams_that_are_reset_count_until_the_server_is_done() {
    let pair = behind(TWO, OnClientGone::Finish).await;
    let mut client = http2::plain(&pair).await;
    for number in 1..=2 {
        let asked = tokio::spawn(client.send_request(http2::request("/gated", "")));
        eventually("it is at the server", async || pair.server.seen().len() == number).await;
        asked.abort();
    }
    pair.stays_full().await;
    pair.server.release_gated();
    eventually("one is done", async || !pair.is_full().await).await;
}

#[tokio::test]
async fn who_hangs_up_makes_room_if_the_settings_say_so() {
    let pair = behind(TWO, OnClientGone::Cancel).await;
    let (one, mut two) = (pair.gated().await, pair.gated().await);
    assert!(pair.is_full().await);
    drop(one);
    eventually("one has gone", async || !pair.is_full().await).await;
    pair.server.release_gated();
    pair.server.release_gated();
    assert_eq!(two.reply().await.status, 200);
    for _ in 0..5 {
        assert_eq!(two.get("/hello").await.status, 200, "it ended, so there is room");
    }
}

#[tokio::test]
async fn a_place_without_a_client_runs_out() {
    let rules = "rules: [{ id: busy, algorithm: concurrency, params: { limit: 1, timeout: 3s } }]";
    let pair = behind(rules, OnClientGone::Finish).await;
    drop(pair.gated().await);
    assert!(pair.is_full().await);
    eventually("its time is over", async || !pair.is_full().await).await;
}

#[tokio::test]
async fn an_answer_that_its_client_does_not_read_is_read_to_its_end_or_cut() {
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
async fn a_shutdown_does_not_wait_for_who_has_gone() {
    let pair = behind(TWO, OnClientGone::Finish).await;
    drop(pair.gated().await);
    drop(pair.gated().await);
    pair.stays_full().await;
    assert_eq!(pair.gateway.stop().await, 0);
}
