//! What one address may hold.

use crate::setting::{self, Pair};
use crate::wire::Wire;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::Settings;
use tollgate_http::serve::{Crowd, CrowdOptions};
use tollgate_testbed::{Upstream, eventually};

#[tokio::test]
async fn an_address_has_so_many_connections_over_all_threads() {
    let crowd = Crowd::new(CrowdOptions { most_connections: 3, ..CrowdOptions::default() });
    let counted = crowd.clone();
    let pair = Pair::listening(|listen| listen.entrance.crowd = Some(counted)).await;
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
    assert_eq!(crowd.turned_away(), 5);
    assert_eq!(open[0].get("/").await.status, 200, "those that are there stay");
    drop(open.pop());
    eventually("there is room again", async || {
        let mut client = pair.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        client.closed_or_reply().await
    })
    .await;
}

#[tokio::test]
async fn a_trusted_proxy_is_not_counted() {
    let trusted = vec!["127.0.0.0/8".parse().unwrap()];
    let crowd = Crowd::new(CrowdOptions { most_connections: 1, trusted, ..CrowdOptions::default() });
    let server = Upstream::start("one").await;
    let mut listen = setting::listen();
    listen.entrance.crowd = Some(crowd);
    let gateway = Gateway::start(
        &Settings::to(setting::upstream(&[&server])),
        &setting::limits("allow_empty: true"),
        &listen,
    )
    .unwrap();
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut client = Wire::connect(gateway.address()).await;
        assert_eq!(client.get("/").await.status, 200);
        open.push(client);
    }
}

#[tokio::test]
async fn a_servers_own_429_is_no_rejection_of_ours() {
    let crowd = Crowd::new(CrowdOptions { most_rejections: 3, ..CrowdOptions::default() });
    let pair = Pair::listening(|listen| listen.entrance.crowd = Some(crowd)).await;
    let mut client = pair.client().await;
    for _ in 0..10 {
        let reply = client.get("/status/429").await;
        assert_eq!((reply.status, reply.header("connection")), (429, ""));
    }
}
