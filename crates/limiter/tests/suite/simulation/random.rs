//! Any fleet, any traffic, any fault: never more than the limit.

use super::*;
use tollgate_limiter::simulation::Event;

const SEEDS: u64 = 300;

#[test]
fn no_bucket_is_ever_exceeded() {
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let algorithm = ["token_bucket", "leaky_bucket", "gcra"][random.usize(0..3)];
        let capacity = [1, 3, 10, 50, 200, 1_000, 5_000][random.usize(0..7)];
        let rate = [1, 7, 50, 300, 2_000][random.usize(0..5)];
        let flow = if algorithm == "leaky_bucket" { "leak_rate" } else { "refill_rate" };
        let limit = format!("algorithm: {algorithm}, params: {{capacity: {capacity}, {flow}: {rate}}}");
        let lease = ["", "horizon: 5s", "interval: 7ms", "interval: 2s, horizon: 10s"][seed as usize % 4];
        let limit = format!("{limit}, lease: {{{lease}}}");
        let nodes = [1, 2, 4, 20][random.usize(0..4)];
        let rtt_us = [200, 500, 2_000, 20_000, 60_000][random.usize(0..5)];
        let mut events = Vec::new();
        if random.bool() {
            let at_us = random.u64(0..6 * SECOND_US);
            events.push((at_us, Event::NodeDies(random.u16(0..nodes))));
        }
        if random.u8(0..4) == 0 {
            let at_us = random.u64(0..6 * SECOND_US);
            events.push((at_us, Event::ShardAway(0, random.u64(0..2 * SECOND_US))));
        }
        let fleet = Fleet {
            rtt_us,
            jitter_us: random.u64(0..=rtt_us),
            drift_ppm: random.u32(0..50),
            give_up_permille: [0, 0, 20][random.usize(0..3)],
            events,
            seed,
            ..Fleet::new(one(&limit), nodes)
        };
        let arrivals = traffic(&mut random, nodes, capacity, rate);
        let count = arrivals.len();
        let found = run(&fleet, &clients(2), arrivals);
        let over = found.over_admission();
        assert!(over <= 0, "seed {seed}: {over} above {limit}, {count} requests");
    }
}

/// Stretches of steady traffic, bursts and silence, at one node or at all.
fn traffic(random: &mut fastrand::Rng, nodes: u16, capacity: u64, rate: u64) -> Vec<Arrival> {
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
        for _ in 0..count {
            arrivals.push(Arrival {
                at_us: now_us + random.u64(0..=length_us),
                client: random.u32(0..2),
                node: only.unwrap_or_else(|| random.u16(0..nodes)),
                cost: if random.u8(0..5) == 0 { random.u32(1..=3.min(capacity as u32)) } else { 1 },
            });
        }
        now_us += length_us;
    }
    arrivals
}
