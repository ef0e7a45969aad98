//! In a cluster: one call for clients of several slots of one server, with all but the first undeclared.

use super::{START_US, answers, ask, at};
use redis::{Connection, RedisResult, Value};
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::script::{self, ReplyError, ScriptCall};
use tollgate_core::state_address::StateField;
use tollgate_testbed::{RedisCluster, RedisServer, is_redis_6};

fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// The number of the primary that keeps `key`: the slots are shared out evenly and in order.
fn home(connection: &mut Connection, key: &str, primaries: usize) -> usize {
    let slot: usize = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(connection).unwrap();
    (0..primaries).rfind(|number| 16_384 * number / primaries <= slot).unwrap()
}

fn charge(connection: &mut Connection, asks: &[(&str, &ScriptCall)]) -> RedisResult<Value> {
    let text = format!("{}{}", script::CLUSTER_HEADER, script::source());
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(1).arg(asks[0].0);
    command.arg(script::arguments(
        script::CallTime::Given(at(START_US)),
        true,
        asks.iter().map(|(_, ask)| *ask),
    ));
    for (key, _) in asks {
        command.arg(*key);
    }
    command.query(connection)
}

#[test]
fn one_call_serves_the_clients_of_one_server() {
    const PRIMARIES: usize = 3;
    let cluster = RedisCluster::start(PRIMARIES, 0);
    let mut connections: Vec<Connection> = cluster.primaries.iter().map(connect).collect();
    let size = LimitSize { capacity: Some(10), rate: None, window_us: Some(60_000_000) };
    let bucket = Limit::new("bucket", Algorithm::TokenBucket, size).unwrap();
    let log = Limit::new("log", Algorithm::SlidingWindowLog, size).unwrap();
    let one = ScriptCall {
        charges: [&bucket, &log]
            .iter()
            .flat_map(|limit| ask(limit, StateField::new(limit.state_id, None), 1).charges)
            .collect(),
        ..ask(&bucket, StateField::new(bucket.state_id, None), 1)
    };
    let keys: Vec<String> = (0..60).map(|number| format!("tg:{{client-{number}}}")).collect();
    let homes: Vec<usize> = keys.iter().map(|key| home(&mut connections[0], key, PRIMARIES)).collect();
    for (number, connection) in connections.iter_mut().enumerate() {
        // Local keys, each in a slot of its own, and among them two of another server.
        let mut asked: Vec<(&str, usize)> =
            keys.iter().map(String::as_str).zip(homes.iter().copied()).collect();
        asked.retain(|(_, home)| *home == number);
        assert!(asked.len() > 5, "the keys are spread");
        let local = asked.len();
        let other = (number + 1) % PRIMARIES;
        let foreign = keys.iter().zip(&homes).filter(|(_, home)| **home == other).take(2);
        for (key, home) in foreign {
            asked.insert(3, (key, *home));
        }
        let asks: Vec<(&str, &ScriptCall)> = asked.iter().map(|(key, _)| (*key, &one)).collect();
        let reply = charge(connection, &asks);
        if is_redis_6() {
            // Nodes send it one client in a call.
            assert!(reply.unwrap_err().to_string().contains("Error compiling script"));
            continue;
        }
        let found = answers(&asks, reply.unwrap());
        for ((key, home), answer) in asked.iter().zip(&found) {
            match answer {
                Ok(answer) => assert!(*home == number && answer.admitted[0] == 1, "{key}: {answer:?}"),
                Err(ReplyError::Refused(why)) => {
                    assert!(*home != number && why.contains("non local key"), "{key}: {why}");
                }
                Err(error) => panic!("{key}: {error}"),
            }
        }
        assert_eq!(found.iter().filter(|answer| answer.is_ok()).count(), local);
        let kept: usize = redis::cmd("DBSIZE").query(connection).unwrap();
        assert_eq!(kept, 2 * local, "a hash and a list for each local client, and nothing of others");
    }
}
