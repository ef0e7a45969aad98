//! The result of a run.

use super::bound::LimitBound;
use super::charge_clock::ChargeClock;
use super::ledger::Ledger;
use super::refill_clock::RefillClock;
use std::collections::BTreeMap;
use tollgate_core::algorithm::Bucket;
use tollgate_core::limit::Meter;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Every request that was decided by a limit, once for each limit that can refuse. Of a request that passed although some of
    /// its limits could not be decided: once for each of the others.
    pub ledger: Ledger,
    /// The limit of each key of the ledger, as it was last.
    pub meters: Vec<Meter>,
    /// What each key of the ledger keeps to, under whichever versions of its limit.
    pub bounds: Vec<LimitBound>,
    /// The shard of each key of the ledger.
    pub shard_by_key: BTreeMap<u32, usize>,
    /// The requests, counted.
    pub tally: Tally,
    /// How long the requests came.
    pub length_us: u64,
    /// For each shard: when it lost data. The calls that it had begun until then are lost, or in what it restored.
    pub losses_us_by_shard: Vec<Vec<u64>>,
    /// How many pauses outlived credit that the node held when it was paused.
    pub pauses_beyond_credit: u64,
    /// For each shard: how many limits of clients it was called for, reports included.
    pub charges_by_shard: Vec<u64>,
    /// For each shard: how long it worked, in nanoseconds.
    pub busy_ns_by_shard: Vec<u64>,
    /// For each shard: the most by which the time that limits were charged by advanced more than the true time. Zero
    /// unless the shard's clock stepped.
    pub clock_gain_us_by_shard: Vec<u64>,
    /// For the keys of the ledger whose bucket was refilled for another time than the one that has passed, or was lost: for which,
    /// and what losses have added. Empty unless a shard's clock stepped, or it lost data.
    pub refill_clocks: BTreeMap<u32, RefillClock>,
    /// For the keys of the ledger whose window or log was charged by another time than the true one, or was lost: by which, and
    /// what losses have taken off its counts. Empty unless a shard's clock stepped, or it lost data.
    pub charge_clocks: BTreeMap<u32, ChargeClock>,
    /// For each node and second: how many calls it made, each for one client.
    pub calls_by_node: Vec<Vec<u32>>,
    /// How many of those calls only reported spent or returned tokens.
    pub reports: u64,
    /// How many calls there were, reports included.
    pub calls: u64,
}

/// Requests, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All of them.
    pub arrivals: u64,
    /// That passed.
    pub admitted: u64,
    /// That passed without a call.
    pub admitted_locally: u64,
    /// That were refused.
    pub refused: u64,
    /// That were refused without a call.
    pub refused_locally: u64,
    /// That the failure policy decided.
    pub degraded: u64,
    /// Of those, the requests that passed although only some of their limits were decided.
    pub partly_degraded: u64,
    /// Whose client disconnected.
    pub given_up: u64,
    /// What one exact store would have admitted.
    pub oracle_admitted: u64,
    /// That were refused although that client kept all its limits throughout.
    pub innocent_refused: u64,
}

impl Findings {
    /// By how many tokens the worst limit was exceeded; nothing or less if none was.
    pub fn over_admission(&self) -> i64 {
        self.ledger.worst_excess(|key| self.bound(key)).map_or(0, |(_, excess)| excess)
    }

    /// What a key of the ledger keeps to.
    pub fn bound(&self, key: u32) -> Option<LimitBound> {
        self.bounds.get(key as usize).copied()
    }

    /// The bucket of a key of the ledger.
    pub fn bucket(&self, key: u32) -> Option<&Bucket> {
        self.meters.get(key as usize)?.bucket()
    }

    /// Requests refused that an exact store would have admitted, less those admitted that it would not have,
    /// as a share of all.
    pub fn lost_share(&self) -> f64 {
        let lost = self.tally.oracle_admitted.saturating_sub(self.tally.admitted);
        share(lost, self.tally.arrivals)
    }

    /// Refusals of clients that kept their limits, as a share of all requests.
    pub fn false_rejections(&self) -> f64 {
        share(self.tally.innocent_refused, self.tally.arrivals)
    }

    /// Requests decided without a call, as a share of all.
    pub fn local_share(&self) -> f64 {
        share(self.tally.admitted_locally + self.tally.refused_locally, self.tally.arrivals)
    }

    /// Of those admitted.
    pub fn local_share_admitted(&self) -> f64 {
        share(self.tally.admitted_locally, self.tally.admitted)
    }

    /// Of those refused.
    pub fn local_share_refused(&self) -> f64 {
        share(self.tally.refused_locally, self.tally.refused)
    }

    /// Limits of clients that all shards together are asked about, per second.
    pub fn charges_per_second(&self) -> f64 {
        self.charges_by_shard.iter().sum::<u64>() as f64 * 1e6 / self.length_us.max(1) as f64
    }

    /// The most calls that a node made in one second, of the seconds from `first` to before `last`.
    pub fn most_calls_in_a_second(&self, first: usize, last: usize) -> u32 {
        let seconds = self.calls_by_node.iter().flat_map(|seconds| seconds.iter().take(last).skip(first));
        seconds.copied().max().unwrap_or(0)
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}
