//! A client that moves from one node to another finds its tokens there.

mod tables;

use super::*;
use tollgate_simulate::FleetEvent;

const ALGORITHMS: [&str; 3] = ["token_bucket", "leaky_bucket", "gcra"];
const CAPACITY: u64 = 600;
const PER_SECOND: u64 = 10;
/// How long a client is busy at its first node.
const BUSY_US: u64 = 1_600_000;
/// More than there is.
const BURST: u64 = 620;
/// After this time the store has forgotten what was lent to a node that has crashed.
const FORGOTTEN_US: u64 = 4_500_000;

/// How many tokens are missing after each burst at the second node, of all that the client should have got until then. Bursts are
/// sent `bursts_us` after the client has moved; its first node was asked `per_second` times a second.
fn missing(rule: &str, per_second: u64, seed: u64, dies: bool, bursts_us: &[u64]) -> Vec<i64> {
    // At any time of an epoch.
    let start_us = seed * 173_000;
    let moved_us = start_us + BUSY_US;
    let events = if dies { vec![(moved_us, FleetEvent::NodeCrashes(0))] } else { Vec::new() };
    let fleet = SimulatedFleet { events, seed, ..SimulatedFleet::new(one(rule), 2) };
    let mut arrivals = even_at(0, per_second * BUSY_US / SECOND_US, start_us, BUSY_US);
    for after_us in bursts_us {
        arrivals.extend(even_at(1, BURST, moved_us + after_us, 2_000));
    }
    let found = run(&fleet, &clients(1), arrivals);
    assert!(found.over_admission() <= 0, "{rule}, seed {seed}: {} above", found.over_admission());
    assert_eq!(found.tally.degraded, 0, "the store answers");
    // The bucket is full until its first request is charged, and refills from then on.
    let refills_from_us = found.ledger.entries()[0].received_us;
    let missing_after = |after_us: &u64| {
        let burst_us = moved_us + after_us;
        let due = CAPACITY + PER_SECOND * (burst_us - refills_from_us) / SECOND_US;
        due as i64 - admitted_between(&found, 0, burst_us + 10_000) as i64
    };
    bursts_us.iter().map(missing_after).collect()
}

fn rules_and_rates() -> impl Iterator<Item = (String, u64, u64)> {
    let rule = |algorithm: &str| {
        let rate = if algorithm == "leaky_bucket" { "leak_rate" } else { "refill_rate" };
        format!("algorithm: {algorithm}, params: {{capacity: {CAPACITY}, {rate}: {PER_SECOND}}}")
    };
    ALGORITHMS.into_iter().flat_map(move |algorithm| {
        let rule = rule(algorithm);
        (0..24).map(move |seed| (rule.clone(), 41 + 23 * (seed % 8), seed))
    })
}

#[test]
fn a_client_that_moves_misses_at_most_a_hundredth_for_at_most_a_second() {
    for (rule, per_second, seed) in rules_and_rates() {
        let case = format!("{rule}, {per_second} a second, seed {seed}");
        let both = missing(&rule, per_second, seed, false, &[0, SECOND_US]);
        assert!(both[0] <= CAPACITY as i64 / 100, "{case}: {} missing at once", both[0]);
        assert!(both[1] <= 0, "{case}: {} missing a second later", both[1]);
        let later = missing(&rule, per_second, seed, false, &[SECOND_US]);
        assert!(later[0] <= 0, "{case}: {} missing a second later, without a burst before", later[0]);
    }
}

#[test]
fn a_client_whose_node_has_crashed_loses_at_most_two_hundredths() {
    for (rule, per_second, seed) in rules_and_rates() {
        let case = format!("{rule}, {per_second} a second, seed {seed}");
        let both = missing(&rule, per_second, seed, true, &[0, FORGOTTEN_US]);
        let most = CAPACITY as i64 * 2 / 100;
        assert!(both[0] <= most, "{case}: {} missing at once", both[0]);
        assert!(both[1] <= most, "{case}: {} lost", both[1]);
        let later = missing(&rule, per_second, seed, true, &[FORGOTTEN_US]);
        assert!(later[0] <= most, "{case}: {} lost, without a burst before", later[0]);
    }
}
