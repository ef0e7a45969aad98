//! A primary, its replicas, and three Sentinels that monitor them.

use crate::redis_server::RedisServer;
use crate::wait::wait_until;
use std::fmt::Write as _;
use std::fs;

const NAME: &str = "tollgate";
const SENTINELS: usize = 3;

/// A monitored primary. A failover takes two to three seconds.
#[derive(Debug)]
pub struct SentinelGroup {
    /// The data servers; the first is the primary at the start.
    pub servers: Vec<RedisServer>,
    /// The Sentinels.
    pub sentinels: Vec<RedisServer>,
}

impl SentinelGroup {
    /// Starts a primary, `replicas` replicas and three Sentinels, and waits until they know each other.
    pub fn start(replicas: usize) -> Self {
        let mut servers = vec![RedisServer::start(&[])];
        let primary = servers[0].port().to_string();
        for _ in 0..replicas {
            servers.push(RedisServer::start(&["--replicaof", "127.0.0.1", &primary]));
        }
        for replica in &servers[1..] {
            wait_until("the replica follows", || {
                replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
            });
        }
        let sentinels: Vec<_> = (0..SENTINELS).map(|_| sentinel(&servers)).collect();
        for sentinel in &sentinels {
            wait_until("the Sentinels know each other", || {
                let state = sentinel.cli(&["SENTINEL", "MASTER", NAME]);
                let lines: Vec<_> = state.lines().collect();
                let value_of =
                    |name| lines.iter().position(|line| *line == name).map_or("", |at| lines[at + 1]);
                value_of("num-other-sentinels") == (SENTINELS - 1).to_string()
                    && value_of("num-slaves") == replicas.to_string()
                    && value_of("flags") == "master"
            });
        }
        Self { servers, sentinels }
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(RedisServer::address).collect();
        format!("redis-sentinel://{}/{NAME}", addresses.join(","))
    }
}

fn sentinel(servers: &[RedisServer]) -> RedisServer {
    RedisServer::start_with(&[], None, None, |port, folder| {
        let mut file = String::new();
        let primary = servers[0].port();
        let _ = writeln!(file, "port {port}\nbind 127.0.0.1\ndir {}", folder.path().display());
        let _ = writeln!(file, "sentinel monitor {NAME} 127.0.0.1 {primary} 2");
        let _ = writeln!(file, "sentinel down-after-milliseconds {NAME} 500");
        let _ = writeln!(file, "sentinel failover-timeout {NAME} 2000");
        for replica in &servers[1..] {
            let _ = writeln!(file, "sentinel known-replica {NAME} 127.0.0.1 {}", replica.port());
        }
        let path = folder.path().join("sentinel.conf");
        fs::write(&path, file).expect("a file is written");
        vec![path.display().to_string(), "--sentinel".to_owned()]
    })
}
