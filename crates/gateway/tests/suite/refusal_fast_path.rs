//! With and without the fast path for repeated refusals, a client receives the same bytes.

use crate::fixture;
use crate::raw_client::RawClient;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt};
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::GatewaySettings;
use tollgate_http::RateLimitLayer;
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tollgate_listen::{ConnectionLimitOptions, ConnectionLimits, RefusalFastPath};
use tollgate_testbed::{PATIENCE, TestUpstream};

const RULES: &str = "rules: [{ id: login, endpoint: /login, limit: 2/min }]";
const START_US: u64 = 1_800_000_000_000_000;
/// The last request is one refusal too many for its address.
const REQUESTS: u32 = 8;
const MOST_REFUSALS: u32 = REQUESTS - 2;

/// The responses to `request`, sent repeatedly on one connection, without their dates; and how many of these dates are of
/// the limiter's clock, which only the fast path writes.
async fn responses(fast_path: RefusalFastPath, request: &str) -> (Vec<String>, usize) {
    let server = TestUpstream::start("one").await;
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::Manual(ManualClock::new(START_US)));
    let loaded = tollgate_core::rules::load("rules.yaml", RULES).unwrap();
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let limits =
        ConnectionLimitOptions { most_rejections: MOST_REFUSALS, ..ConnectionLimitOptions::default() };
    let mut listen = fixture::listen();
    listen.options.refusal_fast_path = fast_path;
    listen.setup.limits = Some(ConnectionLimits::new(limits));
    let settings = GatewaySettings::to(fixture::upstream(&[&server]));
    let gateway = Gateway::start(&settings, &RateLimitLayer::new(Arc::new(limiter)), &listen).unwrap();

    let mut client = RawClient::connect(gateway.address()).await;
    let (mut responses, mut fast) = (Vec::new(), 0);
    for _ in 0..REQUESTS {
        client.send(request).await;
        let (response, date) = tokio::time::timeout(PATIENCE, response(&mut client)).await.unwrap();
        fast += usize::from(date.ends_with("15 Jan 2027 08:00:00 GMT"));
        responses.push(response);
    }
    assert!(client.closed().await.is_empty());
    (responses, fast)
}

/// A response as it was sent, but for its date; and that date.
async fn response(client: &mut RawClient) -> (String, String) {
    let (mut text, mut date, mut length) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        client.stream.read_line(&mut line).await.unwrap();
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
        if let Some(value) = line.strip_prefix("date: ") {
            date = value.trim().to_owned();
            line = "date: \r\n".to_owned();
        }
        text.push_str(&line);
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    client.stream.read_exact(&mut body).await.unwrap();
    text.push_str(std::str::from_utf8(&body).unwrap());
    (text, date)
}

#[tokio::test]
async fn responses_are_the_same_without_the_fast_path() {
    for more in ["\r\n", "Accept: application/problem+json\r\n\r\n", "Content-Length: 3\r\n\r\nabc"] {
        let request = format!("POST /login HTTP/1.1\r\nHost: test\r\n{more}");
        let (parsed, fast) = responses(RefusalFastPath::Disabled, &request).await;
        assert_eq!(fast, 0, "{more:?}");
        let (repeated, fast) = responses(RefusalFastPath::Enabled, &request).await;
        assert_eq!(fast, MOST_REFUSALS as usize - 2, "all but the first two refusals, {more:?}");
        assert_eq!(repeated, parsed, "{more:?}");
        let last = parsed.last().unwrap();
        assert!(last.starts_with("HTTP/1.1 429 ") && last.contains("connection: close\r\n"), "{last}");
    }
}
