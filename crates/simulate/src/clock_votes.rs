//! How nodes agree on the time of a shard whose clock has stepped: what `core/heartbeat.lua` does.

use std::collections::BTreeMap;
use tollgate_core::heartbeat::{self, HeartbeatReply};

/// A difference that begins a correction, and one that ends it.
const STEPPED_US: u64 = 500_000;
const SAME_US: u64 = 10_000;

/// A node, and how often another has taken its place: each is a node of its own.
pub(super) type NodeId = (u16, u32);

/// The sorted sets of a shard.
#[derive(Debug, Default)]
pub(super) struct ClockVotes {
    seen_us: BTreeMap<NodeId, u64>,
    differences_us: BTreeMap<NodeId, i64>,
}

impl ClockVotes {
    /// One heartbeat, at `now_us` of the shard's clock, of a node that expects another time.
    pub(super) fn heartbeat(
        &mut self,
        node: NodeId,
        expected_us: Option<u64>,
        now_us: u64,
    ) -> HeartbeatReply {
        let is_new = self.seen_us.insert(node, now_us).is_none();
        let silent_us = heartbeat::MISSED * heartbeat::INTERVAL_US;
        let oldest_us = now_us - silent_us;
        let is_alive = |seen_us: &u64| (oldest_us..=now_us + silent_us).contains(seen_us);
        let nodes = self.seen_us.values().filter(|seen_us| is_alive(seen_us)).count();
        if let Some(expected_us) = expected_us {
            let difference_us = expected_us as i64 - now_us as i64;
            let off_us = difference_us.unsigned_abs();
            if off_us > STEPPED_US || (!self.differences_us.is_empty() && off_us > SAME_US) {
                self.differences_us.insert(node, difference_us);
            } else {
                self.differences_us.remove(&node);
            }
        }
        if self.differences_us.len() > nodes {
            self.differences_us.retain(|node, _| self.seen_us.get(node).is_some_and(|us| *us >= oldest_us));
        }
        let mut sorted: Vec<i64> = self.differences_us.values().copied().collect();
        sorted.sort_unstable();
        let knowing = if expected_us.is_some() { nodes } else { nodes - 1 };
        let correction_us = if 2 * sorted.len() > knowing { sorted[(sorted.len() - 1) / 2] } else { 0 };
        HeartbeatReply { now_us, nodes: nodes as u32, is_new, correction_us }
    }
}
