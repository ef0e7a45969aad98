//! Forward-auth over real connections: statuses, headers, bodies, malformed requests.

use crate::client::{Client, Reply};
use crate::fixture::DoorFixture;
use tollgate_testbed::bypass::{self, BypassOutcome, BypassSpelling};

/// A request of a proxy that describes one of `key` for `uri`.
fn ask(method: &str, target: &str, key: &str, uri: &str, more: &str) -> String {
    format!(
        "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: {uri}\r\n\
         X-Forwarded-For: 203.0.113.9\r\nX-Api-Key: {key}\r\n{more}\r\n"
    )
}

async fn asked(client: &mut Client, key: &str, uri: &str) -> Reply {
    asked_at(client, "/v1/auth", key, uri).await
}

pub async fn asked_at(client: &mut Client, target: &str, key: &str, uri: &str) -> Reply {
    client.send(ask("GET", target, key, uri, "")).await;
    client.reply().await
}

#[tokio::test]
async fn admissions_and_refusals() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    for left in (0..100).rev() {
        let reply = asked(&mut client, "sk_1", "/v1/orders?x=1").await;
        assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, left.to_string().as_str()));
        assert_eq!((reply.body.as_str(), reply.header("content-length")), ("", "0"));
        assert_eq!(reply.header("retry-after"), "");
    }
    let reply = asked(&mut client, "sk_1", "/v1/orders").await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, "1"));
    assert_eq!(reply.header("x-ratelimit-limit"), "100");
    assert_eq!(reply.header("x-tollgate-status"), "");
    assert_eq!(reply.json()["error"]["code"], "RATE_LIMIT_EXCEEDED");
    // Another client, and another endpoint without a limit.
    assert_eq!(asked(&mut client, "sk_2", "/v1/orders").await.header("x-ratelimit-remaining"), "99");
    let reply = asked(&mut client, "sk_1", "/free").await;
    assert_eq!((reply.status, reply.limit_headers()), (200, Vec::new()));
    let reply = asked(&mut client, "sk_bad", "/free").await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (403, Some("DENIED")));
    let problem = "Accept: application/problem+json\r\nContent-Type: application/grpc\r\n";
    client.send(ask("GET", "/v1/auth", "sk_1", "/v1/orders", problem)).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.header("content-type")), (429, "application/problem+json"));
    fixture.clock.advance_us(1_000_000);
    assert_eq!(asked(&mut client, "sk_1", "/v1/orders").await.status, 200);
}

#[tokio::test]
async fn the_status_of_refusals_is_selectable() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    assert_eq!(asked(&mut client, "sk_1", "/v1/captcha").await.status, 200);
    for _ in 0..100 {
        asked(&mut client, "sk_1", "/v1/orders").await;
    }
    for (query, key, uri, expected, own) in [
        ("", "sk_1", "/v1/orders", 429, ""),
        ("?deny_status=429", "sk_1", "/v1/orders", 429, ""),
        ("?deny_status=403", "sk_1", "/v1/orders", 403, "429"),
        ("?deny_status=401", "sk_1", "/v1/orders", 401, "429"),
        ("?deny_status=503", "sk_1", "/v1/orders", 503, "429"),
        ("?deny_status=403", "sk_bad", "/v1/orders", 403, "403"),
        ("?deny_status=401", "sk_bad", "/v1/orders", 403, "403"),
        ("?deny_status=403", "sk_1", "/a%2fb", 403, "400"),
        ("?deny_status=503", "sk_1", "/a%2fb", 400, "400"),
        ("", "sk_1", "/a%2fb", 400, ""),
        ("?deny_status=403", "sk_2", "/v1/orders", 200, ""),
        // Wherever the operator has made a mistake, all requests are refused.
        ("?deny_status=200", "sk_2", "/v1/orders", 400, ""),
        ("?deny_status=forbidden", "sk_2", "/v1/orders", 400, ""),
        // A client that writes what the operator wrote changes nothing: nginx would answer 500 to a 429.
        ("?deny_status=403", "sk_1", "/v1/orders?deny_status=403", 403, "429"),
        // The query that the proxy kept is the client's: no mistake of the operator.
        ("?deny_status=200", "sk_1", "/v1/orders?deny_status=200", 429, ""),
        ("?x=y", "sk_1", "/v1/orders?x=y", 429, ""),
    ] {
        let reply = asked_at(&mut client, &format!("/v1/auth{query}"), key, uri).await;
        let found = (reply.status, reply.header("x-tollgate-status"));
        assert_eq!(found, (expected, own), "{query} {key} {uri}: {}", reply.body);
        if own == "429" {
            assert_eq!((reply.header("retry-after"), reply.header("x-ratelimit-limit")), ("1", "100"));
        }
    }
}

#[tokio::test]
async fn flags_are_in_the_response() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let reply = asked(&mut client, "sk_1", "/v1/captcha").await;
    assert_eq!((reply.status, reply.header("x-captcha")), (200, ""));
    client.send(ask("GET", "/v1/auth", "sk_1", "/v1/captcha", "X-Captcha: none\r\n")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.header("x-captcha")), (200, "captcha"));
}

#[tokio::test]
async fn rules_that_need_the_end_of_a_request_are_errors() {
    let rules = "rules: [{ id: slots, algorithm: concurrency, limit: 2 }]";
    let fixture = DoorFixture::start_with(rules).await;
    let reply = asked(&mut fixture.client().await, "sk_1", "/").await;
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("such rules work in the gateway"), "{}", reply.body);
    let rules = "rules: [{ id: slow, limit: 1/hour, on_exceed: queue }]";
    let fixture = DoorFixture::start_with(rules).await;
    let mut client = fixture.client().await;
    assert_eq!(asked(&mut client, "sk_1", "/").await.status, 200);
    let reply = asked(&mut client, "sk_1", "/").await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, "3600"));
}

#[tokio::test]
async fn head_and_bodies_keep_the_connection() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    client.send(ask("HEAD", "/v1/auth", "sk_1", "/v1/orders", "")).await;
    client.send(ask("GET", "/v1/auth", "sk_1", "/v1/orders", "")).await;
    let (head, get) = (client.reply().await, client.reply().await);
    assert_eq!((head.status, head.header("x-ratelimit-remaining")), (200, "99"));
    assert_eq!((get.status, get.header("x-ratelimit-remaining")), (200, "98"));
    // A body that looks like a request is not one.
    let body = ask("GET", "/v1/auth", "sk_1", "/v1/orders", "");
    let length = format!("Content-Length: {}\r\n", body.len());
    for method in ["POST", "GET"] {
        client.send(ask(method, "/v1/auth", "sk_1", "/v1/orders", &length)).await;
        client.send(&body).await;
        assert_eq!(client.reply().await.status, 200, "{method}");
    }
    client.send(ask("POST", "/v1/auth", "sk_1", "/v1/orders", "Transfer-Encoding: chunked\r\n")).await;
    client.send("5\r\nhello\r\n0\r\n\r\n").await;
    assert_eq!(client.reply().await.header("x-ratelimit-remaining"), "95");
    let reply = asked(&mut client, "sk_1", "/v1/orders").await;
    assert_eq!(reply.header("x-ratelimit-remaining"), "94", "no part of a body was taken for a request");
    // A longer body is not read: the request is answered, and the connection closed.
    client.send(ask("POST", "/v1/auth", "sk_1", "/v1/orders", "Content-Length: 1000000\r\n")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.header("connection")), (200, "close"));
    client.closed().await;
}

#[tokio::test]
async fn long_uris_and_many_headers() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    // The query is not limited, but for the length of the head.
    let long = format!("/v1/orders?{}", "x".repeat(20_000));
    assert_eq!(asked(&mut client, "sk_1", &long).await.header("x-ratelimit-remaining"), "99");
    let cookies = "Cookie: a=b\r\n".repeat(80);
    client.send(ask("GET", "/v1/auth", "sk_1", "/v1/orders", &cookies)).await;
    assert_eq!(client.reply().await.status, 200);
    let reply = asked(&mut client, "sk_1", &format!("/{}", "x".repeat(5_000))).await;
    assert_eq!(reply.status, 400, "{}", reply.body);
    for head in ["X-A: b\r\n".repeat(200), format!("X-A: {}\r\n", "b".repeat(70_000))] {
        let mut client = fixture.client().await;
        client.send(ask("GET", "/v1/auth", "sk_1", "/v1/orders", &head)).await;
        assert_eq!(client.reply().await.status, 431);
    }
}

#[tokio::test]
async fn a_description_needs_a_uri() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    // A page of another origin can send this much without asking first.
    client.send("GET /v1/auth HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nOrigin: http://evil.example\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 400, "{}", reply.body);
    let removed = "X-Forwarded-Uri: /v1/orders\r\n";
    client.send(ask("GET", "/v1/auth", "sk_1", "/v1/orders", "").replace(removed, "")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (400, Some("BAD_REQUEST")));
    assert!(reply.body.contains("has to describe the request"), "{}", reply.body);
    // Of the proxy's own request, a method and an address are used.
    for removed in ["X-Forwarded-Method: GET\r\n", "X-Forwarded-For: 203.0.113.9\r\n"] {
        client.send(ask("GET", "/v1/auth", "sk_2", "/v1/orders", "").replace(removed, "")).await;
        assert_eq!(client.reply().await.status, 200, "{removed}");
    }
    client.send(ask("GET", "/v1/auth", "sk_1", "/v1/orders", "X-Original-URI: /free\r\n")).await;
    assert_eq!(client.reply().await.status, 400);
    assert_eq!(asked(&mut client, "sk_1", "/v1/orders").await.header("x-ratelimit-remaining"), "99");
}

/// Limits by address hold for the client that the proxy names, and invented addresses on the left change nothing.
#[tokio::test]
async fn the_address_is_the_last_one() {
    let rules = "rules: [{ id: logins, key: ip, limit: 1/hour }]";
    let fixture = DoorFixture::start_with(rules).await;
    let mut client = fixture.client().await;
    for (addresses, status) in [
        ("203.0.113.1", 200),
        ("1.1.1.1, 203.0.113.1", 429),
        ("203.0.113.2, 203.0.113.1", 429),
        ("203.0.113.1, 203.0.113.2", 200),
    ] {
        let request = ask("GET", "/v1/auth", "sk_1", "/", "").replace("203.0.113.9", addresses);
        client.send(request).await;
        assert_eq!(client.reply().await.status, status, "{addresses}");
    }
}

#[tokio::test]
async fn no_spelling_bypasses_a_limit() {
    let fixture = DoorFixture::start_with(bypass::RULES).await;
    let mut client = fixture.client().await;
    for (number, row) in bypass::bypasses().enumerate() {
        let (uri, host) = match row.spelling {
            BypassSpelling::Path(path) => (path, "test"),
            BypassSpelling::Host(host) => (row.limited, host),
            _ => continue,
        };
        // What is no header value cannot be forwarded by a proxy.
        if !uri.bytes().chain(host.bytes()).all(|byte| byte.is_ascii_graphic()) || host.is_empty() {
            continue;
        }
        let limited_host = if uri == row.limited { bypass::HOST } else { "test" };
        let key = format!("row-{number}");
        let with_host = |uri: &str, host: &str| {
            ask("GET", "/v1/auth", &key, uri, &format!("X-Forwarded-Host: {host}\r\n"))
        };
        client.send(with_host(row.limited, limited_host)).await;
        let first = client.reply().await;
        assert_eq!(first.status, 200, "{row:?}: {}", first.body);
        client.send(with_host(uri, host)).await;
        let reply = client.reply().await;
        let expected = if row.outcome == BypassOutcome::Limited { 429 } else { 400 };
        assert_eq!(reply.status, expected, "{row:?}: {}", reply.body);
    }
}
