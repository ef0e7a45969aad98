//! Heartbeats of the nodes, which measure the clocks of the shards.

use super::{ScheduledEvent, Simulation, shard_of};
use tollgate_core::heartbeat::{HeartbeatReply, INTERVAL_US};
use tollgate_core::time::BootTime;
use tollgate_redis::ClockChange;

/// Between two heartbeats, when the clock of a shard is in doubt.
const SHORTEST_INTERVAL_US: u64 = 200_000;

/// A heartbeat between a node and a shard.
pub(super) struct InFlightHeartbeat {
    node: u16,
    life: u32,
    shard: usize,
    /// By the node's clock.
    sent: BootTime,
    vote_us: Option<i64>,
    answer: Option<HeartbeatReply>,
    /// The node does not wait any longer.
    timeout_us: u64,
}

impl Simulation<'_> {
    /// A node that starts sends a heartbeat to each available shard before it serves requests.
    pub(super) fn open_node(&mut self, node: u16) {
        let state = &mut self.nodes[usize::from(node)];
        let boot = state.clock(self.now_us);
        for (shard, clock) in self.shards.iter_mut().zip(&state.shard_clocks) {
            if !shard.is_unavailable(self.now_us) {
                let answer = shard.heartbeat((node, state.lives), None, self.now_us);
                clock.note_heartbeat(boot, boot, answer.now, answer.correction);
            }
        }
        state.last_heartbeats_us = self.now_us;
        state.next_heartbeats_us = self.now_us + INTERVAL_US;
        let next_us = state.next_heartbeats_us;
        self.push(next_us, ScheduledEvent::Heartbeats(node));
    }

    /// A call found the clock of `shard` not where `node` expects it: the first drops the credit, and the next heartbeats are
    /// sent soon.
    pub(super) fn doubt_clock(&mut self, node: u16, shard: usize) {
        if self.nodes[usize::from(node)].shard_clocks[shard].begin_doubt() {
            self.drop_credit_of(node, shard);
        }
        self.hasten_heartbeats(node);
    }

    fn drop_credit_of(&self, node: u16, shard: usize) {
        let leases = &self.nodes[usize::from(node)].leases;
        leases.drop_credit(|key| shard_of(key, self.shards.len()) == shard);
    }

    pub(super) fn hasten_heartbeats(&mut self, node: u16) {
        let state = &mut self.nodes[usize::from(node)];
        let soon_us = self.now_us.max(state.last_heartbeats_us + SHORTEST_INTERVAL_US);
        if soon_us < state.next_heartbeats_us {
            state.next_heartbeats_us = soon_us;
            self.push(soon_us, ScheduledEvent::Heartbeats(node));
        }
    }

    pub(super) fn send_heartbeats(&mut self, node: u16) {
        if self.nodes[usize::from(node)].next_heartbeats_us != self.now_us {
            // They were sent sooner, or the node is another.
            return;
        }
        let begin_us = self.paused_until(node).unwrap_or(self.now_us);
        let state = &mut self.nodes[usize::from(node)];
        if begin_us > self.now_us {
            state.next_heartbeats_us = begin_us;
            return self.push(begin_us, ScheduledEvent::Heartbeats(node));
        }
        state.last_heartbeats_us = self.now_us;
        state.next_heartbeats_us = self.now_us + INTERVAL_US;
        let (life, next_us, sent) = (state.lives, state.next_heartbeats_us, state.clock(self.now_us));
        self.push(next_us, ScheduledEvent::Heartbeats(node));
        for shard in 0..self.shards.len() {
            let vote_us = self.nodes[usize::from(node)].shard_clocks[shard].vote_us();
            let timeout_us = self.now_us + self.fleet.timeout_us;
            let heartbeat = InFlightHeartbeat { node, life, shard, sent, vote_us, answer: None, timeout_us };
            self.numbers += 1;
            let (number, there_us) = (self.numbers, self.now_us + self.one_way_us());
            if !self.is_lost() {
                self.heartbeats.insert(number, heartbeat);
                self.push(there_us, ScheduledEvent::HeartbeatAtShard(number));
            }
        }
    }

    pub(super) fn heartbeat_reaches_shard(&mut self, number: u64) {
        let (back_us, is_lost) = (self.now_us + self.one_way_us(), self.is_lost());
        let Some(heartbeat) = self.heartbeats.get_mut(&number) else { return };
        let shard = &mut self.shards[heartbeat.shard];
        if shard.is_unavailable(self.now_us) {
            self.heartbeats.remove(&number);
            return;
        }
        let id = (heartbeat.node, heartbeat.life);
        heartbeat.answer = Some(shard.heartbeat(id, heartbeat.vote_us, self.now_us));
        if is_lost || back_us > heartbeat.timeout_us {
            self.heartbeats.remove(&number);
        } else {
            self.push(back_us, ScheduledEvent::HeartbeatReplyAtNode(number));
        }
    }

    pub(super) fn heartbeat_comes_back(&mut self, number: u64) {
        let Some(InFlightHeartbeat { node, life, shard, sent, answer, .. }) = self.heartbeats.remove(&number)
        else {
            return;
        };
        let state = &self.nodes[usize::from(node)];
        // A node that is paused meanwhile ignores it.
        if state.lives == life
            && self.paused_until(node).is_none()
            && let Some(answer) = answer
        {
            let received = state.clock(self.now_us);
            let clock = &state.shard_clocks[shard];
            match clock.note_heartbeat(sent, received, answer.now, answer.correction) {
                Some(ClockChange::Doubted) => {
                    self.drop_credit_of(node, shard);
                    self.hasten_heartbeats(node);
                }
                Some(ClockChange::OwnClock(_)) => self.drop_credit_of(node, shard),
                Some(ClockChange::Stepped(_) | ClockChange::Restored) | None => {}
            }
        }
    }
}
