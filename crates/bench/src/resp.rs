//! `CL.THROTTLE` at the RESP door beside `INCR` of Redis, both asked by `redis-benchmark`: the server has one core, and the
//! client the other.

use crate::measurement::{median, report_at_least};
use crate::redis::pinned::{PinnedRedis, pin_self, runtime};
use std::process::Command;
use std::sync::Arc;
use tokio::net::TcpListener;
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_listen::ListenerSetup;
use tollgate_server::RespDoor;

const ROUNDS: usize = 5;
const REQUESTS: &str = "1500000";
const CONNECTIONS: &str = "50";
const KEYS: &str = "10000";
/// Commands in a pipeline, and the least checks a second.
const PIPELINES: [(&str, f64); 2] = [("16", 300_000.0), ("64", 600_000.0)];
/// The core of this process, and that of Redis. Each is asked from the other core.
const OUR_CORE: u32 = 0;
const REDIS_CORE: u32 = 1;

pub fn run() {
    pin_self();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let port = listener.local_addr().expect("it listens").port();
            tell.send(port).expect("the port is waited for");
            let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 26), Clock::system()));
            let door = Arc::new(RespDoor { limiter, password: None });
            let options = RespDoor::default_options();
            door.serve(listener, ListenerSetup::default(), std::future::pending(), options).await;
        });
    });
    let port = told.recv().expect("the door opens");
    let redis = PinnedRedis::alone();
    println!("resp: {CONNECTIONS} connections, {KEYS} keys, medians of {ROUNDS} rounds in turns");
    for (pipeline, bar) in PIPELINES {
        let throttle = ["CL.THROTTLE", "key:__rand_int__", "99", "1000000", "60"];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let our = benchmark(port, REDIS_CORE, pipeline, &throttle);
            let their = benchmark(redis.server().port(), OUR_CORE, pipeline, &["INCR", "key:__rand_int__"]);
            // The first round is a warm-up.
            if round > 0 {
                ours.push(our);
                theirs.push(their);
            }
        }
        let (our, their) = (median(&mut ours), median(&mut theirs));
        println!(
            "  pipeline {pipeline}: tollgate {our:>8.0}/s, INCR of Redis {their:>8.0}/s, ratio {:.2}",
            our / their
        );
        report_at_least(&format!("pipeline {pipeline}: checks per second"), our, bar);
    }
}

/// Requests per second of `command`, from a client on `core`.
fn benchmark(port: u16, core: u32, pipeline: &str, command: &[&str]) -> f64 {
    let output = Command::new("taskset")
        .args(["-c", &core.to_string(), "redis-benchmark", "-p", &port.to_string(), "-n", REQUESTS])
        .args(["-c", CONNECTIONS, "-P", pipeline, "-r", KEYS, "--csv"])
        .args(command)
        .output();
    let output =
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    // The name of the test, the rate, and latencies.
    let rate =
        output.lines().last().and_then(|line| line.split("\",\"").nth(1)).and_then(|rate| rate.parse().ok());
    rate.expect("redis-benchmark is installed and reports a rate")
}
