//! Two versions of one rule, side by side and one after the other: no client loses tokens by it.

use super::fleet::{Node, alone};
use crate::setting::load;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tollgate_core::rules::LoadedRules;
use tollgate_limiter::Request;
use tollgate_redis::RedisSettings;
use tollgate_testbed::{PATIENCE, RedisServer, eventually};

const CAPACITY: usize = 1_000;
/// How long both versions are in use.
const LENGTH: Duration = Duration::from_secs(6);

fn rule(per_second: u32) -> String {
    let params = format!("{{ capacity: {CAPACITY}, refill_rate: {per_second} }}");
    format!("rules: [{{ id: one, key: api_key, params: {params}, on_store_failure: deny }}]")
}

/// A node for each text.
async fn nodes_under(url: &str, texts: &[String]) -> Vec<Arc<Node>> {
    let mut nodes = Vec::new();
    for text in texts {
        let settings =
            RedisSettings { secret: Some([7; 16]), timeout: PATIENCE / 10, ..RedisSettings::default() };
        nodes.push(Node::start_with(url, text, settings).await);
    }
    eventually("the nodes know each other", async || {
        nodes.iter().all(|node| node.store.node_count() as usize == texts.len())
    })
    .await;
    nodes
}

async fn check(node: &Node, key: &str) -> bool {
    let request = Request { api_key: Some(key), endpoint: "/", ..Request::default() };
    let (allowed, degraded) = node.check(&request).await;
    assert!(!degraded, "the store answers");
    allowed
}

async fn use_evenly(node: Arc<Node>, key: String, per_second: u32, length: Duration) {
    let end = Instant::now() + length;
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < end {
        ticks.tick().await;
        assert!(check(&node, &key).await, "{key}: less than comes in is asked for");
    }
}

/// How many of `count` requests at once pass.
async fn burst(node: &Arc<Node>, key: &str, count: usize) -> usize {
    let mut sent = JoinSet::new();
    for _ in 0..count {
        let (node, key) = (Arc::clone(node), key.to_owned());
        sent.spawn(async move { check(&node, &key).await });
    }
    sent.join_all().await.into_iter().filter(|passed| *passed).count()
}

async fn side_by_side() {
    let server = RedisServer::start(&[]);
    let nodes = nodes_under(&server.url(), &[rule(10), rule(500)]).await;
    let mut used = JoinSet::new();
    // Each client bursts at one of the two.
    for client in 0..6_u32 {
        for node in &nodes {
            // Together no more than the slower version allows.
            used.spawn(use_evenly(Arc::clone(node), format!("client-{client}"), 2 + client % 3, LENGTH));
        }
    }
    while let Some(ended) = used.join_next().await {
        ended.unwrap();
    }
    for client in 0..6 {
        let passed = burst(&nodes[client % 2], &format!("client-{client}"), CAPACITY).await;
        println!("client {client}: {passed} of {CAPACITY}");
        assert!(passed * 100 >= CAPACITY * 98, "client {client}: {passed} of {CAPACITY}");
    }
}

async fn one_after_the_other() {
    let server = RedisServer::start(&[]);
    let nodes = nodes_under(&server.url(), &[rule(10), rule(10)]).await;
    for node in &nodes {
        assert_eq!(burst(node, "one", CAPACITY * 45 / 100).await, CAPACITY * 45 / 100);
    }
    for node in &nodes {
        let LoadedRules { rules, lists, .. } = load(&rule(500));
        node.limiter.install(rules, lists).unwrap();
    }
    // One request under the new rule; the slower one would bring twenty more.
    assert!(check(&nodes[0], "one").await);
    sleep(Duration::from_secs(2)).await;
    let passed = burst(&nodes[1], "one", CAPACITY).await;
    println!("{passed} of {CAPACITY} two seconds after the change");
    assert!(passed * 100 >= CAPACITY * 98, "{passed} of {CAPACITY}");
}

#[test]
fn two_versions_of_a_rule_leave_a_burst_its_tokens() {
    alone(async || {
        tokio::join!(side_by_side(), one_after_the_other());
    });
}
