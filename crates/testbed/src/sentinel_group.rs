//! A primary, its replicas, and three Sentinels that monitor them.

use crate::redis_server::{RedisServer, is_redis_6};
use crate::wait::wait_until;
use std::collections::HashMap;
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
        // Redis 6 permits it without a setting.
        let debug: &[&str] = if is_redis_6() { &[] } else { &["--enable-debug-command", "yes"] };
        let mut servers = vec![RedisServer::start(debug)];
        let primary = servers[0].port().to_string();
        for number in 1..=replicas {
            // The first is promoted.
            let priority = (100 * number).to_string();
            let follows = ["--replicaof", "127.0.0.1", &primary, "--replica-priority", &priority];
            servers.push(RedisServer::start(&[debug, &follows].concat()));
        }
        for replica in &servers[1..] {
            wait_until("the replica follows", || {
                replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
            });
        }
        let sentinels: Vec<_> = (0..SENTINELS).map(|_| sentinel(&servers)).collect();
        for sentinel in &sentinels {
            wait_until("the Sentinels know each other", || {
                let state = primary_state(sentinel);
                let value_of = |name| state.get(name).map_or("", String::as_str);
                value_of("num-other-sentinels") == (SENTINELS - 1).to_string()
                    && value_of("num-slaves") == replicas.to_string()
                    && value_of("flags") == "master"
            });
        }
        Self { servers, sentinels }
    }

    /// Starts a failover to the second server that goes on for four seconds after its promotion: the third has to be copied anew,
    /// for which the second waits.
    pub fn begin_slow_failover(&self) {
        let [_, promoted, behind, ..] = &*self.servers else { panic!("two replicas") };
        promoted.cli(&["CONFIG", "SET", "repl-diskless-sync", "yes"]);
        promoted.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "20"]);
        for replica in [promoted, behind] {
            assert_eq!(replica.cli(&["DEBUG", "CHANGE-REPL-ID"]), "OK");
        }
        let leader = &self.sentinels[0];
        assert_eq!(leader.cli(&["SENTINEL", "SET", NAME, "failover-timeout", "4000"]), "OK");
        assert_eq!(leader.cli(&["SENTINEL", "FAILOVER", NAME]), "OK");
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(RedisServer::address).collect();
        format!("redis-sentinel://{}/{NAME}", addresses.join(","))
    }
}

/// What `sentinel` replies to SENTINEL MASTER.
pub fn primary_state(sentinel: &RedisServer) -> HashMap<String, String> {
    let reply = sentinel.cli(&["SENTINEL", "MASTER", NAME]);
    let lines: Vec<&str> = reply.lines().collect();
    lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
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
