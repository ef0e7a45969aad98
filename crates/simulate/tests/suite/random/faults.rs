//! What befalls a fleet, and by how much it may set the time wrong that limits are charged by.

use super::*;
use std::collections::BTreeSet;

/// The length of a run and of what comes after it, at most.
const LENGTH_US: u64 = 12 * SECOND_US;
/// Nodes have agreed on a correction by then, or the minority has given in.
const AGREEMENT_US: u64 = 3 * SECOND_US;
/// What may refill a bucket a second time for each step, while nodes disagree about the correction: documented in docs/redis.md.
const TWICE_US: u64 = CLOCK_TOLERANCE_US;

/// What befalls a fleet in seven seconds. In three of four runs a shard loses its last writes, a shard restarts empty, a clock steps,
/// and a node is paused for longer than credit lives; in half of them a node crashes, and in a quarter a shard fails over to
/// a server with another clock. In every fourth run it is one of them alone: after a step the time of a limit is known less well, and
/// with all of them there are few keys whose shard keeps both its data and its time, and which are judged without any allowance.
pub(super) fn faults(random: &mut fastrand::Rng, nodes: u16) -> Vec<(u64, FleetEvent)> {
    let mut befall = vec![
        FleetEvent::ShardLosesWrites(random.u16(0..SHARDS), random.u64(0..SECOND_US)),
        FleetEvent::ShardRestarts(random.u16(0..SHARDS)),
        FleetEvent::ShardClockSteps(random.u16(0..SHARDS), step_us(random)),
        FleetEvent::NodePauses(random.u16(0..nodes), random.u64(CREDIT_US + 1..6 * SECOND_US)),
    ];
    if random.bool() {
        befall.push(FleetEvent::NodeCrashes(random.u16(0..nodes)));
    }
    if random.u8(0..4) == 0 {
        befall.push(failover(random));
    }
    if random.u8(0..4) == 0 {
        let only = befall.swap_remove(random.usize(0..befall.len()));
        return vec![(random.u64(0..6 * SECOND_US), only)];
    }
    for _ in 0..random.usize(0..3) {
        befall.push(match random.u8(0..6) {
            0 => FleetEvent::NodeCrashes(random.u16(0..nodes)),
            1 => FleetEvent::NodePauses(random.u16(0..nodes), random.u64(0..6 * SECOND_US)),
            2 => FleetEvent::ShardUnavailable(random.u16(0..SHARDS), random.u64(0..2 * SECOND_US)),
            3 => loss(random),
            4 => failover(random),
            _ => FleetEvent::ShardClockSteps(random.u16(0..SHARDS), step_us(random)),
        });
    }
    befall.into_iter().map(|event| (random.u64(0..6 * SECOND_US), event)).collect()
}

fn loss(random: &mut fastrand::Rng) -> FleetEvent {
    let shard = random.u16(0..SHARDS);
    match random.bool() {
        true => FleetEvent::ShardLosesWrites(shard, random.u64(0..SECOND_US)),
        false => FleetEvent::ShardRestarts(shard),
    }
}

fn failover(random: &mut fastrand::Rng) -> FleetEvent {
    FleetEvent::ShardFailsOver(random.u16(0..SHARDS), random.u64(0..SECOND_US), step_us(random))
}

fn step_us(random: &mut fastrand::Rng) -> i64 {
    match random.bool() {
        // Steps of less than half a second pass unnoticed: those ahead are longer.
        true => random.i64(600_000..60 * SECOND_US as i64),
        false => -random.i64(0..20 * SECOND_US as i64),
    }
}

/// When the clock of `shard` steps, and by how much.
pub(super) fn steps_of(events: &[(u64, FleetEvent)], shard: usize) -> impl Iterator<Item = (u64, i64)> {
    events.iter().filter_map(move |(at_us, event)| match event {
        FleetEvent::ShardClockSteps(of, by_us) | FleetEvent::ShardFailsOver(of, _, by_us) => {
            (usize::from(*of) == shard).then_some((*at_us, *by_us))
        }
        _ => None,
    })
}

/// When the clock of `shard` first steps.
pub(super) fn first_step_us(events: &[(u64, FleetEvent)], shard: usize) -> Option<u64> {
    steps_of(events, shard).map(|(at_us, _)| at_us).min()
}

/// For how long after a loss credit that was taken before it counts. A clock that is set back goes through an epoch again.
pub(super) fn credit_us(events: &[(u64, FleetEvent)], shard: usize) -> u64 {
    let set_back = steps_of(events, shard).filter(|(_, by_us)| *by_us < 0);
    CREDIT_US + set_back.map(|(_, by_us)| by_us.unsigned_abs()).sum::<u64>()
}

/// What a run with clock steps may do to the time that limits of a shard are charged by.
pub(super) struct GainBound {
    /// By how much it may gain on the true time.
    pub(super) gain_us: u64,
    /// By how much it may fall behind what it was.
    pub(super) fall_us: u64,
    /// How much of it may pass a second time for a bucket; unknown if some calls are charged by a time without the correction and
    /// others by one with it, and take turns.
    pub(super) twice_us: Option<u64>,
}

/// The most that the corrected time may gain or fall: nodes agree on it to within the timeout of a heartbeat for each step, and the
/// correction shrinks by a hundredth of the time that passes. A node that starts before they have agreed, or have agreed again
/// after the shard lost its data, charges by the clock as it is; it gives in seconds later, and may then take a time that is
/// about to be corrected after another step. A call that is on its way for as long as the clock was set back finds the time that it
/// expects. If half of the nodes stand still, the others are no majority, and accept the step.
///
/// Where heartbeats may take longer than nodes wait for them, they may never agree, and accept each step as they measure it.
pub(super) fn gain_bound(fleet: &SimulatedFleet, shard: usize) -> GainBound {
    let SimulatedFleet { events, timeout_us, .. } = fleet;
    if !measures_clocks(fleet) {
        let all_us = steps_of(events, shard).map(|(_, by_us)| by_us.unsigned_abs() + timeout_us).sum();
        return GainBound { gain_us: all_us, fall_us: all_us, twice_us: None };
    }
    let longest_stall_us = if fleet.stalled_permille > 0 { fleet.stall_us } else { 0 };
    let is_missed = |by_us: i64| {
        let unnoticed_us = if by_us < 0 { longest_stall_us + CLOCK_TOLERANCE_US } else { CLOCK_TOLERANCE_US };
        by_us.unsigned_abs() < unnoticed_us
    };
    let mut bound = GainBound { gain_us: 0, fall_us: 0, twice_us: Some(0) };
    for (at_us, by_us) in steps_of(events, shard) {
        let step_us = by_us.unsigned_abs();
        let is_joined = steps_of(events, shard).any(|(us, _)| us <= at_us && starts_near(events, us))
            || losses_of(events, shard).any(|loss_us| loss_us > at_us && starts_near(events, loss_us));
        let is_used = is_joined || is_missed(by_us) || lacks_majority(fleet, at_us);
        let used_us = if is_used { step_us } else { 0 };
        let slew_us = LENGTH_US / 100;
        let (gains_us, falls_us) = if by_us > 0 { (slew_us, 0) } else { (0, slew_us) };
        bound.gain_us += timeout_us + gains_us + used_us;
        bound.fall_us += timeout_us + falls_us + used_us;
        bound.twice_us = bound.twice_us.filter(|_| !is_used).map(|us| us + TWICE_US);
    }
    // Steps that nearly undo each other are as one small step.
    let mut steps: Vec<(u64, i64)> = steps_of(events, shard).collect();
    steps.sort_unstable();
    for first in 0..steps.len() {
        for last in first + 1..steps.len() {
            let net_us: i64 = steps[first..=last].iter().map(|(_, by_us)| by_us).sum();
            let used_us = if is_missed(net_us) { net_us.unsigned_abs() } else { 0 };
            bound.gain_us += used_us;
            bound.fall_us += used_us;
            bound.twice_us = bound.twice_us.filter(|_| used_us == 0);
        }
    }
    bound
}

/// Whether a node starts about then, or hears of the time about then.
fn starts_near(events: &[(u64, FleetEvent)], from_us: u64) -> bool {
    // A node that starts while the shard is away hears of its time with the first heartbeat after that.
    let hears_us = |started_us: u64| {
        let outages = events.iter().filter_map(|(at_us, event)| match event {
            FleetEvent::ShardUnavailable(_, us) if (*at_us..at_us + us).contains(&started_us) => {
                Some(at_us + us + AGREEMENT_US)
            }
            _ => None,
        });
        outages.max().unwrap_or(started_us)
    };
    let is_near = |at_us: u64| at_us < from_us + AGREEMENT_US && hears_us(at_us) >= from_us;
    events.iter().any(|(at_us, event)| matches!(event, FleetEvent::NodeCrashes(_)) && is_near(*at_us))
}

/// Whether half of the nodes are paused while the others have to agree.
fn lacks_majority(fleet: &SimulatedFleet, from_us: u64) -> bool {
    let paused: BTreeSet<u16> = { fleet.events.iter() }
        .filter_map(|(at_us, event)| match event {
            FleetEvent::NodePauses(node, us) if *at_us < from_us + AGREEMENT_US && at_us + us > from_us => {
                Some(*node)
            }
            _ => None,
        })
        .collect();
    2 * paused.len() >= usize::from(fleet.nodes)
}

/// When a shard loses its data.
fn losses_of(events: &[(u64, FleetEvent)], shard: usize) -> impl Iterator<Item = u64> {
    events.iter().filter_map(move |(at_us, event)| match event {
        FleetEvent::ShardLosesWrites(of, _)
        | FleetEvent::ShardRestarts(of)
        | FleetEvent::ShardFailsOver(of, ..) => (usize::from(*of) == shard).then_some(*at_us),
        _ => None,
    })
}
