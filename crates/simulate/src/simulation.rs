//! The run: nodes, shards, and the messages between them.

mod heartbeats;
mod requests;

use super::clients::{Client, ClientCharges};
use super::findings::Findings;
use super::oracle::Oracle;
use super::shard::SimulatedShard;
use super::traffic::Arrival;
use super::{FleetEvent, SimulatedFleet};
use heartbeats::InFlightHeartbeat;
use requests::{PendingRequest, SimulatedWaiter, VerdictInbox};
use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tollgate_core::lending::EPOCH_US;
use tollgate_core::rules::RuleSet;
use tollgate_core::script::{CallTime, ScriptReply};
use tollgate_core::time::BootTime;
use tollgate_core::virtual_store::VirtualStore;
use tollgate_redis::ShardClock;
use tollgate_redis::lease::{Executed, LeaseSettings, LeaseTable, StoreCall};

/// How long the run continues after the last request, so that credit is returned.
const AFTERMATH_US: u64 = 2_500_000;
/// Credit does not live longer.
const CREDIT_US: u64 = 2 * EPOCH_US;
/// Requests between two calls of `progress`.
const STRIDE: u64 = 20_000;

type ByNumber<T> = HashMap<u64, T, rapidhash::fast::RandomState>;

/// An event in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ScheduledEvent {
    Fault(usize),
    Snapshot(usize),
    RequestResumes(usize),
    CallAtShard(u64),
    ReplyAtNode(u64),
    CallTimeout(u64),
    Tick(u16),
    Heartbeats(u16),
    HeartbeatAtShard(u64),
    HeartbeatReplyAtNode(u64),
}

pub(super) struct Simulation<'s> {
    fleet: &'s SimulatedFleet,
    clients: ClientCharges<'s>,
    nodes: Vec<SimulatedNode>,
    shards: Vec<SimulatedShard>,
    oracle: Oracle,
    /// The time since the start of the run, as are all other plain integers.
    now_us: u64,
    next: BinaryHeap<Reverse<(u64, u64, ScheduledEvent)>>,
    /// When to stop waiting for which call, in order.
    timeouts: VecDeque<(u64, u64)>,
    under_way: ByNumber<InFlightCall>,
    heartbeats: ByNumber<InFlightHeartbeat>,
    waiting: ByNumber<PendingRequest>,
    /// Requests that wait until their node resumes.
    delayed: Vec<Arrival>,
    /// What shards had written some time before they lose it, by the number of the event.
    snapshots: ByNumber<VirtualStore<Arc<str>>>,
    inbox: VerdictInbox,
    numbers: u64,
    random: fastrand::Rng,
    refused_by_client: Vec<u64>,
    found: Findings,
}

struct SimulatedNode {
    leases: LeaseTable<SimulatedWaiter>,
    /// How often it was replaced after a crash.
    lives: u32,
    /// Its clock began at some other time, and goes a little wrong.
    booted: BootTime,
    drift_ppm: i64,
    paused_until_us: u64,
    /// The time of each shard, as it expects it.
    shard_clocks: Vec<ShardClock>,
    /// When it has sent its last heartbeats, and when it will send the next.
    last_heartbeats_us: u64,
    next_heartbeats_us: u64,
}

/// A call between a node and a shard.
struct InFlightCall {
    node: u16,
    life: u32,
    shard: usize,
    call: StoreCall<SimulatedWaiter>,
    time: CallTime,
    /// Of a call that was served; none in it if the shard's clock was not where the node expected it.
    answer: Option<Option<ScriptReply>>,
    is_lost: bool,
    is_overdue: bool,
}

impl SimulatedNode {
    fn new(fleet: &SimulatedFleet, rules: &RuleSet, random: &mut fastrand::Rng, lives: u32) -> Self {
        let defaults = LeaseSettings::default();
        let settings =
            LeaseSettings { horizon_us: fleet.horizon_us.unwrap_or(defaults.horizon_us), ..defaults };
        let leases = LeaseTable::new(settings);
        leases.set_nodes(u32::from(fleet.nodes));
        leases.follow_interval_of(rules);
        let drift = i64::from(fleet.drift_ppm);
        Self {
            leases,
            lives,
            booted: BootTime::from_us(random.u64(0..1 << 40)),
            drift_ppm: random.i64(-drift..=drift),
            paused_until_us: 0,
            shard_clocks: (0..fleet.shards).map(|_| ShardClock::default()).collect(),
            last_heartbeats_us: 0,
            next_heartbeats_us: 0,
        }
    }

    /// What the clock of this node shows `now_us` after the start of the run.
    fn clock(&self, now_us: u64) -> BootTime {
        let drifted = i128::from(now_us) * i128::from(1_000_000 + self.drift_ppm) / 1_000_000;
        self.booted + drifted as u64
    }
}

impl<'s> Simulation<'s> {
    pub(super) fn new(fleet: &'s SimulatedFleet, clients: &'s [Client]) -> Self {
        let mut random = fastrand::Rng::with_seed(fleet.seed);
        let nodes =
            (0..fleet.nodes).map(|_| SimulatedNode::new(fleet, &fleet.rules, &mut random, 0)).collect();
        let mut simulation = Self {
            fleet,
            clients: ClientCharges::new(clients, Arc::clone(&fleet.rules)),
            nodes,
            shards: (0..fleet.shards).map(|_| SimulatedShard::new()).collect(),
            oracle: Oracle::default(),
            now_us: 0,
            next: BinaryHeap::new(),
            timeouts: VecDeque::new(),
            under_way: ByNumber::default(),
            heartbeats: ByNumber::default(),
            waiting: ByNumber::default(),
            delayed: Vec::new(),
            snapshots: ByNumber::default(),
            inbox: VerdictInbox::default(),
            numbers: 0,
            random,
            refused_by_client: vec![0; clients.len()],
            found: Findings {
                calls_by_node: vec![Vec::new(); usize::from(fleet.nodes)],
                ..Findings::default()
            },
        };
        for (index, (at_us, event)) in fleet.events.iter().enumerate() {
            if let FleetEvent::ShardLosesWrites(_, lag_us) | FleetEvent::ShardFailsOver(_, lag_us, _) = event
            {
                simulation.push(at_us.saturating_sub(*lag_us), ScheduledEvent::Snapshot(index));
            }
            simulation.push(*at_us, ScheduledEvent::Fault(index));
        }
        for node in 0..fleet.nodes {
            let first_us = simulation.random.u64(0..simulation.nodes[usize::from(node)].leases.tick_us());
            simulation.push(first_us, ScheduledEvent::Tick(node));
            simulation.open_node(node);
        }
        simulation
    }

    pub(super) fn run(
        mut self,
        arrivals: impl Iterator<Item = Arrival>,
        progress: &mut dyn FnMut(u64),
    ) -> Findings {
        for arrival in arrivals {
            self.pass_time(arrival.at_us);
            self.arrive(arrival);
            if self.found.tally.arrivals.is_multiple_of(STRIDE) {
                progress(self.now_us);
            }
        }
        self.found.length_us = self.now_us;
        self.pass_time(self.now_us + AFTERMATH_US);
        self.conclude()
    }

    fn conclude(mut self) -> Findings {
        for (client, refused) in self.refused_by_client.iter().enumerate() {
            if !self.oracle.has_refused(client as u32) {
                self.found.tally.innocent_refused += refused;
            }
        }
        self.found.charges_by_shard = self.shards.iter().map(|shard| shard.charges).collect();
        self.found.busy_ns_by_shard = self.shards.iter().map(|shard| shard.busy_ns).collect();
        self.found.clock_gain_us_by_shard = self.shards.iter().map(SimulatedShard::clock_gain_us).collect();
        for (address, state) in self.clients.addresses() {
            let shard = shard_of(&address.key, self.shards.len());
            self.found.shard_by_key.insert(state, shard);
            if let Some(clock) = self.shards[shard].refill_clock(address) {
                self.found.refill_clocks.insert(state, clock.clone());
            }
            if let Some(clock) = self.shards[shard].charge_clock(address) {
                self.found.charge_clocks.insert(state, clock.clone());
            }
        }
        self.found.losses_us_by_shard = self.shards.iter().map(|shard| shard.losses_us.clone()).collect();
        (self.found.meters, self.found.bounds) = self.clients.into_limits();
        self.found
    }

    fn push(&mut self, at_us: u64, next: ScheduledEvent) {
        self.numbers += 1;
        self.next.push(Reverse((at_us, self.numbers, next)));
    }

    /// Runs all events until `until_us`.
    fn pass_time(&mut self, until_us: u64) {
        loop {
            let next_us = self.next.peek().map_or(u64::MAX, |Reverse((at_us, ..))| *at_us);
            let timeout_us = self.timeouts.front().map_or(u64::MAX, |(at_us, _)| *at_us);
            if next_us.min(timeout_us) > until_us {
                break;
            }
            if timeout_us < next_us {
                self.now_us = timeout_us;
                if let Some((_, number)) = self.timeouts.pop_front() {
                    self.time_out(number);
                }
            } else if let Some(Reverse((at_us, _, next))) = self.next.pop() {
                self.now_us = at_us;
                match next {
                    ScheduledEvent::Fault(index) => self.apply_event(index),
                    ScheduledEvent::Snapshot(index) => self.take_snapshot(index),
                    ScheduledEvent::RequestResumes(index) => self.take_up(self.delayed[index]),
                    ScheduledEvent::CallAtShard(number) => self.reach_shard(number),
                    ScheduledEvent::ReplyAtNode(number) => self.reply_arrives(number),
                    ScheduledEvent::CallTimeout(number) => self.time_out(number),
                    ScheduledEvent::Tick(node) => self.tick(node),
                    ScheduledEvent::Heartbeats(node) => self.send_heartbeats(node),
                    ScheduledEvent::HeartbeatAtShard(number) => self.heartbeat_reaches_shard(number),
                    ScheduledEvent::HeartbeatReplyAtNode(number) => self.heartbeat_comes_back(number),
                }
            }
            self.deliver_verdicts();
        }
        self.now_us = until_us;
    }

    fn apply_event(&mut self, index: usize) {
        match &self.fleet.events[index].1 {
            FleetEvent::NodeCrashes(node) => {
                let state = &mut self.nodes[usize::from(*node)];
                let (rules, _) = self.clients.rules_at(*node);
                *state = SimulatedNode::new(self.fleet, rules, &mut self.random, state.lives + 1);
                let life = state.lives;
                // Requests that wait there receive no verdict.
                self.waiting.retain(|_, waiting| waiting.arrival.node != *node || waiting.life == life);
                self.open_node(*node);
            }
            FleetEvent::NodePauses(node, length_us) => {
                let state = &mut self.nodes[usize::from(*node)];
                let holds_credit = state.leases.credit(state.clock(self.now_us)) > 0;
                self.found.pauses_beyond_credit += u64::from(holds_credit && *length_us > CREDIT_US);
                state.paused_until_us = self.now_us + length_us;
            }
            FleetEvent::ShardUnavailable(shard, length_us) => {
                self.shards[usize::from(*shard)].stop_for(self.now_us, *length_us);
            }
            FleetEvent::ShardLosesWrites(shard, lag_us) => self.restore_snapshot(index, *shard, *lag_us),
            FleetEvent::ShardFailsOver(shard, lag_us, by_us) => {
                self.restore_snapshot(index, *shard, *lag_us);
                self.shards[usize::from(*shard)].step_clock(*by_us);
            }
            FleetEvent::ShardRestarts(shard) => {
                self.shards[usize::from(*shard)].restore(VirtualStore::default(), 0, self.now_us);
            }
            FleetEvent::ShardClockSteps(shard, by_us) => self.shards[usize::from(*shard)].step_clock(*by_us),
            FleetEvent::Rules(rules) => {
                self.clients.change(Arc::clone(rules));
                for node in &self.nodes {
                    node.leases.follow_interval_of(rules);
                }
            }
            FleetEvent::RulesAt(node, rules) => {
                self.clients.change_at(*node, Arc::clone(rules));
                self.nodes[usize::from(*node)].leases.follow_interval_of(rules);
            }
        }
    }

    fn take_snapshot(&mut self, index: usize) {
        if let (_, FleetEvent::ShardLosesWrites(shard, _) | FleetEvent::ShardFailsOver(shard, ..)) =
            &self.fleet.events[index]
        {
            self.snapshots.insert(index as u64, self.shards[usize::from(*shard)].snapshot());
        }
    }

    fn restore_snapshot(&mut self, index: usize, shard: u16, lag_us: u64) {
        let snapshot = self.snapshots.remove(&(index as u64)).unwrap_or_default();
        let written_until_us = self.now_us.saturating_sub(lag_us);
        self.shards[usize::from(shard)].restore(snapshot, written_until_us, self.now_us);
    }

    /// When `node` resumes, if it is paused.
    fn paused_until(&self, node: u16) -> Option<u64> {
        let until_us = self.nodes[usize::from(node)].paused_until_us;
        (until_us > self.now_us).then_some(until_us)
    }

    fn send(&mut self, node: u16, call: StoreCall<SimulatedWaiter>) {
        let shard = shard_of(&call.key, self.shards.len());
        let life = self.nodes[usize::from(node)].lives;
        if self.shards[shard].is_breaker_open(self.now_us) {
            self.nodes[usize::from(node)].leases.fail(call, Executed::No);
            return;
        }
        if !self.nodes[usize::from(node)].shard_clocks[shard].is_known() {
            self.nodes[usize::from(node)].leases.fail(call, Executed::No);
            return self.hasten_heartbeats(node);
        }
        let second = (self.now_us / 1_000_000) as usize;
        let seconds = &mut self.found.calls_by_node[usize::from(node)];
        seconds.resize(seconds.len().max(second + 1), 0);
        seconds[second] += 1;
        self.found.calls += 1;
        self.found.reports += u64::from(call.ask.runs.is_empty());
        self.numbers += 1;
        let number = self.numbers;
        let is_lost = self.is_lost();
        let state = &self.nodes[usize::from(node)];
        let time = state.shard_clocks[shard].call_time(state.clock(self.now_us));
        let call = InFlightCall { node, life, shard, call, time, answer: None, is_lost, is_overdue: false };
        self.under_way.insert(number, call);
        self.timeouts.push_back((self.now_us + self.fleet.timeout_us, number));
        let there_us = self.now_us + self.one_way_us();
        if !is_lost {
            self.push(there_us, ScheduledEvent::CallAtShard(number));
        }
    }

    fn one_way_us(&mut self) -> u64 {
        let is_stalled = self.random.u32(0..1_000) < self.fleet.stalled_permille;
        let stall_us = if is_stalled { self.random.u64(0..=self.fleet.stall_us) } else { 0 };
        self.fleet.rtt_us / 2 + self.random.u64(0..=self.fleet.jitter_us) + stall_us
    }

    fn is_lost(&mut self) -> bool {
        self.random.u32(0..1_000) < self.fleet.lost_permille
    }

    fn reach_shard(&mut self, number: u64) {
        let (way_us, is_lost_back) = (self.one_way_us(), self.is_lost());
        let Some(call) = self.under_way.get_mut(&number) else { return };
        let shard = &mut self.shards[call.shard];
        if shard.is_unavailable(self.now_us) {
            call.is_lost = true;
            return;
        }
        let StoreCall { key, ask, .. } = &call.call;
        let (answer, done_us) = shard.serve(key, ask, call.time, self.now_us, self.fleet.charge_ns);
        call.answer = Some(answer);
        call.is_lost = is_lost_back;
        if !is_lost_back {
            self.push(done_us + way_us, ScheduledEvent::ReplyAtNode(number));
        }
    }

    fn reply_arrives(&mut self, number: u64) {
        let paused_until = self.under_way.get(&number).and_then(|call| self.paused_until(call.node));
        if let Some(until_us) = paused_until {
            return self.push(until_us, ScheduledEvent::ReplyAtNode(number));
        }
        let Some(call) = self.under_way.remove(&number) else { return };
        let node = &self.nodes[usize::from(call.node)];
        let Some(answer) = call.answer.filter(|_| node.lives == call.life) else { return };
        let Some(answer) = answer else {
            node.leases.fail(call.call, Executed::No);
            return self.doubt_clock(call.node, call.shard);
        };
        let next = node.leases.apply_reply(call.call, &answer, node.clock(self.now_us));
        if let Some(next) = next {
            self.send(call.node, next);
        }
    }

    fn time_out(&mut self, number: u64) {
        let paused_until = self.under_way.get(&number).and_then(|call| self.paused_until(call.node));
        if let Some(until_us) = paused_until {
            return self.push(until_us, ScheduledEvent::CallTimeout(number));
        }
        let Some(call) = self.under_way.get_mut(&number) else { return };
        let node = &self.nodes[usize::from(call.node)];
        let is_alive = node.lives == call.life;
        if !call.is_lost {
            if is_alive && !call.is_overdue {
                call.is_overdue = true;
                node.leases.time_out(&mut call.call);
            }
        } else if let Some(call) = self.under_way.remove(&number)
            && is_alive
        {
            node.leases.fail(call.call, Executed::Maybe);
        }
    }

    fn tick(&mut self, node: u16) {
        if let Some(until_us) = self.paused_until(node) {
            return self.push(until_us, ScheduledEvent::Tick(node));
        }
        let state = &self.nodes[usize::from(node)];
        let mut calls = Vec::new();
        state.leases.tick(state.clock(self.now_us), |call| calls.push(call));
        for call in calls {
            self.send(node, call);
        }
        let next_us = self.now_us + self.nodes[usize::from(node)].leases.tick_us();
        self.push(next_us, ScheduledEvent::Tick(node));
    }
}

/// The shard that a key is kept at.
fn shard_of(key: &str, shards: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish() % shards as u64) as usize
}
