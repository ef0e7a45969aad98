//! Simulates a fleet of Tollgate nodes on virtual time: nodes, store shards and clients, in one thread.
//!
//! Decisions are made by the code of production: each node has a lease table (`tollgate_redis::lease`), and each shard a
//! [`VirtualStore`](tollgate_core::virtual_store::VirtualStore), which does in Rust what the script does in Redis. Only the
//! clock, the network and the clients are simulated: time jumps from one event to the next, and the same seed gives the
//! same run, to the microsecond.
//!
//! ```
//! use std::sync::Arc;
//! use tollgate_simulate::{Arrival, Client, SimulatedFleet};
//!
//! let text = "rules: [{ id: api, key: [api_key], params: { capacity: 100, refill_rate: 1 } }]";
//! let rules = Arc::new(tollgate_core::rules::load("rules.yaml", text).unwrap().rules);
//! let fleet = SimulatedFleet::new(rules, 3);
//!
//! // One client sends 300 requests in 300 ms, to each of three nodes in turn.
//! let arrivals = (0..300).map(|n| Arrival { at_us: n * 1_000, client: 0, node: (n % 3) as u16, cost: 1 });
//! let found = fleet.run(&[Client::numbered(0, "/")], arrivals, &mut |_| {});
//!
//! assert_eq!(found.tally.arrivals, 300);
//! assert!(found.over_admission() <= 0, "no limit is exceeded");
//! ```
//!
//! An oracle runs beside the fleet: one exact store that is charged for each request when it is sent. Requests that the
//! oracle admits and the fleet does not are lost ([`Findings::lost_share`]); requests that the fleet admits beyond a limit
//! are found in the [`Ledger`].
//!
//! # What matters
//!
//! | | |
//! |---|---|
//! | [`SimulatedFleet`] | nodes, shards, network and faults of a run |
//! | [`FleetEvent`] | a fault or a change of rules at an instant |
//! | [`Population`], [`Arrival`] | the requests |
//! | [`Findings`], [`Tally`] | the result |
//! | [`Ledger`] | every decision, and by how much a limit was exceeded; also for runs on real servers |

mod bound;
mod charge_clock;
mod clients;
mod clock_votes;
mod findings;
mod ledger;
mod oracle;
mod refill_clock;
mod shard;
mod simulation;
mod traffic;

pub use bound::{BucketBound, LimitBound, WindowBound};
pub use charge_clock::{ChargeClock, ClockJump};
pub use clients::Client;
pub use clock_votes::{ClockVotes, NodeId};
pub use findings::{Findings, Tally};
pub use ledger::{Ledger, LedgerEntry, StoreFaults};
pub use refill_clock::RefillClock;
pub use traffic::{Arrival, Population, Routing};

use std::sync::Arc;
use tollgate_core::rules::RuleSet;

/// A fleet, its network and its faults.
#[derive(Clone, Debug)]
pub struct SimulatedFleet {
    /// The rules.
    pub rules: Arc<RuleSet>,
    /// How many nodes.
    pub nodes: u16,
    /// How many store shards.
    pub shards: u16,
    /// From a node to a shard and back, without the time at the shard.
    pub rtt_us: u64,
    /// Each way takes up to so much longer.
    pub jitter_us: u64,
    /// What a shard needs for one limit of one client, in nanoseconds.
    pub charge_ns: u64,
    /// How long a node waits for a reply.
    pub timeout_us: u64,
    /// How far ahead of its use a busy key takes tokens; none is the default of the engine.
    pub horizon_us: Option<u64>,
    /// By how many parts in a million the clocks of the nodes go wrong at most.
    pub drift_ppm: u32,
    /// How many clients in a thousand disconnect before the decision.
    pub give_up_permille: u32,
    /// How many messages in a thousand are lost, on either way.
    pub lost_permille: u32,
    /// How many messages in a thousand are held up, on either way, and for how long at most.
    pub stalled_permille: u32,
    /// See `stalled_permille`.
    pub stall_us: u64,
    /// Faults and changes of rules, with their times.
    pub events: Vec<(u64, FleetEvent)>,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// A fault, or a change of rules, at an instant.
#[derive(Clone, Debug)]
pub enum FleetEvent {
    /// A node crashes with its credit. Another replaces it, without credit.
    NodeCrashes(u16),
    /// A node is paused for so many microseconds: messages and requests wait until it resumes.
    NodePauses(u16, u64),
    /// A shard is unavailable for so many microseconds. It keeps its states.
    ShardUnavailable(u16, u64),
    /// A shard loses what was written in the last so many microseconds, as a failover to a lagging replica does.
    ShardLosesWrites(u16, u64),
    /// A shard restarts without its data.
    ShardRestarts(u16),
    /// The clock of a shard steps by so many microseconds. The nodes notice, and agree on a correction.
    ShardClockSteps(u16, i64),
    /// Another server takes over a shard: it lacks what was written in the last so many microseconds, and its clock is so far from
    /// the last one's.
    ShardFailsOver(u16, u64, i64),
    /// Other rules come into force on all nodes.
    Rules(Arc<RuleSet>),
    /// Other rules come into force on one node, until the next rules do on all.
    RulesAt(u16, Arc<RuleSet>),
}

impl SimulatedFleet {
    /// A fleet without faults under `rules`.
    pub fn new(rules: Arc<RuleSet>, nodes: u16) -> Self {
        Self {
            rules,
            nodes,
            shards: 1,
            rtt_us: 500,
            jitter_us: 50,
            charge_ns: 6_667,
            timeout_us: 50_000,
            horizon_us: None,
            drift_ppm: 0,
            give_up_permille: 0,
            lost_permille: 0,
            stalled_permille: 0,
            stall_us: 0,
            events: Vec::new(),
            seed: 1,
        }
    }

    /// Runs until all `arrivals`, which must be in order, are decided and credit is returned.
    /// `progress` is called with the time now and then.
    pub fn run(
        &self,
        clients: &[Client],
        arrivals: impl Iterator<Item = Arrival>,
        progress: &mut dyn FnMut(u64),
    ) -> Findings {
        simulation::Simulation::new(self, clients).run(arrivals, progress)
    }
}
