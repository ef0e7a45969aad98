//! The nodes that share a store: each sends a heartbeat to every shard once a second, and the reply is the number of live
//! nodes. A node without a heartbeat for five seconds is not counted.
//!
//! What a heartbeat costs does not depend on the number of nodes (see `core/heartbeat.rs`): the reply is a count, and
//! the descriptions of the nodes are read only by [`StoreCore::list_nodes`].
//!
//! With the heartbeat, the fleet's secret is kept in place (a store that was restarted empty gets it back from the
//! first node that notices), and the distance between the clocks is measured.

use super::StoreCore;
use super::connection::Failure;
use super::shard::RedisShard;
use super::shard_clock::ClockChange;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::heartbeat::{self, HeartbeatReply};
use tollgate_core::state_address::{FleetSecret, StateAddresses};
use tollgate_core::time::BootTime;
use tollgate_limiter::Clock;

/// Between two heartbeats, when the clock of a shard is in doubt.
pub(super) const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);
/// Further apart than this, one of the clocks is wrong.
const WORRYING_DRIFT_US: u64 = 500_000;
/// The secret is looked at with one heartbeat in so many, whenever a shard turns out to have lost its data, and when nodes join: one
/// that finds no secret waits for the others to restore it.
const SECRET_EVERY: u64 = 10;
/// For so long a node that finds no secret waits for others to restore it: they send a heartbeat each second, and after
/// an outage as soon as they are connected again.
const SECRET_PATIENCE: Duration = Duration::from_millis(1_500);
const SECRET_PAUSE: Duration = Duration::from_millis(50);
/// Descriptions that are read in one call.
const DESCRIPTIONS_AT_ONCE: usize = 200;

static SCRIPT_NAME: LazyLock<String> =
    LazyLock::new(|| sha1_smol::Sha1::from(heartbeat::SCRIPT).digest().to_string());

/// Where a node can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddress(pub String);

/// A node of the fleet, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// Drawn when it started.
    pub id: String,
    /// Where it can be reached.
    pub address: String,
    /// The number of the rules that it enforces.
    pub rules: u64,
    /// When it started, in seconds since the epoch.
    pub started: u64,
}

/// The last heartbeat reply of a shard. It is kept while the shard is unavailable: its nodes may still be alive.
#[derive(Debug, Default)]
struct HeartbeatRecord {
    /// How many nodes it counts; 0 before its first reply.
    nodes: u32,
    /// The description of this node that it has.
    description: Option<String>,
    /// When that was sent.
    described: BootTime,
}

/// The outcome of the heartbeat to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeartbeatOutcome {
    NoAnswer,
    /// It counted this node with the others.
    Counted,
    /// It counted more nodes than before.
    NodesJoined,
    /// It counted this node, but did not know of it any more: it was restarted empty, or the node was silent for long.
    DataLost,
}

#[derive(Debug)]
pub(crate) struct FleetMembership {
    id: String,
    address: NodeAddress,
    started: u64,
    rules: AtomicU64,
    /// Heartbeats so far.
    heartbeats: AtomicU64,
    /// By the number of the shard.
    shards: Mutex<BTreeMap<u32, HeartbeatRecord>>,
    is_drifting: AtomicBool,
}

impl FleetMembership {
    pub(super) fn new(clock: &Clock, address: NodeAddress) -> Self {
        let random = RandomState::new();
        Self {
            id: format!("{:016x}", random.hash_one(clock.now())),
            address,
            started: clock.now().as_us() / 1_000_000,
            rules: AtomicU64::new(0),
            heartbeats: AtomicU64::new(0),
            shards: Mutex::default(),
            is_drifting: AtomicBool::new(false),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn set_rules_version(&self, version: u64) {
        self.rules.store(version, Ordering::Relaxed);
    }

    /// How many nodes are alive, this one included: the most that a shard counts. A node that cannot reach some shards is
    /// still counted by the others.
    pub(super) fn node_count(&self) -> u32 {
        self.shards.lock().values().map(|known| known.nodes).max().unwrap_or(1)
    }

    /// The description of this node, if `shard` does not have it or it is time to put off its expiry.
    fn description_for(&self, shard: &RedisShard, now: BootTime) -> Option<String> {
        let description = serde_json::to_string(&self.own()).ok()?;
        let shards = self.shards.lock();
        let is_kept = shards.get(&shard.number()).is_some_and(|known| {
            known.description.as_ref() == Some(&description)
                && now < known.described + heartbeat::DESCRIBE_EVERY_US
        });
        (!is_kept).then_some(description)
    }

    fn own(&self) -> NodeDescription {
        let rules = self.rules.load(Ordering::Relaxed);
        NodeDescription { id: self.id.clone(), address: self.address.0.clone(), rules, started: self.started }
    }

    /// Takes in what `shard` answered to a heartbeat with `description`, or without.
    fn note_reply(
        &self,
        shard: &RedisShard,
        answer: &HeartbeatReply,
        description: Option<String>,
        now: BootTime,
    ) -> HeartbeatOutcome {
        let mut shards = self.shards.lock();
        let known = shards.entry(shard.number()).or_default();
        let is_data_lost = answer.is_new && known.nodes > 0;
        let is_larger = answer.nodes > known.nodes;
        known.nodes = answer.nodes;
        if description.is_some() {
            known.described = now;
        }
        if description.is_some() || is_data_lost {
            known.description = description;
        }
        match (is_data_lost, is_larger) {
            (true, _) => HeartbeatOutcome::DataLost,
            (false, true) => HeartbeatOutcome::NodesJoined,
            (false, false) => HeartbeatOutcome::Counted,
        }
    }

    /// Notes the difference between the store's clock and this node's. `doubt_us` is how long the measurement took.
    fn note_drift(&self, drift_us: i64, doubt_us: u64) {
        let is_drifting = drift_us.unsigned_abs() > WORRYING_DRIFT_US + doubt_us;
        if is_drifting != self.is_drifting.swap(is_drifting, Ordering::Relaxed) {
            let ms = drift_us / 1_000;
            if is_drifting {
                tracing::warn!(drift_ms = ms, "clock of this node differs from the clock of the store");
            } else {
                tracing::info!(drift_ms = ms, "clock of this node agrees with the clock of the store again");
            }
        }
    }
}

impl StoreCore {
    /// Sends one heartbeat to every shard.
    pub(super) async fn send_heartbeats(self: &Arc<Self>) {
        let heartbeats = self.servers.shards().into_iter().map(|shard| {
            let core = Arc::clone(self);
            tokio::spawn(async move { core.send_heartbeat(&shard).await })
        });
        let mut outcomes = Vec::new();
        for heartbeat in heartbeats.collect::<Vec<_>>() {
            outcomes.push(heartbeat.await.unwrap_or(HeartbeatOutcome::NoAnswer));
        }
        // A shard that lost its slots counts nothing more.
        let shards = self.servers.shards();
        let is_shard = |number: &u32| shards.iter().any(|shard| shard.number() == *number);
        self.fleet.shards.lock().retain(|number, _| is_shard(number));
        self.close_queues();
        let number = self.fleet.heartbeats.fetch_add(1, Ordering::Relaxed);
        let is_secret_known = self.addresses().is_some();
        if !is_secret_known
            || number.is_multiple_of(SECRET_EVERY)
            || outcomes.contains(&HeartbeatOutcome::DataLost)
            || outcomes.contains(&HeartbeatOutcome::NodesJoined)
        {
            self.keep_secret().await;
        }
        self.servers.set_nodes(self.fleet.node_count());
        let is_counted = outcomes.iter().any(|outcome| *outcome != HeartbeatOutcome::NoAnswer);
        if is_counted && self.settings.expected_nodes.is_none() {
            self.known_nodes.note(self.fleet.node_count());
            self.leases.set_nodes(self.known_nodes.nodes());
            self.known_nodes.keep();
        }
    }

    async fn send_heartbeat(&self, shard: &RedisShard) -> HeartbeatOutcome {
        let now = self.clock.boot();
        let description = self.fleet.description_for(shard, now);
        let Some(answer) = self.run_heartbeat(shard, description.as_deref()).await else {
            return HeartbeatOutcome::NoAnswer;
        };
        let outcome = self.fleet.note_reply(shard, &answer, description, now);
        if outcome == HeartbeatOutcome::DataLost {
            let number = shard.number();
            // What is missing is the entry of this node. With a step ahead the server expires keys, that of the nodes among them.
            match shard.clock().vote_us() {
                None => tracing::warn!(
                    shard = number,
                    "store has lost the entries of nodes, or all of its data; limits may start full"
                ),
                Some(_) => tracing::warn!(
                    shard = number,
                    "store has expired keys because its clock has stepped, or lost its data; some limits may start full"
                ),
            }
        }
        if outcome == HeartbeatOutcome::DataLost
            && let Some(description) = self.fleet.description_for(shard, now)
            && let Some(answer) = self.run_heartbeat(shard, Some(&description)).await
        {
            self.fleet.note_reply(shard, &answer, Some(description), now);
        }
        outcome
    }

    async fn run_heartbeat(&self, shard: &RedisShard, description: Option<&str>) -> Option<HeartbeatReply> {
        let (sent, sent_unix) = (self.clock.boot(), self.clock.now());
        let by_name = self.heartbeat("EVALSHA", &SCRIPT_NAME, shard, description);
        let value = match shard.call_noting_errors(&by_name).await {
            Err(Failure::NoScript) => {
                shard.call_noting_errors(&self.heartbeat("EVAL", heartbeat::SCRIPT, shard, description)).await
            }
            other => other,
        };
        let received = self.clock.boot();
        let took_us = received.since(sent);
        let value = value.ok()?;
        if let (Some(markers), Some(addresses)) = (markers(&value), &*self.addresses()) {
            self.markers.note_all(markers, addresses.secret());
        }
        let Some(answer) = read(&value) else {
            shard.note_error(&Failure::InvalidAnswer("not the answer to a heartbeat"));
            return None;
        };
        if self.given_time.is_none() {
            let change = shard.clock().note_heartbeat(sent, received, answer.now, answer.correction);
            self.note_clock(shard, change);
            let unix = sent_unix + took_us / 2;
            // The one comparison of two clocks: both count since the epoch.
            let drift_us = answer.now.as_us().cast_signed().saturating_sub_unsigned(unix.as_us());
            shard.counters().drift_us.store(drift_us, Ordering::Relaxed);
            self.fleet.note_drift(drift_us, took_us);
        }
        Some(answer)
    }

    fn heartbeat(&self, verb: &str, script: &str, shard: &RedisShard, description: Option<&str>) -> Cmd {
        let (prefix, tag, id) = (&self.settings.prefix, self.servers.own_tag(shard), &self.fleet.id);
        let keys = [
            heartbeat::alive_key(prefix, &tag),
            heartbeat::node_key(prefix, &tag, id),
            heartbeat::votes_key(prefix, &tag),
            heartbeat::correction_key(prefix, &tag),
            heartbeat::markers_key(prefix, &tag),
        ];
        let vote_us = shard.clock().vote_us();
        let mut command = redis::cmd(verb);
        command.arg(script).arg(keys.len()).arg(&keys);
        command.arg(heartbeat::arguments(id, self.fleet.node_count(), vote_us, description));
        command
    }

    /// Whether the clock of `shard` is known, if need be after a heartbeat. A node without it would charge by a clock
    /// that the others correct.
    pub(super) async fn knows_clock(&self, shard: &RedisShard) -> bool {
        if self.given_time.is_some() || shard.clock().is_known() {
            return true;
        }
        self.send_heartbeat(shard).await;
        shard.clock().is_known()
    }

    /// A call found the clock of `shard` not where this node expects it, and the fleet is asked at once. Of many such calls
    /// the first drops the credit; what others grant meanwhile is dropped with the next heartbeat.
    pub(super) fn doubt_clock(&self, shard: &RedisShard) {
        if shard.clock().begin_doubt() {
            self.drop_credit_of(shard);
        }
        self.heartbeat_sooner.notify_one();
    }

    /// This node's own clock may be wrong: its credit for keys of `shard` is not spent any more.
    fn drop_credit_of(&self, shard: &RedisShard) {
        self.leases.drop_credit(|key| self.servers.shard_of(key.as_bytes()).number() == shard.number());
    }

    fn note_clock(&self, shard: &RedisShard, change: Option<ClockChange>) {
        let number = shard.number();
        match change {
            Some(ClockChange::Doubted) => {
                self.drop_credit_of(shard);
                self.heartbeat_sooner.notify_one();
            }
            Some(ClockChange::Stepped(us)) => {
                shard.counters().clock_steps.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    shard = number,
                    step_ms = us / 1_000,
                    "clock of a shard has stepped; corrected to the time that the nodes expect"
                );
            }
            Some(ClockChange::Restored) => {
                tracing::info!(shard = number, "clock of a shard is no longer corrected");
            }
            Some(ClockChange::OwnClock(us)) => {
                self.drop_credit_of(shard);
                tracing::error!(
                    shard = number,
                    off_ms = us / 1_000,
                    "clock of this node has stepped or stopped; using the time of the other nodes"
                );
            }
            None => {}
        }
    }

    /// Removes this node from every shard.
    pub(super) async fn leave_fleet(&self) {
        let (prefix, id) = (&self.settings.prefix, &self.fleet.id);
        for shard in self.servers.shards() {
            let tag = self.servers.own_tag(&shard);
            let _ = shard
                .call_noting_errors(redis::cmd("ZREM").arg(heartbeat::alive_key(prefix, &tag)).arg(id))
                .await;
            let _ =
                shard.call_noting_errors(redis::cmd("DEL").arg(heartbeat::node_key(prefix, &tag, id))).await;
            if shard.clock().vote_us().is_some() {
                let key = heartbeat::votes_key(prefix, &tag);
                let _ = shard.call_noting_errors(redis::cmd("ZREM").arg(key).arg(id)).await;
            }
        }
    }

    /// The nodes that are alive, this one first, as far as shards reply. Reads the description of every node:
    /// for operators, never for a decision.
    pub(super) async fn list_nodes(&self) -> Vec<NodeDescription> {
        let mut by_id = BTreeMap::new();
        for shard in self.servers.shards() {
            match self.list_nodes_at(&shard).await {
                Ok(nodes) => by_id.extend(nodes.into_iter().map(|node| (node.id.clone(), node))),
                Err(failure) => {
                    tracing::debug!(shard = shard.number(), %failure, "nodes of a shard cannot be listed")
                }
            }
        }
        by_id.remove(&self.fleet.id);
        std::iter::once(self.fleet.own()).chain(by_id.into_values()).collect()
    }

    async fn list_nodes_at(&self, shard: &RedisShard) -> Result<Vec<NodeDescription>, Failure> {
        let (prefix, tag) = (&self.settings.prefix, self.servers.own_tag(shard));
        let mut command = redis::cmd("ZRANGE");
        // The last heartbeat of this node has removed the nodes that were silent.
        let ids = shard.call(command.arg(heartbeat::alive_key(prefix, &tag)).arg(0).arg(-1)).await?;
        let mut nodes = Vec::new();
        for ids in texts(&ids).collect::<Vec<_>>().chunks(DESCRIPTIONS_AT_ONCE) {
            let keys: Vec<String> = ids.iter().map(|id| heartbeat::node_key(prefix, &tag, id)).collect();
            let descriptions = shard.call(redis::cmd("MGET").arg(keys)).await?;
            nodes.extend(
                texts(&descriptions).filter_map(|description| serde_json::from_str(description).ok()),
            );
        }
        Ok(nodes)
    }

    /// Writes the fleet's secret if the store has none, and uses the one that the store has.
    async fn keep_secret(&self) {
        if self.settings.secret.is_some() {
            return;
        }
        match self.shared_secret().await {
            Ok(Some(secret)) => {
                let addresses = StateAddresses::new(&self.settings.prefix, secret);
                let known = self.addresses.load_full();
                if known.as_ref().is_some_and(|known| known.uses_secret(&secret)) {
                    return;
                }
                self.addresses.store(Some(Arc::new(addresses)));
                if known.is_some() {
                    self.leases.forget_states();
                    tracing::warn!("fleet secret has changed; all limits start full");
                }
            }
            Ok(None) => {
                let shard = self.servers.shard_of(self.secret_key().as_bytes());
                shard.note_error(&Failure::InvalidAnswer(
                    "the fleet secret in the store is malformed; delete its key",
                ));
            }
            Err(failure) => tracing::debug!(%failure, "fleet secret cannot be read"),
        }
    }

    /// Waits for another node to restore the secret in an empty store: the store may have been restarted without its
    /// data, and a second secret would be a second count for each client.
    async fn await_secret(&self, shard: &Arc<RedisShard>, key: &str) -> Result<StoredSecret, Failure> {
        let end = Instant::now() + SECRET_PATIENCE;
        let mut has_logged = false;
        loop {
            let kept = stored_secret(shard, key).await?;
            if kept != StoredSecret::None {
                return Ok(kept);
            }
            if Instant::now() >= end {
                return Ok(kept);
            }
            if !std::mem::replace(&mut has_logged, true) {
                let wait_ms = SECRET_PATIENCE.as_millis() as u64;
                tracing::info!(
                    wait_ms,
                    "store is empty; waiting for another node to restore the fleet secret"
                );
            }
            tokio::time::sleep(SECRET_PAUSE).await;
        }
    }

    fn secret_key(&self) -> String {
        format!("{}secret", self.settings.prefix)
    }

    /// The secret of the store, written if there was none; none if it is malformed and this node knows no other.
    async fn shared_secret(&self) -> Result<Option<FleetSecret>, Failure> {
        let key = self.secret_key();
        let shard = self.servers.shard_of(key.as_bytes());
        let known = self.addresses.load_full().map(|addresses| addresses.secret());
        let kept = match known {
            Some(_) => stored_secret(&shard, &key).await?,
            None => self.await_secret(&shard, &key).await?,
        };
        match kept {
            StoredSecret::Valid(secret) => return Ok(Some(secret)),
            StoredSecret::Malformed if known.is_none() => return Ok(None),
            StoredSecret::Malformed | StoredSecret::None => {}
        }
        let offered = known.unwrap_or_else(|| {
            let random = RandomState::new();
            let halves = [random.hash_one(1), random.hash_one(2)].map(u64::to_le_bytes);
            FleetSecret(std::array::from_fn(|index| halves[index / 8][index % 8]))
        });
        let spelled: String = offered.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(spelled);
        if kept == StoredSecret::Malformed {
            tracing::error!(key, "fleet secret in the store was malformed; restored");
        } else {
            set.arg("NX");
        }
        shard.call_noting_errors(&set).await?;
        match stored_secret(&shard, &key).await? {
            StoredSecret::Valid(secret) => Ok(Some(secret)),
            StoredSecret::None | StoredSecret::Malformed => Ok(None),
        }
    }
}

/// What the store has under the key of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredSecret {
    None,
    Valid(FleetSecret),
    Malformed,
}

async fn stored_secret(shard: &RedisShard, key: &str) -> Result<StoredSecret, Failure> {
    let kept = match shard.call(redis::cmd("GET").arg(key)).await {
        Err(failure) if failure.to_string().starts_with("WRONGTYPE") => return Ok(StoredSecret::Malformed),
        Err(failure) => {
            shard.note_error(&failure);
            return Err(failure);
        }
        Ok(kept) => kept,
    };
    Ok(match (&kept, text(&kept).and_then(parse_secret)) {
        (Value::Nil, _) => StoredSecret::None,
        (_, Some(secret)) => StoredSecret::Valid(secret),
        (_, None) => StoredSecret::Malformed,
    })
}

fn read(value: &Value) -> Option<HeartbeatReply> {
    let Value::Array(parts) = value else { return None };
    let [Value::BulkString(time), Value::Int(nodes), Value::Int(is_new), Value::BulkString(correction), _] =
        &**parts
    else {
        return None;
    };
    HeartbeatReply::read(time, *nodes, *is_new, correction)
}

/// The reset markers in the reply to a heartbeat.
fn markers(value: &Value) -> Option<&Value> {
    let Value::Array(parts) = value else { return None };
    parts.get(4)
}

/// The bytes of a text.
pub(crate) fn bytes_of(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn parse_secret(spelled: &str) -> Option<FleetSecret> {
    let spelled = spelled.as_bytes();
    let mut secret = [0; 16];
    if spelled.len() != 32 {
        return None;
    }
    for (byte, digits) in secret.iter_mut().zip(spelled.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(FleetSecret(secret))
}

fn text(value: &Value) -> Option<&str> {
    bytes_of(value).and_then(|bytes| std::str::from_utf8(bytes).ok())
}

/// The texts in a list, without those that are missing.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let values = if let Value::Array(values) = value { values.as_slice() } else { &[] };
    values.iter().filter_map(text)
}
