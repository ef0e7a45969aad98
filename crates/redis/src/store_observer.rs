//! What operators see of a store: the state of its shards, the credit of this node, and the statuses of all nodes.
//!
//! Each node writes a status, a text that this crate does not read, to every shard, under a key that expires. A reader
//! takes the nodes that are alive from the heartbeats of each shard, and asks for the statuses that no shard before it
//! had: with one shard down, those of all nodes are still found.
//!
//! ```text
//! tg:status:{tag}:b7c1…  {"id":"b7c1…",…}   the status of that node
//! ```

use crate::StoreCore;
use crate::breaker::BreakerState;
use crate::connection::Failure;
use crate::shard::RedisShard;
use crate::store::RedisStore;
use redis::Value;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tollgate_core::heartbeat;
use tollgate_limiter::metrics::HistogramSnapshot;

/// Statuses that are read in one call. Each has a few kilobytes, and a decision may wait behind the reply.
const STATUSES_AT_ONCE: usize = 25;
/// The most nodes that are listed: those with the latest heartbeats.
const MOST_LISTED: usize = 1_000;
/// A longer status is not written.
const LONGEST_STATUS: usize = 32 << 10;

/// Looks at a store. It sends calls only for statuses.
#[derive(Clone, Debug)]
pub struct StoreObserver(Arc<StoreCore>);

/// What was counted of a shard, and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardFigures {
    /// Its number.
    pub number: u32,
    /// Where it is, if that is known.
    pub address: Option<String>,
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// How often the breaker opened.
    pub opened: u64,
    /// How often it closed again.
    pub closed: u64,
    /// How often the shard did not reply in time.
    pub timeouts: u64,
    /// The shard's clock minus the node's, in microseconds.
    pub drift_us: i64,
    /// How often its clock stepped.
    pub clock_steps: u64,
    /// The time between sending a script call and its reply, in seconds.
    pub durations: HistogramSnapshot,
}

/// The nodes that are alive, each with the status that it wrote last, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetStatuses {
    /// By the id of the node.
    pub nodes: BTreeMap<String, Option<String>>,
    /// Whether all shards replied, and no node was left out.
    pub is_complete: bool,
}

impl RedisStore {
    /// What operators see of this store.
    pub fn observer(&self) -> StoreObserver {
        StoreObserver(Arc::clone(self.core()))
    }
}

impl StoreObserver {
    /// The id of this node, drawn when the store was opened.
    pub fn node_id(&self) -> &str {
        self.0.fleet.id()
    }

    /// How many nodes share the store, this one included.
    pub fn node_count(&self) -> u32 {
        self.0.fleet.node_count()
    }

    /// The state and the counts of each shard. Takes no lock that a decision takes.
    pub fn shards(&self) -> Vec<ShardFigures> {
        let figures = |shard: &Arc<RedisShard>| {
            let counters = shard.counters();
            ShardFigures {
                number: shard.number(),
                address: shard.address().map(|address| address.to_string()),
                breaker: shard.state(),
                opened: counters.opened.load(Ordering::Relaxed),
                closed: counters.closed.load(Ordering::Relaxed),
                timeouts: counters.timeouts.load(Ordering::Relaxed),
                drift_us: counters.drift_us.load(Ordering::Relaxed),
                clock_steps: counters.clock_steps.load(Ordering::Relaxed),
                durations: counters.durations.snapshot(),
            }
        };
        self.0.servers.shards().iter().map(figures).collect()
    }

    /// The leased tokens of this node that are not spent. Locks the parts of the lease table one after the other, for
    /// microseconds each: not for every second.
    pub fn credit_tokens(&self) -> u64 {
        self.0.leases.usage(self.0.lease_time()).1
    }

    /// A seed that all nodes of the fleet have in common and that does not reveal the fleet's secret; none until the
    /// secret is known.
    pub fn fingerprint_seed(&self) -> Option<[u64; 2]> {
        let secret = self.0.addresses().as_ref()?.secret();
        let mut hasher = SipHasher13::new_with_key(&secret.0);
        hasher.write(b"fingerprints of top keys");
        let hash = hasher.finish128();
        Some([hash.h1, hash.h2])
    }

    /// Writes the status of this node to every shard that is available, for as long as `kept`. Returns on how many it is.
    pub async fn write_status(&self, status: &str, kept: Duration) -> usize {
        if status.len() > LONGEST_STATUS {
            tracing::warn!(bytes = status.len(), "status of this node is too long and is not written");
            return 0;
        }
        let kept_ms = kept.as_millis().max(1) as u64;
        let mut written = 0;
        for shard in self.0.servers.shards() {
            let key = self.status_key(&shard, self.node_id());
            let mut command = redis::cmd("SET");
            match shard.call(command.arg(key).arg(status).arg("PX").arg(kept_ms)).await {
                Ok(_) => written += 1,
                Err(failure) => log_failure(&shard, &failure, "status of this node cannot be written"),
            }
        }
        written
    }

    /// Removes the status of this node from every shard that is available.
    pub async fn remove_status(&self) {
        for shard in self.0.servers.shards() {
            let key = self.status_key(&shard, self.node_id());
            if let Err(failure) = shard.call(redis::cmd("DEL").arg(key)).await {
                log_failure(&shard, &failure, "status of this node cannot be removed");
            }
        }
    }

    /// The statuses of all nodes that are alive, as far as shards reply.
    pub async fn read_statuses(&self) -> FleetStatuses {
        let mut found = FleetStatuses { nodes: BTreeMap::new(), is_complete: true };
        for shard in self.0.servers.shards() {
            if let Err(failure) = self.read_statuses_at(&shard, &mut found).await {
                found.is_complete = false;
                log_failure(&shard, &failure, "statuses of nodes cannot be read");
            }
        }
        found
    }

    async fn read_statuses_at(&self, shard: &RedisShard, found: &mut FleetStatuses) -> Result<(), Failure> {
        let alive = self.alive_at(shard).await?;
        found.is_complete &= alive.len() < MOST_LISTED;
        let missing: Vec<String> =
            alive.into_iter().filter(|id| found.nodes.get(id).is_none_or(Option::is_none)).collect();
        for ids in missing.chunks(STATUSES_AT_ONCE) {
            let keys: Vec<String> = ids.iter().map(|id| self.status_key(shard, id)).collect();
            let Value::Array(statuses) = shard.call(redis::cmd("MGET").arg(keys)).await? else {
                return Err(Failure::InvalidAnswer("not the answer to MGET"));
            };
            for (id, status) in ids.iter().zip(statuses) {
                let status = match status {
                    Value::BulkString(text) => String::from_utf8(text).ok(),
                    _ => None,
                };
                found.nodes.insert(id.clone(), status);
            }
        }
        Ok(())
    }

    /// The ids of the nodes whose last heartbeat at `shard` is recent. This node's own is at most an interval old, so the
    /// latest one tells the time.
    async fn alive_at(&self, shard: &RedisShard) -> Result<Vec<String>, Failure> {
        let key = heartbeat::alive_key(&self.0.settings.prefix, &self.0.servers.own_tag(shard));
        let first = -(MOST_LISTED as i64);
        let reply = shard.call(redis::cmd("ZRANGE").arg(key).arg(first).arg(-1).arg("WITHSCORES")).await?;
        let entries = scored_ids(&reply).ok_or(Failure::InvalidAnswer("not the answer to ZRANGE"))?;
        let latest = entries.iter().map(|(_, seen_us)| *seen_us).fold(0.0, f64::max);
        let silent_us = (heartbeat::MISSED * heartbeat::interval_us(self.node_count())) as f64;
        let alive = entries.into_iter().filter(|(_, seen_us)| *seen_us >= latest - silent_us);
        Ok(alive.map(|(id, _)| id).collect())
    }

    fn status_key(&self, shard: &RedisShard, id: &str) -> String {
        let (prefix, tag) = (&self.0.settings.prefix, self.0.servers.own_tag(shard));
        format!("{prefix}status:{{{tag}}}:{id}")
    }
}

/// Statuses are for operators: that one is missing is no error of a decision.
fn log_failure(shard: &RedisShard, failure: &Failure, message: &'static str) {
    tracing::debug!(shard = shard.number(), %failure, "{message}");
}

/// Members and their scores, as RESP2 and RESP3 list them.
fn scored_ids(reply: &Value) -> Option<Vec<(String, f64)>> {
    let Value::Array(values) = reply else { return None };
    let score = |value: &Value| match value {
        Value::Double(score) => Some(*score),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    };
    let id = |value: &Value| match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        _ => None,
    };
    if values.iter().all(|value| matches!(value, Value::Array(_))) {
        let pair = |value: &Value| match value {
            Value::Array(pair) => Some((id(pair.first()?)?, score(pair.get(1)?)?)),
            _ => None,
        };
        return values.iter().map(pair).collect();
    }
    values.chunks(2).map(|pair| Some((id(pair.first()?)?, score(pair.get(1)?)?))).collect()
}
