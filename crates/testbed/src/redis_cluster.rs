//! A Redis Cluster, created with plain commands instead of `redis-cli --cluster`.

use crate::ports;
use crate::redis_server::{RedisServer, is_redis_6};
use crate::wait::wait_until;

const SLOTS: usize = 16_384;

/// Primaries, each with its replicas. A failover takes about two seconds.
#[derive(Debug)]
pub struct RedisCluster {
    /// The primaries at the start, in the order of their slots, which are distributed evenly.
    pub primaries: Vec<RedisServer>,
    /// The replicas of the first primary, then those of the second, and so on.
    pub replicas: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a cluster in which each of `primaries` has so many `replicas`, and waits until it is healthy.
    pub fn start(primaries: usize, replicas: usize) -> Self {
        let cluster = Self {
            primaries: (0..primaries).map(|_| node()).collect(),
            replicas: (0..primaries * replicas).map(|_| node()).collect(),
        };
        cluster.assign_slots();
        cluster.join_nodes();
        for (number, replica) in cluster.replicas.iter().enumerate() {
            let primary = cluster.primaries[number / replicas].cli(&["CLUSTER", "MYID"]);
            // Gossip may not have told it yet that this node is a primary with slots. Redis 6.2 begins anew with each command.
            wait_until("the replica accepts its primary", || {
                replica.cli(&["CLUSTER", "REPLICATE", &primary]) == "OK"
            });
            wait_until("the replica follows", || {
                replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
            });
        }
        cluster.wait_until_healthy(replicas);
        cluster
    }

    fn assign_slots(&self) {
        let count = self.primaries.len();
        for (number, node) in self.primaries.iter().enumerate() {
            let first = (SLOTS * number / count).to_string();
            let last = (SLOTS * (number + 1) / count - 1).to_string();
            if is_redis_6() {
                let all: Vec<_> = (SLOTS * number / count..SLOTS * (number + 1) / count)
                    .map(|slot| slot.to_string())
                    .collect();
                let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(all.iter().map(String::as_str));
                assert_eq!(node.cli(&words.collect::<Vec<_>>()), "OK");
                continue;
            }
            assert_eq!(node.cli(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]), "OK");
        }
        for (number, node) in self.nodes().enumerate() {
            let epoch = (number + 1).to_string();
            assert_eq!(node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), "OK");
        }
    }

    fn join_nodes(&self) {
        for node in self.nodes().skip(1) {
            let bus = node.cli(&["CONFIG", "GET", "cluster-port"]);
            // Before 7.0 the bus port cannot be configured.
            let bus = bus.lines().last().map_or_else(|| (node.port() + 10_000).to_string(), str::to_owned);
            let port = node.port().to_string();
            assert_eq!(self.primaries[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]), "OK");
        }
        let known = format!("cluster_known_nodes:{}\r", self.nodes().count());
        for node in self.nodes() {
            wait_until("the nodes know each other", || node.cli(&["CLUSTER", "INFO"]).contains(&known));
        }
    }

    fn wait_until_healthy(&self, replicas: usize) {
        let lines = self.primaries.len();
        for node in self.nodes() {
            wait_until("the cluster is healthy", || {
                let slots = node.cli(&["CLUSTER", "NODES"]);
                let follow = slots.lines().filter(|line| line.contains("slave")).count();
                knows_all_slots(node) && follow == lines * replicas
            });
        }
    }

    /// Adds a primary without slots.
    pub fn join(&mut self) {
        self.primaries.push(node());
        let count = self.nodes().count();
        let newcomer = &self.primaries[self.primaries.len() - 1];
        // A node that joins late must not claim the epoch of another node.
        assert_eq!(newcomer.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &count.to_string()]), "OK");
        self.join_nodes();
        let newcomer = &self.primaries[self.primaries.len() - 1];
        wait_until("the new node knows all slots", || knows_all_slots(newcomer));
    }

    /// All nodes, primaries first.
    pub fn nodes(&self) -> impl Iterator<Item = &RedisServer> {
        self.primaries.iter().chain(&self.replicas)
    }

    /// The URL for clients; it lists the first three nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes().take(3).map(RedisServer::address).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }
}

/// Whether `node` is healthy and knows the owner of every slot. Because full coverage is not required, a node reports
/// `cluster_state:ok` earlier, and would give a client an incomplete map.
fn knows_all_slots(node: &RedisServer) -> bool {
    let info = node.cli(&["CLUSTER", "INFO"]);
    info.contains("cluster_state:ok") && info.contains(&format!("cluster_slots_ok:{SLOTS}\r"))
}

fn node() -> RedisServer {
    let arguments = [
        "--cluster-enabled yes",
        "--cluster-node-timeout 1000",
        "--cluster-require-full-coverage no",
        "--cluster-replica-validity-factor 0",
        "--cluster-allow-replica-migration no",
    ];
    RedisServer::start_with(&[], None, None, |_, _| {
        let words = arguments.iter().flat_map(|line| line.split(' ')).map(str::to_owned);
        let bus = ["--cluster-port".to_owned(), ports::free().to_string()];
        words.chain(bus.into_iter().filter(|_| !is_redis_6())).collect()
    })
}
