//! Nodes of their own processes that share a store.

use crate::client::{Client, Reply};
use crate::program::{Server, run, tollgate};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;
use tollgate_core::rules;
use tollgate_simulate::{Entry, Ledger};
use tollgate_testbed::{RedisServer, wait_until};

fn rule_file(rules: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    folder
}

fn node(store: &str, folder: &TempDir) -> Server {
    let rules = folder.path().join("rules.yaml");
    Server::start(["--store".as_ref(), store.as_ref(), "--rules".as_ref(), rules.as_os_str()])
}

/// Asks for `cost` at once.
fn check(client: &mut Client, cost: u32) -> Reply {
    let body = format!(r#"{{"key":"alice","endpoint":"/","cost":{cost}}}"#);
    let head = format!("POST /v1/check HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n", body.len());
    client.send(&(head + &body));
    client.reply()
}

#[test]
fn two_nodes_enforce_one_limit_and_one_that_stops_leaves_nothing_behind() {
    let redis = RedisServer::start(&[]);
    let folder = rule_file("rules: [{ id: one, limit: 200/h }]");
    let (one, two) = (node(&redis.url(), &folder), node(&redis.url(), &folder));
    assert!(one.start_message.contains(&redis.url()), "{}", one.start_message);
    let (mut at_one, mut at_two) = (one.client(), two.client());
    let passes = |client: &mut Client, most: usize| {
        (0..most).take_while(|_| client.check("alice", "/").status == 200).count()
    };
    let spent = passes(&mut at_one, 60) + passes(&mut at_two, 60);
    assert_eq!(spent, 120);
    drop(at_one);
    one.signal("TERM");
    assert_eq!(one.ended().code(), Some(0));
    let mut rest = 0;
    wait_until("the rest is spent", || {
        rest += passes(&mut at_two, 200);
        rest >= 80
    });
    assert_eq!(rest, 80, "what the first had taken ahead is there again");
}

/// A node dies with tokens in hand. Soon the whole limit is there for another, and at no time more.
#[test]
fn what_a_killed_node_held_comes_back_by_itself() {
    const CAPACITY: u32 = 100;
    const RULES: &str = "rules: [{ id: one, key: api_key, params: { capacity: 100, refill_rate: 50 } }]";
    let redis = RedisServer::start(&[]);
    let folder = rule_file(RULES);
    let (dies, lives) = (node(&redis.url(), &folder), node(&redis.url(), &folder));
    let (start, mut ledger) = (Instant::now(), Ledger::default());
    let mut ask = |client: &mut Client, cost: u32| {
        let sent_us = start.elapsed().as_micros() as u64;
        let admitted = check(client, cost).status == 200;
        let received_us = start.elapsed().as_micros() as u64;
        ledger.note(Entry { key: 0, node: 0, admitted, cost, sent_us, received_us });
        admitted
    };
    // Most of what may pass, so that tokens are taken ahead; until some are.
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
    wait_until("the node holds something", || {
        ask(&mut client, 1);
        std::thread::sleep(Duration::from_millis(20));
        // What is lent stands behind the state.
        length() > plain
    });
    dies.signal("KILL");
    let killed = Instant::now();
    assert_eq!(dies.ended().code(), None);
    // One request for all that can ever be there: until it is, none of these spends anything.
    let back = wait_until("the whole limit is there", || ask(&mut survivor, CAPACITY));
    println!("the whole limit {:?} after the kill", killed.elapsed());
    assert!(back < Duration::from_secs(6), "{back:?}");
    let loaded = rules::load("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
    let (_, limit) = loaded.rules.limits().next().unwrap();
    let excess = ledger.excess(0, limit.meter().bucket().unwrap());
    assert!(excess <= 0, "{excess} over-admitted");
}

#[test]
fn a_store_that_will_not_have_us_ends_it_with_a_hint() {
    let redis = RedisServer::start_with_password("right");
    let address = redis.address();
    for (url, expected, hint) in [
        (
            format!("redis://:wrong@{address}"),
            "the user name or the password is wrong",
            "redis://user:password@",
        ),
        (format!("redis://{address}"), "it wants a password", "redis://:password@host"),
        (format!("redis-cluster://:right@{address}"), "not what the address says", "redis://host:port"),
    ] {
        let ended = run(&mut tollgate(["serve", "--listen", "127.0.0.1:0", "--store", &url]));
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let said = &ended.stderr;
        assert!(said.contains(&format!("error: the store at {address} cannot be used: ")), "{said}");
        assert!(said.contains(expected) && said.contains("hint: ") && said.contains(hint), "{said}");
        assert!(!said.contains(":wrong@"), "no password is shown: {said}");
        assert_eq!(ended.stdout, "", "it does not say that it serves");
    }
}

#[test]
fn an_address_that_is_none_ends_it_with_a_hint() {
    for (url, expected) in [
        ("redis:/localhost", "it does not begin with a scheme such as redis://"),
        ("http://localhost", "its scheme is not known"),
        ("redis://localhost:port", "error: the store's address cannot be used: "),
        ("redis://one,two", "redis-cluster://host1,host2"),
        ("redis-sentinel://one,two", "redis-sentinel://host1,host2,host3/mymaster"),
    ] {
        let ended = run(&mut tollgate(["serve", "--store", url]));
        assert_eq!(ended.code, Some(1), "{url}: {ended:?}");
        let said = &ended.stderr;
        assert!(said.starts_with("error: the store's address cannot be used: "), "{url}: {said}");
        assert!(said.contains(expected) && said.contains("\n  hint: "), "{url}: {said}");
    }
}

#[test]
fn a_store_that_is_not_there_is_waited_for() {
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
    server.until_logged("the store does not serve us yet");
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
    server.until_logged("a shard answers again");
    let statuses: Vec<u16> = (0..5).map(|_| client.check("alice", "/login").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429], "and it counts");
}

#[test]
fn a_store_that_may_forget_limits_is_warned_of() {
    let redis = RedisServer::start(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let folder = rule_file("rules: [{ id: one, limit: 5/h }]");
    let server = node(&redis.url(), &folder);
    let line = server.until_logged("maxmemory-policy noeviction");
    assert!(line.contains("WARN") && line.contains("allkeys-lru"), "{line}");
    assert_eq!(server.client().check("alice", "/").status, 200, "but it serves");
}
