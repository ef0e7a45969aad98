//! Live figures: what the node, and the fleet, decided in the last minutes, what happened, and how each node is.
//!
//! A thread of its own, which makes no decisions, looks at the counters once a second (`NodeMonitor`). It keeps a series
//! of points in fixed memory (`live_series`), finds events (`change_watch`), and every 2 seconds writes the status of
//! this node to the shared store, where the other nodes read it (`fleet_figures`). Followers of this control plane over
//! HTTP post theirs.
//!
//! In a fleet of up to 16 nodes each node reads the statuses of all others every 2 seconds. In a larger fleet only a node
//! that an operator is looking at does, and for a minute after: the work at the store would grow with the square of the
//! number of nodes.

mod change_watch;
mod events;
mod fleet_figures;
mod fleet_top;
mod live_figures;
mod live_series;
mod live_view;
mod node_monitor;
mod node_status;
mod rule_tracks;

pub use events::{EventReporter, LiveEvent, LiveEventKind};
pub use fleet_top::{FrequentKey, FrequentRoute, NodeTop, UnlistedMost};
pub use live_figures::{DecisionGroups, LatencyCounts, LiveFigures};
pub use live_series::{LivePoint, LiveRange};
pub use live_view::{
    FleetNodes, ListedNode, LiveMessage, LiveNow, LiveReport, LiveView, NodeState, StatusError,
};
pub use node_monitor::{LiveParts, NodeProfile};
pub use node_status::{NodeCounters, NodeLatency, NodeRates, NodeStatus, RuleCounters, ShardStatus};
pub use rule_tracks::LiveRule;

use node_monitor::NodeMonitor;
use std::io;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tollgate_limiter::line_log::is_hidden;
use tollgate_redis::StoreObserver;

/// How often what happens.
#[derive(Clone, Copy, Debug)]
pub struct LiveSettings {
    /// Between two statuses of this node, in fleets of up to 100 nodes. In larger ones it is longer, so that the store
    /// does not get many more.
    pub status_interval: Duration,
    /// How long a status is kept.
    pub status_kept: Duration,
    /// In fleets of up to so many nodes, each follows the others also if no operator is looking.
    pub always_follow: u32,
}

impl Default for LiveSettings {
    fn default() -> Self {
        Self {
            status_interval: Duration::from_secs(2),
            status_kept: Duration::from_secs(15),
            always_follow: 16,
        }
    }
}

impl LiveSettings {
    fn interval_among(&self, nodes: u32) -> Duration {
        (self.status_interval * nodes.div_ceil(100).max(1)).min(self.status_interval * 5)
    }

    fn kept_among(&self, nodes: u32) -> Duration {
        self.status_kept.max(self.interval_among(nodes) * 3)
    }

    /// Points of the fleet are final after so many seconds: the statuses of all nodes are there.
    fn settle_seconds(&self, nodes: u32) -> u64 {
        if nodes <= 1 { 0 } else { self.interval_among(nodes).as_secs() + 2 }
    }
}

/// The live figures of a node. Its thread ends when it is stopped or dropped.
#[derive(Debug)]
pub struct LiveMonitor {
    view: LiveView,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl LiveMonitor {
    /// Begins to look at the node that has these parts.
    pub fn start(parts: LiveParts, settings: LiveSettings) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let store = parts.store.clone();
        let view = LiveView::new(&parts);
        let mut monitor = NodeMonitor::new(parts);
        let thread_view = view.clone();
        std::thread::Builder::new().name("live".to_owned()).spawn(move || {
            runtime.block_on(async {
                let view = &thread_view;
                let ticks = keep_ticking(view, &mut monitor, &settings);
                let fleet = async {
                    match &store {
                        Some(store) => keep_exchanging(view, store, &settings).await,
                        None => std::future::pending().await,
                    }
                };
                let mut stopped = stopped;
                tokio::select! {
                    () = ticks => {}
                    () = fleet => {}
                    _ = stopped.wait_for(|is_stopped| *is_stopped) => {}
                }
                if let Some(store) = &store {
                    // Others would see it until it expires.
                    let _ = timeout(Duration::from_secs(1), store.remove_status()).await;
                }
            });
            end.send_replace(true);
        })?;
        Ok(Self { view, stop, ended })
    }

    /// What operators see.
    pub fn view(&self) -> LiveView {
        self.view.clone()
    }

    /// Ends the thread, and removes the status of this node from the store.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let mut ended = self.ended.clone();
        drop(timeout(Duration::from_secs(2), ended.wait_for(|has_ended| *has_ended)).await);
    }
}

/// Looks at the counters at the beginning of each second.
async fn keep_ticking(view: &LiveView, monitor: &mut NodeMonitor, settings: &LiveSettings) {
    loop {
        let into_second_us = monitor.now().as_us() % 1_000_000;
        tokio::time::sleep(Duration::from_micros(1_000_000 - into_second_us)).await;
        let nodes = monitor.node_count().max(view.known_nodes());
        let reading = monitor.read();
        view.take_in_reading(reading, settings.settle_seconds(nodes));
    }
}

/// Writes the status of this node, and reads those of the others.
async fn keep_exchanging(view: &LiveView, store: &StoreObserver, settings: &LiveSettings) {
    let mut next = Instant::now();
    loop {
        let nodes = store.node_count();
        if Instant::now() >= next {
            next = Instant::now() + settings.interval_among(nodes);
            if let Some(status) = view.own_status_text() {
                store.write_status(&status, settings.kept_among(nodes)).await;
            }
        }
        if nodes <= settings.always_follow || view.is_watched() {
            let statuses = store.read_statuses().await;
            view.take_in_statuses(store.node_id(), &statuses);
        } else {
            view.unfollow();
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = view.wait_for_question() => {}
        }
    }
}

/// Cuts `text` to at most `most` bytes, and replaces the characters that could control a terminal or forge lines.
fn clean(text: &mut String, most: usize) {
    cut(text, most);
    if text.contains(is_hidden) {
        *text = text.replace(is_hidden, "?");
    }
}

/// Cuts `text` to at most `most` bytes.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}
