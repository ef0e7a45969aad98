//! How nodes agree on the time of a shard whose clock has stepped: what `core/heartbeat.lua` does.

use std::collections::BTreeMap;
use tollgate_core::heartbeat::{self, ClockCorrection, HeartbeatReply};

/// Votes that are no further apart are alike.
const ALIKE_US: u64 = 500_000;

/// A node, and how often another has taken its place: each is a node of its own.
pub(super) type NodeId = (u16, u32);

/// The keys of a shard.
#[derive(Debug, Default)]
pub(super) struct ClockVotes {
    seen_us: BTreeMap<NodeId, u64>,
    votes_us: BTreeMap<NodeId, i64>,
    correction: ClockCorrection,
}

impl ClockVotes {
    /// One heartbeat, at `now_us` of the shard's clock, of a node that votes for a correction, or does not.
    pub(super) fn heartbeat(&mut self, node: NodeId, vote_us: Option<i64>, now_us: u64) -> HeartbeatReply {
        let is_new = self.seen_us.insert(node, now_us).is_none();
        let silent_us = heartbeat::MISSED * heartbeat::INTERVAL_US;
        let oldest_us = now_us - silent_us;
        let is_alive = |seen_us: &u64| (oldest_us..=now_us + silent_us).contains(seen_us);
        let nodes = self.seen_us.values().filter(|seen_us| is_alive(seen_us)).count();
        match vote_us {
            Some(vote_us) => self.votes_us.insert(node, vote_us),
            None => self.votes_us.remove(&node),
        };
        if self.votes_us.len() > nodes {
            self.votes_us.retain(|node, _| self.seen_us.get(node).is_some_and(|us| *us >= oldest_us));
        }
        let mut sorted: Vec<i64> = self.votes_us.values().copied().collect();
        sorted.sort_unstable();
        if vote_us.is_some() && 2 * sorted.len() > nodes {
            let middle_us = sorted[(sorted.len() - 1) / 2];
            let alike = sorted.iter().filter(|us| us.abs_diff(middle_us) <= ALIKE_US).count();
            if 2 * alike > nodes {
                self.correction = ClockCorrection { agreed_us: middle_us, since_us: now_us };
                self.votes_us.clear();
            }
        }
        HeartbeatReply { now_us, nodes: nodes as u32, is_new, correction: self.correction }
    }
}
