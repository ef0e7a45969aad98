//! How nodes agree on the time of a shard whose clock has stepped: what `core/heartbeat.lua` does. Tests of the Redis crate
//! compare the two, heartbeat by heartbeat.

use std::collections::BTreeMap;
use tollgate_core::heartbeat::{self, ClockCorrection, HeartbeatReply};
use tollgate_core::time::ServerTime;

/// Votes that are no further apart are alike.
const ALIKE_US: u64 = 500_000;
/// A node without a heartbeat for so long is forgotten.
const KEPT_US: u64 = 3 * heartbeat::DESCRIBE_EVERY_US;

/// A node, and how often it was replaced: each replacement is a node of its own.
pub type NodeId = (u16, u32);

/// The keys of a shard.
#[derive(Debug, Default)]
pub struct ClockVotes {
    seen: BTreeMap<NodeId, ServerTime>,
    votes_us: BTreeMap<NodeId, i64>,
    correction: ClockCorrection,
}

impl ClockVotes {
    /// One heartbeat, at `now` by the shard's clock, of a node that votes for a correction, or does not.
    pub fn heartbeat(&mut self, node: NodeId, vote_us: Option<i64>, now: ServerTime) -> HeartbeatReply {
        let is_new = self.seen.insert(node, now).is_none();
        self.seen.retain(|_, seen| *seen >= now.shifted_by(-KEPT_US.cast_signed()));
        let silent_us = heartbeat::MISSED * heartbeat::INTERVAL_US;
        let oldest = now.shifted_by(-silent_us.cast_signed());
        let is_alive = |seen: &ServerTime| (oldest..=now + silent_us).contains(seen);
        let nodes = self.seen.values().filter(|seen| is_alive(seen)).count();
        // A node votes until it hears of the agreement: a vote for what is agreed on already does not count.
        let vote_us = vote_us.filter(|us| us.abs_diff(self.correction.left_us(now)) > ALIKE_US);
        match vote_us {
            Some(vote_us) => self.votes_us.insert(node, vote_us),
            None => self.votes_us.remove(&node),
        };
        if self.votes_us.len() > nodes {
            self.votes_us.retain(|node, _| self.seen.get(node).is_some_and(|seen| *seen >= oldest));
        }
        let mut sorted: Vec<i64> = self.votes_us.values().copied().collect();
        sorted.sort_unstable();
        if vote_us.is_some() && 2 * sorted.len() > nodes {
            let middle_us = sorted[(sorted.len() - 1) / 2];
            let alike = sorted.iter().filter(|us| us.abs_diff(middle_us) <= ALIKE_US).count();
            if 2 * alike > nodes {
                self.correction = ClockCorrection { agreed_us: middle_us, since: now };
                self.votes_us.clear();
            }
        }
        HeartbeatReply { now, nodes: nodes as u32, is_new, correction: self.correction }
    }
}
