//! Two versions of one rule: side by side, as in a canary, and one after the other.

use super::*;
use tollgate_simulate::FleetEvent;

const CAPACITY: u64 = 1_000;
const ALGORITHMS: [&str; 3] = ["token_bucket", "leaky_bucket", "gcra"];

fn rule(algorithm: &str, per_second: u32) -> Arc<RuleSet> {
    let rate = if algorithm == "leaky_bucket" { "leak_rate" } else { "refill_rate" };
    one(&format!("algorithm: {algorithm}, params: {{capacity: {CAPACITY}, {rate}: {per_second}}}"))
}

/// What a burst at `node` gets after both versions were used for a minute, at every node and together for no more
/// than the slower version allows.
fn burst_at(node: u16, algorithm: &str, seed: u64) -> u64 {
    const MINUTE_US: u64 = 60 * SECOND_US;
    let (slow, fast) = (rule(algorithm, 10), rule(algorithm, 500));
    let events = vec![(0, FleetEvent::RulesAt(1, Arc::clone(&fast)))];
    let fleet = SimulatedFleet { events, seed, ..SimulatedFleet::new(slow, 2) };
    let used = 60 * (3 + seed % 6);
    let mut arrivals = even(used, 1, MINUTE_US, 2, seed);
    let burst_us = MINUTE_US + seed * 317_000;
    arrivals.extend(even_at(node, CAPACITY, burst_us, 20_000));
    let found = run(&fleet, &clients(1), arrivals);
    let meter = *fast.limits().next().unwrap().1.meter();
    let over = found.ledger.excess(0, meter.bucket().unwrap());
    assert!(over <= 0, "{algorithm}, seed {seed}: {over} above the faster version");
    assert_eq!(
        admitted_between(&found, 0, MINUTE_US),
        used,
        "{algorithm}, seed {seed}: used in the first minute"
    );
    admitted_between(&found, burst_us, u64::MAX)
}

#[test]
fn a_minute_of_two_versions_side_by_side_leaves_a_burst_its_tokens() {
    for algorithm in ALGORITHMS {
        for (node, seed) in [0, 1].into_iter().flat_map(|node| (0..8).map(move |seed| (node, seed))) {
            let passed = burst_at(node, algorithm, seed);
            let case = format!("{algorithm}, seed {seed}, node {node}");
            assert!(passed * 100 >= CAPACITY * 98, "{case}: {passed} of {CAPACITY}");
        }
    }
}

#[test]
fn a_faster_refill_fills_the_bucket_in_two_seconds() {
    for algorithm in ALGORITHMS {
        let events = vec![(2 * SECOND_US, FleetEvent::Rules(rule(algorithm, 500)))];
        let fleet = SimulatedFleet { events, ..SimulatedFleet::new(rule(algorithm, 10), 2) };
        let mut arrivals = even(950, 0, SECOND_US, 2, 1);
        arrivals.extend(even_at(0, CAPACITY, 4 * SECOND_US, 20_000));
        let found = run(&fleet, &clients(1), arrivals);
        let passed = admitted_between(&found, 4 * SECOND_US, u64::MAX);
        println!("{algorithm}: {passed} of {CAPACITY} two seconds after the change");
        assert!(passed * 100 >= CAPACITY * 98, "{algorithm}: {passed} of {CAPACITY}");
    }
}

/// An override has other numbers on the count of the same address.
#[test]
fn requests_of_an_address_keep_to_the_limit_of_their_own_key() {
    let rules = "
rules:
  - { id: by-ip, key: [ip], limit: 100/min, override: { vip: { limit: 10000/min } } }
";
    let ip = Some([203, 0, 113, 9].into());
    let [plain, vip] = ["plain", "vip"].map(|key| Client {
        api_key: Some(key.to_owned()),
        ip,
        endpoint: "/".to_owned(),
        ..Client::default()
    });
    for seed in 0..8 {
        let fleet = SimulatedFleet { seed, ..SimulatedFleet::new(written(rules), 1) };
        // The larger limit is the first that the store is asked about, and the call is in flight when the others come.
        let mut arrivals = vec![Arrival { at_us: 0, client: 1, node: 0, cost: 1 }];
        arrivals.extend(even(5_000, 10, SECOND_US, 1, seed));
        let admitted = run(&fleet, &[plain.clone(), vip.clone()], arrivals).tally.admitted;
        assert!((100..=110).contains(&admitted), "seed {seed}: {admitted} at a limit of 100");
    }
}
