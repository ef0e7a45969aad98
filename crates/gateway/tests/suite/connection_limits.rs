//! Connection limits per address, and refused addresses.

use crate::fixture::{self, Pair};
use crate::http2;
use crate::raw_client::RawClient;
use std::sync::Arc;
use std::time::Duration;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::GatewaySettings;
use tollgate_listen::{ConnectionLimitOptions, ConnectionLimits};
use tollgate_testbed::{TestUpstream, eventually};

#[tokio::test]
async fn connections_per_address_are_limited_across_threads() {
    let connection_limits = ConnectionLimits::new(ConnectionLimitOptions {
        most_connections: 3,
        ..ConnectionLimitOptions::default()
    });
    let counted = connection_limits.clone();
    let pair = Pair::listening(|listen| listen.setup.limits = Some(counted)).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = pair.client().await;
        assert_eq!(client.get("/").await.status, 200);
        open.push(client);
    }
    for _ in 0..5 {
        let mut client = pair.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        assert!(client.closed().await.is_empty(), "closed before anything is read");
    }
    assert_eq!(connection_limits.refused_connections(), 5);
    assert_eq!(open[0].get("/").await.status, 200, "open connections stay");
    drop(open.pop());
    eventually("another connection is accepted", async || {
        let mut client = pair.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        client.closed_or_reply().await
    })
    .await;
}

#[tokio::test]
async fn a_trusted_proxy_is_not_counted() {
    let trusted = vec!["127.0.0.0/8".parse().unwrap()];
    let connection_limits = ConnectionLimits::new(ConnectionLimitOptions {
        most_connections: 1,
        trusted,
        ..ConnectionLimitOptions::default()
    });
    let server = TestUpstream::start("one").await;
    let mut listen = fixture::listen();
    listen.setup.limits = Some(connection_limits);
    let gateway = Gateway::start(
        &GatewaySettings::to(fixture::upstream(&[&server])),
        &fixture::limits("allow_empty: true"),
        &listen,
    )
    .unwrap();
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut client = RawClient::connect(gateway.address()).await;
        assert_eq!(client.get("/").await.status, 200);
        open.push(client);
    }
}

#[tokio::test]
async fn a_429_of_the_server_is_not_counted() {
    let connection_limits = ConnectionLimits::new(ConnectionLimitOptions {
        most_rejections: 3,
        ..ConnectionLimitOptions::default()
    });
    let pair = Pair::listening(|listen| listen.setup.limits = Some(connection_limits)).await;
    let mut client = pair.client().await;
    for _ in 0..10 {
        let reply = client.get("/status/429").await;
        assert_eq!((reply.status, reply.header("connection")), (429, ""));
    }
}

/// A server behind limits that refuses addresses.
async fn refusing(rules: &str, refuse_time: Duration) -> (Pair, Arc<ConnectionLimits>) {
    let connection_limits = ConnectionLimits::new(ConnectionLimitOptions {
        most_rejections: 5,
        refuse_time,
        ..ConnectionLimitOptions::default()
    });
    let server = TestUpstream::start("one").await;
    let mut listen = fixture::listen();
    listen.setup.limits = Some(Arc::clone(&connection_limits));
    let settings = GatewaySettings::to(fixture::upstream(&[&server]));
    let gateway = Gateway::start(&settings, &fixture::limits(rules), &listen).unwrap();
    (Pair { server, gateway }, connection_limits)
}

const LOGIN: &str = "rules: [{ id: login, endpoint: /login, limit: 1/hour }]";
const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn too_many_refusals_end_all_connections_of_an_address() {
    let (pair, connection_limits) = refusing(LOGIN, LONG).await;
    let (mut idle, mut other, mut busy) = (pair.client().await, pair.client().await, pair.client().await);
    assert_eq!((idle.get("/").await.status, other.get("/").await.status), (200, 200));
    let mut streams = http2::plain(&pair).await;
    assert_eq!(streams.send_request(http2::request("/", "")).await.unwrap().status(), 200);
    let before = pair.server.seen().len();
    busy.send("GET /gated HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it is in flight", async || pair.server.seen().len() > before).await;
    let mut client = pair.client().await;
    assert_eq!(client.get("/login").await.status, 200);
    let before = pair.server.seen().len();
    for _ in 0..5 {
        assert_eq!(client.get("/login").await.status, 429);
    }
    assert!(client.closed().await.is_empty());
    for client in [&mut idle, &mut other] {
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        assert!(client.closed().await.is_empty(), "closed before it is parsed");
    }
    assert!(streams.send_request(http2::request("/", "")).await.is_err());
    let refused = connection_limits.refused_connections();
    for number in 1..=5 {
        let mut client = pair.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        assert!(client.closed().await.is_empty());
        assert_eq!(connection_limits.refused_connections(), refused + number, "refused at accept");
    }
    assert_eq!(pair.server.seen().len(), before, "nothing reached the server");
    pair.server.release_gated();
    assert_eq!(busy.reply().await.status, 200, "requests in flight are finished");
    assert!(busy.closed().await.is_empty());
}

#[tokio::test]
async fn an_address_is_refused_only_for_the_refuse_time() {
    let (pair, _) = refusing(LOGIN, Duration::from_millis(100)).await;
    let mut client = pair.client().await;
    client.get("/login").await;
    for _ in 0..5 {
        assert_eq!(client.get("/login").await.status, 429);
    }
    assert!(client.closed().await.is_empty());
    eventually("it is accepted again", async || {
        let mut client = pair.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        client.closed_or_reply().await
    })
    .await;
}

#[tokio::test]
async fn which_responses_count_as_refusals_and_which_reset_the_count() {
    let get = |target: &str, more: &str| format!("GET {target} HTTP/1.1\r\nHost: test\r\n{more}\r\n");
    let limited = get("/login", "");
    // The last column: whether the address is refused after the fifth refusal.
    for (name, rules, between, request, is_refused) in [
        ("limits", LOGIN, None, limited.clone(), true),
        ("the deny list", "allow_empty: true\ndeny: [127.0.0.1]", None, get("/", ""), true),
        ("gRPC", LOGIN, None, get("/login", "Content-Type: application/grpc\r\n"), true),
        ("after a 400", LOGIN, Some(get("/a%00", "")), limited.clone(), true),
        ("after a 405", LOGIN, Some(limited.replace("GET /login", "TRACE /")), limited.clone(), true),
        ("after a 200", LOGIN, Some(get("/", "")), limited.clone(), false),
        ("after a server's 404", LOGIN, Some(get("/status/404", "")), limited.clone(), false),
    ] {
        let (pair, _) = refusing(rules, LONG).await;
        let mut client = pair.client().await;
        if rules == LOGIN {
            assert_eq!(client.ask(&limited).await.status, 200, "{name}");
        }
        for _ in 0..4 {
            client.ask(&request).await;
        }
        if let Some(between) = &between {
            client = pair.client().await;
            client.ask(between).await;
            client = pair.client().await;
        }
        client.ask(&request).await;
        let mut next = pair.client().await;
        next.send(&request).await;
        assert_eq!(!next.closed_or_reply().await, is_refused, "{name}");
    }
}
