//! Grants on Redis: three nodes draw from one pool.

use super::fleet::{Node, alone, patient_nodes};
use crate::setting::key;
use std::sync::Arc;
use tokio::task::JoinSet;
use tollgate_limiter::{ActiveGrant, Request};
use tollgate_testbed::{RedisCluster, RedisServer, eventually};

const SECOND_US: u64 = 1_000_000;
const RULES: &str = "
rules:
  - { id: plan, key: api_key, limit: 30/h }
  - { id: strict, endpoint: /strict, key: api_key, limit: 20/h, algorithm: sliding_window_log }
  - { id: edge, endpoint: /edge, key: tenant, limit: 100/h }
";

/// A grant for ten minutes.
fn grant(node: &Node, id: &str, tokens: u64, lasts_us: u64) -> ActiveGrant {
    ActiveGrant {
        id: id.to_owned(),
        kind: "api_key".to_owned(),
        value: "a".to_owned(),
        rule: None,
        tokens,
        expires: node.limiter.clock().now() + lasts_us,
    }
}

fn give(nodes: &[Arc<Node>], grants: &[ActiveGrant]) {
    nodes.iter().for_each(|node| node.limiter.set_grants(grants.to_vec()));
}

async fn left(node: &Node, request: &Request<'_>) -> Vec<Option<u64>> {
    node.limiter.grant_balances(request).await.into_iter().map(|balance| balance.left).collect()
}

/// Sends `count` requests through each node, four at a time. Returns how many were admitted and how many by a grant.
async fn send(nodes: &[Arc<Node>], request: Request<'static>, count: usize) -> (u64, u64) {
    let mut senders = JoinSet::new();
    for node in nodes.iter().chain(nodes).chain(nodes).chain(nodes) {
        let node = Arc::clone(node);
        senders.spawn(async move {
            let (mut admitted, mut granted) = (0, 0);
            for _ in 0..count / 4 {
                let decision = node.limiter.check(&request).unwrap().decision().await;
                assert!(!decision.degraded, "{decision:?}");
                admitted += u64::from(decision.allowed());
                granted += u64::from(decision.granted);
            }
            (admitted, granted)
        });
    }
    let mut sum = (0, 0);
    while let Some(sent) = senders.join_next().await {
        let (admitted, granted) = sent.unwrap();
        sum = (sum.0 + admitted, sum.1 + granted);
    }
    sum
}

async fn draw_together(url: &str) {
    let nodes = patient_nodes(url, RULES, 3).await;
    give(&nodes, &[grant(&nodes[0], "one", 500, 600 * SECOND_US)]);
    let (admitted, granted) = send(&nodes, key("a"), 400).await;
    assert_eq!((admitted - granted, granted), (30, 500), "exactly the limit, and exactly the grant");
    assert_eq!(left(&nodes[1], &key("a")).await, [Some(0)]);
    assert_eq!(send(&nodes, key("b"), 40).await, (30, 0), "another client");

    // A cost of three does not divide the pool, and what is left is for a cost of one.
    give(&nodes, &[grant(&nodes[0], "two", 100, 600 * SECOND_US)]);
    let (_, granted) = send(&nodes, Request { cost: 3, ..key("a") }, 200).await;
    assert_eq!(granted, 33);
    assert_eq!(send(&nodes, key("a"), 40).await.1, 1);

    // Two limits refuse, and one of them has no grant: nothing is drawn.
    let strict = Request { endpoint: "/strict", ..key("a") };
    let of_plan =
        ActiveGrant { rule: Some("plan".to_owned()), ..grant(&nodes[0], "three", 50, 600 * SECOND_US) };
    give(&nodes, std::slice::from_ref(&of_plan));
    assert_eq!(send(&nodes, strict, 200).await.1, 20, "as many as the other limit has room for");
    assert_eq!(left(&nodes[2], &strict).await, [Some(30)]);
    let of_strict =
        ActiveGrant { id: "four".to_owned(), rule: Some("strict".to_owned()), tokens: 10, ..of_plan.clone() };
    give(&nodes, &[of_plan, of_strict]);
    assert_eq!(send(&nodes, strict, 200).await.1, 10, "each limit has a pool of its own");
    let mut both = left(&nodes[2], &strict).await;
    both.sort();
    assert_eq!(both, [Some(0), Some(20)]);
}

#[test]
fn three_nodes_draw_exactly_so_many() {
    alone(async || {
        let server = RedisServer::start(&[]);
        draw_together(&server.url()).await;
    });
}

#[test]
fn three_nodes_draw_exactly_so_many_from_a_cluster() {
    alone(async || {
        let cluster = RedisCluster::start(3, 0);
        draw_together(&cluster.url()).await;
    });
}

#[test]
fn nothing_is_drawn_after_the_end_or_without_the_store() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        let rules = RULES.replace("limit: 30/h", "limit: 30/h, on_store_failure: deny");
        let nodes = patient_nodes(&server.url(), &rules, 2).await;
        assert_eq!(send(&nodes, key("a"), 100).await, (30, 0));
        give(&nodes, &[grant(&nodes[0], "short", 1_000_000, SECOND_US / 2)]);
        assert!(nodes[0].check(&key("a")).await.0);
        eventually("the grant ends", async || !nodes[0].check(&key("a")).await.0).await;
        assert!(left(&nodes[0], &key("a")).await[0].is_some_and(|left| left > 0), "with tokens left");
        let grants = [grant(&nodes[0], "long", 1_000_000, 600 * SECOND_US)];
        give(&nodes, &grants);
        assert!(nodes[1].check(&key("a")).await.0);
        server.kill();
        for _ in 0..20 {
            assert!(!nodes[1].check(&key("a")).await.0, "the pool cannot be asked");
        }
        assert_eq!(left(&nodes[0], &key("a")).await, [None]);
    });
}
