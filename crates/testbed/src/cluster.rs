//! A Redis Cluster, put together without any tool.

use crate::ports;
use crate::redis::{Server, is_redis_6};
use crate::wait::wait_until;

const SLOTS: usize = 16_384;

/// Primaries, each with its replicas; a failover takes about two seconds.
#[derive(Debug)]
pub struct Cluster {
    /// The primaries at the start, in the order of their slots, which are shared out evenly.
    pub primaries: Vec<Server>,
    /// Their replicas: those of the first primary, then those of the second, and so on.
    pub replicas: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster in which each of `primaries` has so many `replicas`, and waits until all is well.
    pub fn start(primaries: usize, replicas: usize) -> Self {
        let cluster = Self {
            primaries: (0..primaries).map(|_| node()).collect(),
            replicas: (0..primaries * replicas).map(|_| node()).collect(),
        };
        cluster.share_out_slots();
        cluster.introduce();
        for (number, replica) in cluster.replicas.iter().enumerate() {
            let primary = cluster.primaries[number / replicas].cli(&["CLUSTER", "MYID"]);
            wait_until("the replica follows", || {
                // It may not have heard yet that this node is a primary with slots.
                replica.cli(&["CLUSTER", "REPLICATE", &primary]);
                replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
            });
        }
        cluster.wait_until_well(replicas);
        cluster
    }

    fn share_out_slots(&self) {
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

    fn introduce(&self) {
        for node in self.nodes().skip(1) {
            let bus = node.cli(&["CONFIG", "GET", "cluster-port"]);
            // Before 7.0 it cannot be chosen.
            let bus = bus.lines().last().map_or_else(|| (node.port() + 10_000).to_string(), str::to_owned);
            let port = node.port().to_string();
            assert_eq!(self.primaries[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]), "OK");
        }
        let known = format!("cluster_known_nodes:{}\r", self.nodes().count());
        for node in self.nodes() {
            wait_until("the nodes know each other", || node.cli(&["CLUSTER", "INFO"]).contains(&known));
        }
    }

    fn wait_until_well(&self, replicas: usize) {
        let lines = self.primaries.len();
        for node in self.nodes() {
            wait_until("the cluster is well", || {
                let slots = node.cli(&["CLUSTER", "NODES"]);
                let follow = slots.lines().filter(|line| line.contains("slave")).count();
                knows_all_slots(node) && follow == lines * replicas
            });
        }
    }

    /// Another primary, without any slots.
    pub fn join(&mut self) {
        self.primaries.push(node());
        let count = self.nodes().count();
        let newcomer = &self.primaries[self.primaries.len() - 1];
        // Whoever joins late must not claim the epoch of another.
        assert_eq!(newcomer.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &count.to_string()]), "OK");
        self.introduce();
        let newcomer = &self.primaries[self.primaries.len() - 1];
        wait_until("it is taken in", || knows_all_slots(newcomer));
    }

    /// All of them, primaries first.
    pub fn nodes(&self) -> impl Iterator<Item = &Server> {
        self.primaries.iter().chain(&self.replicas)
    }

    /// Where a client finds it: the first three nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes().take(3).map(Server::address).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }
}

/// Whether `node` is well, and has heard who serves each slot: it calls itself well before that, for full coverage is
/// not required, and would send a client away with half the map.
fn knows_all_slots(node: &Server) -> bool {
    let info = node.cli(&["CLUSTER", "INFO"]);
    info.contains("cluster_state:ok") && info.contains(&format!("cluster_slots_ok:{SLOTS}\r"))
}

fn node() -> Server {
    let arguments = [
        "--cluster-enabled yes",
        "--cluster-node-timeout 1000",
        "--cluster-require-full-coverage no",
        "--cluster-replica-validity-factor 0",
        "--cluster-allow-replica-migration no",
    ];
    Server::start_with(&[], None, None, |_, _| {
        let words = arguments.iter().flat_map(|line| line.split(' ')).map(str::to_owned);
        let bus = ["--cluster-port".to_owned(), ports::free().to_string()];
        words.chain(bus.into_iter().filter(|_| !is_redis_6())).collect()
    })
}
