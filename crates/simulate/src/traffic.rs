//! The requests of a run: when, of which client, and at which node.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// A request that arrives at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, since the start.
    pub at_us: u64,
    /// The client, by its index.
    pub client: u32,
    /// At which node.
    pub node: u16,
    /// What it costs.
    pub cost: u32,
}

/// How a balancer spreads requests over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Each request to any node.
    Random,
    /// All requests of a client to one node, by a hash of the client.
    Sticky,
}

impl Routing {
    /// The node for a request of `client`.
    pub fn node(self, client: u32, nodes: u16, random: &mut fastrand::Rng) -> u16 {
        match self {
            Self::Random => random.u16(0..nodes),
            Self::Sticky => {
                let mut hasher = DefaultHasher::new();
                client.hash(&mut hasher);
                (hasher.finish() % u64::from(nodes)) as u16
            }
        }
    }
}

/// Requests that come independently of each other, from clients of which some come more often: the k-th in
/// the order of busyness as often as 1/k^s says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Population {
    /// How many clients.
    pub clients: u32,
    /// The s of Zipf's law; 0 makes all equal.
    pub zipf: f64,
    /// Requests a second, of all together.
    pub per_second: f64,
    /// For how long.
    pub length_us: u64,
    /// Over so many nodes.
    pub nodes: u16,
    /// How they are spread.
    pub routing: Routing,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Population {
    /// The requests, in order.
    pub fn arrivals(self) -> impl Iterator<Item = Arrival> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let clients = WeightedChoice::new((1..=self.clients).map(|rank| f64::from(rank).powf(-self.zipf)));
        let mean_us = 1e6 / self.per_second;
        let mut at_us = 0.0;
        std::iter::from_fn(move || {
            at_us -= mean_us * (1.0 - random.f64()).ln();
            let client = clients.draw(&mut random);
            let node = self.routing.node(client, self.nodes, &mut random);
            (at_us < self.length_us as f64).then_some(Arrival { at_us: at_us as u64, client, node, cost: 1 })
        })
    }
}

/// Draws numbers by weight, each in the same time however many there are (Walker's alias method).
struct WeightedChoice {
    /// Of each column: how much of it belongs to its own number, and to which number the rest does.
    columns: Vec<(f64, u32)>,
}

impl WeightedChoice {
    fn new(weights: impl Iterator<Item = f64>) -> Self {
        let weights: Vec<f64> = weights.collect();
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut columns: Vec<(f64, u32)> = weights.iter().zip(0..).map(|(w, own)| (w / mean, own)).collect();
        let (mut poor, mut rich): (Vec<u32>, Vec<u32>) =
            (0..columns.len() as u32).partition(|own| columns[*own as usize].0 < 1.0);
        while let (Some(needy), Some(giver)) = (poor.pop(), rich.last().copied()) {
            columns[needy as usize].1 = giver;
            columns[giver as usize].0 -= 1.0 - columns[needy as usize].0;
            if columns[giver as usize].0 < 1.0 {
                rich.pop();
                poor.push(giver);
            }
        }
        Self { columns }
    }

    fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        let column = random.usize(0..self.columns.len());
        let (own_part, other) = self.columns[column];
        if random.f64() < own_part { column as u32 } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_client_comes_as_often_as_zipf_says() {
        let population = Population {
            clients: 1_000,
            zipf: 1.0,
            per_second: 10_000.0,
            length_us: 10_000_000,
            nodes: 4,
            routing: Routing::Sticky,
            seed: 1,
        };
        let arrivals: Vec<Arrival> = population.arrivals().collect();
        assert!((98_000..102_000).contains(&arrivals.len()), "{}", arrivals.len());
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at_us));
        let first = arrivals.iter().filter(|arrival| arrival.client == 0).count();
        // One in 7.485, the sum of 1/k up to a thousand.
        assert!((12_900..13_800).contains(&first), "{first}");
        let nodes: std::collections::BTreeSet<u16> =
            arrivals.iter().filter(|arrival| arrival.client == 0).map(|arrival| arrival.node).collect();
        assert_eq!(nodes.len(), 1);
    }
}
