//! Heartbeats of many nodes: all are counted, each hears a few bytes, and the silent are forgotten.

use super::fleet::{Node, alone};
use redis::{Connection, Value};
use tollgate_core::heartbeat::{self, HeartbeatReply};
use tollgate_redis::{NodeAddress, RedisSettings};
use tollgate_testbed::{RedisServer, eventually};

const RULES: &str = "rules: [{ id: one, key: api_key, limit: 100/h }]";
const MANY: [u32; 2] = [200, 1_000];
const ROUNDS: usize = 5;

/// Nodes that send nothing but heartbeats, by the script and the keys of real ones.
struct Simulated {
    connection: Connection,
    /// The hash tag of the shard.
    tag: String,
}

impl Simulated {
    /// Beside a node that has been there for a while.
    fn beside_a_node(server: &RedisServer) -> Self {
        let key = server.cli(&["KEYS", "tg:alive:*"]);
        let tag = key.split(['{', '}']).nth(1).expect("the key has a hash tag").to_owned();
        assert_eq!(key, heartbeat::alive_key("tg:", &tag), "it is the only one");
        let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Self { connection, tag }
    }

    fn send_heartbeat(&mut self, id: &str, description: Option<&str>) -> (HeartbeatReply, Value) {
        self.send_vote(id, None, description)
    }

    fn send_vote(
        &mut self,
        id: &str,
        vote_us: Option<i64>,
        description: Option<&str>,
    ) -> (HeartbeatReply, Value) {
        let (prefix, tag) = ("tg:", &self.tag);
        let mut command = redis::cmd("EVAL");
        command.arg(heartbeat::SCRIPT).arg(5).arg(heartbeat::alive_key(prefix, tag));
        command.arg(heartbeat::node_key(prefix, tag, id)).arg(heartbeat::votes_key(prefix, tag));
        command.arg(heartbeat::correction_key(prefix, tag)).arg(heartbeat::markers_key(prefix, tag));
        command.arg(heartbeat::arguments(id, 1, vote_us, description));
        let value: Value = command.query(&mut self.connection).unwrap();
        let (time, nodes, is_new, correction, _): (Vec<u8>, i64, i64, Vec<u8>, Value) =
            redis::from_redis_value(value.clone()).unwrap();
        (HeartbeatReply::read(&time, nodes, is_new, &correction).unwrap(), value)
    }
}

fn calls_of(server: &RedisServer, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

/// How long the server needs for a call of `command` on average, in microseconds, since its statistics were reset.
fn duration_of(server: &RedisServer, command: &str) -> f64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap();
    let duration = line.split(',').find_map(|field| field.strip_prefix("usec_per_call=")).unwrap();
    duration.parse().unwrap()
}

/// Nodes that are counted, and with the first of these numbers forgotten when they are silent. Returns how long a heartbeat of one of
/// them takes.
async fn count_and_forget(many: u32) -> f64 {
    let server = RedisServer::start(&[]);
    let node = Node::start(&server.url(), RULES).await;
    let mut others = Simulated::beside_a_node(&server);
    let (alone, _) = others.send_heartbeat("first", Some("{}"));
    assert_eq!((alone.nodes, alone.is_new), (2, true));
    let (mut longest, mut shortest_us) = (0, f64::INFINITY);
    let mut send_all = || {
        for number in 0..many {
            let (_, value) = others.send_heartbeat(&format!("{number:016x}"), None);
            longest = longest.max(size_of_answer(&value));
        }
    };
    eventually("all are counted", async || {
        send_all();
        node.store.node_count() > many
    })
    .await;
    // The server is interrupted now and then: the quickest round tells how long it takes.
    for _ in 0..ROUNDS {
        assert_eq!(server.cli(&["CONFIG", "RESETSTAT"]), "OK");
        send_all();
        shortest_us = shortest_us.min(duration_of(&server, "eval"));
    }
    println!("{many} nodes: {longest} bytes, {shortest_us} µs");
    assert!(longest <= 32, "{longest} bytes, with {many} nodes");
    // A node is missed after five heartbeats, of which there are fewer the more nodes there are.
    if many == MANY[0] {
        eventually("the silent are forgotten", async || node.store.node_count() == 1).await;
        let (again, _) = others.send_heartbeat("first", None);
        assert_eq!((again.nodes, again.is_new), (2, false), "its description is kept for a minute");
    }
    shortest_us
}

#[test]
fn heartbeats_of_a_thousand_nodes_take_as_long_as_those_of_two_hundred() {
    alone(async || {
        let [few_us, many_us] = [count_and_forget(MANY[0]).await, count_and_forget(MANY[1]).await];
        assert!(many_us <= 2.0 * few_us, "{few_us} µs with {} nodes, {many_us} µs with {}", MANY[0], MANY[1]);
    });
}

/// What a reply holds, without what the protocol adds.
fn size_of_answer(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.iter().map(size_of_answer).sum(),
        Value::BulkString(bytes) => bytes.len(),
        Value::Int(number) => number.to_string().len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_time_in_the_future_is_not_counted() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let _node = Node::start(&server.url(), RULES).await;
        let mut others = Simulated::beside_a_node(&server);
        let (answer, _) = others.send_heartbeat("a", None);
        let ahead = (answer.now + 3_600_000_000).as_us().to_string();
        server.cli(&["ZADD", &heartbeat::alive_key("tg:", &others.tag), &ahead, "gone"]);
        assert_eq!(others.send_heartbeat("a", None).0.nodes, answer.nodes);
    });
}

#[test]
fn descriptions_are_sent_when_they_change_and_come_back_after_an_empty_restart() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        let named = |address: &str| RedisSettings {
            secret: Some([7; 16]),
            node: NodeAddress(address.to_owned()),
            ..RedisSettings::default()
        };
        let one = Node::start_with(&server.url(), RULES, named("one:80")).await;
        let two = Node::start_with(&server.url(), RULES, named("two:80")).await;
        let listed = async || {
            let nodes = one.store.nodes().await;
            nodes.into_iter().map(|node| (node.address, node.rules)).collect::<Vec<_>>()
        };
        let expected = |rules: u64| vec![("one:80".to_owned(), 0), ("two:80".to_owned(), rules)];
        assert_eq!(listed().await, expected(0));

        let (sent, written) = (calls_of(&server, "evalsha"), calls_of(&server, "set"));
        eventually("some heartbeats were sent", async || calls_of(&server, "evalsha") > sent + 4).await;
        assert_eq!(calls_of(&server, "set"), written, "without a description");
        two.store.set_rules_version(7);
        eventually("the change is known", async || listed().await == expected(7)).await;

        server.restart_empty();
        eventually("both are known again", async || {
            let is_stored = server.cli(&["KEYS", "tg:node:*"]).lines().count() == 2;
            is_stored && listed().await == expected(7)
        })
        .await;
        two.store.close().await;
        assert_eq!(listed().await, expected(7)[..1]);
        assert_eq!(server.cli(&["KEYS", "tg:node:*"]).lines().count(), 1, "nothing is left of it");
        let keys = server.cli(&["KEYS", "tg:*"]);
        // Those of a probe, which ended the outage, expire after a second.
        let lasting: Vec<&str> = keys.lines().filter(|key| !key.starts_with("tg:probe:")).collect();
        assert_eq!(lasting.len(), 2, "{lasting:?}");
        for key in lasting {
            assert!(server.cli(&["PTTL", key]).parse::<i64>().unwrap() > 0, "{key} expires");
        }
    });
}

/// The clock is corrected once more than half of the nodes vote alike, by the median of the votes.
#[test]
fn the_majority_corrects_a_clock() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let node = Node::start(&server.url(), RULES).await;
        let mut others = Simulated::beside_a_node(&server);
        node.store.close().await;
        let mut correction = |id: &str, vote_us: Option<i64>| {
            let reply = others.send_vote(id, vote_us, None).0;
            reply.correction.left_us(reply.now)
        };
        // It shrinks by a hundredth of the time that passes.
        let near = |correction_us: i64, agreed_us: i64| (0..300_000).contains(&(correction_us - agreed_us));
        for id in ["a", "b", "c"] {
            assert_eq!(correction(id, None), 0, "{id}");
        }
        let minute_us = 60_000_000;
        assert_eq!(correction("a", Some(-minute_us)), 0, "one of three");
        assert_eq!(correction("c", Some(minute_us)), 0, "two that differ");
        assert_eq!(correction("a", None), 0, "it has changed its mind");
        assert_eq!(correction("a", Some(-minute_us)), 0);
        assert!(near(correction("b", Some(-minute_us - 2_000)), -minute_us), "two of three");
        assert!(near(correction("c", None), -minute_us), "the others follow");
        assert!(near(correction("d", None), -minute_us), "also a new node");
        assert!(near(correction("c", Some(0)), -minute_us), "it stands alone");
        // The clock is set back to where it was.
        assert!(near(correction("a", Some(1_000)), -minute_us), "two of four");
        assert_eq!(correction("b", Some(-1_000)), 0, "three of four");
        for id in ["a", "b", "c", "d"] {
            assert_eq!(correction(id, None), 0, "{id}");
        }
        let votes = heartbeat::votes_key("tg:", &others.tag);
        assert_eq!(server.cli(&["EXISTS", &votes]), "0", "no vote is left");
    });
}

/// Nodes that have not heard of an agreement vote again. Were they counted, there would be another agreement, some milliseconds from the
/// first, and buckets that fill in less would be filled by calls that take turns.
#[test]
fn votes_for_what_is_agreed_on_change_nothing() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let node = Node::start(&server.url(), RULES).await;
        let mut others = Simulated::beside_a_node(&server);
        node.store.close().await;
        let mut send_vote = |id: &str, vote_us: i64| others.send_vote(id, Some(vote_us), None).0.correction;
        for step_us in [60_000_000, -20_000_000] {
            for id in ["a", "b", "c"] {
                send_vote(id, step_us);
            }
            let agreed = send_vote("a", step_us);
            assert_eq!(agreed.agreed_us, step_us);
            for id in ["c", "a", "b"] {
                assert_eq!(send_vote(id, step_us + 3_000), agreed, "{id}");
            }
        }
        let votes = heartbeat::votes_key("tg:", &others.tag);
        assert_eq!(server.cli(&["EXISTS", &votes]), "0", "no vote is left");
    });
}
