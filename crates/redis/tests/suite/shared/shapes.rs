//! Servers that are not a plain Redis 7: Valkey, those that hide what they are, and those that are strict about keys.
//!
//! `TOLLGATE_REDIS_SERVER=/usr/bin/valkey-server cargo test -p tollgate-redis shared` runs everything on another server.

use super::fleet::{Node, alone, patient_nodes};
use crate::log::logged;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use tollgate_limiter::{Limiter, Request};
use tollgate_redis::RedisSettings;
use tollgate_testbed::{
    NetworkProxy, PATIENCE, RedisCluster, RedisServer, SentinelGroup, WordRewrites, is_redis_6,
};
use tracing::Level;

const RULES: &str = "
defaults: { consistency: strict, on_store_failure: deny }
rules:
  - { id: token, endpoint: /token, limit: 3/day }
  - { id: log, endpoint: /log, algorithm: sliding_window_log, limit: 3/day }
  - { id: slots, endpoint: /slots, algorithm: concurrency, limit: 3 }
";

/// Of five requests of each of many clients at once, three pass, and the store has decided them all.
async fn assert_limits(url: &str) -> Arc<Node> {
    let settings = RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() };
    let node = Node::start_with(url, RULES, settings).await;
    for endpoint in ["/token", "/log", "/slots"] {
        let mut clients = tokio::task::JoinSet::new();
        for client in 0..30 {
            let limiter = Arc::clone(&node.limiter);
            clients.spawn(
                async move { assert_three_pass(&limiter, &format!("client-{client}"), endpoint).await },
            );
        }
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
    }
    node
}

async fn assert_three_pass(limiter: &Arc<Limiter>, client: &str, endpoint: &str) {
    let request = Request { api_key: Some(client), endpoint, ..Request::default() };
    let mut held = Vec::new();
    for number in 0..5 {
        let admission = limiter.admit(&request).unwrap().admission().await;
        let decision = &admission.decision;
        assert_eq!(
            (decision.allowed(), decision.degraded),
            (number < 3, false),
            "{client} {endpoint} {decision:?}"
        );
        held.push(admission);
    }
}

/// What Redis says in INFO, as Valkey says it. Every line is as long as it was: the one behind lends a letter.
fn as_valkey(mode: &'static str) -> WordRewrites {
    let mode = match mode {
        "standalone" => ("redis_mode:standalone\r\nos:", "server_mode:standalone\r\ns:"),
        "sentinel" => ("redis_mode:sentinel\r\nos:", "server_mode:sentinel\r\ns:"),
        _ => ("redis_mode:cluster\r\nos:", "server_mode:cluster\r\ns:"),
    };
    let version = ("redis_git_sha1:00000000", "valkey_version:9.0.0000");
    let answers = [mode, version].map(|(from, to)| (from.to_owned(), to.to_owned()));
    WordRewrites { requests: Vec::new(), answers: answers.to_vec() }
}

/// A proxy before each server of a Cluster, and the URL of all proxies.
async fn before(cluster: &RedisCluster, rewrites: &WordRewrites) -> (Vec<NetworkProxy>, String) {
    let targets: Vec<String> = cluster.nodes().map(RedisServer::address).collect();
    let proxies = NetworkProxy::start_cluster(&targets, rewrites).await;
    let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let url = format!("redis-cluster://{}", addresses.join(","));
    (proxies, url)
}

#[test]
fn a_valkey_is_used_alone_with_sentinel_and_as_a_cluster() {
    logged(async |log| {
        let server = RedisServer::start(&[]);
        let proxy = NetworkProxy::start_rewriting(&server.address(), as_valkey("standalone")).await;
        assert_limits(&proxy.url()).await.store.close().await;

        let sentinels = SentinelGroup::start(0);
        let proxy =
            NetworkProxy::start_rewriting(&sentinels.sentinels[0].address(), as_valkey("sentinel")).await;
        assert_limits(&format!("redis-sentinel://{}/tollgate", proxy.address())).await.store.close().await;

        let cluster = RedisCluster::start(2, 0);
        let (_proxies, url) = before(&cluster, &as_valkey("cluster")).await;
        let node = assert_limits(&url).await;
        assert_eq!(node.store.shards().len(), 2);
        assert_eq!(log.errors(), Vec::<String>::new());
    });
}

/// Whether `node` sends several clients in one call: by how many calls thirty clients at once need.
async fn calls_of_thirty(node: &Arc<Node>) -> u64 {
    let before = node.store.calls();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..30 {
        let node = Arc::clone(node);
        clients.spawn(async move {
            let client = format!("other-{client}");
            node.check(&Request { api_key: Some(&client), endpoint: "/token", ..Request::default() }).await
        });
    }
    while let Some(checked) = clients.join_next().await {
        assert_eq!(checked.unwrap(), (true, false));
    }
    node.store.calls() - before
}

/// A Cluster that does not know the flag for scripts on several slots, though its version should. Redis 6.2 is not expected to.
#[test]
fn a_cluster_that_is_strict_about_slots_gets_one_client_in_a_call() {
    logged(async |log| {
        let cluster = RedisCluster::start(2, 0);
        let refused = || log.lines(Level::WARN, &["refuses scripts on keys of several slots"]);
        let usual = assert_limits(&cluster.url()).await;
        let together = calls_of_thirty(&usual).await;
        assert!(refused().is_empty(), "{log:?}");
        usual.store.close().await;
        cluster.nodes().for_each(|server| assert_eq!(server.cli(&["FLUSHALL"]), "OK"));

        let unknown = ("allow-cross-slot-keys".to_owned(), "allow-cross-slot-nope".to_owned());
        let rewrites = WordRewrites { requests: vec![unknown], answers: Vec::new() };
        let (_proxies, url) = before(&cluster, &rewrites).await;
        let strict = assert_limits(&url).await;
        let alone = calls_of_thirty(&strict).await;
        println!("thirty clients need {together} calls, or {alone} where a call must keep to one slot");
        assert!((together < 30) != is_redis_6() && alone == 30, "{together} {alone}");
        assert_eq!(refused().is_empty(), is_redis_6());
        assert_eq!(log.errors(), Vec::<String>::new());
    });
}

/// The words of a line of MONITOR, and whether a script said them.
fn monitored(line: &str) -> Option<(Vec<String>, bool)> {
    let (origin, words) = line.split_once("] \"")?;
    // Only the last quote: the last word may be empty.
    let words = words.trim_end().strip_suffix('"')?.split("\" \"").map(str::to_owned).collect();
    Some((words, origin.ends_with(" lua")))
}

/// Rules under which nodes take tokens ahead, and requests with limits of several keys.
const LEASED_RULES: &str = "
defaults: { on_store_failure: deny }
rules:
  - { id: user, key: user, limit: 20000/min }
  - { id: address, key: ip, algorithm: fixed_window, limit: 20000/min }
  - { id: tenant, key: tenant, algorithm: sliding_window_log, limit: 50/day }
";

/// Two nodes with leases: some requests are refused by the log, and returned to the other limits.
async fn use_leases(url: &str) {
    let nodes = patient_nodes(url, LEASED_RULES, 2).await;
    let (mut refused, mut held) = (0, 0);
    for number in 0..400 {
        let node = &nodes[number % 2];
        let request = Request {
            user: Some("alice"),
            ip: Some("192.0.2.1".parse().unwrap()),
            tenant: (number % 4 == 0).then_some("acme"),
            endpoint: "/",
            ..Request::default()
        };
        let (is_allowed, is_degraded) = node.check(&request).await;
        assert!(!is_degraded, "the store answers");
        refused += usize::from(!is_allowed);
        held = held.max(node.store.observer().credit_tokens());
    }
    assert!(refused > 20 && held > 20, "{refused} refused, {held} tokens held");
    for node in nodes {
        node.store.close().await;
    }
}

/// The keys of a command, as the server finds them. It does not look at commands without arguments.
fn keys_of(words: &[String], connection: &mut redis::Connection) -> Vec<String> {
    if words.len() == 1 {
        return Vec::new();
    }
    let keys: redis::RedisResult<Vec<String>> =
        redis::cmd("COMMAND").arg("GETKEYS").arg(words).query(connection);
    match keys {
        Ok(keys) => keys,
        Err(error) if error.to_string().contains("no key arguments") => Vec::new(),
        Err(error) => panic!("{words:?}: {error}"),
    }
}

/// What scripts have done with keys.
#[derive(Debug, Default)]
struct ScriptCommands {
    calls: usize,
    logs: usize,
    several: usize,
}

/// Checks that what scripts do at `server` until `the end`, they do with keys that their call declares.
fn assert_declared(server: &RedisServer, monitor: TcpStream) -> ScriptCommands {
    let mut asked = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let (mut declared, mut found) = (Vec::new(), ScriptCommands::default());
    for line in BufReader::new(monitor).lines() {
        let line = line.unwrap();
        let Some((words, is_in_script)) = monitored(&line) else { continue };
        match words[0].to_uppercase().as_str() {
            "ECHO" => break,
            "EVAL" | "EVALSHA" => {
                let count = words[2].parse::<usize>().unwrap();
                declared = words[3..3 + count].to_vec();
            }
            _ if is_in_script => {
                let keys = keys_of(&words, &mut asked);
                for key in &keys {
                    assert!(declared.contains(key), "{key} is not declared: {line}");
                }
                found.calls += usize::from(!keys.is_empty());
                found.several += usize::from(keys.len() > 1);
                found.logs += usize::from(words[0].starts_with('L'));
            }
            _ => {}
        }
    }
    found
}

/// Some servers refuse a script keys that are not declared.
async fn every_key_is_declared(servers: &[RedisServer], url: &str) {
    let monitors: Vec<TcpStream> = servers
        .iter()
        .map(|server| {
            let mut monitor = TcpStream::connect(server.address()).unwrap();
            monitor.write_all(b"MONITOR\r\n").unwrap();
            monitor
        })
        .collect();
    let node = assert_limits(url).await;
    node.store.close().await;
    use_leases(url).await;
    let mut all = ScriptCommands::default();
    for (server, monitor) in servers.iter().zip(monitors) {
        server.cli(&["ECHO", "the end"]);
        let ScriptCommands { calls, logs, several } = assert_declared(server, monitor);
        assert!(calls > 100, "{calls} commands in scripts");
        all = ScriptCommands {
            calls: all.calls + calls,
            logs: all.logs + logs,
            several: all.several + several,
        };
    }
    println!("{url}: {all:?}");
    assert!(all.calls > 700 && all.logs > 200, "{all:?}");
}

#[test]
fn every_key_that_a_script_touches_is_declared() {
    alone(async || {
        let server = RedisServer::start(&[]);
        every_key_is_declared(std::slice::from_ref(&server), &server.url()).await;
    });
}

#[test]
fn every_key_is_declared_in_a_cluster_that_gets_one_client_in_a_call() {
    alone(async || {
        let cluster = RedisCluster::start(2, 0);
        let unknown = ("allow-cross-slot-keys".to_owned(), "allow-cross-slot-nope".to_owned());
        let rewrites = WordRewrites { requests: vec![unknown], answers: Vec::new() };
        let (_proxies, url) = before(&cluster, &rewrites).await;
        every_key_is_declared(&cluster.primaries, &url).await;
    });
}

/// As a server with `rename-command INFO ""`, and so on: the commands are not known, nor `CLUSTER INFO`.
fn without_commands(commands: &[&str]) -> WordRewrites {
    let unknown = |command: &&str| ((*command).to_owned(), format!("X{}", &command[1..]));
    WordRewrites { requests: commands.iter().map(unknown).collect(), answers: Vec::new() }
}

/// Each command by itself, and all of them.
const HIDDEN: [&[&str]; 4] = [&["INFO"], &["HELLO"], &["CONFIG"], &["INFO", "HELLO", "CONFIG"]];

#[test]
fn servers_that_do_not_know_what_they_are_asked_about_themselves_are_used() {
    logged(async |log| {
        let (server, cluster) = (RedisServer::start(&[]), RedisCluster::start(2, 0));
        for hidden in HIDDEN {
            let rewrites = without_commands(hidden);
            log.clear();
            let proxy = NetworkProxy::start_rewriting(&server.address(), rewrites.clone()).await;
            assert_limits(&proxy.url()).await.store.close().await;
            let (_proxies, url) = before(&cluster, &rewrites).await;
            let node = assert_limits(&url).await;
            assert_eq!(node.store.shards().len(), 2, "{hidden:?}");
            node.store.close().await;
            assert_eq!(log.errors(), Vec::<String>::new(), "{hidden:?}");
            let unread = log.lines(Level::INFO, &["cannot be read"]).len();
            // The policy at three servers and at two the coverage.
            let expected =
                3 * usize::from(hidden.contains(&"INFO")) + 2 * usize::from(hidden.contains(&"CONFIG"));
            assert_eq!(unread, expected, "{hidden:?}: {log:?}");
            for server in cluster.primaries.iter().chain([&server]) {
                assert_eq!(server.cli(&["FLUSHALL"]), "OK");
            }
        }
    });
}
