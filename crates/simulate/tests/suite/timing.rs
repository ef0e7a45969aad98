//! Intervals and horizons of single rules.

use super::*;
use tollgate_simulate::FleetEvent;

fn leased(capacity: u32, per_second: u32, lease: &str) -> Arc<RuleSet> {
    one(&format!("params: {{capacity: {capacity}, refill_rate: {per_second}}}, lease: {{{lease}}}"))
}

#[test]
fn whatever_a_rule_says_nothing_is_exceeded() {
    let leases = [
        "horizon: 10s",
        "horizon: 1ms",
        "interval: 20ms, horizon: 2s",
        "interval: 10s, horizon: 10s",
        "interval: 3s, horizon: 1ms",
    ];
    for (capacity, rate) in [(1_000, 100), (1_000, 1_000), (10_000, 167)] {
        for (seed, lease) in leases.into_iter().enumerate() {
            let seed = seed as u64;
            let rules = leased(capacity, rate, lease);
            let events = vec![(9 * SECOND_US, FleetEvent::NodeCrashes(3))];
            let fleet = SimulatedFleet { seed, events, drift_ppm: 50, ..SimulatedFleet::new(rules, 20) };
            let mut arrivals = even(9 * u64::from(rate), 0, 10 * SECOND_US, 20, seed);
            let burst_us = 10 * SECOND_US + seed * 137_000;
            arrivals.extend(even(2 * u64::from(capacity), burst_us, 20_000, 20, seed + 1));
            // When all that could be held has come back or died, the bucket is full once more.
            let again_us = burst_us + 80 * SECOND_US;
            arrivals.extend(even(2 * u64::from(capacity), again_us, 20_000, 20, seed + 2));
            let found = run(&fleet, &clients(1), arrivals);
            let over = found.over_admission();
            assert!(over <= 0, "{lease}: {over} above {capacity}");
            let again = admitted_between(&found, again_us, u64::MAX);
            assert!(again >= u64::from(capacity), "{lease}: {again} of {capacity} are there again");
        }
    }
}

/// Four nodes share a busy key of a wide limit: how often do they have to ask?
fn calls(rules: Arc<RuleSet>) -> u64 {
    let fleet = SimulatedFleet::new(rules, 4);
    let found = run(&fleet, &clients(1), even(20_000, 0, 5 * SECOND_US, 4, 9));
    assert_eq!(found.tally.refused, 0);
    found.calls
}

#[test]
fn the_further_the_horizon_the_fewer_the_calls() {
    let near = calls(leased(400_000, 1_000, "horizon: 100ms"));
    let middle = calls(leased(400_000, 1_000, "horizon: 300ms"));
    let usual = calls(bucket(400_000, 1_000));
    println!("{near} calls with 100 ms, {middle} with 300 ms, {usual} with 2 s");
    assert_eq!(usual, calls(leased(400_000, 1_000, "horizon: 2s, interval: 100ms")));
    assert!(near > 2 * middle && middle > 2 * usual, "{near}, {middle}, {usual}");
}

#[test]
fn a_rule_without_a_word_of_its_own_follows_the_defaults() {
    let text = |defaults: &str, own: &str| {
        written(&format!(
            "defaults: {{lease: {{{defaults}}}}}\n\
             rules: [{{id: one, key: [api_key], params: {{capacity: 400000, refill_rate: 1000}}, lease: {{{own}}}}}]"
        ))
    };
    let far = calls(leased(400_000, 1_000, "horizon: 200ms, interval: 50ms"));
    assert_ne!(far, calls(leased(400_000, 1_000, "interval: 50ms")));
    assert_eq!(calls(text("horizon: 200ms, interval: 50ms", "")), far);
    assert_eq!(calls(text("horizon: 200ms, interval: 2s", "interval: 50ms")), far);
    assert_eq!(calls(text("horizon: 2ms", "interval: 50ms, horizon: 200ms")), far);
}

/// A client is busy at one node until `SECOND_US`, and comes back at another a little later, for all it can get.
fn found_elsewhere(lease: &str) -> u64 {
    let fleet = SimulatedFleet::new(leased(1_000, 10, lease), 4);
    let mut arrivals = even(400, 0, SECOND_US, 2, 1);
    arrivals.extend(even_at(3, 1_000, SECOND_US + 250_000, 10_000));
    let found = run(&fleet, &clients(1), arrivals);
    assert!(found.over_admission() <= 0);
    admitted_between(&found, 0, u64::MAX)
}

#[test]
fn the_shorter_the_interval_the_sooner_idle_tokens_are_back() {
    let (short, long) =
        (found_elsewhere("interval: 10ms, horizon: 300ms"), found_elsewhere("interval: 10s, horizon: 300ms"));
    // A thousand, and what came in; a node holds ten at most.
    assert!(short >= 1_000, "{short}");
    assert!(long < short && long >= 990, "{long} with a long interval, {short} with a short one");
}

#[test]
fn a_change_of_the_lease_alone_holds_at_once_and_costs_nobody_anything() {
    let near = leased(1_000_000, 3_000, "horizon: 100ms");
    let far = leased(1_000_000, 3_000, "horizon: 1s");
    let brisk = leased(1_000_000, 3_000, "horizon: 100ms, interval: 2ms");
    let events = vec![
        (3 * SECOND_US, FleetEvent::Rules(far)),
        (6 * SECOND_US, FleetEvent::Rules(brisk)),
        (9 * SECOND_US, FleetEvent::Rules(near.clone())),
    ];
    let fleet = SimulatedFleet { events, ..SimulatedFleet::new(near, 4) };
    let mut arrivals = even(48_000, 0, 12 * SECOND_US, 4, 9);
    arrivals.extend(even(60_000, 20 * SECOND_US, 50_000, 4, 3));
    let found = run(&fleet, &clients(1), arrivals);
    assert!(found.over_admission() <= 0);
    let steady = admitted_between(&found, 0, 12 * SECOND_US);
    assert_eq!(steady, 48_000, "no request was refused");
    let burst = admitted_between(&found, 20 * SECOND_US, u64::MAX);
    assert_eq!(burst, 60_000, "of a full bucket");
    let per_second = |second: usize| {
        let nodes = found.calls_by_node.iter();
        nodes.map(|seconds| seconds.get(second).copied().unwrap_or_default()).sum::<u32>()
    };
    for (quiet, busy) in [(3, 2), (4, 1), (5, 6), (4, 9)] {
        let (few, many) = (per_second(quiet), per_second(busy));
        assert!(3 * few < many, "{few} calls in second {quiet}, {many} in second {busy}");
    }
}
