//! Ejection of servers: failures that one client can provoke eject none.

use crate::fixture;
use crate::raw_client::RawClient;
use crate::raw_upstream::{End, RawUpstream};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpSocket;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::{GatewaySettings, UpstreamSettings};
use tollgate_http::identity::{ClientIpOptions, IdentityExtractor, IdentityOptions, IpNetwork};

const HELLO: (&str, End) = ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", End::Stay);

fn script(target: &str) -> (&'static str, End) {
    match target {
        "/no-status" => ("hello there\r\n\r\n", End::Close),
        "/bad-status" => ("HTTP/1.1 9 \r\n\r\n", End::Close),
        "/bad-header" => ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", End::Close),
        "/bad-length" => ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", End::Close),
        "/nothing" => ("", End::Close),
        "/reset" => ("", End::Reset),
        _ => HELLO,
    }
}

const BAD: [&str; 6] = ["/no-status", "/bad-status", "/bad-header", "/bad-length", "/nothing", "/reset"];

/// A client at the address `127.0.0.number`.
async fn client(gateway: SocketAddr, number: u8) -> RawClient {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, number], 0))).unwrap();
    RawClient::over(socket.connect(gateway).await.unwrap())
}

/// Requests every kind of invalid response.
async fn provoke(gateway: SocketAddr, number: u8) {
    for _ in 0..3 {
        for target in BAD {
            let mut client = client(gateway, number).await;
            assert_eq!(client.get(target).await.status, 502, "{target}");
            let post = format!("POST {target} HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!(client.ask(&post).await.status, 502, "{target}");
        }
    }
}

fn two(first: &RawUpstream, second: &RawUpstream) -> UpstreamSettings {
    fixture::at([first.address, second.address])
}

#[tokio::test]
async fn one_client_cannot_eject_a_server() {
    let (first, second) = (RawUpstream::start(script).await, RawUpstream::start(script).await);
    let gateway = fixture::start(&GatewaySettings::to(two(&first, &second)));
    provoke(gateway.address(), 1).await;
    let before = (first.requests(), second.requests());
    let mut other = client(gateway.address(), 2).await;
    for _ in 0..20 {
        assert_eq!(other.get("/").await.body, "hello");
    }
    assert!(first.requests() > before.0 && second.requests() > before.1, "both are in use");
}

#[tokio::test]
async fn clients_cannot_eject_the_last_server() {
    let only = RawUpstream::start(script).await;
    let gateway = fixture::start(&GatewaySettings::to(fixture::at([only.address])));
    for number in 1..=10 {
        provoke(gateway.address(), number).await;
    }
    assert_eq!(client(gateway.address(), 11).await.get("/").await.body, "hello");
}

#[tokio::test]
async fn failures_of_many_clients_eject_a_server() {
    let (good, bad) =
        (RawUpstream::start(|_| HELLO).await, RawUpstream::start(|_| ("?\r\n\r\n", End::Close)).await);
    let gateway = fixture::start(&GatewaySettings::to(two(&good, &bad)));
    for number in 1..=5 {
        let mut client = client(gateway.address(), number).await;
        let statuses = [client.get("/").await.status, client.get("/").await.status];
        assert!(statuses.contains(&502), "{statuses:?}");
    }
    let before = bad.requests();
    for number in 1..=10 {
        assert_eq!(client(gateway.address(), number).await.get("/").await.status, 200);
    }
    assert_eq!(bad.requests(), before);
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_are_distinguished() {
    let ask =
        |number: u8| format!("GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: 192.0.2.{number}\r\n\r\n");
    // The trusted networks, and whether the failing server is ejected.
    for (networks, expected) in [(vec!["127.0.0.0/8".parse().unwrap()], true), (Vec::new(), false)] {
        let (good, bad) =
            (RawUpstream::start(|_| HELLO).await, RawUpstream::start(|_| ("?\r\n\r\n", End::Close)).await);
        let trusted = networks.iter().copied().map(IpNetwork).collect();
        let client_ip = ClientIpOptions { trusted, ..ClientIpOptions::default() };
        let options = IdentityOptions { client_ip, ..IdentityOptions::default() };
        let identities = IdentityExtractor::open(&options, std::path::Path::new("")).unwrap();
        let limits = fixture::limits("allow_empty: true").identities(Arc::new(identities));
        let settings = GatewaySettings { trusted: networks, ..GatewaySettings::to(two(&good, &bad)) };
        let gateway = Gateway::start(&settings, &limits, &fixture::listen()).unwrap();
        let mut proxy = RawClient::connect(gateway.address()).await;
        for number in 1..=12 {
            proxy.ask(&ask(number)).await;
        }
        let before = bad.requests();
        for number in 1..=6 {
            proxy.ask(&ask(number)).await;
        }
        assert_eq!(bad.requests() == before, expected, "{:?}", options.client_ip);
    }
}
