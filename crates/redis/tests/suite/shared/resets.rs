//! Resets on Redis: states, credit, last replies and holds of a client, on every node.

use super::fleet::{Node, alone, patient_nodes};
use crate::setting::{from, key};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate_core::algorithm::Algorithm;
use tollgate_limiter::{EndpointScope, Request, StateSource};
use tollgate_testbed::{RedisCluster, RedisServer, eventually};

/// Sends requests through all nodes at once until each was refused ten times. Returns how many were admitted.
async fn exhaust(nodes: &[Arc<Node>], request: Request<'static>) -> u64 {
    let mut senders = JoinSet::new();
    for node in nodes {
        let node = Arc::clone(node);
        senders.spawn(async move {
            let (mut admitted, mut refused) = (0, 0);
            while refused < 10 {
                match node.check(&request).await {
                    (true, _) => admitted += 1,
                    (false, _) => refused += 1,
                }
            }
            admitted
        });
    }
    senders.join_all().await.into_iter().sum()
}

/// Nodes hold credit while the state is reset: a bucket is never exceeded, a window by what was in hand at most.
#[test]
fn credit_does_not_come_on_top_of_a_reset() {
    alone(async || {
        let server = RedisServer::start(&[]);
        for algorithm in Algorithm::scripted() {
            let (name, capacity) = (algorithm.name(), 900);
            let burst = if algorithm == Algorithm::Gcra { ", burst: 899" } else { "" };
            let text = format!(
                "rules: [{{ id: {name}, key: api_key, algorithm: {name}, limit: {capacity}/day{burst} }}]"
            );
            let nodes = patient_nodes(&server.url(), &text, 3).await;
            // Busy on every node, so that each takes tokens ahead.
            for _ in 0..100 {
                for node in &nodes {
                    assert!(node.check(&key("a")).await.0, "{name}");
                }
            }
            let readings = nodes[0].limiter.peek(&key("a"), EndpointScope::Any).await;
            let [reading] = &*readings else { panic!("{readings:?}") };
            assert_eq!(reading.source, StateSource::Store);
            let state = reading.state.unwrap();
            assert!(
                state.status.remaining <= 600 && state.status.remaining + state.lent >= 570,
                "{name}: {state:?}"
            );
            let reset = nodes[1].limiter.reset(&key("a"), EndpointScope::Any).await;
            assert_eq!(reset, Ok(1), "{name}");
            let admitted = exhaust(&nodes, key("a")).await;
            // A hundredth of the capacity may be in hand.
            let on_top = if algorithm.counts_windows() { capacity / 100 } else { 0 };
            assert!((capacity * 98 / 100..=capacity + on_top + 1).contains(&admitted), "{name}: {admitted}");
            for node in &nodes {
                node.store.close().await;
            }
        }
    });
}

/// A client that is refused everywhere, and in a cooldown, is admitted everywhere soon after a reset at one node.
#[test]
fn every_node_follows_a_reset() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let text = "rules: [{ id: login, key: ip, limit: 3/min, penalty: { after: 2, first: 10min } }]";
        let nodes = patient_nodes(&server.url(), text, 3).await;
        let client = Request { ip: from("192.0.2.1"), endpoint: "/", ..Request::default() };
        eventually("every node has a cooldown", async || {
            for node in &nodes {
                node.check(&client).await;
            }
            nodes.iter().all(|node| node.limiter.abuse_counts().held > 0)
        })
        .await;
        let start = Instant::now();
        assert_eq!(nodes[0].limiter.reset(&client, EndpointScope::Any).await, Ok(1));
        for node in &nodes {
            eventually("no hold", async || {
                node.limiter.tidy();
                node.limiter.abuse_counts().held == 0
            })
            .await;
            assert!(node.check(&client).await.0, "the state is fresh on every node");
        }
        let took = start.elapsed();
        assert!(took.as_millis() < 2_500, "with the next heartbeat: {took:?}");
        assert!(!nodes[1].check(&client).await.0);
        assert_eq!(nodes[2].limiter.reset(&key("unknown"), EndpointScope::Any).await, Ok(0));
    });
}

/// Nodes that subscribe to changes hear of a reset by message, also in a Cluster.
#[test]
fn a_node_that_subscribes_follows_a_reset_within_a_second() {
    alone(async || {
        let (server, cluster) = (RedisServer::start(&[]), RedisCluster::start(3, 0));
        let text = "rules: [{ id: login, key: api_key, limit: 3/min, penalty: { after: 2, first: 10min } }]";
        for url in [server.url(), cluster.url()] {
            let nodes = patient_nodes(&url, text, 2).await;
            let subscribed = Arc::new(Notify::new());
            let told = Arc::clone(&subscribed);
            let control = nodes[1].store.control_channel();
            let _subscription =
                control.subscribe("tg:control:{rules}:changes".to_owned(), move || told.notify_one());
            subscribed.notified().await;
            let mut durations = Vec::new();
            for client in ["a", "b", "c", "d", "e"] {
                eventually("the client has a cooldown", async || {
                    nodes[1].check(&key(client)).await;
                    nodes[1].limiter.abuse_counts().held > 0
                })
                .await;
                let start = Instant::now();
                assert_eq!(nodes[0].limiter.reset(&key(client), EndpointScope::Any).await, Ok(1));
                eventually("no hold", async || {
                    nodes[1].limiter.tidy();
                    nodes[1].limiter.abuse_counts().held == 0
                })
                .await;
                durations.push(start.elapsed());
            }
            durations.sort_unstable();
            assert!(durations[4] < Duration::from_secs(1), "{url}: {durations:?}");
            // With heartbeats alone, each reset waits for the next one: a second.
            assert!(durations[2] < Duration::from_millis(500), "{url}: {durations:?}");
        }
    });
}

#[test]
fn without_the_store_states_are_unknown_and_a_reset_fails() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        let text = "
rules:
  - { id: plan, key: api_key, limit: 3/h }
  - { id: slots, key: api_key, algorithm: concurrency, limit: 2 }
";
        let nodes = patient_nodes(&server.url(), text, 1).await;
        let limiter = &nodes[0].limiter;
        let admission = limiter.admit(&key("a")).unwrap().admission().await;
        let readings = limiter.peek(&key("a"), EndpointScope::Request).await;
        let in_flight: Vec<Option<u32>> = readings.iter().map(|reading| reading.in_flight()).collect();
        assert_eq!(in_flight, [None, Some(1)], "{readings:?}");
        drop(admission);
        server.kill();
        eventually("the store is away", async || nodes[0].store.shards()[0].is_away).await;
        let readings = limiter.peek(&key("a"), EndpointScope::Any).await;
        assert!(
            readings.iter().all(|reading| reading.source == StateSource::Unknown && reading.state.is_none())
        );
        assert!(limiter.reset(&key("a"), EndpointScope::Any).await.is_err());
    });
}
