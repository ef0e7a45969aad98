//! Thousands of idle connections beside an active one.

use crate::fixture::Pair;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tollgate_testbed::StallMonitor;

const IDLE: usize = 5_000;
const REQUESTS: usize = 1_000;

/// Both ends of each connection are in this process.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = 4 * IDLE as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: limit.maximum.map(|most| most.min(wanted)).or(Some(wanted)), ..limit };
        setrlimit(Resource::Nofile, raised).unwrap();
    }
}

async fn p99(pair: &Pair) -> Duration {
    let mut client = pair.client().await;
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let start = Instant::now();
        assert_eq!(client.get("/").await.status, 200);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[REQUESTS * 99 / 100]
}

#[tokio::test]
async fn idle_connections_do_not_slow_down_others() {
    raise_limit();
    let pair = Pair::start().await;
    p99(&pair).await;
    let witness = StallMonitor::start();
    let alone = p99(&pair).await;
    let mut idle = Vec::with_capacity(IDLE);
    for number in 0..IDLE {
        let mut client = pair.client().await;
        // Some have been used, some have not.
        if number % 10 == 0 {
            assert_eq!(client.get("/").await.status, 200);
        }
        idle.push(client);
    }
    let crowded = p99(&pair).await;
    // Other tests run beside this one, so the longest stall of the machine is allowed for.
    let most = 3 * alone + Duration::from_millis(5) + witness.longest();
    assert!(crowded <= most, "{crowded:?} with {IDLE} idle connections, {alone:?} without");
    drop(idle);
    assert!(TcpStream::connect(pair.gateway.address()).await.is_ok());
}
