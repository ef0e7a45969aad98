//! Errors that a store replies with while nodes are at work: every decision that meets one is degraded and follows its
//! rule, each reason is one ERROR in ten seconds with the shard and its address, and each is counted.

use super::fleet::Node;
use super::node::patient;
use crate::log::{Log, logged};
use std::sync::Arc;
use tollgate_limiter::Request;
use tollgate_redis::{RedisSettings, StoreErrorKind};
use tollgate_testbed::{RedisCluster, RedisServer, eventually};
use tracing::Level;

const RULES: &str = "
defaults: { consistency: strict }
rules:
  - { id: allow, endpoint: /allow, limit: 1000/h, on_store_failure: allow }
  - { id: deny, endpoint: /deny, limit: 1000/h, on_store_failure: deny }
  - { id: log, endpoint: /log, algorithm: sliding_window_log, limit: 1000/h, on_store_failure: deny }
  - { id: slots, endpoint: /slots, algorithm: concurrency, limit: 2, on_store_failure: allow }
  - { id: no_slots, endpoint: /no-slots, algorithm: concurrency, limit: 2, on_store_failure: deny }
  - { id: few_slots, endpoint: /few-slots, algorithm: concurrency, limit: 2, on_store_failure: local }
";
/// So many that every shard has some.
const CLIENTS: usize = 12;

async fn start(url: &str) -> Arc<Node> {
    // With a random secret one run in 2,000 has all clients on one of two shards.
    Node::start_with(url, RULES, RedisSettings { expected_nodes: Some(1), ..patient() }).await
}

/// How many of eight requests of each client at once pass, and how many of all are degraded.
async fn passing(node: &Node, endpoint: &str) -> (usize, usize) {
    let (mut passed, mut degraded) = (0, 0);
    for client in 0..CLIENTS {
        let client = format!("client-{client}");
        let request = Request { api_key: Some(&client), endpoint, ..Request::default() };
        let mut held = Vec::new();
        for _ in 0..8 {
            let admission = node.limiter.admit(&request).unwrap().admission().await;
            passed += usize::from(admission.decision.allowed());
            degraded += usize::from(admission.decision.degraded);
            held.push(admission);
        }
    }
    (passed, degraded)
}

const ALL: usize = 8 * CLIENTS;

async fn assert_well(node: &Node) {
    for endpoint in ["/allow", "/deny", "/log"] {
        assert_eq!(passing(node, endpoint).await, (ALL, 0), "{endpoint}");
    }
    for endpoint in ["/slots", "/no-slots", "/few-slots"] {
        // Places that could not be given back run out by themselves.
        eventually("slots are free", async || passing(node, endpoint).await == (2 * CLIENTS, 0)).await;
    }
}

async fn assert_degraded(node: &Node, kind: StoreErrorKind) {
    for (endpoint, passed) in [("/allow", ALL), ("/deny", 0), ("/log", 0)] {
        assert_eq!(passing(node, endpoint).await, (passed, ALL), "{endpoint}");
    }
    for (endpoint, passed) in [("/slots", ALL), ("/no-slots", 0), ("/few-slots", 2 * CLIENTS)] {
        let found = passing(node, endpoint).await;
        // A script that has freed slots may take one, however full the memory is.
        let is_decided = kind == StoreErrorKind::Memory && found == (2 * CLIENTS, 0);
        assert!(is_decided || found == (passed, ALL), "{endpoint}: {found:?}");
    }
}

/// One line for each shard and reason, however many decisions there were.
fn assert_logged(log: &Log, servers: &[RedisServer], code: &str) {
    let lines = log.errors();
    for server in servers {
        let about =
            |line: &&String| line.contains(&server.address()) && line.contains(&format!("reason=\"{code} "));
        let about: Vec<&String> = lines.iter().filter(about).collect();
        println!("{}: {about:?}", server.address());
        // A script with flags puts it in words of its own.
        assert!((1..=2).contains(&about.len()), "{lines:?}");
        assert!(about.iter().all(|line| line.contains("shard=") && line.contains("degraded")), "{about:?}");
    }
    assert!(lines.iter().all(|line| line.contains(code)), "{lines:?}");
}

/// A fault that begins and ends while a node is at work, on each of `servers`.
async fn fault(
    log: &Log,
    url: &str,
    servers: &[RedisServer],
    (code, kind): (&str, StoreErrorKind),
    begin: impl Fn(&RedisServer),
    end: impl Fn(&RedisServer),
) {
    let node = start(url).await;
    assert_well(&node).await;
    assert_eq!((node.store.errors(kind), log.errors()), (0, Vec::new()));
    servers.iter().for_each(&begin);
    assert_degraded(&node, kind).await;
    assert_logged(log, servers, code);
    assert!(node.store.errors(kind) >= 3 * ALL as u64, "{}", node.store.errors(kind));
    assert!(node.store.shards().iter().all(|shard| !shard.is_away), "it answers");

    // A node that starts now is not kept from it: what is full may have room again in a moment.
    log.clear();
    let late = start(url).await;
    assert_eq!(passing(&late, "/deny").await, (0, ALL));
    assert_logged(log, servers, code);

    servers.iter().for_each(&end);
    for node in [&node, &late] {
        eventually("all is well again", async || passing(node, "/deny").await == (ALL, 0)).await;
        eventually("slots are free", async || passing(node, "/no-slots").await == (2 * CLIENTS, 0)).await;
    }
    log.clear();
}

fn set(name: &'static str, value: &'static str) -> impl Fn(&RedisServer) {
    move |server| assert_eq!(server.cli(&["CONFIG", "SET", name, value]), "OK")
}

async fn every_fault(log: &Log, url: &str, servers: &[RedisServer]) {
    let replicas = ("NOREPLICAS", StoreErrorKind::Replicas);
    let name = "min-replicas-to-write";
    fault(log, url, servers, replicas, set(name, "1"), set(name, "0")).await;
    let memory = ("OOM", StoreErrorKind::Memory);
    fault(log, url, servers, memory, set("maxmemory", "1"), set("maxmemory", "0")).await;
    let saving = ("MISCONF", StoreErrorKind::Persistence);
    fault(log, url, servers, saving, RedisServer::fail_to_save, RedisServer::save_again).await;
}

#[test]
fn a_server_without_replicas_memory_or_disk_degrades() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        every_fault(log, &server.url(), std::slice::from_ref(&server)).await;
    });
}

#[test]
fn a_cluster_without_replicas_memory_or_disk_degrades() {
    logged(async |log| {
        let cluster = RedisCluster::start(2, 0);
        every_fault(log, &cluster.url(), &cluster.primaries).await;
    });
}

#[test]
fn a_script_that_fails_for_one_client_degrades_it_alone() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        let node = start(&server.url()).await;
        let check = async |client: &str| {
            node.check(&Request { api_key: Some(client), endpoint: "/deny", ..Request::default() }).await
        };
        assert_eq!(check("one").await, (true, false));
        // A state as a later version may write it.
        let spoil = "for _, key in ipairs(redis.call('KEYS', 'tg:{*')) do \
                     for _, field in ipairs(redis.call('HKEYS', key)) do redis.call('HSET', key, field, '\\t') end end";
        server.cli(&["EVAL", spoil, "0"]);
        assert_eq!(check("one").await, (false, true));
        assert_eq!(check("two").await, (true, false));
        let lines = log.lines(Level::ERROR, &["a state is in format 9", &server.address()]);
        assert_eq!((lines.len(), log.errors().len()), (1, 1), "{log:?}");
        assert_eq!(node.store.errors(StoreErrorKind::Script), 1);
    });
}

#[test]
fn a_damaged_log_is_an_error_and_does_not_grow() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        let node = start(&server.url()).await;
        let script = |text: &str| server.cli(&["EVAL", text, "0"]);
        let lists = "local lists = {}; for _, key in ipairs(redis.call('KEYS', 'tg:{*')) do \
                     if redis.call('TYPE', key).ok == 'list' then lists[#lists + 1] = key end end; ";
        let damages = ["0, string.rep('9', 24)", "0, 'short'", "-1, string.rep('\\255', 18)", "-1, 'short'"];
        for (round, damage) in damages.into_iter().enumerate() {
            let client = format!("client-{round}");
            let check = async || {
                node.check(&Request { api_key: Some(&client), endpoint: "/log", ..Request::default() }).await
            };
            for _ in 0..3 {
                assert_eq!(check().await, (true, false), "{damage}");
            }
            let state = || script(&format!("{lists} return {{#lists, redis.call('LLEN', lists[1])}}"));
            let before = state();
            script(&format!("{lists} redis.call('LSET', lists[1], {damage})"));
            for errors in 1..=4 {
                assert_eq!(check().await, (false, true), "{damage}");
                assert_eq!(node.store.errors(StoreErrorKind::Script), 4 * round as u64 + errors, "{damage}");
            }
            assert_eq!(state(), before, "{damage}");
            script(&format!("{lists} redis.call('DEL', lists[1])"));
            assert_eq!(check().await, (true, false), "{damage}");
            script(&format!("{lists} redis.call('DEL', lists[1])"));
        }
        assert_eq!(log.lines(Level::ERROR, &["a log is damaged", &server.address()]).len(), 1, "{log:?}");
    });
}

#[test]
fn a_primary_that_becomes_a_replica_is_an_error() {
    logged(async |log| {
        let (server, other) = (RedisServer::start(&[]), RedisServer::start(&[]));
        let node = start(&server.url()).await;
        assert_well(&node).await;
        server.cli(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
        assert_eq!(passing(&node, "/deny").await, (0, ALL));
        assert!(node.store.errors(StoreErrorKind::ReadOnly) > 0);
        let lines = log.lines(Level::ERROR, &["READONLY", &server.address(), "shard=0"]);
        assert_eq!(lines.len(), 1, "{:?}", log.errors());
        eventually("it is given up", async || node.store.shards()[0].is_away).await;
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        eventually("it is a primary again", async || passing(&node, "/deny").await == (ALL, 0)).await;
    });
}
