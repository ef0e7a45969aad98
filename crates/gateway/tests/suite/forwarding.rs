//! Forwarding of requests and responses.

use crate::fixture::{self, Pair};
use crate::raw_client::RawClient;
use tollgate_gateway::settings::{Balance, GatewaySettings, RouteSettings};
use tollgate_testbed::TestUpstream;

#[tokio::test]
async fn requests_and_responses_are_forwarded() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let reply = client.get("/v1/orders/7?a=b&c=%20").await;
    assert_eq!((reply.status, reply.body.as_str(), reply.header("x-served-by")), (200, "hello", "one"));
    let seen = pair.server.last();
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("GET", "/v1/orders/7?a=b&c=%20"));
    assert_eq!(seen.header("host"), "test");
    let reply = client.ask("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n12345").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "12345"));
    assert_eq!(pair.server.last().header("content-length"), "5");
}

#[tokio::test]
async fn connections_are_reused_on_both_sides() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    for path in ["/", "/status/204", "/echo", "/status/304", "/status/500", "/trailers", "/big/300000"] {
        for _ in 0..20 {
            client.get(path).await;
        }
        assert_eq!(pair.server.connections(), 1, "{path}");
    }
    for _ in 0..20 {
        client.ask("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n12345").await;
        client.ask("POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").await;
    }
    assert_eq!(pair.server.connections(), 1);
}

#[tokio::test]
async fn upstream_connections_are_bounded_by_concurrent_requests() {
    let pair = Pair::listening(|listen| listen.threads = 1).await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let mut client = pair.client().await;
        clients.spawn(async move {
            for _ in 0..200 {
                assert_eq!(client.get("/").await.body, "hello");
            }
        });
    }
    clients.join_all().await;
    assert!(pair.server.connections() <= 33, "{}", pair.server.connections());
}

#[tokio::test]
async fn responses_without_a_body_end_with_their_head() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    for (request, status, length) in [
        ("HEAD / HTTP/1.1\r\nHost: test\r\n\r\n", 200, "5"),
        ("HEAD /big/1000000 HTTP/1.1\r\nHost: test\r\n\r\n", 200, "1000000"),
        ("GET /status/204 HTTP/1.1\r\nHost: test\r\n\r\n", 204, ""),
        ("GET /status/304 HTTP/1.1\r\nHost: test\r\n\r\n", 304, ""),
    ] {
        client.send(request).await;
        let head = client.head().await;
        assert_eq!((head.status, head.header("content-length")), (status, length), "{request}");
        assert_eq!(head.header("transfer-encoding"), "", "{request}");
        assert_eq!(client.get("/").await.body, "hello", "the next response follows: {request}");
    }
}

#[tokio::test]
async fn bodies_keep_their_framing() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    for method in ["GET", "POST", "DELETE"] {
        let head = format!("{method} /echo HTTP/1.1\r\nHost: test\r\n");
        let reply =
            client.ask(&format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "abc"), "{method}");
        assert_eq!(pair.server.last().header("transfer-encoding"), "chunked", "{method}");
        let reply = client.ask(&format!("{head}Content-Length: 2\r\n\r\nab")).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "ab"), "{method}");
        assert_eq!(pair.server.last().header("transfer-encoding"), "", "{method}");
    }
    let reply = client.ask("GET /trailers HTTP/1.1\r\nHost: test\r\nTE: trailers\r\n\r\n").await;
    assert_eq!((reply.body.as_str(), reply.trailers.join("|").as_str()), ("12345", "x-sum: 42"));
}

#[tokio::test]
async fn expect_100_continue_is_answered() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    client
        .send("POST /count HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        .await;
    assert_eq!(client.head().await.status, 100);
    client.send("12345").await;
    assert_eq!(client.reply().await.body, "5");
    assert_eq!(pair.server.last().header("expect"), "");
}

#[tokio::test]
async fn all_forms_of_request_targets() {
    let pair = Pair::start().await;
    for (request, target, host) in [
        ("GET http://a.example/x?y HTTP/1.1\r\nHost: other\r\n\r\n", "/x?y", "a.example"),
        ("GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n", "/", "a.example"),
        ("GET http://a.example#x HTTP/1.1\r\nHost: a.example\r\n\r\n", "/", "a.example"),
        ("GET http://a.example?x HTTP/1.1\r\nHost: a.example\r\n\r\n", "/?x", "a.example"),
        ("GET http://a.example?x#y HTTP/1.1\r\nHost: a.example\r\n\r\n", "/?x", "a.example"),
        ("GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n", "/x", "a"),
        ("GET /x?y#z HTTP/1.1\r\nHost: a\r\n\r\n", "/x?y", "a"),
        ("OPTIONS http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n", "/", "a.example"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "*", "a"),
        ("GET /old HTTP/1.0\r\n\r\n", "/old", ""),
    ] {
        let mut client = pair.client().await;
        assert_eq!(client.ask(request).await.status, 200, "{request}");
        let seen = pair.server.last();
        assert_eq!((seen.target.as_str(), seen.header("host").as_str()), (target, host), "{request}");
    }
    let before = pair.server.seen().len();
    for (request, status) in [
        ("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("GET http://user@a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example,b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example:x/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("OPTIONS *#x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET #x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: evil.com:x.int.example\r\n\r\n", 400),
    ] {
        let mut client = pair.client().await;
        assert_eq!(client.ask(request).await.status, status, "{request}");
    }
    assert_eq!(pair.server.seen().len(), before);
}

#[tokio::test]
async fn heads_are_bounded() {
    let pair = Pair::start().await;
    for (header, status) in [
        (format!("X: {}\r\n", "x".repeat(15_000)), 200),
        (format!("X: {}\r\n", "x".repeat(17_000)), 431),
        // The server has the same limit as the gateway, which adds three headers.
        ("X: x\r\n".repeat(96), 200),
        ("X: x\r\n".repeat(100), 431),
    ] {
        let mut client = pair.client().await;
        let reply = client.ask(&format!("GET / HTTP/1.1\r\nHost: test\r\n{header}\r\n")).await;
        assert_eq!(reply.status, status, "{} bytes", header.len());
    }
}

#[tokio::test]
async fn routes_select_upstreams() {
    let (web, api) = (TestUpstream::start("web").await, TestUpstream::start("api").await);
    let named = |name: &str, server: &TestUpstream| {
        let mut upstream = fixture::upstream(&[server]);
        upstream.name = name.to_owned();
        upstream
    };
    let mut settings = GatewaySettings::to(named("web", &web));
    settings.upstreams.push(named("api", &api));
    settings.routes = vec![
        RouteSettings {
            hosts: vec!["shop.example".into()],
            paths: vec![],
            upstream: "web".into(),
            bodies: None,
        },
        RouteSettings {
            hosts: vec!["shop.example".into()],
            paths: vec!["/api".into()],
            upstream: "api".into(),
            bodies: None,
        },
        RouteSettings {
            hosts: vec!["*.int.example".into()],
            paths: vec![],
            upstream: "api".into(),
            bodies: None,
        },
    ];
    let gateway = fixture::start(&settings);
    let mut client = RawClient::connect(gateway.address()).await;
    for (host, path, served_by) in [
        ("shop.example", "/", "web"),
        ("SHOP.example:80", "/api/x", "api"),
        ("shop.example", "/apis", "web"),
        ("shop.example", "/api;x/y", "api"),
        ("shop.example.", "/", "web"),
        ("shop.example.:8080", "/", "web"),
        ("A.int.example.", "/", "api"),
    ] {
        let reply = client.ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(reply.header("x-served-by"), served_by, "{host} {path}");
    }
    for host in ["other.example", "int.example", "evilint.example", "x.int.example.evil"] {
        let reply = client.ask(&format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!((reply.status, reply.code()), (404, "NOT_FOUND"), "{host}");
    }
    for host in ["evil.com:x.int.example", "evil.com:1.int.example", "a.int.example..", "[::1].int.example"] {
        let mut client = RawClient::connect(gateway.address()).await;
        let reply = client.ask(&format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!((reply.status, reply.code()), (400, "BAD_REQUEST"), "{host}");
    }
}

#[tokio::test]
async fn servers_take_turns() {
    for balance in [Balance::RoundRobin, Balance::LeastLoaded] {
        let servers =
            [TestUpstream::start("a").await, TestUpstream::start("b").await, TestUpstream::start("c").await];
        let mut upstream = fixture::upstream(&[&servers[0], &servers[1], &servers[2]]);
        upstream.balance = balance;
        let gateway = fixture::start(&GatewaySettings::to(upstream));
        let mut client = RawClient::connect(gateway.address()).await;
        for _ in 0..30 {
            assert_eq!(client.get("/").await.status, 200);
        }
        let counts = servers.each_ref().map(|server| server.seen().len());
        assert_eq!(counts, [10, 10, 10], "{balance:?}");
    }
}

#[tokio::test]
async fn the_least_loaded_server_is_next() {
    let (busy, free) = (TestUpstream::start("busy").await, TestUpstream::start("free").await);
    let gateway = fixture::start(&GatewaySettings::to(fixture::upstream(&[&busy, &free])));
    let mut stuck = RawClient::connect(gateway.address()).await;
    stuck.send("GET /gated HTTP/1.1\r\nHost: test\r\n\r\n").await;
    tollgate_testbed::eventually("it arrived", async || !busy.seen().is_empty() || !free.seen().is_empty())
        .await;
    let (busy, free) = if busy.seen().is_empty() { (free, busy) } else { (busy, free) };
    let mut client = RawClient::connect(gateway.address()).await;
    for _ in 0..10 {
        client.get("/").await;
    }
    assert_eq!((busy.seen().len(), free.seen().len()), (1, 10));
    busy.release_gated();
    assert_eq!(stuck.reply().await.body, "let go");
}
