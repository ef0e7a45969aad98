//! What operators see: series, events, nodes, top keys.

use super::LiveSettings;
use super::events::{EventReporter, EventRing, LiveEvent, LiveEventKind};
use super::fleet_figures::FleetFigures;
use super::fleet_top::NodeTop;
use super::live_figures::DecisionGroups;
use super::live_series::{LivePoint, LiveRange, LiveSeries};
use super::node_monitor::{LiveParts, NodeReading};
use super::node_status::{MOST_STATUS_RULES, NodeStatus, RuleCounters};
use super::rule_tracks::{LiveRule, RuleTracks};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, watch};
use tollgate_core::time::BootTime;
use tollgate_limiter::{Clock, Limiter};
use tollgate_redis::FleetStatuses;
use utoipa::ToSchema;

/// Events in a report.
const SHOWN_EVENTS: usize = 50;
/// Messages that a slow subscriber may be behind.
const MESSAGES: usize = 256;
/// For so long after the last question, an operator is looking.
const WATCHED_US: u64 = 60_000_000;
/// Statuses that were read within this time are current.
const CURRENT_US: u64 = 2_500_000;
/// The longest wait for statuses.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most followers whose statuses are kept.
const MOST_FOLLOWERS: usize = 1_000;
/// The figures of now are averages of so many points.
const NOW_POINTS: usize = 10;

/// Figures of the last seconds. Those that are not known are `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LiveNow {
    /// Decisions a second.
    pub decisions_per_second: Option<f64>,
    /// The share of decisions that a limit refused or delayed, from 0 to 1.
    pub limited_share: Option<f64>,
    /// The share of decisions that were made without the store, from 0 to 1.
    pub degraded_share: Option<f64>,
    /// Half of the decisions took at most so many microseconds.
    pub p50_us: Option<f64>,
    /// 99 of 100 decisions took at most so many microseconds.
    pub p99_us: Option<f64>,
    /// Half of the calls to the shared store took at most so many microseconds.
    pub store_p50_us: Option<f64>,
    /// 99 of 100 calls to the shared store took at most so many microseconds.
    pub store_p99_us: Option<f64>,
}

/// Live figures of the fleet, or of a node without others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LiveReport {
    /// The nodes whose figures these are.
    pub nodes: usize,
    /// The time from one point to the next.
    pub step_seconds: u64,
    /// Averages of the last 10 seconds; latencies are the highest of them.
    pub now: LiveNow,
    /// The points of the range, the oldest first.
    pub points: Vec<LivePoint>,
    /// The rules with decisions in the range: those with the largest share limited first.
    pub rules: Vec<LiveRule>,
    /// The latest events of this node, the newest first.
    pub events: Vec<LiveEvent>,
}

/// How a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Nothing is wrong.
    #[default]
    Healthy,
    /// The breaker of a shard is not closed: failure policies apply to its keys.
    Degraded,
    /// The newest rules of its source are not in force.
    StaleRules,
    /// It is alive, and does not tell its status.
    NoStatus,
}

/// A node of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ListedNode {
    /// How it is.
    pub state: NodeState,
    /// Whether it is the node that was asked.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// Whether it follows the control plane of this node over HTTP.
    #[serde(default)]
    pub follower: bool,
    /// How many revisions it is behind the newest; absent while that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
    /// What it tells of itself; only its id if it has no status.
    #[serde(flatten)]
    pub status: NodeStatus,
}

impl ListedNode {
    fn new(status: NodeStatus) -> Self {
        let is_degraded = status.shards.iter().any(|shard| shard.breaker != "closed");
        let state = match &status.rules_error {
            _ if is_degraded => NodeState::Degraded,
            Some(_) => NodeState::StaleRules,
            None => NodeState::Healthy,
        };
        Self { state, status, ..Self::default() }
    }

    fn without_status(id: &str) -> Self {
        let status = NodeStatus { id: id.to_owned(), ..NodeStatus::default() };
        Self { state: NodeState::NoStatus, status, ..Self::default() }
    }
}

/// The nodes of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetNodes {
    /// This node first, then the others by id.
    pub nodes: Vec<ListedNode>,
    /// Whether all nodes are listed: all shards replied.
    pub complete: bool,
}

/// What subscribers get.
#[derive(Clone, Debug)]
pub enum LiveMessage {
    /// A second is complete.
    Point(Arc<LivePoint>),
    /// Something happened.
    Event(Arc<LiveEvent>),
}

/// Why a posted status is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// It is not a status, or of another node.
    #[error("the body is not a status of this node")]
    Invalid,
    /// There are too many followers.
    #[error("too many nodes post their status")]
    TooMany,
}

/// See the module. Clones show the same.
#[derive(Clone, Debug)]
pub struct LiveView(Arc<LiveState>);

/// What is shown.
#[derive(Debug)]
pub(crate) struct LiveState {
    /// Locked by the live thread and by operators' requests, for short, and never by a decision.
    tables: Mutex<LiveTables>,
    messages: broadcast::Sender<LiveMessage>,
    reporter: EventReporter,
    limiter: Arc<Limiter>,
    clock: Clock,
    has_store: bool,
    /// The URL of the admin listener, once it is open.
    admin: OnceLock<String>,
    /// When an operator last asked, in microseconds since the machine started; 0 for never.
    asked_us: AtomicU64,
    /// An operator waits for statuses.
    question: Notify,
    /// How often statuses were read.
    reads: watch::Sender<u64>,
}

#[derive(Debug)]
struct LiveTables {
    series: LiveSeries,
    rules: RuleTracks,
    second: u64,
    fleet: FleetFigures,
    events: EventRing,
    own: Option<NodeStatus>,
    /// The other nodes that share the store.
    others: BTreeMap<String, ListedNode>,
    /// Whether the others were ever read, and all of them.
    is_complete: bool,
    has_read: bool,
    read: BootTime,
    /// Nodes that post their status here.
    followers: BTreeMap<String, (BootTime, NodeStatus)>,
}

impl LiveView {
    pub(crate) fn new(parts: &LiveParts) -> Self {
        let clock = parts.limiter.clock().clone();
        let (events, reporter) = EventRing::new(clock.clone());
        let tables = LiveTables {
            series: LiveSeries::new(),
            rules: RuleTracks::default(),
            second: 0,
            fleet: FleetFigures::new(),
            events,
            own: None,
            others: BTreeMap::new(),
            is_complete: parts.store.is_none(),
            has_read: false,
            read: BootTime::default(),
            followers: BTreeMap::new(),
        };
        Self(Arc::new(LiveState {
            tables: Mutex::new(tables),
            messages: broadcast::Sender::new(MESSAGES),
            reporter,
            limiter: Arc::clone(&parts.limiter),
            clock,
            has_store: parts.store.is_some(),
            admin: OnceLock::new(),
            asked_us: AtomicU64::new(0),
            question: Notify::new(),
            reads: watch::Sender::new(0),
        }))
    }

    /// Where parts of the node report events.
    pub fn reporter(&self) -> EventReporter {
        self.0.reporter.clone()
    }

    /// Tells the URL of the admin listener, which other nodes show.
    pub fn set_admin(&self, url: String) {
        // It is opened once.
        let _ = self.0.admin.set(url);
    }

    /// Receives each point and event from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<LiveMessage> {
        self.note_question();
        self.0.messages.subscribe()
    }

    /// The figures of `range`.
    pub fn report(&self, range: LiveRange) -> LiveReport {
        self.note_question();
        let tables = self.0.tables.lock();
        let is_fleet = tables.fleet.is_following();
        let (points, rules) = if is_fleet {
            (tables.fleet.points(range), tables.fleet.rules(range))
        } else {
            (tables.series.points(range), tables.rules.list(range, tables.second))
        };
        let nodes = if is_fleet { tables.node_count() } else { 1 };
        let events = tables.events.latest(SHOWN_EVENTS);
        let seconds = LiveRange::FiveMinutes;
        let recent = if is_fleet { tables.fleet.points(seconds) } else { tables.series.points(seconds) };
        drop(tables);
        LiveReport {
            nodes,
            step_seconds: range.step_seconds(),
            now: LiveNow::of(&recent[recent.len().saturating_sub(NOW_POINTS)..]),
            points,
            rules,
            events,
        }
    }

    /// The nodes of the fleet. Reads their statuses if those that are known are not current; requests at the same time
    /// share one reading.
    pub async fn nodes(&self) -> FleetNodes {
        self.ensure_current().await;
        let tables = self.0.tables.lock();
        let mut nodes: Vec<ListedNode> = Vec::new();
        nodes.extend(tables.own.clone().map(|own| ListedNode { is_self: true, ..ListedNode::new(own) }));
        nodes.extend(tables.others.values().cloned());
        let followers = tables.followers.values();
        nodes.extend(
            followers.map(|(_, status)| ListedNode { follower: true, ..ListedNode::new(status.clone()) }),
        );
        nodes.sort_by(|one, other| {
            let (one, other) = (&one.status, &other.status);
            (&one.name, &one.id).cmp(&(&other.name, &other.id))
        });
        FleetNodes { nodes, complete: tables.is_complete && tables.own.is_some() }
    }

    /// The first `count` keys and routes of this node.
    pub fn top_of_node(&self, count: usize) -> NodeTop {
        self.0.limiter.top(count).into()
    }

    /// The first `count` keys and routes of all nodes, from the first 10 of each. Without other nodes, those of this node.
    pub async fn top_of_fleet(&self, count: usize) -> NodeTop {
        self.ensure_current().await;
        let tables = self.0.tables.lock();
        let others = tables.others.values().filter(|node| node.state != NodeState::NoStatus);
        let mut tops: Vec<NodeTop> = others.map(|node| node.status.top.clone()).collect();
        tops.extend(tables.followers.values().map(|(_, status)| status.top.clone()));
        drop(tables);
        tops.push(self.top_of_node(count.max(super::fleet_top::KEYS_IN_STATUS)));
        NodeTop::merged(tops.iter(), count)
    }

    /// Takes in the status that the node `id`, which follows this control plane, posts. Returns when the next one is due:
    /// with many followers later, so that a bounded number comes in each second.
    pub fn take_in_posted(&self, id: &str, mut status: NodeStatus) -> Result<Duration, StatusError> {
        if status.id != id || id.is_empty() {
            return Err(StatusError::Invalid);
        }
        status.bound();
        let now = self.0.clock.boot();
        let second = self.0.clock.now().as_us() / 1_000_000;
        let mut tables = self.0.tables.lock();
        self.report_left(&tables.forget_silent(now));
        if tables.others.contains_key(id) || tables.own.as_ref().is_some_and(|own| own.id == id) {
            return Err(StatusError::Invalid);
        }
        if tables.followers.len() >= MOST_FOLLOWERS && !tables.followers.contains_key(id) {
            return Err(StatusError::TooMany);
        }
        let is_new = !tables.followers.contains_key(id);
        tables.fleet.follow(second);
        tables.fleet.take_in(second, [&status].into_iter());
        if is_new {
            self.0.reporter.report(LiveEventKind::NodeJoined, format!("node {} follows", name(&status)));
        }
        tables.followers.insert(id.to_owned(), (now, status));
        Ok(LiveSettings::default().interval_among(tables.followers.len() as u32))
    }

    /// The status of this node as others read it; none before the first look.
    pub fn own_status(&self) -> Option<NodeStatus> {
        self.0.tables.lock().own.clone()
    }

    pub(super) fn own_status_text(&self) -> Option<String> {
        self.own_status().map(|status| status.to_text())
    }

    /// How many nodes are known: this one, those that share its store, and its followers.
    pub(super) fn known_nodes(&self) -> u32 {
        self.0.tables.lock().node_count() as u32
    }

    fn report_left(&self, left: &[NodeStatus]) {
        for status in left {
            let text = format!("node {} does not follow any more, or is silent", name(status));
            self.0.reporter.report(LiveEventKind::NodeLeft, text);
        }
    }

    /// Whether an operator was looking within the last minute.
    pub(super) fn is_watched(&self) -> bool {
        let asked_us = self.0.asked_us.load(Ordering::Relaxed);
        asked_us > 0 && self.0.clock.boot().as_us().saturating_sub(asked_us) < WATCHED_US
    }

    pub(super) async fn wait_for_question(&self) {
        self.0.question.notified().await;
    }

    fn note_question(&self) {
        self.0.asked_us.store(self.0.clock.boot().as_us().max(1), Ordering::Relaxed);
    }

    /// Waits until the statuses of other nodes are current, but not for long.
    async fn ensure_current(&self) {
        self.note_question();
        if !self.0.has_store {
            return;
        }
        let mut reads = self.0.reads.subscribe();
        reads.mark_unchanged();
        {
            let tables = self.0.tables.lock();
            if tables.has_read && self.0.clock.boot().since(tables.read) < CURRENT_US {
                return;
            }
        }
        self.0.question.notify_one();
        drop(tokio::time::timeout(PATIENCE, reads.changed()).await);
    }

    /// Takes in what the live thread has read. Points of the fleet are settled `settle_seconds` later than those of a node
    /// alone.
    pub(super) fn take_in_reading(&self, reading: NodeReading, settle_seconds: u64) {
        let NodeReading { time, seconds, figures, rules, events, mut status } = reading;
        let second = time.as_us() / 1_000_000;
        let mut tables = self.0.tables.lock();
        let tables = &mut *tables;
        tables.series.spread(seconds.start, seconds.end, &figures);
        tables.second = second.saturating_sub(1);
        for (rule, groups) in &rules {
            tables.rules.add(rule, tables.second, groups);
        }
        tables.fleet.add_own(seconds, &figures, &rules);
        let own_points = tables.series.settle(second);
        let fleet_points = tables.fleet.settle(second.saturating_sub(settle_seconds));
        let points = if tables.fleet.is_following() { fleet_points } else { own_points };
        let mut new_events = tables.events.take_reported();
        new_events.extend(events.into_iter().map(|(kind, text)| tables.events.add(time, kind, text)));
        let counters = |(rule, groups): (Arc<str>, DecisionGroups)| RuleCounters {
            id: rule.to_string(),
            allowed: groups.allowed,
            limited: groups.limited,
        };
        status.admin = self.0.admin.get().cloned();
        status.rules = tables.rules.busiest(MOST_STATUS_RULES).into_iter().map(counters).collect();
        tables.own = Some(status);
        self.report_left(&tables.forget_silent(self.0.clock.boot()));
        let messages = points.into_iter().map(|point| LiveMessage::Point(Arc::new(point)));
        for message in messages.chain(new_events.into_iter().map(LiveMessage::Event)) {
            // An error means that there are no subscribers.
            let _ = self.0.messages.send(message);
        }
    }

    /// Takes in the statuses of the nodes that share the store, except for that of this node, which has the id `own`.
    pub(super) fn take_in_statuses(&self, own: &str, statuses: &FleetStatuses) {
        let second = self.0.clock.now().as_us() / 1_000_000;
        let mut tables = self.0.tables.lock();
        let listed = statuses.nodes.iter().filter(|(id, _)| *id != own).map(|(id, text)| {
            let status = text.as_deref().and_then(|text| NodeStatus::read(id, text));
            (id.clone(), status.map_or_else(|| ListedNode::without_status(id), ListedNode::new))
        });
        let mut others: BTreeMap<String, ListedNode> = listed.collect();
        if tables.has_read {
            self.report_changes(&tables.others, &others, statuses.is_complete);
        }
        if !statuses.is_complete {
            // A shard that does not reply may know of more.
            let known = std::mem::take(&mut tables.others);
            for (id, node) in known {
                others.entry(id).or_insert(node);
            }
        }
        // Alone, the fleet is this node.
        if !others.is_empty() || tables.fleet.is_following() {
            tables.fleet.follow(second);
        }
        let has_status = |node: &&ListedNode| node.state != NodeState::NoStatus;
        tables.fleet.take_in(second, others.values().filter(has_status).map(|node| &node.status));
        tables.others = others;
        (tables.is_complete, tables.has_read) = (statuses.is_complete, true);
        tables.read = self.0.clock.boot();
        drop(tables);
        self.0.reads.send_modify(|reads| *reads += 1);
    }

    fn report_changes(
        &self,
        before: &BTreeMap<String, ListedNode>,
        now: &BTreeMap<String, ListedNode>,
        is_complete: bool,
    ) {
        for (_, node) in now.iter().filter(|(id, _)| !before.contains_key(*id)) {
            let text = format!("node {} joined", name(&node.status));
            self.0.reporter.report(LiveEventKind::NodeJoined, text);
        }
        if is_complete {
            for (_, node) in before.iter().filter(|(id, _)| !now.contains_key(*id)) {
                let text = format!("node {} left or is silent", name(&node.status));
                self.0.reporter.report(LiveEventKind::NodeLeft, text);
            }
        }
    }

    /// The other nodes are not read any more.
    pub(super) fn unfollow(&self) {
        let mut tables = self.0.tables.lock();
        tables.others.clear();
        tables.fleet.unfollow();
        (tables.has_read, tables.is_complete) = (false, false);
    }
}

/// How a node is named in events.
fn name(status: &NodeStatus) -> String {
    match status.address.as_str() {
        "" => status.name_or_id().to_owned(),
        address => format!("{} at {address}", status.name_or_id()),
    }
}

impl LiveTables {
    fn node_count(&self) -> usize {
        1 + self.others.len() + self.followers.len()
    }

    /// Removes the followers that did not post for long, and returns what they told last.
    fn forget_silent(&mut self, now: BootTime) -> Vec<NodeStatus> {
        let kept = LiveSettings::default().kept_among(self.followers.len() as u32);
        let left: Vec<String> = self
            .followers
            .iter()
            .filter(|(_, (heard, _))| u128::from(now.since(*heard)) >= kept.as_micros())
            .map(|(id, _)| id.clone())
            .collect();
        left.iter().filter_map(|id| self.followers.remove(id)).map(|(_, status)| status).collect()
    }
}

impl LiveNow {
    /// The figures of these points.
    fn of(points: &[LivePoint]) -> Self {
        let known: Vec<&LivePoint> = points.iter().filter(|point| point.allowed.is_some()).collect();
        if known.is_empty() {
            return Self::default();
        }
        // Other nodes report any number.
        let sum = |of: fn(&LivePoint) -> Option<u64>| {
            known.iter().filter_map(|point| of(point)).fold(0, u64::saturating_add)
        };
        let decisions = sum(LivePoint::decisions);
        let share = |count: u64| (decisions > 0).then(|| count as f64 / decisions as f64);
        let most =
            |of: fn(&LivePoint) -> Option<f64>| known.iter().filter_map(|point| of(point)).reduce(f64::max);
        Self {
            decisions_per_second: Some(decisions as f64 / known.len() as f64),
            limited_share: share(sum(|point| point.limited)),
            degraded_share: share(sum(|point| point.degraded)),
            p50_us: most(|point| point.p50_us),
            p99_us: most(|point| point.p99_us),
            store_p50_us: most(|point| point.store_p50_us),
            store_p99_us: most(|point| point.store_p99_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleStatus;
    use crate::live::NodeProfile;
    use tokio::sync::watch;
    use tollgate_limiter::{Limiter, MemoryStore};

    #[test]
    fn a_node_is_not_one_of_the_others_before_its_first_look() {
        let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::system());
        let view = LiveView::new(&LiveParts {
            profile: NodeProfile::default(),
            limiter: Arc::new(limiter),
            store: None,
            rules: watch::channel(RuleStatus::default()).1,
            gateway: Arc::default(),
        });
        let nodes = ["own", "other"].map(|id| (id.to_owned(), None)).into();
        view.take_in_statuses("own", &FleetStatuses { nodes, is_complete: true });
        let tables = view.0.tables.lock();
        assert_eq!(tables.others.keys().collect::<Vec<_>>(), ["other"]);
    }
}
