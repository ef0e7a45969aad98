//! The script of heartbeats agrees with its twin in the simulation, heartbeat by heartbeat.

use super::{SECOND_US, START_US};
use redis::{Connection, Value};
use tollgate_core::heartbeat::{self, HeartbeatReply};
use tollgate_core::time::ServerTime;
use tollgate_simulate::{ClockVotes, NodeId};
use tollgate_testbed::RedisServer;

const GROUPS: u64 = 60;
const HEARTBEATS: usize = 80;

/// The script with the clock in two arguments behind its own: seconds and microseconds.
fn script_on_virtual_time() -> String {
    let (clock, given) = ("local time = call('TIME')", "local time = { ARGV[6], ARGV[7] }");
    assert_eq!(heartbeat::SCRIPT.matches("TIME").count(), 1, "the clock is read once");
    assert!(heartbeat::SCRIPT.contains(clock), "{clock}");
    heartbeat::SCRIPT.replace(clock, given)
}

fn on_redis(
    connection: &mut Connection,
    script: &str,
    tag: &str,
    (node, life): NodeId,
    vote_us: Option<i64>,
    now_us: u64,
) -> HeartbeatReply {
    let (prefix, id) = ("tg:", format!("{node}-{life}"));
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(5).arg(heartbeat::alive_key(prefix, tag));
    command.arg(heartbeat::node_key(prefix, tag, &id)).arg(heartbeat::votes_key(prefix, tag));
    command.arg(heartbeat::correction_key(prefix, tag)).arg(heartbeat::markers_key(prefix, tag));
    command.arg(heartbeat::arguments(&id, 1, vote_us, Some("{}")));
    command.arg(now_us / SECOND_US).arg(now_us % SECOND_US);
    let (time, nodes, is_new, correction, _): (Vec<u8>, i64, i64, Vec<u8>, Value) =
        command.query(connection).unwrap();
    HeartbeatReply::read(&time, nodes, is_new, &correction).unwrap()
}

/// Until the next heartbeat, with steps of the clock: back, ahead, and to either side of what is noticed or remembered.
fn advance(random: &mut fastrand::Rng, now_us: u64) -> u64 {
    match random.u8(0..20) {
        0 => now_us + random.u64(4 * SECOND_US..8 * SECOND_US),
        1 => now_us + random.u64(50 * SECOND_US..70 * SECOND_US),
        2 => now_us - random.u64(0..10 * SECOND_US),
        3 => now_us - random.u64(0..70 * SECOND_US),
        _ => now_us + random.u64(0..SECOND_US),
    }
}

#[test]
fn nodes_agree_on_the_time_in_redis_as_in_the_simulation() {
    let server = RedisServer::start(&[]);
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let script = script_on_virtual_time();
    let (mut agreements, mut forgotten, mut fewer) = (0, 0, 0);
    for group in 0..GROUPS {
        let mut random = fastrand::Rng::with_seed(group);
        let (tag, mut votes, mut now_us) = (format!("group-{group}"), ClockVotes::default(), START_US);
        let nodes = random.u16(1..7);
        let mut last: Option<HeartbeatReply> = None;
        // What the nodes vote for, apart from errors of measurement.
        let mut off_us = 0_i64;
        for number in 0..HEARTBEATS {
            now_us = advance(&mut random, now_us);
            if random.u8(0..10) == 0 {
                off_us = random.i64(-60 * SECOND_US as i64..60 * SECOND_US as i64);
            }
            let spread_us = [0, 3_000, 510_000, 2_000_000][random.usize(0..4)];
            let vote_us = (random.u8(0..4) > 0).then(|| off_us + random.i64(-spread_us..=spread_us));
            let node = (random.u16(0..nodes), u32::from(random.u8(0..20) == 0));
            let answer = votes.heartbeat(node, vote_us, ServerTime::from_us(now_us));
            let found = on_redis(&mut connection, &script, &tag, node, vote_us, now_us);
            assert_eq!(found, answer, "group {group}, heartbeat {number} of {node:?} with {vote_us:?}");
            if let Some(last) = last {
                agreements += u32::from(last.correction != answer.correction);
                forgotten += u32::from(answer.is_new && number > 30);
                fewer += u32::from(answer.nodes < last.nodes);
            }
            last = Some(answer);
        }
    }
    println!("{agreements} agreements, {forgotten} nodes were forgotten, {fewer} times fewer were counted");
    assert!(agreements > 300 && forgotten > 100 && fewer > 100, "{agreements}, {forgotten}, {fewer}");
}
