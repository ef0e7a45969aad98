//! The time of the script for each kind of call, beside the estimate of a node (`core/script/work.rs`).

use super::pinned::{PinnedRedis, connect};
use redis::Connection;
use smallvec::SmallVec;
use tollgate_core::algorithm::{Algorithm, StateKind};
use tollgate_core::lending::{LeaseReport, Prefetch};
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::script::{self, ChargeCall, RequestRun, ScriptCall, work};
use tollgate_core::state_address::StateField;

const CALLS: usize = 60;
const ROUNDS: usize = 3;
const SECOND_US: u64 = 1_000_000;

pub fn run() {
    println!("redis: microseconds of one script call, by clients in it");
    let server = PinnedRedis::alone();
    let mut timer = ScriptTimer::new(&server);
    println!("  {:<42} {:>7} {:>7} {:>7} {:>7} {:>14}", "", 1, 8, 32, 128, "128, estimated");
    use Algorithm::{SlidingWindowLog, TokenBucket};
    let alone = Algorithm::scripted().map(|algorithm| (algorithm.name(), script_call(&[algorithm], 1)));
    let others = [
        ("token bucket, lent", lent(script_call(&[TokenBucket], 1), 0)),
        ("token bucket, lent, 1 report", lent(script_call(&[TokenBucket], 1), 1)),
        ("token bucket, lent, 2 reports", lent(script_call(&[TokenBucket], 1), 2)),
        ("token bucket, 2 runs", script_call(&[TokenBucket], 2)),
        ("token bucket, 8 runs", script_call(&[TokenBucket], 8)),
        ("2 token buckets", script_call(&[TokenBucket; 2], 1)),
        ("4 token buckets", script_call(&[TokenBucket; 4], 1)),
        ("4 token buckets, lent, 1 report", lent(script_call(&[TokenBucket; 4], 1), 1)),
        ("4 token buckets, 4 runs", script_call(&[TokenBucket; 4], 4)),
        ("8 token buckets", script_call(&[TokenBucket; 8], 1)),
        ("log, 4 runs", script_call(&[SlidingWindowLog], 4)),
        ("log and token bucket", script_call(&[SlidingWindowLog, TokenBucket], 1)),
        ("4 logs", script_call(&[SlidingWindowLog; 4], 1)),
    ];
    for (name, call) in alone.chain(others) {
        for states in [ClientStates::Existing, ClientStates::New] {
            let times = [1, 8, 32, 128].map(|clients| timer.time(&call, clients, states));
            let name = match states {
                ClientStates::Existing => name.to_owned(),
                ClientStates::New => format!("{name}, new clients"),
            };
            let estimate_us = f64::from(work::CALL_NS + 128 * call.work_ns()) / 1e3;
            let [one, few, some, many] = times;
            println!("  {name:<42} {one:>7.0} {few:>7.0} {some:>7.0} {many:>7.0} {estimate_us:>14.0}");
        }
    }
}

fn script_call(algorithms: &[Algorithm], runs: u32) -> ScriptCall {
    let charges = algorithms.iter().enumerate().map(|(number, algorithm)| {
        let (capacity, window_us) = match algorithm.state_kind() {
            StateKind::Cell => (1_000_000, 60 * SECOND_US),
            StateKind::Log | StateKind::InFlight => (1_000, 3600 * SECOND_US),
        };
        let size = LimitSize { capacity: Some(capacity), rate: None, window_us: Some(window_us) };
        let limit = Limit::new("bench", *algorithm, size).expect("a valid limit");
        ChargeCall {
            meter: *limit.meter(),
            field: StateField::new(number as u64 + 1, None),
            enforced: true,
            as_lent: false,
            prefetch: Prefetch::NONE,
            reports: SmallVec::new(),
        }
    });
    let runs = (0..runs).map(|number| RequestRun { repeats: 1, cost: 1 + number });
    ScriptCall { runs: runs.collect(), charges: charges.collect() }
}

fn lent(mut call: ScriptCall, reports: usize) -> ScriptCall {
    for charge in &mut call.charges {
        charge.prefetch = Prefetch::new(3, 4);
        charge.reports = (0..reports).map(|_| LeaseReport { epoch: 1, spent: 2, returned: 1 }).collect();
    }
    call
}

/// Whether the clients of a call have states in Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientStates {
    Existing,
    New,
}

/// Times script calls on one server.
struct ScriptTimer {
    connection: Connection,
    digest: String,
    names: u64,
}

impl ScriptTimer {
    fn new(server: &PinnedRedis) -> Self {
        let mut connection = connect(server);
        let mut load = redis::cmd("SCRIPT");
        let digest = load.arg("LOAD").arg(script::source()).query(&mut connection).expect("a valid script");
        Self { connection, digest, names: 0 }
    }

    /// The median time of calls for `clients` clients, in the fastest round.
    fn time(&mut self, call: &ScriptCall, clients: usize, states: ClientStates) -> f64 {
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            if states == ClientStates::Existing {
                self.names += 1;
                self.send(call, clients);
            }
            let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut self.connection).expect("an answer");
            for _ in 0..CALLS {
                self.names += u64::from(states == ClientStates::New);
                self.send(call, clients);
            }
            least = least.min(self.median_us());
        }
        let _: () = redis::cmd("FLUSHALL").query(&mut self.connection).expect("an answer");
        least
    }

    fn send(&mut self, call: &ScriptCall, clients: usize) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(clients);
        for client in 0..clients {
            command.arg(format!("tg:{{{:012x}{client:012x}}}", self.names));
        }
        command.arg(script::arguments(script::CallTime::Server, false, (0..clients).map(|_| call)));
        let _: redis::Value = command.query(&mut self.connection).expect("the server answers");
    }

    fn median_us(&mut self) -> f64 {
        let stats: String =
            redis::cmd("INFO").arg("latencystats").query(&mut self.connection).expect("an answer");
        let line = stats.lines().find_map(|line| line.strip_prefix("latency_percentiles_usec_evalsha:p50="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(f64::NAN)
    }
}
