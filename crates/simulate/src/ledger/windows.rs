//! Limits of which a window may begin anywhere: the sliding counter and the log.

use super::{LedgerEntry, LossAllowance};
use crate::bound::WindowBound;
use crate::charge_clock::CountAllowance;
use std::collections::BTreeMap;

/// Logs are judged by spans of so many windows at most. Only requests that were answered windows later need more than one.
const MOST_WINDOWS: u64 = 16;

/// The greatest estimate of a counter above its limit, rounded up to whole tokens. With p admitted in the window before, and q in
/// this one until e microseconds into it, the estimate is p·(W − e)/W + q. Of a request that was sent in the window before and
/// answered in this one it is not known in which it counted: as the part of p that it is at least.
///
/// What the store has forgotten of p and q may be admitted again. Each loss within the two windows of which only the time is known
/// begins a count of its own, which keeps to the limit by itself.
pub(super) fn counter_excess(entries: &[&LedgerEntry], window: WindowBound, losses: &LossAllowance) -> i64 {
    let LossAllowance { losses_us, counts, .. } = losses;
    let (length_us, limit) = (window.length_us, i128::from(window.limit));
    let unit = i128::from(length_us);
    let mut order = entries.to_vec();
    order.sort_unstable_by_key(|entry| entry.received_us);
    // By the window in which they were sent.
    let mut costs: BTreeMap<u64, i128> = BTreeMap::new();
    let mut worst = -limit * unit;
    for entry in order {
        *costs.entry(entry.sent_us / length_us).or_default() += i128::from(entry.cost);
        let (number, elapsed_us) = (entry.received_us / length_us, entry.received_us % length_us);
        let counted_in = |number: u64| {
            let is_allowed = |of: &&CountAllowance| of.number == number && of.from_us <= entry.received_us;
            let forgotten: i64 = counts.iter().filter(is_allowed).map(|of| of.tokens).sum();
            costs.get(&number).copied().unwrap_or(0) - i128::from(forgotten)
        };
        let faded = number.checked_sub(1).map_or(0, counted_in) * i128::from(length_us - elapsed_us);
        let estimate = faded + counted_in(number) * unit;
        let from_us = number.saturating_sub(1) * length_us;
        let lost = losses_us.iter().filter(|us| (from_us..=entry.received_us).contains(*us)).count();
        worst = worst.max(estimate - (1 + lost as i128) * limit * unit);
    }
    (worst.div_euclid(unit) + i128::from(worst.rem_euclid(unit) > 0)) as i64
}

/// The greatest of cost − L·n over all spans that are shorter than n windows. What a log has forgotten may be admitted again in a
/// span around the loss; a loss within a span of which only the time is known gives it one more L.
pub(super) fn log_excess(entries: &[&LedgerEntry], window: WindowBound, losses: &LossAllowance) -> i64 {
    let LossAllowance { losses_us, entries: forgotten, .. } = losses;
    let limit = i64::from(window.limit);
    let mut worst = -limit;
    let mut received: Vec<u64> = entries.iter().map(|entry| entry.received_us).collect();
    received.sort_unstable();
    let mut answered = PrefixSums::new(received.len());
    // From the last beginning to the first: `answered` has the costs of all that was sent since.
    for entry in entries.iter().rev() {
        answered.add(received.partition_point(|us| *us < entry.received_us), i64::from(entry.cost));
        let from_us = entry.sent_us;
        let full = (1..=MOST_WINDOWS).map(|windows| from_us + windows * window.length_us);
        // Spans that end just before a loss, or before the first call after it, are not allowed more for it.
        let calls_us = forgotten.iter().map(|(_, next_call_us, _)| *next_call_us);
        let ends_us = full.chain(losses_us.iter().copied()).chain(calls_us);
        for end_us in ends_us.filter(|end_us| *end_us > from_us) {
            let windows = (end_us - from_us).div_ceil(window.length_us);
            let lost = losses_us.iter().filter(|us| (from_us..end_us).contains(*us)).count() as i64;
            let is_around = |(last_call_us, next_call_us, _): &&(u64, u64, i64)| {
                from_us <= *last_call_us && *next_call_us < end_us
            };
            let again: i64 = forgotten.iter().filter(is_around).map(|(.., tokens)| tokens).sum();
            let count = received.partition_point(|us| *us < end_us);
            worst = worst.max(answered.sum(count) - (windows as i64 + lost) * limit - again);
        }
    }
    worst
}

/// Numbers of which any can be raised, and the first of which can be summed, both in the time of the logarithm (a Fenwick tree).
struct PrefixSums {
    nodes: Vec<i64>,
}

impl PrefixSums {
    fn new(count: usize) -> Self {
        Self { nodes: vec![0; count + 1] }
    }

    fn add(&mut self, index: usize, value: i64) {
        let mut node = index + 1;
        while node < self.nodes.len() {
            self.nodes[node] += value;
            node += node & node.wrapping_neg();
        }
    }

    /// The sum of the first `count`.
    fn sum(&self, count: usize) -> i64 {
        let (mut node, mut sum) = (count, 0);
        while node > 0 {
            sum += self.nodes[node];
            node &= node - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use crate::bound::{LimitBound, WindowBound};
    use crate::charge_clock::ChargeClock;
    use crate::ledger::{Ledger, LedgerEntry, StoreFaults};
    use tollgate_core::algorithm::{Algorithm, StateCell};
    use tollgate_core::lending::StoredState;
    use tollgate_core::limit::{Limit, LimitSize, Meter};
    use tollgate_core::time::StoreTime;

    const START: StoreTime = StoreTime::from_us(1_000_000);

    /// 10 in 1,000 µs.
    const WINDOW: WindowBound = WindowBound { limit: 10, length_us: 1_000 };
    const FIXED: LimitBound = LimitBound::FixedWindow(WINDOW);
    const COUNTER: LimitBound = LimitBound::SlidingCounter(WINDOW);
    const LOG: LimitBound = LimitBound::Log(WINDOW);

    /// Requests as (sent, answered, cost).
    fn ledger(requests: &[(u64, u64, u32)]) -> Ledger {
        let mut ledger = Ledger::default();
        for (sent_us, received_us, cost) in requests.iter().copied() {
            ledger.note(LedgerEntry { key: 1, node: 0, admitted: true, cost, sent_us, received_us });
        }
        ledger
    }

    fn meter(bound: LimitBound) -> Meter {
        let algorithm = match bound {
            LimitBound::SlidingCounter(_) => Algorithm::SlidingWindowCounter,
            LimitBound::Log(_) => Algorithm::SlidingWindowLog,
            LimitBound::FixedWindow(_) | LimitBound::Bucket(_) => Algorithm::FixedWindow,
        };
        let size = LimitSize { capacity: Some(10), rate: None, window_us: Some(WINDOW.length_us) };
        *Limit::new("ten", algorithm, size).unwrap().meter()
    }

    #[test]
    fn the_worst_window_is_found() {
        for (bound, requests, excess) in [
            (FIXED, &[][..], -10),
            (COUNTER, &[], -10),
            (LOG, &[], -10),
            // At the end of one window and at the beginning of the next.
            (FIXED, &[(990, 999, 10), (1_000, 1_010, 10)], 0),
            (FIXED, &[(990, 999, 10), (1_000, 1_010, 11)], 1),
            (COUNTER, &[(990, 999, 10), (1_000, 1_000, 1)], 1),
            (LOG, &[(990, 999, 10), (1_000, 1_010, 10)], 10),
            // In either of two windows, but not in a third.
            (FIXED, &[(990, 1_010, 20)], 0),
            (FIXED, &[(990, 1_010, 20), (500, 510, 1)], 1),
            (FIXED, &[(990, 1_010, 9), (500, 510, 5), (1_500, 1_510, 6)], 0),
            (FIXED, &[(990, 1_010, 9), (500, 510, 5), (1_500, 1_510, 7)], 1),
            // Half of those before count.
            (COUNTER, &[(10, 20, 10), (1_400, 1_500, 5)], 0),
            (COUNTER, &[(10, 20, 10), (1_400, 1_500, 6)], 1),
            (COUNTER, &[(10, 20, 5), (900, 1_100, 5), (1_400, 1_500, 6)], 1),
            // A part of a token is one above.
            (COUNTER, &[(10, 20, 10), (1_000, 1_999, 9), (1_999, 1_999, 1)], 1),
            (LOG, &[(0, 0, 5), (999, 999, 5), (1_000, 1_000, 5)], 0),
            (LOG, &[(0, 0, 5), (999, 999, 6), (1_000, 1_000, 5)], 1),
            // Slow requests in two windows.
            (LOG, &[(0, 1_500, 15), (10, 1_600, 5)], 0),
            (LOG, &[(0, 1_500, 15), (10, 1_600, 6)], 1),
        ] {
            assert_eq!(ledger(requests).excess(1, bound), excess, "{bound:?} {requests:?}");
        }
    }

    #[test]
    fn a_loss_allows_one_more_limit_to_the_windows_that_contain_it() {
        for (bound, requests, loss_us, excess) in [
            (FIXED, &[(100, 200, 10), (600, 700, 11)][..], 500, 1),
            (FIXED, &[(100, 200, 10), (600, 700, 10)], 500, 0),
            (FIXED, &[(100, 200, 10), (600, 700, 10)], 1_000, 10),
            (FIXED, &[(1_100, 1_200, 10), (1_600, 1_700, 10)], 999, 10),
            (FIXED, &[(100, 200, 10), (600, 700, 10)], 701, 10),
            // What was taken before the loss may be returned after it.
            (FIXED, &[(500, 600, 10), (700, 700, 10)], 100, 0),
            (COUNTER, &[(100, 200, 10), (600, 700, 10)], 701, 10),
            (LOG, &[(100, 200, 10), (600, 700, 10)], 701, 10),
            (COUNTER, &[(100, 200, 10), (600, 700, 10), (1_000, 1_000, 1)], 500, 1),
            (COUNTER, &[(100, 200, 10), (1_600, 1_600, 17)], 500, 1),
            (COUNTER, &[(1_100, 1_200, 10), (2_000, 2_000, 10)], 500, 10),
            (LOG, &[(100, 200, 10), (600, 700, 10)], 500, 0),
            (LOG, &[(100, 200, 10), (600, 700, 11)], 500, 1),
            (LOG, &[(100, 200, 10), (600, 700, 10)], 50, 10),
        ] {
            let faults = StoreFaults { losses_us: &[loss_us], ..StoreFaults::default() };
            let found = ledger(requests).excess_after(1, bound, &faults);
            assert_eq!(found, excess, "{bound:?} {requests:?}, lost at {loss_us}");
        }
    }

    #[test]
    fn windows_are_judged_by_the_times_that_they_were_charged_by() {
        let judge = |requests: &[(u64, u64, u32)], calls: &[(u64, i64)], bound, losses_us: &[u64]| {
            let mut clock = ChargeClock::default();
            for (at_us, off_us) in calls {
                clock.record(&meter(bound), (START + *at_us).shifted_by(*off_us), *off_us, *at_us);
            }
            let faults = StoreFaults { charge_clock: Some(&clock), losses_us, ..StoreFaults::default() };
            ledger(requests).excess_after(1, bound, &faults)
        };
        for bound in [FIXED, COUNTER, LOG] {
            // Until counts are moved to the present, when some are counted again.
            let around = [(100, 200, 10), (600, 699, 3), (600, 700, 9)];
            let found = judge(&around, &[(100, 0), (600, 5_000), (700, 0)], bound, &[]);
            assert_eq!(found, -10, "{bound:?}: in which windows they were is not known");
            assert_eq!(judge(&around, &[(100, 0), (600, 50), (700, -5_000)], bound, &[]), 3, "{bound:?}");
            // A clock that is wrong all the time.
            assert_eq!(judge(&around, &[(100, 5_000)], bound, &[]), 12, "{bound:?}");
            assert_eq!(judge(&around, &[(100, -5_000)], bound, &[]), 12, "{bound:?}");
            assert_eq!(judge(&around, &[(100, 5_000)], bound, &[500]), 2, "{bound:?}");
            assert_eq!(judge(&around, &[(100, 5_000)], bound, &[800]), 12, "{bound:?}");
        }
        // By a time that may be 100 µs ahead the second may count in the next window.
        let two = [(100, 200, 10), (850, 950, 10)];
        assert_eq!(judge(&two, &[(100, 0)], FIXED, &[]), 10);
        assert_eq!(judge(&two, &[(100, 0), (900, 100)], FIXED, &[]), 0);
        assert_eq!(judge(&two, &[(100, 0), (900, 100)], LOG, &[]), 10);
        assert_eq!(judge(&two, &[(100, 0), (900, 200)], LOG, &[]), 0);
    }

    /// The store forgets 6 of the 8 that were admitted until 600.
    #[test]
    fn a_known_loss_allows_what_was_forgotten_and_no_more() {
        let state = |count| {
            let cell = StateCell { instant: START, grain: 0, major: count, minor: 0 };
            Some(StoredState { cell: Some(cell), ..StoredState::default() })
        };
        for (bound, requests, excess) in [
            (FIXED, &[(100, 600, 8), (650, 800, 8)][..], 0),
            (FIXED, &[(100, 600, 8), (650, 800, 9)], 1),
            (FIXED, &[(1_100, 1_200, 11)], 1),
            (FIXED, &[(100, 600, 8), (300, 649, 3)], 1),
            (COUNTER, &[(100, 600, 8), (300, 649, 3)], 1),
            // In the window after that they are still faded out.
            (COUNTER, &[(100, 600, 8), (650, 800, 8)], 0),
            (COUNTER, &[(100, 600, 8), (650, 800, 9)], 1),
            (COUNTER, &[(100, 600, 8), (650, 800, 8), (1_400, 1_500, 5)], 0),
            (COUNTER, &[(100, 600, 8), (650, 800, 8), (1_400, 1_500, 6)], 1),
            (COUNTER, &[(2_100, 2_200, 11)], 1),
            (LOG, &[(100, 600, 8), (650, 800, 8)], 0),
            (LOG, &[(100, 600, 8), (650, 800, 9)], 1),
            (LOG, &[(601, 700, 11)], 1),
            // Not before the next call.
            (LOG, &[(100, 600, 8), (600, 649, 3)], 1),
        ] {
            let mut clock = ChargeClock::default();
            clock.record(&meter(bound), START + 600, 0, 600);
            match bound {
                LOG => clock.forget_entries(500, |_, _| 6),
                _ => clock.forget_counts(state(8), state(2), START),
            }
            clock.record(&meter(bound), START + 650, 0, 650);
            let faults = StoreFaults { charge_clock: Some(&clock), ..StoreFaults::default() };
            let found = ledger(requests).excess_after(1, bound, &faults);
            assert_eq!(found, excess, "{bound:?} {requests:?}");
        }
    }

    #[test]
    fn a_log_agrees_with_trying_every_span() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let requests: Vec<(u64, u64, u32)> = (0..random.usize(1..40))
                .map(|_| {
                    let sent_us = random.u64(0..6_000);
                    (sent_us, sent_us + random.u64(0..1_500), random.u32(1..5))
                })
                .collect();
            let mut worst = -10;
            for (start_us, ..) in &requests {
                for (_, end_us, _) in requests.iter().filter(|(_, end_us, _)| end_us >= start_us) {
                    let inside = requests.iter().filter(|(sent, end, _)| sent >= start_us && end <= end_us);
                    let cost: i64 = inside.map(|(.., cost)| i64::from(*cost)).sum();
                    worst = worst.max(cost - 10 * ((end_us - start_us) / 1_000 + 1) as i64);
                }
            }
            assert_eq!(ledger(&requests).excess(1, LOG), worst, "{requests:?}");
        }
    }
}
