//! Never more than the limit, and hardly ever less.

use super::*;

#[test]
fn a_steady_client_that_bursts_everywhere_gets_no_more_than_its_capacity() {
    for (capacity, rate) in [(1_000, 100), (1_000, 1_000), (10_000, 167)] {
        for seed in 0..8 {
            let fleet = SimulatedFleet { seed, ..SimulatedFleet::new(bucket(capacity, rate), 20) };
            let mut arrivals = even(9 * u64::from(rate), 0, 10 * SECOND_US, 20, seed);
            let burst_us = 10 * SECOND_US + seed * 37_000;
            arrivals.extend(even(2 * u64::from(capacity), burst_us, 20_000, 20, seed + 1));
            let found = run(&fleet, &clients(1), arrivals);
            let over = found.over_admission();
            assert!(over <= 0, "seed {seed}: {over} above {capacity}");
        }
    }
}

#[test]
fn a_burst_at_one_node_gets_nearly_all_that_others_do_not_need() {
    for (capacity, rate, seed) in
        [(1_000, 10), (10_000, 167)].into_iter().flat_map(|(c, r)| (0..8).map(move |s| (c, r, s)))
    {
        let fleet = SimulatedFleet { seed, ..SimulatedFleet::new(bucket(capacity, rate), 20) };
        let mut arrivals = even(u64::from(capacity) / 4, 0, 3 * SECOND_US, 20, seed);
        arrivals.extend(even_at(7, u64::from(capacity), 3 * SECOND_US, 200_000));
        let found = run(&fleet, &clients(1), arrivals);
        assert!(found.over_admission() <= 0);
        let lost = found.tally.oracle_admitted - found.tally.admitted;
        assert!(lost * 100 <= u64::from(capacity), "seed {seed}: {lost} of {capacity} lost");
    }
}

#[test]
fn a_client_at_three_times_its_limit_gets_exactly_its_limit() {
    for consistency in ["leased", "strict"] {
        for (capacity, rate) in [(100, 100), (1_000, 100), (50, 500)] {
            let limit =
                format!("consistency: {consistency}, params: {{capacity: {capacity}, refill_rate: {rate}}}");
            let fleet = SimulatedFleet::new(one(&limit), 4);
            let found = run(&fleet, &clients(1), even(30 * rate, 0, 10 * SECOND_US, 4, 5));
            assert!(found.over_admission() <= 0, "{limit}: {}", found.over_admission());
            let due = f64::from(capacity as u32) + 10.0 * rate as f64;
            let got = found.tally.admitted as f64;
            assert!((0.99..=1.0).contains(&(got / due)), "{limit}: {got} of {due}");
        }
    }
}

#[test]
fn a_paced_client_is_never_refused() {
    let spreads = [(Routing::Random, 4), (Routing::Sticky, 4), (Routing::Random, 20)];
    for (capacity, (routing, nodes)) in [1, 2, 5, 20, 100].into_iter().flat_map(|c| spreads.map(|s| (c, s))) {
        for (rate, period_us) in [("100", 10_000), ("20", 50_000), ("5", 200_000), ("1.25", 800_000)] {
            let rules = one(&format!("params: {{capacity: {capacity}, refill_rate: {rate}}}"));
            // With room for one, a request that overtakes the pace on its way is early and rightly refused.
            let jitter_us = if capacity == 1 { 0 } else { 50 };
            let fleet = SimulatedFleet { jitter_us, ..SimulatedFleet::new(rules, nodes) };
            let mut random = fastrand::Rng::with_seed(capacity);
            let paced = (0..400).map(|number| {
                let node = routing.node(0, nodes, &mut random);
                Arrival { at_us: number * period_us, client: 0, node, cost: 1 }
            });
            let found = run(&fleet, &clients(1), paced.collect());
            let refused = found.tally.refused;
            assert_eq!(refused, 0, "capacity {capacity}, {rate}/s, {routing:?} over {nodes} nodes");
        }
    }
}

#[test]
fn costs_do_not_stand_in_each_others_way() {
    // 20 tokens and then 10 a second: a cost of 10 is refused nearly always, ones still get what trickles in.
    let fleet = SimulatedFleet::new(bucket(20, 10), 2);
    let mut arrivals = even(1_000, 0, 10 * SECOND_US, 2, 3);
    for arrival in arrivals.iter_mut().step_by(2) {
        arrival.cost = 10;
    }
    let found = run(&fleet, &clients(1), arrivals);
    assert!(found.over_admission() <= 0);
    let ones = found.ledger.entries().iter().filter(|entry| entry.admitted && entry.cost == 1).count();
    let all = found.ledger.admitted(0, 0..u64::MAX);
    assert!(ones >= 60, "{ones} of cost 1 passed");
    assert!(all >= 115, "{all} of 120 tokens were used");
}

#[test]
fn windows_never_admit_more_than_their_limit() {
    for seed in 0..6 {
        let limit = "algorithm: fixed_window, params: {limit: 500, window: 2s}";
        let fleet = SimulatedFleet { seed, ..SimulatedFleet::new(one(limit), 4) };
        let found = run(&fleet, &clients(1), even(9_000, 123_456, 9 * SECOND_US, 4, seed));
        assert!(found.over_admission() <= 0, "seed {seed}: {}", found.over_admission());
        // Five windows, of the last of which half is seen.
        assert!(found.tally.admitted >= 5 * 500 - 25, "{}", found.tally.admitted);
    }
}

#[test]
fn the_estimate_of_a_sliding_counter_never_exceeds_its_limit() {
    for seed in 0..6 {
        let rule = "algorithm: sliding_window_counter, params: {limit: 500, window: 2s}";
        let fleet = SimulatedFleet { seed, ..SimulatedFleet::new(one(rule), 4) };
        let found = run(&fleet, &clients(1), even(9_000, 123_456, 9 * SECOND_US, 4, seed));
        assert!(found.over_admission() <= 0, "seed {seed}: {}", found.over_admission());
        let due = 500 + 7 * 250;
        assert!(found.tally.admitted >= due * 98 / 100, "{} of {due}", found.tally.admitted);
    }
}

#[test]
fn a_log_never_admits_more_than_its_limit_in_any_window() {
    for seed in 0..6 {
        let rule = "algorithm: sliding_window_log, params: {limit: 200, window: 2s}";
        let fleet = SimulatedFleet { seed, ..SimulatedFleet::new(one(rule), 4) };
        let found = run(&fleet, &clients(1), even(2_700, 123_456, 9 * SECOND_US, 4, seed));
        assert!(found.over_admission() <= 0, "seed {seed}: {}", found.over_admission());
        // What the last tenth of a second brought may be left over.
        assert!(found.tally.admitted >= 5 * 200 - 20, "{}", found.tally.admitted);
    }
}
