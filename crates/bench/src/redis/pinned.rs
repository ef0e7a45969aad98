//! Redis on one core, and everything else on the other.

use redis::{Client, Connection};
use std::process::Command;
use tokio::runtime::Runtime;
use tollgate_testbed::{RedisCluster, RedisServer};

/// A Redis server with a core of its own.
pub enum PinnedRedis {
    Alone(RedisServer),
    Cluster(RedisCluster),
}

impl PinnedRedis {
    pub fn alone() -> Self {
        let server = RedisServer::start(&[]);
        pin(server.pid(), 1);
        Self::Alone(server)
    }

    /// A Cluster of one node, which also uses one core.
    pub fn cluster() -> Self {
        let cluster = RedisCluster::start(1, 0);
        pin(cluster.primaries[0].pid(), 1);
        Self::Cluster(cluster)
    }

    pub fn server(&self) -> &RedisServer {
        match self {
            Self::Alone(server) => server,
            Self::Cluster(cluster) => &cluster.primaries[0],
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Alone(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// The CPU time of the server so far.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.server().pid())
    }
}

/// Opens a connection.
pub fn connect(server: &PinnedRedis) -> Connection {
    let client = Client::open(format!("redis://{}", server.server().address())).expect("an address");
    client.get_connection().expect("the server answers")
}

/// The CPU time so far of the first thread of this process, which runs everything but Redis.
pub fn own_cpu_seconds() -> f64 {
    cpu_seconds(std::process::id())
}

fn cpu_seconds(pid: u32) -> f64 {
    // The first number is the CPU time in nanoseconds.
    let times = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap_or_default();
    times.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

/// Keeps this process off the server's core.
pub fn pin_self() {
    pin(std::process::id(), 0);
}

fn pin(pid: u32, core: u32) {
    let pinned = Command::new("taskset").args(["-acp", &core.to_string(), &pid.to_string()]).output();
    if !pinned.is_ok_and(|output| output.status.success()) {
        eprintln!("  (pinning failed: server and client share cores)");
    }
}

/// Gives this thread real-time priority on its core.
pub fn raise_priority() {
    let thread =
        std::fs::read_link("/proc/thread-self").ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
    let set = thread.map(|thread| Command::new("chrt").args(["-f", "-p", "1"]).arg(thread).output());
    if !set.is_some_and(|output| output.is_ok_and(|output| output.status.success())) {
        eprintln!("  (no real-time priority: latencies include scheduling delays)");
    }
}

/// A runtime with one thread, for everything but Redis.
pub fn runtime() -> Runtime {
    // Hundreds of tasks are always ready: the sockets must be polled between them, not only after all of them.
    let runtime = tokio::runtime::Builder::new_current_thread().event_interval(16).enable_all().build();
    runtime.expect("a runtime")
}
