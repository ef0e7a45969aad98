//! Clients below and above their limits, buckets and windows, small and large fleets: the bounds of docs/redis.md.

use super::*;
use tollgate_simulate::LedgerEntry;

/// Buckets have a capacity and so many tokens a second, windows a limit and a length.
#[derive(Clone, Copy, Debug)]
enum MovingLimit {
    Bucket { algorithm: &'static str, capacity: u64, per_second: u64 },
    Window { algorithm: &'static str, limit: u64, length_us: u64 },
}

/// A client that is busy at the first node of a fleet, `per_second`, and goes on at the second one.
#[derive(Clone, Copy, Debug)]
struct MovingClient {
    limit: MovingLimit,
    nodes: u16,
    per_second: u64,
    crashes: bool,
    seed: u64,
}

/// What was missing after a burst, and how many requests of a node that has crashed have no decision.
struct FoundMissing {
    missing: i64,
    undecided: i64,
}

impl MovingLimit {
    fn all() -> impl Iterator<Item = Self> {
        let sizes = [(600, 10), (100, 100), (1_000, 500)];
        let buckets = ALGORITHMS.into_iter().flat_map(move |algorithm| {
            sizes.map(|(capacity, per_second)| Self::Bucket { algorithm, capacity, per_second })
        });
        let sizes = [(600, 2 * SECOND_US), (100, SECOND_US), (1_000, 2 * SECOND_US)];
        let windows = ["fixed_window", "sliding_window_counter"].into_iter().flat_map(move |algorithm| {
            sizes.map(|(limit, length_us)| Self::Window { algorithm, limit, length_us })
        });
        buckets.chain(windows)
    }

    fn rule(self) -> String {
        match self {
            Self::Bucket { algorithm, capacity, per_second } => {
                let rate = if algorithm == "leaky_bucket" { "leak_rate" } else { "refill_rate" };
                format!("algorithm: {algorithm}, params: {{capacity: {capacity}, {rate}: {per_second}}}")
            }
            Self::Window { algorithm, limit, length_us } => {
                format!("algorithm: {algorithm}, params: {{limit: {limit}, window: {}ms}}", length_us / 1_000)
            }
        }
    }

    fn is_window(self) -> bool {
        matches!(self, Self::Window { .. })
    }

    fn capacity(self) -> u64 {
        match self {
            Self::Bucket { capacity, .. } => capacity,
            Self::Window { limit, .. } => limit,
        }
    }

    fn refilled_in(self, us: u64) -> u64 {
        match self {
            Self::Bucket { per_second, .. } => per_second * us / SECOND_US,
            Self::Window { limit, length_us, .. } => limit * us / length_us,
        }
    }

    /// The rate of a client that keeps to the limit.
    fn rate_below(self, seed: u64) -> u64 {
        (self.capacity() * (5 + 3 * (seed % 8)) / 100).max(5)
    }

    /// The rate of a client that empties it, and goes on.
    fn rate_above(self) -> u64 {
        (3 * self.refilled_in(SECOND_US)).max(2 * self.capacity() * SECOND_US / BUSY_US)
    }

    /// How many tokens one exact store would have left at `now_us`, after what was admitted.
    fn left(self, admitted: &[LedgerEntry], now_us: u64) -> i64 {
        let cost = |from_us: u64, until_us: u64| -> u64 {
            let is_within = |entry: &&LedgerEntry| (from_us..until_us).contains(&entry.received_us);
            admitted.iter().filter(is_within).map(|entry| u64::from(entry.cost)).sum()
        };
        match self {
            Self::Bucket { capacity, per_second, .. } => {
                let full = (capacity * SECOND_US) as i64;
                let (mut level, mut at_us) = (full, 0);
                let mut refill = |level: i64, us: u64| {
                    let refilled = (us.saturating_sub(at_us) * per_second) as i64;
                    at_us = at_us.max(us);
                    full.min(level + refilled)
                };
                for entry in admitted {
                    level = refill(level, entry.received_us) - i64::from(entry.cost) * SECOND_US as i64;
                }
                refill(level, now_us).div_euclid(SECOND_US as i64)
            }
            Self::Window { algorithm, limit, length_us } => {
                let begins_us = now_us - now_us % length_us;
                let count = cost(begins_us, begins_us + length_us);
                let before = cost(begins_us.saturating_sub(length_us), begins_us);
                let faded = match algorithm {
                    "fixed_window" => 0,
                    _ => (before * (begins_us + length_us - now_us)).div_ceil(length_us),
                };
                limit as i64 - (count + faded) as i64
            }
        }
    }
}

impl MovingClient {
    /// Every limit in every fleet, each with another time at which the client moves.
    fn all(crashes: bool) -> impl Iterator<Item = Self> {
        let fleets = MovingLimit::all().flat_map(|limit| [2, 4, 20].map(|nodes| (limit, nodes)));
        let clients =
            fleets.flat_map(|(limit, nodes)| [false, true].map(|is_above| (limit, nodes, is_above)));
        (0..).zip(clients).map(move |(number, (limit, nodes, is_above))| {
            let seed = 7 * number % 24;
            let per_second = if is_above { limit.rate_above() } else { limit.rate_below(seed) };
            Self { limit, nodes, per_second, crashes, seed }
        })
    }

    /// What is missing after each of the bursts at the second node, so long after the client has moved.
    fn missing<const N: usize>(&self, bursts_us: [u64; N]) -> [FoundMissing; N] {
        let Self { limit, nodes, per_second, crashes, seed } = *self;
        let start_us = seed * 173_000;
        let moved_us = start_us + BUSY_US;
        let events = if crashes { vec![(moved_us, FleetEvent::NodeCrashes(0))] } else { Vec::new() };
        let fleet = SimulatedFleet { events, seed, ..SimulatedFleet::new(one(&limit.rule()), nodes) };
        let mut arrivals = even_at(0, per_second * BUSY_US / SECOND_US, start_us, BUSY_US);
        let sent = arrivals.len() as i64;
        for after_us in bursts_us {
            arrivals.extend(even_at(1, limit.capacity() + 20, moved_us + after_us, 2_000));
        }
        let found = run(&fleet, &clients(1), arrivals);
        assert!(found.over_admission() <= 0, "{self:?}: {} above", found.over_admission());
        assert_eq!(found.tally.degraded, 0, "the store answers");
        let entries = found.ledger.entries();
        let undecided = sent - entries.iter().filter(|entry| entry.node == 0).count() as i64;
        let mut admitted: Vec<LedgerEntry> = entries.iter().filter(|entry| entry.admitted).copied().collect();
        admitted.sort_by_key(|entry| entry.received_us);
        bursts_us.map(|after_us| {
            let burst_us = moved_us + after_us;
            let end = admitted.partition_point(|entry| entry.received_us < burst_us + 10_000);
            FoundMissing { missing: limit.left(&admitted[..end], burst_us), undecided }
        })
    }

    /// What the node may hold when the client moves.
    fn most_in_hand(&self) -> i64 {
        self.limit.capacity().div_euclid(100).max(self.limit.refilled_in(100_000)) as i64
    }

    /// What the node may keep after a second: spent tokens without a report, and credit that is not worth a call.
    fn most_after_a_second(&self) -> i64 {
        let (capacity, nodes) = (self.limit.capacity(), u64::from(self.nodes));
        (capacity / 100 / nodes + capacity / 500 / nodes) as i64
    }
}

#[test]
fn any_client_that_moves_finds_its_tokens() {
    for client in MovingClient::all(false) {
        // What the refill has waited for when the burst comes is missing until the bucket is full again.
        let (at_once, later) = (client.most_in_hand(), client.most_after_a_second());
        for (bursts_us, most) in [([0, SECOND_US], at_once), ([SECOND_US, FORGOTTEN_US], later)] {
            for found in client.missing(bursts_us) {
                assert!(found.missing <= most, "{client:?}: {} of {most} missing", found.missing);
            }
        }
        let [in_the_end] = client.missing([FORGOTTEN_US]);
        assert!(in_the_end.missing <= 0, "{client:?}: {} missing in the end", in_the_end.missing);
    }
}

#[test]
fn any_client_whose_node_has_crashed_misses_what_that_had_in_hand() {
    for client in MovingClient::all(true) {
        let [at_once, after_a_burst] = client.missing([0, FORGOTTEN_US]);
        let [later] = client.missing([FORGOTTEN_US]);
        let most = client.most_in_hand() + at_once.undecided;
        assert!(at_once.missing <= most, "{client:?}: {} missing at once", at_once.missing);
        // In a bucket it counts as spent, and has to be refilled.
        let most = if client.limit.is_window() { 0 } else { most };
        for found in [after_a_burst, later] {
            assert!(found.missing <= most, "{client:?}: {} missing in the end", found.missing);
        }
    }
}
