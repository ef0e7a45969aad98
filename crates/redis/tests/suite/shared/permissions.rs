//! The permissions of the store's user: the documented list is enough, nothing in it is too much, and one that is missing
//! is an error that names it.

use super::fleet::Node;
use crate::log::{Log, logged};
use std::sync::Arc;
use tollgate_core::algorithm::Algorithm;
use tollgate_limiter::{Clock, Request};
use tollgate_redis::permissions::{
    CLUSTER_COMMANDS, COMMANDS, CONTROL_COMMANDS, DATABASE_COMMANDS, OPTIONAL_COMMANDS,
};
use tollgate_redis::{RedisSettings, RedisStore, StoreErrorKind};
use tollgate_testbed::{PATIENCE, RedisCluster, RedisServer, eventually};
use tracing::Level;

/// Every algorithm, two nodes at a time.
fn rules() -> String {
    let strict = |algorithm: Algorithm| {
        let name = algorithm.name();
        format!("  - {{ id: {name}, endpoint: /{name}, algorithm: {name}, limit: 3/day }}\n")
    };
    let strict: String = Algorithm::scripted().map(strict).collect();
    format!(
        "
defaults: {{ consistency: strict, on_store_failure: deny }}
rules:
{strict}
  - {{ id: leased, endpoint: /leased, limit: 3/s, consistency: leased }}
  - {{ id: slots, endpoint: /concurrency, algorithm: concurrency, limit: 3 }}
"
    )
}
const CLIENTS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn settings() -> RedisSettings {
    RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() }
}

/// Makes the user `limited` with these commands, on keys like `keys`, and nothing else.
fn permit(server: &RedisServer, keys: &str, commands: &[&str]) {
    // Redis 6.2 permits all channels to new users.
    let mut words = vec!["ACL", "SETUSER", "limited", "reset", "resetchannels", "on", ">pw", keys];
    let grants: Vec<String> = commands.iter().map(|command| format!("+{command}")).collect();
    words.extend(grants.iter().map(String::as_str));
    assert_eq!(server.cli(&words), "OK", "{words:?}");
}

fn without<'a>(commands: &[&'a str], missing: &str) -> Vec<&'a str> {
    commands.iter().copied().filter(|command| *command != missing).collect()
}

/// Why a node does not start.
async fn refusal(url: &str) -> String {
    match RedisStore::open(&url.parse().unwrap(), settings(), Clock::system()).await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error.to_string(),
    }
}

/// Two nodes decide by every algorithm: three pass, the fourth does not, and the store has decided each.
async fn decide_everything(url: &str) -> Vec<Arc<Node>> {
    let nodes = [
        Node::start_with(url, &rules(), settings()).await,
        Node::start_with(url, &rules(), settings()).await,
    ];
    eventually("the nodes know each other", async || {
        let counted = nodes.iter().all(|node| node.store.node_count() == 2);
        counted && nodes[0].store.nodes().await.len() == 2
    })
    .await;
    for client in CLIENTS {
        for algorithm in Algorithm::scripted() {
            let endpoint = &format!("/{}", algorithm.name());
            let request = Request { api_key: Some(client), endpoint, ..Request::default() };
            for number in 0..4 {
                let (allowed, degraded) = nodes[number % 2].check(&request).await;
                assert_eq!((allowed, degraded), (number < 3, false), "{client} {endpoint} {number}");
            }
        }
        let request = Request { api_key: Some(client), endpoint: "/leased", ..Request::default() };
        assert_eq!(nodes[0].check(&request).await, (true, false));
        let request = Request { endpoint: "/concurrency", ..request };
        let mut held = Vec::new();
        for number in 0..4 {
            let admission = nodes[number % 2].limiter.admit(&request).unwrap().admission().await;
            let decision = &admission.decision;
            assert_eq!((decision.allowed(), decision.degraded), (number < 3, false), "{decision:?}");
            held.push(admission);
        }
    }
    nodes.to_vec()
}

/// Nothing was refused on the way, and nothing of a self-test is left.
fn assert_nothing_denied(log: &Log, nodes: &[Arc<Node>], servers: &[RedisServer]) {
    assert_eq!(log.errors(), Vec::<String>::new());
    for node in nodes {
        for kind in StoreErrorKind::ALL {
            assert_eq!(node.store.errors(kind), 0, "{kind:?}");
        }
    }
    for server in servers {
        assert_eq!(server.cli(&["ACL", "LOG"]), "");
        assert_eq!(server.cli(&["EVAL", "return #redis.call('KEYS', '*selftest*')", "0"]), "0");
    }
}

#[test]
fn the_documented_list_is_enough() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        permit(&server, "~tg:*", &[&COMMANDS[..], &OPTIONAL_COMMANDS].concat());
        let url = format!("redis://limited:pw@{}", server.address());
        let nodes = decide_everything(&url).await;
        assert_nothing_denied(log, &nodes, std::slice::from_ref(&server));
        for node in nodes {
            node.store.close().await;
        }
        assert_eq!(server.cli(&["ACL", "LOG"]), "");
        assert_eq!(log.errors(), Vec::<String>::new());

        let url = format!("{url}/2");
        let error = refusal(&url).await;
        assert!(error.contains("permission denied") && error.contains("select"), "{error}");
        permit(&server, "~tg:*", &[&COMMANDS[..], &DATABASE_COMMANDS].concat());
        decide_everything(&url).await;
    });
}

#[test]
fn the_documented_list_is_enough_in_a_cluster() {
    logged(async |log| {
        let cluster = RedisCluster::start(2, 0);
        for server in cluster.nodes() {
            permit(server, "~tg:*", &[&COMMANDS[..], &CLUSTER_COMMANDS, &OPTIONAL_COMMANDS].concat());
        }
        let url = cluster.url().replace("://", "://limited:pw@");
        let nodes = decide_everything(&url).await;
        assert_nothing_denied(log, &nodes, &cluster.primaries);
        for missing in CLUSTER_COMMANDS {
            let all = [&COMMANDS[..], &CLUSTER_COMMANDS].concat();
            cluster.nodes().for_each(|server| permit(server, "~tg:*", &without(&all, missing)));
            let error = refusal(&url).await;
            println!("{error}");
            assert!(error.contains("NOPERM") && error.contains(&format!("+{missing}")), "{missing}: {error}");
        }
    });
}

#[test]
fn a_missing_permission_is_fatal_at_the_start_and_named() {
    logged(async |_| {
        let server = RedisServer::start(&[]);
        let url = format!("redis://limited:pw@{}", server.address());
        for missing in COMMANDS {
            permit(&server, "~tg:*", &without(&COMMANDS, missing));
            let error = refusal(&url).await;
            let named = format!("NOPERM permission denied: the user may not run {missing} (");
            assert!(error.contains(&named) && error.contains(&format!("+{missing};")), "{missing}: {error}");
        }
        permit(&server, "~tg:*", &without(&without(&COMMANDS, "zadd"), "evalsha"));
        let error = refusal(&url).await;
        println!("{error}");
        assert!(error.contains("may not run evalsha, zadd"), "{error}");
        for keys in ["~other:*", "resetkeys"] {
            permit(&server, keys, &COMMANDS);
            let error = refusal(&url).await;
            println!("{error}");
            assert!(error.contains("NOPERM") && error.contains("keys that begin with `tg:`"), "{error}");
        }
    });
}

#[test]
fn what_is_optional_can_be_missing() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        permit(&server, "~tg:*", &COMMANDS);
        decide_everything(&format!("redis://limited:pw@{}", server.address())).await;
        assert_eq!(log.errors(), Vec::<String>::new());
        assert!(!log.lines(Level::INFO, &["maxmemory-policy"]).is_empty(), "{log:?}");

        let cluster = RedisCluster::start(2, 0);
        for server in cluster.nodes() {
            permit(server, "~tg:*", &[&COMMANDS[..], &CLUSTER_COMMANDS].concat());
        }
        decide_everything(&cluster.url().replace("://", "://limited:pw@")).await;
        assert_eq!(log.errors(), Vec::<String>::new());
    });
}

/// A node that starts without the store finds out later, and then it cannot end.
#[test]
fn a_missing_permission_that_is_found_later_degrades() {
    logged(async |log| {
        let granted: Vec<String> = without(&COMMANDS, "zadd").iter().map(|name| format!("+{name}")).collect();
        let mut arguments = vec!["--user", "limited", "on", ">pw", "~tg:*"];
        arguments.extend(granted.iter().map(String::as_str));
        let mut server = RedisServer::start(&arguments);
        let url = format!("redis://limited:pw@{}", server.address());
        server.kill();
        let node = Node::start_with(&url, &rules(), settings()).await;
        let check = async || {
            let request = Request { api_key: Some("a"), endpoint: "/token_bucket", ..Request::default() };
            node.check(&request).await
        };
        assert_eq!(check().await, (false, true));
        assert_eq!(node.store.errors(StoreErrorKind::Permission), 0);
        server.restart_empty();
        let said = || log.lines(Level::ERROR, &["NOPERM permission denied", "zadd"]);
        eventually("the permission is missed", async || !said().is_empty()).await;
        println!("{}", said()[0]);
        assert!(said()[0].contains(&server.address()) && said()[0].contains("shard=0"), "{:?}", said());
        eventually("it is tried again", async || node.store.errors(StoreErrorKind::Permission) >= 3).await;
        assert_eq!(said().len(), 1, "once in ten seconds");
        assert_eq!(check().await, (false, true));
        assert_eq!(server.cli(&["ACL", "SETUSER", "limited", "+zadd"]), "OK");
        eventually("the permission is there", async || !check().await.1).await;
    });
}

#[test]
fn the_documentation_lists_exactly_what_is_needed() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/redis.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split("\n## Permissions\n").nth(1).expect("a section on permissions");
    let section = section.split("```").nth(1).expect("a list");
    let listed: Vec<&str> =
        section.split([' ', '\n', '`']).filter_map(|word| word.strip_prefix('+')).collect();
    let lists = [&COMMANDS[..], &CLUSTER_COMMANDS, &DATABASE_COMMANDS, &OPTIONAL_COMMANDS, &CONTROL_COMMANDS];
    assert_eq!(listed, lists.concat());
}

/// A node whose user lacks the permissions of the control plane decides, and can say what is missing.
#[test]
fn missing_permissions_of_the_control_plane_are_named() {
    logged(async |_| {
        let server = RedisServer::start(&[]);
        permit(&server, "~tg:*", &COMMANDS);
        let url = format!("redis://limited:pw@{}", server.address());
        let nodes = decide_everything(&url).await;
        let control = nodes[0].store.control_channel();
        let missing = async || control.missing_permissions("tg:control:{a}:b", "tg:control:{a}:c").await;
        assert_eq!(missing().await, ["hstrlen", "hvals", "publish"]);
        permit(&server, "~tg:*", &[&COMMANDS[..], &CONTROL_COMMANDS].concat());
        assert_eq!(missing().await, ["publish"], "the channels are not permitted");
        assert_eq!(server.cli(&["ACL", "SETUSER", "limited", "&tg:*"]), "OK");
        assert_eq!(missing().await, [""; 0]);
    });
}
