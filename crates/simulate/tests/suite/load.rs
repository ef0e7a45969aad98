//! What leases save the store, and at which price.

use super::*;
use tollgate_simulate::Population;

#[test]
fn an_abusive_key_costs_the_store_little() {
    // At most ten calls a second and node; what the last tenth of a second brought may be left over.
    for (limit, per_second, left) in
        [("limit: 100/min", 200, 2), ("limit: 100/s", 10_000, 12), ("limit: 1000/s", 100_000, 102)]
    {
        for nodes in [1, 4] {
            let fleet = SimulatedFleet::new(one(limit), nodes);
            let found = run(&fleet, &clients(1), even(per_second * 8, 0, 8 * SECOND_US, nodes, 2));
            assert!(found.over_admission() <= 0);
            let calls = found.most_calls_in_a_second(2, 8);
            assert!(calls <= 10, "{limit} at {nodes} nodes: {calls} calls in a second");
            let lost = found.tally.oracle_admitted - found.tally.admitted;
            assert!(lost <= left, "{limit} at {nodes} nodes: {lost} lost, {:?}", found.tally);
        }
    }
}

#[test]
fn a_population_is_hardly_ever_refused_what_is_due() {
    for routing in [Routing::Random, Routing::Sticky] {
        let nodes = 4;
        let population = Population {
            clients: 2_000,
            zipf: 1.0,
            per_second: 30_000.0,
            length_us: 5 * SECOND_US,
            nodes,
            routing,
            seed: 11,
        };
        let fleet = SimulatedFleet { shards: 3, ..SimulatedFleet::new(one("limit: 10000/min"), nodes) };
        let found = fleet.run(&clients(2_000), population.arrivals(), &mut |_| {});
        assert!(found.over_admission() <= 0);
        assert!(found.lost_share() < 0.001, "{routing:?}: {:?}", found.tally);
        assert_eq!(found.tally.innocent_refused, 0, "{routing:?}");
        let least = if routing == Routing::Sticky { 0.9 } else { 0.6 };
        assert!(found.local_share() >= least, "{routing:?}: {} local", found.local_share());
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let fleet = SimulatedFleet { seed: 9, ..SimulatedFleet::new(bucket(50, 50), 3) };
        let found = super::run(&fleet, &clients(1), even(3_000, 0, 4 * SECOND_US, 3, 9));
        (found.tally, found.calls, found.ledger.entries().to_vec())
    };
    assert_eq!(run(), run());
}
