//! Several limits on one request: all or nothing, also when they live on different shards.

use super::*;

const RULES: &str = "
rules:
  - {id: by-user, key: [user], params: {capacity: 1000, refill_rate: 0.001}}
  - {id: by-ip, key: [ip], params: {capacity: 100, refill_rate: 0.001}}
  - {id: by-route, key: [user, route], endpoint: /a, params: {capacity: 5000, refill_rate: 0.001}}
";

/// One user at several addresses.
fn at_addresses(count: u8) -> Vec<Client> {
    let client = |number: u8| Client {
        api_key: None,
        user: Some("ann".to_owned()),
        ip: Some([203, 0, 113, number].into()),
        endpoint: "/a".to_owned(),
    };
    (0..count).map(client).collect()
}

#[test]
fn what_one_limit_refuses_the_others_have_not_spent() {
    for (nodes, length_us) in [(1, SECOND_US), (4, SECOND_US), (4, 10 * SECOND_US), (20, 300_000)] {
        let fleet = SimulatedFleet { shards: 3, ..SimulatedFleet::new(written(RULES), nodes) };
        // Each address passes 100 of its 300 requests; the user has 1,000, which is what all pass together.
        let mut arrivals = Vec::new();
        for address in 0..10 {
            let from_us = u64::from(address) * 2 * length_us;
            let requests = even(300, from_us, length_us, nodes, u64::from(address));
            arrivals.extend(requests.into_iter().map(|arrival| Arrival { client: address, ..arrival }));
        }
        let found = run(&fleet, &at_addresses(10), arrivals);
        assert!(found.over_admission() <= 0);
        assert_eq!(found.tally.oracle_admitted, 1_000);
        let admitted = found.tally.admitted;
        assert!((999..=1_000).contains(&admitted), "{admitted} at {nodes} nodes within {length_us} µs");
    }
}

#[test]
fn two_limits_of_one_client_travel_together() {
    let rules = "rules: [{id: both, key: [api_key], limits: [20/s, 100/min]}]";
    let fleet = SimulatedFleet::new(written(rules), 4);
    let found = run(&fleet, &clients(1), even(2_000, 0, 20 * SECOND_US, 4, 1));
    assert!(found.over_admission() <= 0);
    assert!(found.tally.oracle_admitted - found.tally.admitted <= 2, "{:?}", found.tally);
}
