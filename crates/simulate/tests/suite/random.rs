//! Any fleet, any rules, any traffic, any fault: never more than the limit.

mod faults;
mod limits;

use super::*;
use faults::{credit_us, faults, first_step_us, gain_bound, steps_of};
use limits::{DrawnLimit, changes, rules};
use std::collections::BTreeMap;
use tollgate_core::lending::EPOCH_US;
use tollgate_core::script::CLOCK_TOLERANCE_US;
use tollgate_simulate::{BucketBound, ChargeClock, FleetEvent, LimitBound, RefillClock, StoreFaults};

/// Runs in the suite; `TOLLGATE_SEEDS=3000 cargo test --release -p tollgate-simulate random` makes more.
const SEEDS: u64 = 1_000;
const KEYS: u32 = 3;
const ADDRESSES: u32 = 2;
const SHARDS: u16 = 2;
/// Credit that was taken before the store lost its data can be spent for so long.
const CREDIT_US: u64 = 2 * EPOCH_US;

/// What the runs have met, so that they cannot pass by meeting nothing.
#[derive(Debug, Default)]
struct Met {
    admitted: u64,
    refused: u64,
    degraded: u64,
    /// Requests that passed although some of their limits could not be decided.
    partly_degraded: u64,
    /// Runs with several limits.
    several: u64,
    /// By the kind of limit: those that had nearly no tokens left at some time.
    nearly_full: BTreeMap<&'static str, u64>,
    /// The same, of those whose shard's clock stepped.
    nearly_full_after_steps: BTreeMap<&'static str, u64>,
    /// The same, of those whose shard kept its data and its time.
    nearly_full_without_faults: BTreeMap<&'static str, u64>,
    /// By the kind of limit: those that admitted more than they could have, had the store not lost data.
    lost: BTreeMap<&'static str, u64>,
    /// The same, of those that then had nearly none left of what a loss allows.
    nearly_full_after_losses: BTreeMap<&'static str, u64>,
    /// Windows and logs that are not judged to the end, because a clock was set back by more than the window.
    jumped: u64,
    windows: u64,
    /// Shards whose clock stepped, and for which none of the exceptions holds that let the time of limits follow it.
    held: u64,
    failovers: u64,
    /// Runs in which a node was paused for longer than its credit lived.
    outlived_credit: u64,
    crashes: u64,
    /// Runs in which nodes had different versions of the rules.
    mixed: u64,
    /// Limits that admitted more than by their last version.
    above_one_version: u64,
    /// Runs in which nodes could measure a clock that stepped.
    corrected: u64,
    /// Buckets that a clock ahead of its time would have filled, had it not been corrected.
    stepped_ahead: u64,
    /// The longest time that refilled a bucket a second time.
    longest_twice_us: u64,
}

impl Met {
    fn note_run(&mut self, found: &Findings, fleet: &SimulatedFleet, limits: usize) {
        let is_any = |is: fn(&FleetEvent) -> bool| fleet.events.iter().any(|(_, event)| is(event));
        self.admitted += found.tally.admitted;
        self.refused += found.tally.refused;
        self.degraded += found.tally.degraded;
        self.partly_degraded += found.tally.partly_degraded;
        self.several += u64::from(limits > 1);
        self.outlived_credit += u64::from(found.pauses_beyond_credit > 0);
        self.failovers += u64::from(is_any(|event| matches!(event, FleetEvent::ShardFailsOver(..))));
        self.crashes += u64::from(is_any(|event| matches!(event, FleetEvent::NodeCrashes(_))));
        self.mixed += u64::from(fleet.nodes > 1 && is_any(|event| matches!(event, FleetEvent::RulesAt(..))));
        self.corrected += u64::from(measures_clocks(fleet));
    }

    fn assert_enough(&self, seeds: u64) {
        assert!(self.admitted > 400 * seeds && self.refused > 400 * seeds, "{self:?}");
        assert!(self.degraded > 10 * seeds && self.partly_degraded > seeds, "{self:?}");
        assert!(self.several > seeds / 3 && self.crashes > seeds / 4, "{self:?}");
        for kind in KINDS {
            let count = |of: &BTreeMap<&str, u64>| of.get(kind).copied().unwrap_or(0);
            assert!(count(&self.nearly_full) > seeds / 10, "{kind}: {self:?}");
            assert!(count(&self.nearly_full_after_steps) > seeds / 30, "{kind}: {self:?}");
            assert!(count(&self.nearly_full_without_faults) > seeds / 25, "{kind}: {self:?}");
            assert!(count(&self.lost) > seeds / 200, "{kind}: {self:?}");
            assert!(count(&self.nearly_full_after_losses) > seeds / 250, "{kind}: {self:?}");
        }
        assert!(self.outlived_credit > seeds / 15, "{self:?}");
        assert!(self.mixed > seeds / 3 && self.above_one_version > seeds / 20, "{self:?}");
        assert!(self.stepped_ahead > seeds / 20 && self.corrected > seeds / 2, "{self:?}");
        assert!(self.held > seeds / 6 && self.failovers > seeds / 6, "{self:?}");
        assert!(self.jumped < self.windows / 25, "{self:?}");
        // It takes nodes that disagree after the server has lost the correction: one fleet in some hundreds.
        assert!(seeds < 3_000 || self.longest_twice_us > 0, "{self:?}");
    }
}

const KINDS: [&str; 4] = ["bucket", "fixed window", "sliding counter", "log"];

fn kind_of(bound: &LimitBound) -> &'static str {
    KINDS[match bound {
        LimitBound::Bucket(_) => 0,
        LimitBound::FixedWindow(_) => 1,
        LimitBound::SlidingCounter(_) => 2,
        LimitBound::Log(_) => 3,
    }]
}

/// The tokens that a limit refills while the time it is charged by gains `gain_us` on the true time.
fn refilled_by_gain(bucket: &BucketBound, gain_us: u64) -> i64 {
    (gain_us * u64::from(bucket.amount)).div_ceil(bucket.period_us) as i64
}

/// A node measures a clock by heartbeats that are answered in time.
fn measures_clocks(fleet: &SimulatedFleet) -> bool {
    fleet.rtt_us + 2 * fleet.jitter_us <= fleet.timeout_us
}

#[test]
fn no_limit_is_ever_exceeded() {
    let mut met = Met::default();
    let seeds = std::env::var("TOLLGATE_SEEDS").map_or(SEEDS, |count| count.parse().unwrap());
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let nodes = [1, 2, 4, 20][random.usize(0..4)];
        let limits: Vec<DrawnLimit> =
            (0..[1, 2, 2, 3][random.usize(0..4)]).map(|_| DrawnLimit::new(&mut random)).collect();
        let others: Vec<DrawnLimit> = limits.iter().map(|limit| limit.other_version(&mut random)).collect();
        let texts = [rules(&limits), rules(&others)];
        let versions = texts.each_ref().map(|text| written(text));
        let rtt_us = match random.bool() {
            true => random.u64(20_000..=60_000),
            false => [200, 500, 2_000][random.usize(0..3)],
        };
        let mut events = faults(&mut random, nodes);
        events.extend(changes(&mut random, nodes, &versions));
        let fleet = SimulatedFleet {
            shards: SHARDS,
            rtt_us,
            jitter_us: random.u64(0..=rtt_us),
            timeout_us: [50_000, 200_000][random.usize(0..2)],
            drift_ppm: random.u32(0..50),
            give_up_permille: [0, 0, 20][random.usize(0..3)],
            lost_permille: [0, 5, 50][random.usize(0..3)],
            stalled_permille: [0, 5, 50][random.usize(0..3)],
            stall_us: 1_500_000,
            events,
            seed,
            ..SimulatedFleet::new(Arc::clone(&versions[0]), nodes)
        };
        let arrivals = traffic(&mut random, nodes, &[limits, others]);
        let found = run(&fleet, &population(), arrivals);
        met.note_run(&found, &fleet, versions[0].limits().count());
        let case = format!("seed {seed}, {}\n{}or\n{}", described(&fleet.events), texts[0], texts[1]);
        judge_clocks(&found, &fleet, &case, &mut met);
        for key in found.ledger.keys() {
            judge(&found, &fleet, key, &case, &mut met);
        }
    }
    println!("{met:?}");
    met.assert_enough(seeds);
}

/// The events, without the text of rules.
fn described(events: &[(u64, FleetEvent)]) -> String {
    let described = events.iter().map(|(at_us, event)| match event {
        FleetEvent::Rules(_) => format!("{at_us}: rules at all nodes"),
        FleetEvent::RulesAt(node, _) => format!("{at_us}: rules at {node}"),
        event => format!("{at_us}: {event:?}"),
    });
    described.collect::<Vec<_>>().join(", ")
}

/// The time that limits are charged by does not gain on the true time, unless a clock steps: then by no more than is documented.
fn judge_clocks(found: &Findings, fleet: &SimulatedFleet, case: &str, met: &mut Met) {
    for (shard, gain_us) in found.clock_gain_us_by_shard.iter().copied().enumerate() {
        let bound = gain_bound(fleet, shard);
        let steps = first_step_us(&fleet.events, shard).is_some();
        met.held += u64::from(steps && bound.twice_us.is_some());
        assert!(
            gain_us <= bound.gain_us,
            "the time of shard {shard} gained {gain_us} of {} µs: {case}",
            bound.gain_us
        );
    }
}

/// The counts of a window are moved only by a call that a step of the clock may have set back so far.
fn judge_jump(clock: &ChargeClock, fleet: &SimulatedFleet, shard: usize, case: &str, met: &mut Met) {
    if let Some(jump) = clock.jump() {
        let fall_us = gain_bound(fleet, shard).fall_us;
        assert!(jump.behind_us <= fall_us, "{jump:?}, at most {fall_us} µs behind: {case}");
        let steps_us = first_step_us(&fleet.events, shard);
        assert!(steps_us.is_some_and(|us| us <= jump.at_us), "{jump:?} before any step: {case}");
        met.jumped += 1;
    }
}

fn judge(found: &Findings, fleet: &SimulatedFleet, key: u32, case: &str, met: &mut Met) {
    let bound = found.bound(key).expect("each key has a limit");
    let (kind, shard) = (kind_of(&bound), found.shard_by_key[&key]);
    let losses_us = &found.losses_us_by_shard[shard];
    let (refill_clock, charge_clock) = (found.refill_clocks.get(&key), found.charge_clocks.get(&key));
    let credit_us = credit_us(&fleet.events, shard);
    let faults = StoreFaults { losses_us: &[], credit_us, refill_clock, charge_clock };
    let over = found.ledger.excess_after(key, bound, &faults);
    assert!(over <= 0, "{over} above {bound:?}, by {refill_clock:?}{charge_clock:?}, {case}");

    let note = |counts: &mut BTreeMap<&'static str, u64>| *counts.entry(kind).or_default() += 1;
    if over > -2 {
        note(&mut met.nearly_full);
        match first_step_us(&fleet.events, shard) {
            Some(_) => note(&mut met.nearly_full_after_steps),
            None if losses_us.is_empty() => note(&mut met.nearly_full_without_faults),
            None => {}
        }
    }
    let has_lost = !losses_us.is_empty() && first_step_us(&fleet.events, shard).is_none();
    if has_lost && found.ledger.excess(key, bound) > 0 {
        note(&mut met.lost);
        if over > -2 {
            note(&mut met.nearly_full_after_losses);
        }
    }
    let last_version = LimitBound::from(&found.meters[key as usize]);
    let is_above_it = last_version != bound && found.ledger.excess_after(key, last_version, &faults) > 0;
    met.above_one_version += u64::from(is_above_it);
    match bound {
        LimitBound::Bucket(bucket) => judge_refill(found, fleet, key, &bucket, case, met),
        LimitBound::FixedWindow(_) | LimitBound::SlidingCounter(_) | LimitBound::Log(_) => {
            met.windows += 1;
            charge_clock.into_iter().for_each(|clock| judge_jump(clock, fleet, shard, case, met));
        }
    }
}

/// While nodes disagree about the correction of a clock, the same time refills a bucket twice for no longer than is documented.
fn judge_refill(
    found: &Findings,
    fleet: &SimulatedFleet,
    key: u32,
    bucket: &BucketBound,
    case: &str,
    met: &mut Met,
) {
    let shard = found.shard_by_key[&key];
    let gain_us = found.refill_clocks.get(&key).map_or(0, RefillClock::greatest_gain_us);
    let twice_us = gain_us.saturating_sub(found.clock_gain_us_by_shard[shard]);
    if let Some(most_us) = gain_bound(fleet, shard).twice_us {
        met.longest_twice_us = met.longest_twice_us.max(twice_us);
        assert!(twice_us <= most_us, "{twice_us} of {most_us} µs passed twice for {bucket:?}, {case}");
    }
    let steps_ahead = steps_of(&fleet.events, shard).any(|(_, by_us)| by_us > 0);
    met.stepped_ahead +=
        u64::from(steps_ahead && refilled_by_gain(bucket, gain_us) < i64::from(bucket.capacity) / 2);
}

/// Clients that share addresses, so that limits refuse at different times.
fn population() -> Vec<Client> {
    let client = |number: u32| Client {
        api_key: Some(format!("key-{}", number % KEYS)),
        user: Some("ann".to_owned()),
        ip: Some([203, 0, 113, (number % ADDRESSES) as u8].into()),
        endpoint: "/".to_owned(),
    };
    (0..KEYS * ADDRESSES).map(client).collect()
}

/// Stretches of steady traffic, bursts and silence, of one client or of all, at one node or at all.
fn traffic(random: &mut fastrand::Rng, nodes: u16, versions: &[Vec<DrawnLimit>; 2]) -> Vec<Arrival> {
    let largest = |number: fn(&DrawnLimit) -> u64| {
        versions.each_ref().map(|limits| number(&limits[0])).into_iter().max()
    };
    let capacity = largest(|limit| limit.capacity).unwrap_or(1);
    let rate = largest(|limit| limit.per_second).unwrap_or(1);
    let capacities = versions.iter().flatten().map(|limit| limit.capacity);
    let most_cost = capacities.min().unwrap_or(1).min(3) as u32;
    let mut arrivals = Vec::new();
    let mut now_us = random.u64(0..SECOND_US);
    while now_us < 7 * SECOND_US && arrivals.len() < 20_000 {
        let length_us = random.u64(1_000..2 * SECOND_US);
        let cap = 1 + capacity.min(3_000);
        let count = match random.u8(0..4) {
            0 => 0,
            1 => random.u64(0..2 * cap),
            2 => rate.min(3_000) * length_us / SECOND_US,
            _ => 3 * rate.min(3_000) * length_us / SECOND_US,
        };
        let length_us = if random.bool() { length_us } else { length_us / 20 };
        let only = random.bool().then(|| random.u16(0..nodes));
        let only_client = random.bool().then(|| random.u32(0..KEYS * ADDRESSES));
        for _ in 0..count {
            arrivals.push(Arrival {
                at_us: now_us + random.u64(0..=length_us),
                client: only_client.unwrap_or_else(|| random.u32(0..KEYS * ADDRESSES)),
                node: only.unwrap_or_else(|| random.u16(0..nodes)),
                cost: if random.u8(0..5) == 0 { random.u32(1..=most_cost) } else { 1 },
            });
        }
        now_us += length_us;
    }
    arrivals
}
