//! The fast path for repeated refusals: its responses are the same as those of the slow path.

use crate::fixture::{self, Lines};
use crate::raw_client::{RawClient, Reply};
use std::sync::Arc;
use tollgate_gateway::settings::GatewaySettings;
use tollgate_gateway::{AccessLog, Gateway};
use tollgate_http::RateLimitLayer;
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tollgate_listen::{ConnectionLimitOptions, ConnectionLimits};
use tollgate_testbed::{TestUpstream, eventually};

const SECOND_US: u64 = 1_000_000;
/// In the past: the date of a fast response is that of the limiter's clock, any other is that of the machine.
const START_US: u64 = 1_000_000_000 * SECOND_US;
const FAST_DATE: &str = "09 Sep 2001";

const LOGIN: &str = "rules: [{ id: login, endpoint: /login, limit: 2/min }]";

/// A gateway with a manual clock.
struct Fixture {
    server: TestUpstream,
    gateway: Gateway,
    limiter: Arc<Limiter>,
    clock: ManualClock,
}

impl Fixture {
    async fn new(rules: &str) -> Self {
        Self::with(rules, None, None).await
    }

    async fn with(
        rules: &str,
        connection_limits: Option<Arc<ConnectionLimits>>,
        log: Option<AccessLog>,
    ) -> Self {
        let server = TestUpstream::start("one").await;
        let clock = ManualClock::new(START_US);
        let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 24), Clock::Manual(clock.clone())));
        install(&limiter, rules);
        let mut listen = fixture::listen();
        (listen.setup.limits, listen.log) = (connection_limits, log);
        let settings = GatewaySettings::to(fixture::upstream(&[&server]));
        let limits = RateLimitLayer::new(Arc::clone(&limiter));
        Self { gateway: Gateway::start(&settings, &limits, &listen).unwrap(), server, limiter, clock }
    }

    async fn client(&self) -> RawClient {
        RawClient::connect(self.gateway.address()).await
    }

    /// A client whose next `request` takes the fast path.
    async fn refused_client(&self, request: &str) -> RawClient {
        let mut client = self.client().await;
        while client.ask(request).await.status != 429 {}
        assert!(!is_fast(&client.ask(request).await), "the first refusal takes the slow path");
        client
    }
}

fn install(limiter: &Limiter, rules: &str) {
    let loaded = tollgate_core::rules::load("rules.yaml", rules).unwrap();
    limiter.install(loaded.rules, loaded.lists).unwrap();
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n")
}

fn is_fast(reply: &Reply) -> bool {
    reply.header("date").contains(FAST_DATE)
}

#[tokio::test]
async fn fast_responses_equal_slow_ones() {
    let fixture = Fixture::new(LOGIN).await;
    for (more, kind) in [
        ("", "application/json"),
        ("Connection: keep-alive\r\n", "application/json"),
        ("Accept: application/problem+json\r\n", "application/problem+json"),
        ("Content-Length: 3\r\n\r\nabc", "application/json"),
    ] {
        let body = if more.contains("\r\n\r\n") { "" } else { "\r\n" };
        let key = more.len();
        let request = format!("POST /login HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n{more}{body}");
        let mut client = fixture.client().await;
        while client.ask(&request).await.status != 429 {}
        let usual = client.ask(&request).await;
        assert!(!is_fast(&usual), "{more:?}");
        for _ in 0..3 {
            let mut again = client.ask(&request).await;
            assert!(is_fast(&again), "{more:?}: {again:?}");
            again.headers.insert("date", usual.headers["date"].clone());
            assert_eq!((again.status, &again.headers), (429, &usual.headers), "{more:?}");
            assert_eq!((again.header("content-type"), &again.body), (kind, &usual.body));
        }
    }
}

#[tokio::test]
async fn a_client_is_admitted_at_its_retry_time_and_charged_once() {
    let fixture = Fixture::new(LOGIN).await;
    let request = get("/login");
    let mut passed = 2;
    for _ in 0..3 {
        let mut client = fixture.refused_client(&request).await;
        assert!(is_fast(&client.ask(&request).await));
        fixture.clock.advance_us(30 * SECOND_US - 1);
        assert!(is_fast(&client.ask(&request).await));
        fixture.clock.advance_us(30 * SECOND_US + 1);
        for left in ["1", "0"] {
            let reply = client.ask(&request).await;
            assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, left));
            passed += 1;
        }
        assert_eq!(client.ask(&request).await.status, 429);
        assert_eq!(fixture.server.seen().len(), passed);
    }
}

#[tokio::test]
async fn rule_changes_apply_to_the_fast_path() {
    let fixture = Fixture::new(LOGIN).await;
    let request = get("/login");
    let mut client = fixture.refused_client(&request).await;
    assert!(is_fast(&client.ask(&request).await));
    install(&fixture.limiter, "rules: [{ id: login, endpoint: /login, limit: 1/min }]");
    assert_eq!(client.ask(&request).await.header("x-ratelimit-limit"), "1");
    install(&fixture.limiter, "allow_empty: true\ndeny: [127.0.0.1]");
    assert_eq!(client.ask(&request).await.status, 403);
    install(&fixture.limiter, "allow_empty: true");
    assert_eq!(client.ask(&request).await.status, 200);
}

#[tokio::test]
async fn other_targets_take_the_fast_path_and_other_headers_do_not() {
    let fixture = Fixture::new(LOGIN).await;
    let mut client = fixture.refused_client(&get("/login")).await;
    for target in ["/login?a=b", "//login", "/./login", "/%6cogin", "/login/", "/LOGIN", "/login;x=1"] {
        let reply = client.ask(&get(target)).await;
        assert_eq!((reply.status, is_fast(&reply)), (429, true), "{target}");
    }
    let reply = client.ask(&get("/other")).await;
    assert_eq!((reply.status, fixture.server.last().target.as_str()), (200, "/other"));
    let mut client = fixture.refused_client(&get("/login")).await;
    let reply = client.ask("GET /login HTTP/1.1\r\nHost: test\r\nX-Api-Key: another\r\n\r\n").await;
    assert_eq!(reply.status, 200, "another client, over the same connection");
    for (target, status) in [("/a%2flogin", 400), ("/login%00", 400), ("http://test/login", 429)] {
        let mut client = fixture.refused_client(&get("/login")).await;
        let reply = client.ask(&get(target)).await;
        assert_eq!((reply.status, is_fast(&reply)), (status, false), "{target}");
    }
    let mut client = fixture.refused_client(&get("/login")).await;
    assert_eq!(client.ask(&get("")).await.status, 400, "no target");
}

#[tokio::test]
async fn only_a_request_at_the_start_of_a_message_matches() {
    let fixture = Fixture::new(LOGIN).await;
    let words = get("/login");
    let other = "POST /other HTTP/1.1\r\nHost: test\r\nContent-Length: 38\r\n\r\nabc";
    let mut client = fixture.refused_client(&words).await;
    assert!(is_fast(&client.ask(&words).await));
    client.send(other).await;
    let reply = client.ask(&words).await;
    assert_eq!((reply.status, fixture.server.last().target.as_str()), (200, "/other"));
    assert!(client.is_silent(), "the bytes were the body");
    // Several in one write, and one in two.
    let mut client = fixture.refused_client(&words).await;
    client.send(words.repeat(3)).await;
    for _ in 0..3 {
        assert_eq!(client.reply().await.status, 429);
    }
    client.send(&words[..9]).await;
    client.send(&words[9..]).await;
    assert_eq!(client.reply().await.status, 429);
    assert!(client.is_silent());
}

#[tokio::test]
async fn connection_close_and_head_take_the_slow_path() {
    let fixture = Fixture::new(LOGIN).await;
    for lines in ["Connection: close\r\n", "Connection: keep-alive\r\nConnection: close\r\n"] {
        let mut client = fixture.client().await;
        while client.get("/login").await.status != 429 {}
        let reply = client.ask(&format!("GET /login HTTP/1.1\r\nHost: test\r\n{lines}\r\n")).await;
        assert_eq!((reply.status, reply.header("connection")), (429, "close"));
        assert!(client.closed().await.is_empty());
    }
    let mut client = fixture.client().await;
    for _ in 0..5 {
        client.send("HEAD /login HTTP/1.1\r\nHost: test\r\n\r\n").await;
        assert_eq!(client.head().await.status, 429);
        assert!(client.is_silent(), "no body follows");
    }
}

#[tokio::test]
async fn too_many_fast_refusals_end_the_connection() {
    let connection_limits = ConnectionLimits::new(ConnectionLimitOptions {
        most_rejections: 6,
        ..ConnectionLimitOptions::default()
    });
    let fixture = Fixture::with(LOGIN, Some(connection_limits), None).await;
    let mut client = fixture.refused_client(&get("/login")).await;
    for _ in 0..3 {
        assert_eq!(client.get("/login").await.header("connection"), "");
    }
    let last = client.get("/login").await;
    assert_eq!((last.status, last.header("connection"), is_fast(&last)), (429, "close", true));
    assert!(client.closed().await.is_empty());
}

#[tokio::test]
async fn fast_refusals_are_logged() {
    let lines = Lines::default();
    let log = fixture::access_log(&lines, |_| ());
    let fixture = Fixture::with(LOGIN, None, Some(log)).await;
    let mut client = fixture.refused_client(&get("/login")).await;
    let reply = client.get("/login?x=1&k%65y=secret").await;
    assert!(is_fast(&reply));
    eventually("five lines", async || lines.text().lines().count() == 5).await;
    let text = lines.text();
    let last = text.lines().last().unwrap();
    let bytes = format!(r#""bytes_sent":{},"#, reply.body.len());
    let expected = r#""client":"127.0.0.1","method":"GET","host":"test","target":"/login?x=1&k%65y=…","protocol":"HTTP/1.1","status":429,"outcome":"limited","rule":"login","shadowed_by":null,"retry_after_ms":"#;
    assert!(last.contains(expected) && last.contains(&bytes), "{last}");
    assert!(last.ends_with(r#""complete":true}"#), "{last}");
}
