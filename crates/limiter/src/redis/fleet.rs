//! The nodes that share a store: each says once a second that it is there, to every shard, and hears who else
//! is. Who is silent for five seconds is forgotten by itself.
//!
//! With the same beat the fleet's secret is kept in place (a store that was restarted empty gets it back from
//! whoever beats first), and the distance between the clocks is measured.

use super::Shared;
use super::link::Failure;
use super::shard::Shard;
use crate::clock::Clock;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use tollgate_core::place::{Places, Secret};

pub(super) const BEAT: Duration = Duration::from_secs(1);
pub(super) const SILENT_US: u64 = 5_000_000;
/// Further apart than this, somebody's clock is wrong.
const WORRYING_DRIFT_US: u64 = 500_000;

/// Notes this node and answers the time and all that are alive.
const SCRIPT: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local nodes = redis.call('HGETALL', KEYS[1])
local alive = { string.format('%.0f', now) }
for index = 1, #nodes, 2 do
  local seen = tonumber(string.match(nodes[index + 1], '^%d+')) or 0
  if nodes[index] == ARGV[1] then
  elseif seen + tonumber(ARGV[3]) < now then
    redis.call('HDEL', KEYS[1], nodes[index])
  else
    alive[#alive + 1] = nodes[index]
    alive[#alive + 1] = nodes[index + 1]
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], 2 * tonumber(ARGV[3]) / 1000)
return alive
";

/// The call that notes the node `id` under `key`.
pub(super) fn heartbeat(key: &str, id: &str, described: &str) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(1).arg(key).arg(id).arg(described).arg(SILENT_US);
    command
}

/// Where a node can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddress(pub String);

/// A node of the fleet, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Drawn when it started.
    pub id: String,
    /// Where it can be reached.
    pub address: String,
    /// The number of the rules that it enforces.
    pub rules: u64,
    /// When it started, in seconds since the epoch.
    pub started: u64,
}

#[derive(Debug)]
pub(crate) struct Fleet {
    id: String,
    address: NodeAddress,
    started: u64,
    rules: AtomicU64,
    /// What each shard said last: those that are alive besides this one.
    others: Mutex<BTreeMap<u32, Vec<Node>>>,
    drift_us: AtomicI64,
    is_drifting: AtomicBool,
}

impl Fleet {
    pub(super) fn new(clock: &Clock, address: NodeAddress) -> Self {
        let random = RandomState::new();
        Self {
            id: format!("{:016x}", random.hash_one(clock.now_us())),
            address,
            started: clock.now_us() / 1_000_000,
            rules: AtomicU64::new(0),
            others: Mutex::default(),
            drift_us: AtomicI64::new(0),
            is_drifting: AtomicBool::new(false),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn set_rules_version(&self, version: u64) {
        self.rules.store(version, Ordering::Relaxed);
    }

    pub(super) fn drift_us(&self) -> i64 {
        self.drift_us.load(Ordering::Relaxed)
    }

    /// All that are alive; this one first.
    pub(super) fn nodes(&self) -> Vec<Node> {
        let others = self.others.lock();
        let by_id: BTreeMap<&str, &Node> =
            others.values().flatten().map(|node| (node.id.as_str(), node)).collect();
        std::iter::once(self.own()).chain(by_id.into_values().cloned()).collect()
    }

    fn own(&self) -> Node {
        let rules = self.rules.load(Ordering::Relaxed);
        Node { id: self.id.clone(), address: self.address.0.clone(), rules, started: self.started }
    }

    /// Takes in how far the store's clock is from ours. `doubt_us` is how long the question took.
    fn note_drift(&self, drift_us: i64, doubt_us: u64) {
        self.drift_us.store(drift_us, Ordering::Relaxed);
        let is_drifting = drift_us.unsigned_abs() > WORRYING_DRIFT_US + doubt_us;
        if is_drifting != self.is_drifting.swap(is_drifting, Ordering::Relaxed) {
            let ms = drift_us / 1_000;
            if is_drifting {
                tracing::warn!(drift_ms = ms, "this node's clock and the store's are far apart");
            } else {
                tracing::info!(drift_ms = ms, "this node's clock and the store's agree again");
            }
        }
    }
}

impl Shared {
    /// One heartbeat to every shard.
    pub(super) async fn beat(self: &Arc<Self>) {
        let beats = self.servers.shards().into_iter().map(|shard| {
            let shared = Arc::clone(self);
            tokio::spawn(async move { shared.beat_to(&shard).await })
        });
        let mut was_told = false;
        for beat in beats.collect::<Vec<_>>() {
            was_told |= beat.await.unwrap_or(false);
        }
        // A shard that lost its slots tells nothing more, and nobody is there because it once said so.
        let shards = self.servers.shards();
        let is_shard = |number: &u32| shards.iter().any(|shard| shard.number() == *number);
        self.fleet.others.lock().retain(|number, _| is_shard(number));
        self.keep_secret().await;
        if was_told && self.settings.expected_nodes.is_none() {
            self.census.note(self.fleet.nodes().len() as u32);
            self.book.set_nodes(self.census.nodes());
            self.census.keep();
        }
    }

    /// Answers whether the shard has told who is there.
    async fn beat_to(&self, shard: &Arc<Shard>) -> bool {
        let own = self.fleet.own();
        let Ok(described) = serde_json::to_string(&own) else { return false };
        let command = heartbeat(&self.nodes_key(shard), &own.id, &described);
        let (sent_us, sent_unix_us) = (self.lease_us(), self.clock.now_us());
        // Who does not answer keeps the nodes that it last told: they are not gone because it is.
        let Ok(Value::Array(parts)) = shard.call_noting_errors(&command).await else { return false };
        let took_us = self.lease_us().saturating_sub(sent_us);
        let mut texts = parts.iter().map(text);
        let Some(Some(store_us)) = texts.next().map(|time| time.and_then(|time| time.parse::<i64>().ok()))
        else {
            return false;
        };
        if self.given_time.is_none() {
            self.fleet.note_drift(store_us - (sent_unix_us + took_us / 2) as i64, took_us);
        }
        let described = texts.skip(1).step_by(2).flatten();
        let nodes = described.filter_map(|text| serde_json::from_str(text.split_once(' ')?.1).ok());
        self.fleet.others.lock().insert(shard.number(), nodes.collect());
        true
    }

    fn nodes_key(&self, shard: &Shard) -> String {
        format!("{}nodes:{{{}}}", self.settings.prefix, self.servers.own_tag(shard))
    }

    /// Says goodbye.
    pub(super) async fn leave(&self) {
        for shard in self.servers.shards() {
            let mut command = redis::cmd("HDEL");
            command.arg(self.nodes_key(&shard)).arg(&self.fleet.id);
            let _ = shard.call_noting_errors(&command).await;
        }
    }

    /// Makes sure that the store has the fleet's secret, and that it is ours.
    async fn keep_secret(&self) {
        if self.settings.secret.is_some() {
            return;
        }
        match self.shared_secret().await {
            Ok(Some(secret)) => {
                let places = Places::new(&self.settings.prefix, secret);
                let known = self.places();
                if known.as_ref().is_some_and(|known| !known.are_under(&secret)) {
                    tracing::warn!("the fleet has another secret now; counts begin anew");
                }
                if known.is_none_or(|known| !known.are_under(&secret)) {
                    self.places.store(Some(Arc::new(places)));
                }
            }
            Ok(None) => tracing::warn!("the fleet's secret in the store cannot be read"),
            Err(failure) => tracing::debug!(%failure, "the fleet's secret was not looked at"),
        }
    }

    async fn shared_secret(&self) -> Result<Option<Secret>, Failure> {
        let key = format!("{}secret", self.settings.prefix);
        let shard = self.servers.shard_of(key.as_bytes());
        let known = self.places().map(|places| places.secret());
        let offered = known.unwrap_or_else(|| {
            let random = RandomState::new();
            let halves = [random.hash_one(1), random.hash_one(2)].map(u64::to_le_bytes);
            Secret(std::array::from_fn(|index| halves[index / 8][index % 8]))
        });
        let spelled: String = offered.0.iter().map(|byte| format!("{byte:02x}")).collect();
        shard.call_noting_errors(redis::cmd("SET").arg(&key).arg(spelled).arg("NX")).await?;
        let kept = shard.call_noting_errors(redis::cmd("GET").arg(&key)).await?;
        Ok(text(&kept).and_then(parse_secret))
    }
}

fn parse_secret(spelled: &str) -> Option<Secret> {
    let spelled = spelled.as_bytes();
    let mut secret = [0; 16];
    if spelled.len() != 32 {
        return None;
    }
    for (byte, digits) in secret.iter_mut().zip(spelled.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(Secret(secret))
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}
