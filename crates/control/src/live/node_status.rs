//! The status of a node, as it tells it to the others: JSON of a few kilobytes.
//!
//! Nodes of several versions share a store, so unknown fields are ignored and missing ones have defaults. What another node
//! wrote is bounded when it is read.

use super::fleet_top::NodeTop;
use super::live_figures::{DecisionGroups, LatencyCounts, LiveFigures};
use serde::{Deserialize, Serialize};
use tollgate_redis::{BreakerState, ShardFigures};
use utoipa::ToSchema;

/// Rules in a status.
pub(crate) const MOST_STATUS_RULES: usize = 20;
/// The longest status that is read.
const LONGEST: usize = 64 << 10;
/// Shards in a status that are read.
const MOST_SHARDS: usize = 1_000;
/// Names that another node tells are cut.
const LONGEST_NAME: usize = 300;

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeStatus {
    /// Drawn when it started.
    pub id: String,
    /// Its name, for people: its setting `node_name`, else the name of its host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where its first door is.
    pub address: String,
    /// The URL of its admin listener, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// Its version.
    pub version: String,
    /// When it started.
    pub started: String,
    /// For how long it has been running.
    pub uptime_seconds: u64,
    /// The number of this status; it grows by one each time.
    pub sequence: u64,
    /// The revision of the rules in force.
    pub revision: u64,
    /// The digest of the rules in force, if the source has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why the newest rules of its source are not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules_error: Option<String>,
    /// The seconds since its rule source was asked successfully, if it is polled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_poll_seconds: Option<u64>,
    /// What it has counted since it started.
    pub counters: NodeCounters,
    /// What happened in each second of the last few, on average. Absent while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_second: Option<NodeRates>,
    /// The latencies of the last seconds.
    pub latency: NodeLatency,
    /// The decisions of its busiest rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleCounters>,
    /// The shards of its store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardStatus>,
    /// Leased tokens that it has not spent; absent without a shared store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit_tokens: Option<u64>,
    /// Its most frequent keys and routes.
    pub top: NodeTop,
}

/// What a node has counted since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeCounters {
    /// Decisions by groups of outcomes.
    #[serde(flatten)]
    pub groups: DecisionGroups,
    /// Decisions by duration, in the buckets of `tollgate_decision_duration_seconds`.
    pub added_latency: Vec<u64>,
    /// Calls to the store by duration, in the buckets of `tollgate_store_call_duration_seconds`.
    pub store_latency: Vec<u64>,
}

impl NodeCounters {
    /// The counters with these figures.
    pub(crate) fn new(figures: &LiveFigures) -> Self {
        Self {
            groups: figures.groups,
            added_latency: trimmed(figures.added.as_slice()),
            store_latency: trimmed(figures.store.as_slice()),
        }
    }

    pub(crate) fn figures(&self) -> LiveFigures {
        LiveFigures {
            groups: self.groups,
            added: padded(&self.added_latency),
            store: padded(&self.store_latency),
        }
    }
}

/// Without the zeros at the end.
fn trimmed(counts: &[u64]) -> Vec<u64> {
    let length = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts[..length].to_vec()
}

fn padded(counts: &[u64]) -> LatencyCounts {
    let mut all = LatencyCounts::default().as_slice().to_vec();
    if counts.len() <= all.len() {
        all[..counts.len()].copy_from_slice(counts);
    }
    LatencyCounts::from_slice(&all)
}

/// Decisions a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeRates {
    /// All decisions.
    pub decisions: f64,
    /// Those that a limit refused or delayed.
    pub limited: f64,
    /// Those made without the store.
    pub degraded: f64,
}

/// Quantiles of the last seconds, in microseconds: upper bounds of buckets of histograms. Those that are not known are
/// `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeLatency {
    /// Half of the decisions.
    pub p50_us: Option<f64>,
    /// 99 of 100 decisions.
    pub p99_us: Option<f64>,
    /// Half of the calls to the store.
    pub store_p50_us: Option<f64>,
    /// 99 of 100 calls to the store.
    pub store_p99_us: Option<f64>,
}

impl NodeLatency {
    pub(crate) fn of(figures: &LiveFigures) -> Self {
        let LiveFigures { added, store, .. } = figures;
        Self {
            p50_us: added.quantile_us(0.5),
            p99_us: added.quantile_us(0.99),
            store_p50_us: store.quantile_us(0.5),
            store_p99_us: store.quantile_us(0.99),
        }
    }
}

/// The decisions of a rule on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RuleCounters {
    /// The id of the rule.
    pub id: String,
    /// Requests admitted.
    pub allowed: u64,
    /// Requests refused or delayed.
    pub limited: u64,
}

/// A shard as a node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ShardStatus {
    /// Its number on this node.
    pub shard: u32,
    /// Where its primary is, if that is known.
    pub address: Option<String>,
    /// The state of its circuit breaker: `closed`, `half_open` or `open`.
    pub breaker: String,
    /// How often the breaker opened.
    pub opened: u64,
    /// How often it did not reply in time.
    pub timeouts: u64,
    /// Its clock minus the clock of the node.
    pub drift_ms: i64,
}

impl ShardStatus {
    pub(crate) fn new(shard: &ShardFigures) -> Self {
        let breaker = match shard.breaker {
            BreakerState::Closed => "closed",
            BreakerState::HalfOpen => "half_open",
            BreakerState::Open => "open",
        };
        Self {
            shard: shard.number,
            address: shard.address.clone(),
            breaker: breaker.to_owned(),
            opened: shard.opened,
            timeouts: shard.timeouts,
            drift_ms: shard.drift_us / 1_000,
        }
    }
}

impl NodeStatus {
    /// Reads the status of the node `id`; none if it cannot be read or is of another node.
    pub fn read(id: &str, text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let mut status: Self = serde_json::from_str(text).ok()?;
        if status.id != id {
            return None;
        }
        status.bound();
        Some(status)
    }

    /// Cuts what is longer than any honest node tells, and removes what could control a terminal.
    pub(crate) fn bound(&mut self) {
        self.rules.truncate(MOST_STATUS_RULES);
        self.shards.truncate(MOST_SHARDS);
        self.top.bound();
        // It is shown as a link.
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        self.admin = self.admin.take().filter(is_url);
        let names = [&mut self.id, &mut self.name, &mut self.address, &mut self.version, &mut self.started];
        let optional = [&mut self.admin, &mut self.digest, &mut self.rules_error];
        let rules = self.rules.iter_mut().map(|rule| &mut rule.id);
        for name in names.into_iter().chain(optional.into_iter().flatten()).chain(rules) {
            super::clean(name, LONGEST_NAME);
        }
    }

    /// Its name, or its id where it has none: nodes of an older version.
    pub fn name_or_id(&self) -> &str {
        if self.name.is_empty() { &self.id } else { &self.name }
    }

    /// The status as others read it.
    pub(crate) fn to_text(&self) -> String {
        // Its fields are numbers and texts, which JSON can always hold.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fleet_top::FrequentKey;
    use super::*;
    use tollgate_limiter::metrics::Histogram;

    #[test]
    fn a_status_of_another_version_is_read() {
        let text = r#"{"id":"a1","address":"10.0.0.1:8080","news":{"of":["later"]},"counters":{"allowed":7,"more":1}}"#;
        let status = NodeStatus::read("a1", text).unwrap();
        assert_eq!((status.address.as_str(), status.counters.groups.allowed), ("10.0.0.1:8080", 7));
        assert_eq!(status.latency.p50_us, None);
        assert_eq!(NodeStatus::read("b2", text), None, "it is of another node");
        for text in
            ["", "[]", "{\"id\":\"b2\",\"counters\":5}", "{\"id\":\"b2\",\"rules\":[{\"allowed\":-1}]}"]
        {
            assert_eq!(NodeStatus::read("b2", text), None, "{text}");
        }
        assert_eq!(NodeStatus::read("b2", &format!("{{\"id\":\"b2\"{}}}", " ".repeat(LONGEST))), None);
    }

    #[test]
    fn what_is_written_is_read() {
        let histogram = Histogram::latencies();
        histogram.observe_weighted(700, 3);
        let figures = LiveFigures {
            groups: DecisionGroups { allowed: 1, limited: 2, denied: 3, degraded: 4, shadow_limited: 5 },
            added: LatencyCounts::of(&histogram.snapshot()),
            store: LatencyCounts::default(),
        };
        let status = NodeStatus {
            id: "a".to_owned(),
            counters: NodeCounters::new(&figures),
            latency: NodeLatency::of(&figures),
            ..NodeStatus::default()
        };
        assert_eq!(status.counters.added_latency, [0, 0, 0, 3]);
        let read = NodeStatus::read("a", &status.to_text()).unwrap();
        assert_eq!(read, status);
        assert_eq!(read.counters.figures(), figures);
        let strange = NodeCounters { added_latency: vec![1; 50], ..NodeCounters::default() };
        assert_eq!(strange.figures(), LiveFigures::default());
    }

    #[test]
    fn a_status_is_bounded() {
        let rule = RuleCounters { id: "ü".repeat(1_000), ..RuleCounters::default() };
        let admin = Some("javascript:alert(1)".to_owned());
        let name = "\u{1b}[2Jedge\n".to_owned();
        let top = NodeTop {
            limited: vec![FrequentKey { name: name.clone(), ..FrequentKey::default() }],
            ..NodeTop::default()
        };
        let mut status = NodeStatus { rules: vec![rule; 50], admin, name, top, ..NodeStatus::default() };
        status.bound();
        assert_eq!((status.name.as_str(), status.top.limited[0].name.as_str()), ("?[2Jedge?", "?[2Jedge?"));
        assert_eq!(status.admin, None);
        assert_eq!((status.rules.len(), status.rules[0].id.len()), (MOST_STATUS_RULES, LONGEST_NAME));
    }
}
