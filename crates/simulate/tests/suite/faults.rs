//! Credit must not outlive its node, and no client may gain by a fault.

use super::*;
use tollgate_simulate::FleetEvent;

#[test]
fn what_a_dead_node_held_comes_back() {
    for seed in 0..6 {
        let dies_us = 3 * SECOND_US + seed * 130_000;
        let events = vec![(dies_us, FleetEvent::NodeCrashes(0))];
        let fleet = SimulatedFleet { seed, events, ..SimulatedFleet::new(bucket(1_000, 200), 4) };
        // Busy at the node that dies, with credit in its hands; three seconds later the bucket is full again.
        let mut arrivals = even_at(0, dies_us / 5_000, 0, dies_us);
        arrivals.extend(even_at(1, 1_200, dies_us + 3 * SECOND_US, 50_000));
        let found = run(&fleet, &clients(1), arrivals);
        assert!(found.over_admission() <= 0, "{}", found.over_admission());
        let after = admitted_between(&found, dies_us, u64::MAX);
        assert!(after >= 1_000, "{after} of a full bucket");
    }
}

#[test]
fn a_shard_that_is_away_leaves_its_clients_to_the_policy_and_comes_back_exact() {
    for seed in 0..6 {
        let events = vec![(3 * SECOND_US, FleetEvent::ShardUnavailable(0, 2 * SECOND_US))];
        let fleet = SimulatedFleet { seed, events, ..SimulatedFleet::new(bucket(300, 100), 4) };
        let found = run(&fleet, &clients(1), even(3_000, 0, 10 * SECOND_US, 4, seed));
        assert!(found.over_admission() <= 0, "{}", found.over_admission());
        assert!(found.tally.degraded > 0);
        let after = admitted_between(&found, 6 * SECOND_US, 10 * SECOND_US);
        // What the last tenth of a second brought may be left over.
        assert!(after >= 388, "{after} in four seconds");
    }
}

#[test]
fn a_denying_rule_denies_while_its_shard_is_away() {
    let rules = one("on_store_failure: deny, params: {capacity: 300, refill_rate: 100}");
    let events = vec![(3 * SECOND_US, FleetEvent::ShardUnavailable(0, 2 * SECOND_US))];
    let fleet = SimulatedFleet { events, ..SimulatedFleet::new(rules, 4) };
    let found = run(&fleet, &clients(1), even(900, 0, 10 * SECOND_US, 4, 1));
    assert!(found.over_admission() <= 0);
    // Ninety a second: what is in hand is spent for a moment, the rest of two seconds is denied.
    assert!((100..=180).contains(&found.tally.refused), "{:?}", found.tally);
}

#[test]
fn a_changed_rule_holds_at_once_and_forgets_what_was_taken_under_the_old() {
    for seed in 0..6 {
        let (before, after) = (bucket(2_000, 500), bucket(100, 50));
        let events = vec![
            (3 * SECOND_US, FleetEvent::Rules(after)),
            (6 * SECOND_US, FleetEvent::Rules(before.clone())),
        ];
        let fleet = SimulatedFleet { seed, events, ..SimulatedFleet::new(before, 4) };
        let found = run(&fleet, &clients(1), even(4_000, 0, 8 * SECOND_US, 4, seed));
        let lowered = admitted_between(&found, 3 * SECOND_US, 6 * SECOND_US);
        assert!(lowered <= 100 + 150, "{lowered} under the lower limit");
        assert!(lowered >= 200, "{lowered} under the lower limit");
        assert!(found.ledger.excess(0, found.bucket(0).unwrap()) <= 0);
    }
}

/// From a minute to two seconds until full, and back, with tokens lent under each.
#[test]
fn a_changed_rule_leaves_no_burst_short() {
    for seed in 0..6 {
        let (slow, fast) = (bucket(6_000, 100), bucket(1_000, 500));
        let events = vec![
            (3 * SECOND_US, FleetEvent::Rules(fast.clone())),
            (8 * SECOND_US, FleetEvent::Rules(slow.clone())),
            (9 * SECOND_US, FleetEvent::NodeCrashes(0)),
            (10 * SECOND_US, FleetEvent::Rules(fast)),
        ];
        let fleet = SimulatedFleet { seed, events, ..SimulatedFleet::new(slow, 4) };
        let mut arrivals = even(10_000, 0, 20 * SECOND_US, 4, seed);
        arrivals.extend(even(4_000, 22 * SECOND_US + 100_000, 100_000, 4, seed));
        let found = run(&fleet, &clients(1), arrivals);
        for (from_us, until_us, rate) in [(3, 8, 500), (8, 10, 100), (10, 20, 500)] {
            let admitted = admitted_between(&found, from_us * SECOND_US, until_us * SECOND_US);
            let most = 1_000 + rate * (until_us - from_us);
            let most = if rate == 100 { 5_000 + most } else { most };
            assert!(admitted <= most, "seed {seed}: {admitted} of {most} from {from_us} s on");
        }
        // A steady client of the fast rule is not held up by what was lent under the other.
        let steady = admitted_between(&found, 11 * SECOND_US, 20 * SECOND_US);
        assert!(steady >= 4_400, "seed {seed}: {steady} of 4,500");
        // The bucket is full two seconds after the last request.
        let burst = admitted_between(&found, 22 * SECOND_US, u64::MAX);
        assert!((990..=1_050).contains(&burst), "seed {seed}: {burst} of a full bucket");
    }
}

#[test]
fn a_caller_that_goes_away_costs_its_own_request_and_no_more() {
    let fleet = SimulatedFleet { give_up_permille: 300, ..SimulatedFleet::new(bucket(400, 100), 4) };
    let mut arrivals = even(5_000, 0, 5 * SECOND_US, 4, 3);
    arrivals.extend(even_at(2, 500, 12 * SECOND_US, 100_000));
    let found = run(&fleet, &clients(1), arrivals);
    assert!(found.over_admission() <= 0);
    assert!(found.tally.given_up > 0);
    let due = 400 + 500;
    let got = admitted_between(&found, 0, 6 * SECOND_US);
    assert!(got + found.tally.given_up >= due * 98 / 100, "{got} and {} of {due}", found.tally.given_up);
}
