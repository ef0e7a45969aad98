//! Hop-by-hop headers and forwarding headers.

use crate::fixture::Pair;

#[tokio::test]
async fn hop_by_hop_headers_are_removed() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let request = "GET / HTTP/1.1\r\nHost: test\r\nConnection: X-Private, close-not, Content-Length, Host\r\n\
                   X-Private: yes\r\nKeep-Alive: 5\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: x\r\n\
                   TE: gzip, trailers\r\nUpgrade: h2c\r\nX-Public: yes\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(client.ask(request).await.status, 200);
    let seen = pair.server.last();
    for name in
        ["connection", "x-private", "keep-alive", "proxy-connection", "proxy-authorization", "upgrade"]
    {
        assert_eq!(seen.header(name), "", "{name}");
    }
    assert_eq!((seen.header("x-public").as_str(), seen.header("te").as_str()), ("yes", "trailers"));
    assert_eq!(seen.header("host"), "test");
    let reply = client.get("/hops").await;
    for name in ["connection", "x-private", "keep-alive", "proxy-connection"] {
        assert_eq!(reply.header(name), "", "{name}");
    }
    assert_eq!((reply.header("x-public"), reply.body.as_str()), ("yes", "hello"));
}

#[tokio::test]
async fn an_upgrade_to_http2_is_not_forwarded() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let request = "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-GatewaySettings\r\nUpgrade: h2c\r\n\
                   HTTP2-GatewaySettings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n";
    assert_eq!(client.ask(request).await.status, 200);
    let seen = pair.server.last();
    for name in ["connection", "upgrade", "http2-settings"] {
        assert_eq!(seen.header(name), "", "{name}");
    }
}

const FORGED: &str = "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 1.2.3.4\r\n\
                    X-Forwarded-For: 5.6.7.8\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n\
                    Forwarded: for=1.2.3.4\r\n\r\n";

#[tokio::test]
async fn forwarding_headers_of_untrusted_peers_are_replaced() {
    let pair = Pair::with(|settings| settings.forwarded.forwarded = true).await;
    let mut client = pair.client().await;
    client.ask(FORGED).await;
    let seen = pair.server.last();
    assert_eq!(seen.header("x-forwarded-for"), "127.0.0.1");
    assert_eq!(seen.header("x-forwarded-proto"), "http");
    assert_eq!(seen.header("x-forwarded-host"), "shop.example");
    assert_eq!(seen.header("forwarded"), "for=127.0.0.1;proto=http");
    assert_eq!(seen.header("via"), "");
}

#[tokio::test]
async fn forwarding_headers_of_trusted_proxies_are_extended() {
    let pair = Pair::with(|settings| {
        settings.trusted = vec!["127.0.0.0/8".parse().unwrap()];
        settings.forwarded.forwarded = true;
        settings.forwarded.via = true;
    })
    .await;
    let mut client = pair.client().await;
    let reply = client.ask(FORGED).await;
    assert_eq!(reply.header("via"), "1.1 tollgate");
    let seen = pair.server.last();
    assert_eq!(seen.header("x-forwarded-for"), "1.2.3.4, 5.6.7.8, 127.0.0.1");
    for name in ["x-forwarded-for", "forwarded"] {
        assert_eq!(seen.headers.get_all(name).iter().count(), 1, "{name} in one line");
    }
    assert_eq!(seen.header("x-forwarded-proto"), "https");
    assert_eq!(seen.header("x-forwarded-host"), "evil");
    assert_eq!(seen.header("forwarded"), "for=1.2.3.4, for=127.0.0.1;proto=http");
    assert_eq!(seen.header("via"), "1.1 tollgate");
}

#[tokio::test]
async fn disabled_forwarding_headers_are_removed() {
    let pair = Pair::with(|settings| settings.forwarded.x_forwarded = false).await;
    let mut client = pair.client().await;
    client.ask(FORGED).await;
    let seen = pair.server.last();
    for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded"] {
        assert_eq!(seen.header(name), "", "{name}");
    }
}
