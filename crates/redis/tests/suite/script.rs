//! The script on a real server, held against its twin in Rust and against the embedded algorithms.

mod agreement;
mod clock_votes;
mod cluster;
mod draw;
mod edited_windows;
mod keeping;

use redis::{Connection, Value};
use smallvec::smallvec;
use tollgate_core::lending::Prefetch;
use tollgate_core::limit::Limit;
use tollgate_core::script::{self, ChargeCall, ReplyError, RequestRun, ScriptCall, ScriptReply};
use tollgate_core::state_address::StateField;
use tollgate_core::time::StoreTime;
use tollgate_testbed::RedisServer;

/// Where virtual clocks start: a second, and no boundary of any longer window.
const START_US: u64 = 1_700_000_123_000_000;
const SECOND_US: u64 = 1_000_000;

/// The time at which the clock of the store shows `us` microseconds.
fn at(us: u64) -> StoreTime {
    StoreTime::from_us(us)
}

/// A server with the script in it, and a connection.
struct Scripted {
    connection: Connection,
    digest: String,
    server: RedisServer,
}

impl Scripted {
    fn start() -> Self {
        let server = RedisServer::start(&[]);
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let digest =
            redis::cmd("SCRIPT").arg("LOAD").arg(script::source()).query::<String>(&mut connection).unwrap();
        Self { connection, digest, server }
    }

    /// The command that charges each client for what it asks.
    fn command<K: AsRef<[u8]>>(&self, now_us: u64, asks: &[(K, &ScriptCall)]) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(asks.len());
        for (key, _) in asks {
            command.arg(key.as_ref());
        }
        command.arg(script::arguments(
            script::CallTime::Given(at(now_us)),
            false,
            asks.iter().map(|(_, ask)| *ask),
        ));
        command
    }

    fn charge<K: AsRef<[u8]>>(
        &mut self,
        now_us: u64,
        asks: &[(K, &ScriptCall)],
    ) -> Vec<Result<ScriptReply, ReplyError>> {
        let value = self.command(now_us, asks).query(&mut self.connection).unwrap();
        answers(asks, value)
    }

    fn charge_one(&mut self, now_us: u64, key: &str, ask: &ScriptCall) -> ScriptReply {
        self.charge(now_us, &[(key, ask)]).remove(0).unwrap()
    }

    fn query<T: redis::FromRedisValue>(&mut self, words: &[&[u8]]) -> T {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut self.connection).unwrap()
    }
}

/// What the script says to each of `asks`.
fn answers<K>(asks: &[(K, &ScriptCall)], value: Value) -> Vec<Result<ScriptReply, ReplyError>> {
    let parts: Vec<Vec<u8>> = redis::from_redis_value(value).unwrap();
    assert_eq!(parts.len(), 1 + asks.len());
    let now = script::read_time(&parts[0]).unwrap();
    parts[1..].iter().zip(asks).map(|(part, (_, ask))| ScriptReply::decode(ask, now, part)).collect()
}

/// One request of `cost` against one limit.
fn ask(limit: &Limit, field: StateField, cost: u32) -> ScriptCall {
    ScriptCall { runs: smallvec![RequestRun { repeats: 1, cost }], charges: smallvec![charge(limit, field)] }
}

fn charge(limit: &Limit, field: StateField) -> ChargeCall {
    let (meter, reports) = (*limit.meter(), Default::default());
    ChargeCall { meter, field, enforced: true, as_lent: false, prefetch: Prefetch::NONE, reports }
}
