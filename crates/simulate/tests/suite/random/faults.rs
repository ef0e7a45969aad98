//! What befalls a fleet, and by how much it may set the time wrong that limits are charged by.

use super::*;
use std::collections::BTreeSet;

/// The length of a run and of what comes after it, at most.
const LENGTH_US: u64 = 12 * SECOND_US;
/// Nodes have agreed on a correction by then, or the minority has given in.
const AGREEMENT_US: u64 = 3 * SECOND_US;
/// What may refill a bucket a second time for each step, while nodes disagree about the correction: documented in docs/redis.md.
const TWICE_US: u64 = CLOCK_TOLERANCE_US;

/// What befalls a fleet in seven seconds. In each run a shard loses data, and a clock steps, a node is paused for longer than
/// credit lives, or a node crashes; in two of five runs all of this.
pub(super) fn faults(random: &mut fastrand::Rng, nodes: u16) -> Vec<(u64, FleetEvent)> {
    let mut befall = vec![loss(random)];
    let chosen = random.u8(0..5);
    if chosen == 0 || chosen >= 3 {
        befall.push(clock_step(random));
    }
    if chosen == 1 || chosen >= 3 {
        befall.push(FleetEvent::NodePauses(random.u16(0..nodes), random.u64(CREDIT_US + 1..6 * SECOND_US)));
    }
    if chosen == 2 || chosen >= 3 {
        befall.push(FleetEvent::NodeCrashes(random.u16(0..nodes)));
    }
    for _ in 0..random.usize(0..3) {
        befall.push(match random.u8(0..5) {
            0 => FleetEvent::NodeCrashes(random.u16(0..nodes)),
            1 => FleetEvent::NodePauses(random.u16(0..nodes), random.u64(0..6 * SECOND_US)),
            2 => FleetEvent::ShardUnavailable(random.u16(0..SHARDS), random.u64(0..2 * SECOND_US)),
            3 => loss(random),
            _ => clock_step(random),
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

fn clock_step(random: &mut fastrand::Rng) -> FleetEvent {
    let by_us = match random.bool() {
        // Steps of less than half a second pass unnoticed: those ahead are longer.
        true => random.i64(600_000..60 * SECOND_US as i64),
        false => -random.i64(0..20 * SECOND_US as i64),
    };
    FleetEvent::ShardClockSteps(random.u16(0..SHARDS), by_us)
}

/// When the clock of `shard` first steps.
pub(super) fn first_step_us(events: &[(u64, FleetEvent)], shard: usize) -> Option<u64> {
    let steps = events.iter().filter_map(|(at_us, event)| match event {
        FleetEvent::ShardClockSteps(of_shard, _) if usize::from(*of_shard) == shard => Some(*at_us),
        _ => None,
    });
    steps.min()
}

/// What a run with clock steps may do to the time that limits are charged by.
pub(super) struct GainBound {
    /// By how much it may gain on the true time.
    pub(super) gain_us: u64,
    /// How much of it may pass a second time for a bucket; unknown if some calls are charged by a time without the correction and
    /// others by one with it, and take turns.
    pub(super) twice_us: Option<u64>,
}

impl Default for GainBound {
    fn default() -> Self {
        Self { gain_us: 0, twice_us: Some(0) }
    }
}

/// The most that the corrected time may gain: nodes agree on it to within the timeout of a heartbeat for each step, and
/// the correction of a clock that is ahead shrinks by a hundredth of the time that passes. A node that starts before
/// they have agreed, or have agreed again after the shard lost its data, charges by the clock as it is. A call that is on its way for as long as the clock was set back finds
/// the time that it expects. If half of the nodes stand still, the others are no majority, and accept the step.
pub(super) fn gain_bound(fleet: &SimulatedFleet) -> GainBound {
    let SimulatedFleet { events, timeout_us, .. } = fleet;
    let longest_stall_us = if fleet.stalled_permille > 0 { fleet.stall_us } else { 0 };
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
    let starts = |from_us: u64| {
        let is_near = |at_us: u64| at_us < from_us + AGREEMENT_US && hears_us(at_us) >= from_us;
        events.iter().any(|(at_us, event)| matches!(event, FleetEvent::NodeCrashes(_)) && is_near(*at_us))
    };
    let lacks_majority = |from_us: u64| {
        let paused: BTreeSet<u16> = { events.iter() }
            .filter_map(|(at_us, event)| match event {
                FleetEvent::NodePauses(node, us)
                    if *at_us < from_us + AGREEMENT_US && at_us + us > from_us =>
                {
                    Some(*node)
                }
                _ => None,
            })
            .collect();
        2 * paused.len() >= usize::from(fleet.nodes)
    };
    let mut bound = GainBound::default();
    for (at_us, event) in events {
        if let FleetEvent::ShardClockSteps(_, by_us) = event {
            let step_us = by_us.unsigned_abs();
            let is_missed = *by_us < 0 && step_us < longest_stall_us + CLOCK_TOLERANCE_US;
            let is_joined =
                starts(*at_us) || losses(events).any(|loss_us| loss_us > *at_us && starts(loss_us));
            let is_used = is_joined || is_missed || lacks_majority(*at_us);
            let used_us = if is_used { step_us } else { 0 };
            let slew_us = if *by_us > 0 { LENGTH_US / 100 } else { 0 };
            bound.gain_us += timeout_us + slew_us + used_us;
            bound.twice_us = bound.twice_us.filter(|_| !is_used).map(|us| us + TWICE_US);
        }
    }
    bound
}

/// When shards lose their data.
fn losses(events: &[(u64, FleetEvent)]) -> impl Iterator<Item = u64> {
    events.iter().filter_map(|(at_us, event)| match event {
        FleetEvent::ShardLosesWrites(..) | FleetEvent::ShardRestarts(_) => Some(*at_us),
        _ => None,
    })
}
