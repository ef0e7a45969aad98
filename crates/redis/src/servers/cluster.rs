//! Discovery of the primaries and slots of a Cluster.
//!
//! Any node may be asked. A primary that was frozen or cut off replies with old slots, so a few nodes are asked at once,
//! unavailable ones last, and the reply with the highest epoch is used.

use super::super::connection::{DialError, Dialer, Failure, OpenError, RedisConnection, is_hidden};
use super::super::shard::ShardContext;
use super::super::url::ServerAddress;
use super::slot_map::SlotMap;
use parking_lot::Mutex;
use redis::{Value, cmd};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// When nothing seems wrong.
pub(super) const DISCOVER_EVERY: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// So many are asked at once.
const AT_ONCE: usize = 3;
const MOST_NODES: usize = 2_000;
const LAST_SLOT: u16 = 16_383;

/// A primary and its slots, as first and last of each range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterPrimary {
    pub(super) address: ServerAddress,
    pub(super) ranges: Vec<(u16, u16)>,
}

impl ClusterPrimary {
    pub(super) fn slots(&self) -> impl Iterator<Item = u16> {
        self.ranges.iter().flat_map(|(first, last)| *first..=*last)
    }
}

/// The reply of one node.
#[derive(Debug)]
struct TopologyReply {
    epoch: u64,
    primaries: Vec<ClusterPrimary>,
    nodes: Vec<ServerAddress>,
}

/// The nodes to ask.
#[derive(Debug)]
pub(super) struct ClusterDiscovery {
    seeds: Vec<ServerAddress>,
    /// All nodes of the last reply, replicas too.
    nodes: Mutex<Vec<ServerAddress>>,
}

/// A node to ask, over an open connection or a new one.
enum TopologySource {
    Connected(Arc<RedisConnection>, ServerAddress),
    At(ServerAddress),
}

impl ClusterDiscovery {
    pub(super) fn new(seeds: &[ServerAddress]) -> Self {
        Self { seeds: seeds.to_vec(), nodes: Mutex::default() }
    }

    /// The primaries and their slots; none if no node replies.
    pub(super) async fn topology(
        &self,
        map: &SlotMap,
        common: &Arc<ShardContext>,
    ) -> Result<Option<Vec<ClusterPrimary>>, OpenError> {
        let mut refusal = None;
        let mut sources = self.sources(map);
        while !sources.is_empty() {
            let rest = sources.split_off(sources.len().min(AT_ONCE));
            let mut asked = JoinSet::new();
            for source in sources {
                let common = Arc::clone(common);
                asked.spawn(async move { ask_source(source, &common.dialer).await });
            }
            let mut best: Option<TopologyReply> = None;
            while let Some(reply) = asked.join_next().await {
                match reply {
                    Ok(Ok(reply)) if best.as_ref().is_none_or(|best| best.epoch < reply.epoch) => {
                        best = Some(reply);
                    }
                    Ok(Ok(_)) => {}
                    Ok(Err(DialError::Refused(error))) => refusal = Some(error),
                    Ok(Err(DialError::Unreachable(reason) | DialError::NotReady(reason))) => {
                        tracing::debug!(reason, "cluster node did not return the slot map");
                    }
                    Err(error) => tracing::error!(%error, "task that asks a cluster node panicked"),
                }
            }
            if let Some(reply) = best.filter(|reply| !reply.primaries.is_empty()) {
                *self.nodes.lock() = reply.nodes;
                return Ok(Some(reply.primaries));
            }
            sources = rest;
        }
        refusal.map_or(Ok(None), Err)
    }

    /// Available primaries first, then the other nodes, unavailable primaries last.
    fn sources(&self, map: &SlotMap) -> Vec<TopologySource> {
        let mut connected = Vec::new();
        let mut unavailable = Vec::new();
        for shard in map.shards() {
            let Some(address) = shard.address() else { continue };
            match shard.live_connection() {
                Some(connection) => connected.push(TopologySource::Connected(connection, (*address).clone())),
                None => unavailable.push((*address).clone()),
            }
        }
        let is_connected = |address: &ServerAddress| {
            connected
                .iter()
                .any(|source| matches!(source, TopologySource::Connected(_, known) if known == address))
        };
        let mut others: Vec<_> = self.nodes.lock().clone();
        others.extend(self.seeds.iter().cloned());
        others.sort();
        others.dedup();
        others.retain(|address| !is_connected(address) && !unavailable.contains(address));
        fastrand::shuffle(&mut connected);
        fastrand::shuffle(&mut others);
        connected.extend(others.into_iter().chain(unavailable).map(TopologySource::At));
        connected
    }
}

async fn ask_source(source: TopologySource, dialer: &Dialer) -> Result<TopologyReply, DialError> {
    let (connection, address) = match source {
        TopologySource::Connected(connection, address) => (connection, address),
        TopologySource::At(address) => (Arc::new(dialer.dial(&address).await?), address),
    };
    let silent = |_| DialError::Unreachable("timeout".to_owned());
    timeout(ANSWER_WITHIN, read_topology(&connection, &address)).await.map_err(silent)?
}

async fn read_topology(
    connection: &RedisConnection,
    asked: &ServerAddress,
) -> Result<TopologyReply, DialError> {
    let refused = |failure: Failure| match failure {
        Failure::NoPermission(_, detail) => DialError::Refused(OpenError {
            address: asked.to_string(),
            problem: format!("NOPERM permission denied: the user may not run cluster|slots ({detail})"),
            hint: "allow it: ACL SETUSER name +cluster|slots; docs/redis.md has the whole list".to_owned(),
        }),
        other => DialError::Unreachable(other.to_string()),
    };
    // A reply without an epoch is used only if no other has one.
    let info = match connection.send(cmd("CLUSTER").arg("INFO")).await {
        Err(failure) if is_hidden(&failure) => String::new(),
        answer => redis::from_redis_value(answer.map_err(refused)?).unwrap_or_default(),
    };
    let slots = connection.send(cmd("CLUSTER").arg("SLOTS")).await.map_err(refused)?;
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:")?.parse().ok());
    let (primaries, nodes) = parse(&slots, asked);
    Ok(TopologyReply { epoch: epoch.unwrap_or(0), primaries, nodes })
}

/// Reads the reply to CLUSTER SLOTS; what cannot be read, or cannot be true, is left out. A slot has one primary, so
/// that a reply of any length yields a bounded number of primaries and ranges.
fn parse(answer: &Value, asked: &ServerAddress) -> (Vec<ClusterPrimary>, Vec<ServerAddress>) {
    let (mut primaries, mut nodes) = (Vec::<ClusterPrimary>::new(), Vec::new());
    let mut is_served = vec![false; usize::from(LAST_SLOT) + 1];
    let Value::Array(ranges) = answer else { return (primaries, nodes) };
    for range in ranges {
        let Value::Array(range) = range else { continue };
        let [Value::Int(first), Value::Int(last), servers @ ..] = range.as_slice() else { continue };
        let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(*last)) else { continue };
        if first > last || last > LAST_SLOT {
            continue;
        }
        let slots = &mut is_served[usize::from(first)..=usize::from(last)];
        if slots.contains(&true) {
            continue;
        }
        for (number, server) in servers.iter().enumerate() {
            let Some(address) = server_address(server, asked) else { continue };
            if number == 0 {
                match primaries.iter().position(|primary| primary.address == address) {
                    Some(known) => primaries[known].ranges.push((first, last)),
                    None if primaries.len() == MOST_NODES => break,
                    None => primaries
                        .push(ClusterPrimary { address: address.clone(), ranges: vec![(first, last)] }),
                }
                slots.fill(true);
            }
            if nodes.len() < MOST_NODES && !nodes.contains(&address) {
                nodes.push(address);
            }
        }
    }
    (primaries, nodes)
}

/// A node's host and port. No host means: the one that was asked.
fn server_address(server: &Value, asked: &ServerAddress) -> Option<ServerAddress> {
    let Value::Array(parts) = server else { return None };
    let [name, Value::Int(port), ..] = parts.as_slice() else { return None };
    let port = u16::try_from(*port).ok().filter(|port| *port > 0)?;
    let name = match name {
        Value::BulkString(name) => std::str::from_utf8(name).ok()?,
        Value::SimpleString(name) => name,
        Value::Nil => "",
        _ => return None,
    };
    match name {
        "?" => None,
        "" => Some(ServerAddress::Tcp(host(asked).to_owned(), port)),
        name => Some(ServerAddress::Tcp(name.to_owned(), port)),
    }
}

pub(super) fn host(address: &ServerAddress) -> &str {
    match address {
        ServerAddress::Tcp(host, _) => host,
        ServerAddress::Unix(_) => "127.0.0.1",
    }
}

/// Reads `host:port` as a redirection has it: without brackets around an IPv6 address.
pub(super) fn address(text: &str) -> Option<ServerAddress> {
    let (host, port) = text.rsplit_once(':')?;
    Some(ServerAddress::Tcp(host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn server(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), text("id")])
    }

    fn range(first: i64, last: i64, servers: Vec<Value>) -> Value {
        Value::Array([Value::Int(first), Value::Int(last)].into_iter().chain(servers).collect())
    }

    fn tcp(host: &str, port: u16) -> ServerAddress {
        ServerAddress::Tcp(host.to_owned(), port)
    }

    #[test]
    fn slots_are_read_and_nonsense_is_left_out() {
        let answer = Value::Array(vec![
            range(0, 10, vec![server(text("a"), 1), server(text("b"), 2)]),
            range(20, 30, vec![server(text("a"), 1)]),
            range(11, 19, vec![server(text(""), 3), server(text("?"), 4)]),
            range(31, 16_383, vec![server(Value::Nil, 5)]),
            range(5, 99_999, vec![server(text("c"), 6)]),
            range(9, 8, vec![server(text("c"), 6)]),
            range(-1, 8, vec![server(text("c"), 6)]),
            range(1, 8, vec![server(text("c"), 70_000)]),
            Value::Int(1),
        ]);
        let (primaries, nodes) = parse(&answer, &tcp("asked", 9));
        let expected = [
            ClusterPrimary { address: tcp("a", 1), ranges: vec![(0, 10), (20, 30)] },
            ClusterPrimary { address: tcp("asked", 3), ranges: vec![(11, 19)] },
            ClusterPrimary { address: tcp("asked", 5), ranges: vec![(31, 16_383)] },
        ];
        assert_eq!(primaries, expected);
        assert_eq!(nodes, [tcp("a", 1), tcp("b", 2), tcp("asked", 3), tcp("asked", 5)]);
        assert_eq!(parse(&Value::Nil, &tcp("asked", 9)).0, []);
    }

    #[test]
    fn a_slot_has_one_primary_and_their_number_is_bounded() {
        let overlapping = [(0, 10, "a"), (10, 20, "b"), (0, 16_383, "c"), (11, 20, "d"), (11, 20, "a")];
        let ranges = overlapping.map(|(first, last, host)| range(first, last, vec![server(text(host), 1)]));
        let (primaries, _) = parse(&Value::Array(ranges.to_vec()), &tcp("asked", 9));
        let expected = [
            ClusterPrimary { address: tcp("a", 1), ranges: vec![(0, 10)] },
            ClusterPrimary { address: tcp("d", 1), ranges: vec![(11, 20)] },
        ];
        assert_eq!(primaries, expected);
        let many = (0..40_000).map(|number| {
            let slot = number % 16_384;
            range(slot, slot, vec![server(text(&format!("h{number}")), 1)])
        });
        let (primaries, nodes) = parse(&Value::Array(many.collect()), &tcp("asked", 9));
        assert_eq!((primaries.len(), nodes.len()), (MOST_NODES, MOST_NODES));
    }

    #[test]
    fn redirections_are_read() {
        assert_eq!(address("127.0.0.1:6381"), Some(tcp("127.0.0.1", 6381)));
        assert_eq!(address("::1:6381"), Some(tcp("::1", 6381)));
        assert_eq!(address("h"), None);
        assert_eq!(address("h:x"), None);
    }
}
