//! Leases on virtual time: whole fleets, exactly the same each time.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod exactness;
mod faults;
mod load;
mod moving;
mod random;
mod several;
mod timing;
mod versions;

use std::sync::Arc;
use tollgate_core::rules::{RuleSet, load};
use tollgate_simulate::{Arrival, Client, Findings, Routing, SimulatedFleet};

const SECOND_US: u64 = 1_000_000;

/// Rules as written.
fn written(text: &str) -> Arc<RuleSet> {
    Arc::new(load("rules.yaml", text).unwrap_or_else(|report| panic!("{report}")).rules)
}

/// One rule that counts by API key; `limit` is the rest of it, in one line.
fn one(limit: &str) -> Arc<RuleSet> {
    written(&format!("rules: [{{id: one, key: [api_key], {limit}}}]"))
}

/// A token bucket.
fn bucket(capacity: u32, per_second: u32) -> Arc<RuleSet> {
    one(&format!("params: {{capacity: {capacity}, refill_rate: {per_second}}}"))
}

fn clients(count: u32) -> Vec<Client> {
    (0..count).map(|number| Client::numbered(number, "/")).collect()
}

/// Runs arrivals, which may be in any order.
fn run(fleet: &SimulatedFleet, clients: &[Client], mut arrivals: Vec<Arrival>) -> Findings {
    arrivals.sort_by_key(|arrival| arrival.at_us);
    fleet.run(clients, arrivals.into_iter(), &mut |_| {})
}

/// `count` requests of the first client, evenly over `length_us` from `from_us` on, at nodes by chance.
fn even(count: u64, from_us: u64, length_us: u64, nodes: u16, seed: u64) -> Vec<Arrival> {
    let mut random = fastrand::Rng::with_seed(seed);
    let at = |number: u64| from_us + number * length_us / count;
    (0..count)
        .map(|number| Arrival {
            at_us: at(number),
            client: 0,
            node: Routing::Random.node(0, nodes, &mut random),
            cost: 1,
        })
        .collect()
}

/// The same, all at one node.
fn even_at(node: u16, count: u64, from_us: u64, length_us: u64) -> Vec<Arrival> {
    even(count, from_us, length_us, 1, 0).into_iter().map(|arrival| Arrival { node, ..arrival }).collect()
}

/// The time when everything that was held after the requests has come back, as the findings tell it.
fn admitted_between(found: &Findings, from_us: u64, to_us: u64) -> u64 {
    found.ledger.admitted(0, from_us..to_us)
}
