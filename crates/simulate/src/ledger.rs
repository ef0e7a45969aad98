//! The requests of a run and their decisions, and by how much a limit was exceeded.
//!
//! A request is decided somewhere between the moment it was sent and the moment its reply came. So a bucket
//! of capacity B and rate r was certainly exceeded if, for any two instants, the requests that were sent and
//! answered between them and admitted cost more than B + r·t together. [`Ledger::excess`] looks at every such
//! pair, which is why it finds what a count by the second does not. Windows are judged alike.

mod spans;
mod windows;

use super::bound::{LimitBound, WindowBound};
use super::charge_clock::{ChargeClock, CountAllowance};
use super::refill_clock::RefillClock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One request, as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The number of the state that it was charged to.
    pub key: u32,
    /// Which node decided it.
    pub node: u16,
    /// Whether it passed.
    pub admitted: bool,
    /// What it cost.
    pub cost: u32,
    /// When it was sent.
    pub sent_us: u64,
    /// When the reply came.
    pub received_us: u64,
}

/// What befell the store of a run, and what may be admitted because of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreFaults<'f> {
    /// When the store has lost its data, if no more than that is known: each loss may give a key one more capacity.
    pub losses_us: &'f [u64],
    /// For how long after a loss credit that was taken before it may be spent.
    pub credit_us: u64,
    /// What the bucket was refilled for, if not for the time that has passed, and what losses have added to it.
    pub refill_clock: Option<&'f RefillClock>,
    /// By which times the window or log was charged, if not by the true one, and what losses have taken off its counts.
    pub charge_clock: Option<&'f ChargeClock>,
}

/// What losses allow beyond a window's limit, in the times that the window was charged by.
#[derive(Default)]
struct LossAllowance {
    /// One more limit each.
    losses_us: Vec<u64>,
    /// So many tokens more in a window, from a time on.
    counts: Vec<CountAllowance>,
    /// So many tokens more in spans of a log that begin by the first time and end after the second one.
    entries: Vec<(u64, u64, i64)>,
}

/// All requests of a run, in any order.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: Vec<LedgerEntry>,
}

impl Ledger {
    /// Adds a request.
    pub fn note(&mut self, entry: LedgerEntry) {
        self.entries.push(entry);
    }

    /// All requests.
    pub fn entries(&self) -> &[LedgerEntry] {
        &self.entries
    }

    /// What was admitted for `key`, all costs together, of what was sent within `sent_us`.
    pub fn admitted(&self, key: u32, sent_us: Range<u64>) -> u64 {
        let wanted =
            |entry: &&LedgerEntry| entry.admitted && entry.key == key && sent_us.contains(&entry.sent_us);
        self.entries.iter().filter(wanted).map(|entry| u64::from(entry.cost)).sum()
    }

    /// By how many tokens a limit was exceeded for the key for which it was exceeded most; zero or less if
    /// for none. `bound_of` tells the limit of a key; none if it has none.
    pub fn worst_excess<B: Into<LimitBound>>(
        &self,
        bound_of: impl Fn(u32) -> Option<B>,
    ) -> Option<(u32, i64)> {
        let mut by_key: BTreeMap<u32, Vec<&LedgerEntry>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.admitted) {
            by_key.entry(entry.key).or_default().push(entry);
        }
        let excesses = by_key.into_iter().filter_map(|(key, mut entries)| {
            let bound = bound_of(key)?.into();
            Some((key, excess(&mut entries, bound, &StoreFaults::default())))
        });
        excesses.max_by_key(|(_, excess)| *excess)
    }

    /// By how many tokens the limit was exceeded for `key`; zero or less if it was not. For windows that are aligned to the clock
    /// the times of the ledger have to begin with one, by the store's clock.
    pub fn excess(&self, key: u32, bound: impl Into<LimitBound>) -> i64 {
        self.excess_after(key, bound, &StoreFaults::default())
    }

    /// The same for a store with faults. A span of time that touches none of them keeps to the limit as ever.
    pub fn excess_after(&self, key: u32, bound: impl Into<LimitBound>, faults: &StoreFaults<'_>) -> i64 {
        let mut entries: Vec<&LedgerEntry> =
            self.entries.iter().filter(|entry| entry.admitted && entry.key == key).collect();
        excess(&mut entries, bound.into(), faults)
    }

    /// The keys of which anything was admitted.
    pub fn keys(&self) -> BTreeSet<u32> {
        self.entries.iter().filter(|entry| entry.admitted).map(|entry| entry.key).collect()
    }
}

fn excess(entries: &mut [&LedgerEntry], bound: LimitBound, faults: &StoreFaults<'_>) -> i64 {
    entries.sort_unstable_by_key(|entry| entry.sent_us);
    let of_window = |window: WindowBound, excess: fn(&[&LedgerEntry], WindowBound, &LossAllowance) -> i64| {
        let (entries, losses) = by_charge_clock(entries, window, faults);
        excess(&entries.iter().collect::<Vec<_>>(), window, &losses)
    };
    match bound {
        LimitBound::Bucket(bucket) => spans::bucket_excess(entries, bucket, faults),
        LimitBound::FixedWindow(window) => of_window(window, spans::window_excess),
        LimitBound::SlidingCounter(window) => of_window(window, windows::counter_excess),
        LimitBound::Log(window) => of_window(window, windows::log_excess),
    }
}

/// The requests, and the losses of the store, in the times that the window or log was charged by; until that time was set back by
/// more than a window.
fn by_charge_clock(
    entries: &[&LedgerEntry],
    window: WindowBound,
    faults: &StoreFaults<'_>,
) -> (Vec<LedgerEntry>, LossAllowance) {
    let Some(clock) = faults.charge_clock else {
        let losses_us = faults.losses_us.to_vec();
        let losses = LossAllowance { losses_us, ..LossAllowance::default() };
        return (entries.iter().copied().copied().collect(), losses);
    };
    let is_judged = |entry: &&&LedgerEntry| clock.jump().is_none_or(|jump| entry.received_us < jump.at_us);
    let charged = entries.iter().filter(is_judged).map(|entry| {
        let (sent_us, received_us) = clock.span_us(window.length_us, entry.sent_us, entry.received_us);
        LedgerEntry { sent_us, received_us, ..**entry }
    });
    // What was decided after a loss was answered after it, by the latest time.
    let lost = faults.losses_us.iter().map(|us| clock.span_us(window.length_us, *us, *us).1);
    let losses = LossAllowance {
        losses_us: lost.collect(),
        counts: clock.lost_counts(window).collect(),
        entries: clock.lost_entries(window).collect(),
    };
    (charged.collect(), losses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::{Algorithm, Bucket};
    use tollgate_core::limit::{Limit, LimitSize};
    use tollgate_core::rate::Rate;

    /// 10 tokens, 5 a second.
    fn bucket() -> Bucket {
        let size = LimitSize { capacity: Some(10), rate: Rate::per(5, 1_000_000), window_us: None };
        *Limit::new("five", Algorithm::TokenBucket, size).unwrap().meter().bucket().unwrap()
    }

    fn ledger(entries: &[(u64, u64, u32)]) -> Ledger {
        let mut ledger = Ledger::default();
        for (sent_us, received_us, cost) in entries {
            ledger.note(LedgerEntry {
                key: 1,
                node: 0,
                admitted: true,
                cost: *cost,
                sent_us: *sent_us,
                received_us: *received_us,
            });
        }
        ledger
    }

    #[test]
    fn what_a_bucket_allows_is_no_excess() {
        assert_eq!(ledger(&[(0, 0, 10), (1_000_000, 1_000_000, 5)]).excess(1, &bucket()), 0);
        assert_eq!(ledger(&[(0, 0, 10), (1_000_000, 1_000_000, 6)]).excess(1, &bucket()), 1);
    }

    #[test]
    fn the_worst_span_is_found_wherever_it_lies() {
        let spans =
            [(0, 0, 1), (5_000_000, 5_000_000, 8), (5_100_000, 5_100_000, 8), (9_000_000, 9_000_000, 1)];
        // 16 within 0.1 s, in which half a token came.
        assert_eq!(ledger(&spans).excess(1, &bucket()), 6);
    }

    #[test]
    fn a_request_under_way_counts_only_in_spans_that_hold_it_all() {
        assert_eq!(ledger(&[(0, 1_000_000, 5), (900_000, 1_100_000, 10)]).excess(1, &bucket()), 0);
        assert_eq!(ledger(&[(800_000, 1_000_000, 5), (900_000, 1_100_000, 10)]).excess(1, &bucket()), 4);
    }

    #[test]
    fn the_tree_agrees_with_trying_every_pair() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let entries: Vec<(u64, u64, u32)> = (0..random.usize(1..40))
                .map(|_| {
                    let sent_us = random.u64(0..3_000_000);
                    (sent_us, sent_us + random.u64(0..200_000), random.u32(1..5))
                })
                .collect();
            let mut worst = i64::MIN;
            for (start_us, ..) in &entries {
                for (_, end_us, _) in entries.iter().filter(|(_, end_us, _)| end_us >= start_us) {
                    let inside = entries.iter().filter(|(sent, end, _)| sent >= start_us && end <= end_us);
                    let cost: i64 = inside.map(|(.., cost)| i64::from(*cost)).sum();
                    let fractions = cost * 200_000 - (end_us - start_us) as i64;
                    worst = worst.max(fractions.div_euclid(200_000) + i64::from(fractions % 200_000 > 0));
                }
            }
            assert_eq!(ledger(&entries).excess(1, &bucket()), worst - 10, "{entries:?}");
        }
    }
}
