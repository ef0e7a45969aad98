//! Nodes in several processes that share a store.

use crate::http_client::{HttpClient, HttpReply};
use crate::process::{TollgateProcess, run, tollgate};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;
use tollgate_core::rules;
use tollgate_simulate::{Ledger, LedgerEntry};
use tollgate_testbed::{RedisServer, wait_until};

fn rule_file(rules: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    folder
}

fn node(store: &str, folder: &TempDir) -> TollgateProcess {
    let rules = folder.path().join("rules.yaml");
    TollgateProcess::start(["--store".as_ref(), store.as_ref(), "--rules".as_ref(), rules.as_os_str()])
}

/// Checks a request with this cost.
fn check(client: &mut HttpClient, cost: u32) -> HttpReply {
    let body = format!(r#"{{"key":"alice","endpoint":"/","cost":{cost}}}"#);
    let head = format!("POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", body.len());
    client.send(&(head + &body));
    client.reply()
}

#[test]
fn two_nodes_enforce_one_limit_and_a_stopped_node_returns_its_credit() {
    let redis = RedisServer::start(&[]);
    let folder = rule_file("rules: [{ id: one, limit: 200/h }]");
    let (one, two) = (node(&redis.url(), &folder), node(&redis.url(), &folder));
    assert!(one.start_message.contains(&redis.url()), "{}", one.start_message);
    let (mut at_one, mut at_two) = (one.client(), two.client());
    let passes = |client: &mut HttpClient, most: usize| {
        (0..most).take_while(|_| client.check("alice", "/").status == 200).count()
    };
    let spent = passes(&mut at_one, 60) + passes(&mut at_two, 60);
    assert_eq!(spent, 120);
    drop(at_one);
    one.signal("TERM");
    assert_eq!(one.wait().code(), Some(0));
    let mut rest = 0;
    wait_until("the rest is spent", || {
        rest += passes(&mut at_two, 200);
        rest >= 80
    });
    assert_eq!(rest, 80, "the credit of the first node was returned");
}

/// A node is killed while it holds credit. The whole limit is available to another node soon, and never more.
#[test]
fn credit_of_a_killed_node_expires() {
    const CAPACITY: u32 = 100;
    const RULES: &str = "rules: [{ id: one, key: api_key, params: { capacity: 100, refill_rate: 50 } }]";
    let redis = RedisServer::start(&[]);
    let folder = rule_file(RULES);
    let (dies, lives) = (node(&redis.url(), &folder), node(&redis.url(), &folder));
    let (start, mut ledger) = (Instant::now(), Ledger::default());
    let mut ask = |client: &mut HttpClient, cost: u32| {
        let sent_us = start.elapsed().as_micros() as u64;
        let admitted = check(client, cost).status == 200;
        let received_us = start.elapsed().as_micros() as u64;
        ledger.note(LedgerEntry { key: 0, node: 0, admitted, cost, sent_us, received_us });
        admitted
    };
    // Nearly the whole rate, so that tokens are prefetched; until some are.
    let (mut client, mut survivor) = (dies.client(), lives.client());
    let longest_state = r"
        local longest = 0
        for _, key in ipairs(redis.call('KEYS', 'tg:{*')) do
            for _, state in ipairs(redis.call('HVALS', key)) do longest = math.max(longest, #state) end
        end
        return longest";
    ask(&mut client, 1);
    let length = || redis.cli(&["EVAL", longest_state, "0"]).parse::<u32>().unwrap();
    let plain = length();
    wait_until("the node holds credit", || {
        ask(&mut client, 1);
        std::thread::sleep(Duration::from_millis(20));
        // Lent tokens are stored behind the state.
        length() > plain
    });
    dies.signal("KILL");
    let killed = Instant::now();
    assert_eq!(dies.wait().code(), None);
    // A request for the whole capacity: none is spent until all of it is available.
    let back = wait_until("the whole limit is available", || ask(&mut survivor, CAPACITY));
    println!("the whole limit {:?} after the kill", killed.elapsed());
    assert!(back < Duration::from_secs(6), "{back:?}");
    let loaded = rules::load("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
    let (_, limit) = loaded.rules.limits().next().unwrap();
    let excess = ledger.excess(0, limit.meter().bucket().unwrap());
    assert!(excess <= 0, "{excess} over-admitted");
}

#[test]
fn a_store_that_refuses_the_node_is_an_error_with_a_hint() {
    let redis = RedisServer::start_with_password("right");
    let address = redis.address();
    for (url, expected, hint) in [
        (
            format!("redis://:wrong@{address}"),
            "the user name or the password is wrong",
            "redis://user:password@",
        ),
        (format!("redis://{address}"), "it requires a password", "redis://:password@host"),
        (format!("redis-cluster://:right@{address}"), "not what the address says", "redis://host:port"),
    ] {
        let output = run(&mut tollgate(["serve", "--listen", "127.0.0.1:0", "--store", &url]));
        assert_eq!(output.code, Some(1), "{output:?}");
        let stderr = &output.stderr;
        assert!(stderr.contains(&format!("error: the store at {address} cannot be used: ")), "{stderr}");
        assert!(stderr.contains(expected) && stderr.contains("hint: ") && stderr.contains(hint), "{stderr}");
        assert!(!stderr.contains(":wrong@"), "no password is shown: {stderr}");
        assert_eq!(output.stdout, "", "no start message");
    }
}

#[test]
fn an_invalid_store_url_is_an_error_with_a_hint() {
    for (url, expected) in [
        ("redis:/localhost", "it does not begin with a scheme such as redis://"),
        ("http://localhost", "its scheme is not known"),
        ("redis://localhost:port", "error: the store's address cannot be used: "),
        ("redis://one,two", "redis-cluster://host1,host2"),
        ("redis-sentinel://one,two", "redis-sentinel://host1,host2,host3/mymaster"),
    ] {
        let output = run(&mut tollgate(["serve", "--store", url]));
        assert_eq!(output.code, Some(1), "{url}: {output:?}");
        let stderr = &output.stderr;
        assert!(stderr.starts_with("error: the store's address cannot be used: "), "{url}: {stderr}");
        assert!(stderr.contains(expected) && stderr.contains("\n  hint: "), "{url}: {stderr}");
    }
}

#[test]
fn an_unreachable_store_is_retried() {
    let mut redis = RedisServer::start(&[]);
    redis.kill();
    let folder = rule_file(
        "
rules:
  - { id: open, endpoint: /open, limit: 5/h, on_store_failure: allow }
  - { id: login, endpoint: /login, limit: 5/h, on_store_failure: deny }
",
    );
    let server = node(&redis.url(), &folder);
    server.wait_for_log("store unavailable; retrying");
    let mut client = server.client();
    for _ in 0..10 {
        let open = client.check("alice", "/open");
        assert_eq!((open.status, open.header("x-ratelimit-policy")), (200, "degraded"), "{open:?}");
        assert_eq!(open.header("x-ratelimit-remaining"), "-1");
        assert_eq!(client.check("alice", "/login").status, 503);
    }
    redis.restart_empty();
    let back = wait_until("the store is used", || client.check("alice", "/login").status == 200);
    assert!(back < Duration::from_secs(5), "{back:?}");
    server.wait_for_log("shard reconnected");
    let statuses: Vec<u16> = (0..5).map(|_| client.check("alice", "/login").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429], "and it counts");
}

#[test]
fn a_store_that_may_evict_states_causes_a_warning() {
    let redis = RedisServer::start(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let folder = rule_file("rules: [{ id: one, limit: 5/h }]");
    let server = node(&redis.url(), &folder);
    let line = server.wait_for_log("maxmemory-policy noeviction");
    assert!(line.contains("WARN") && line.contains("allkeys-lru"), "{line}");
    assert_eq!(server.client().check("alice", "/").status, 200, "but it serves");
}
