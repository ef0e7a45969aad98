//! Limits that hold for every span of time by itself: buckets, and windows that are aligned to the clock.

use super::{LedgerEntry, LossAllowance, StoreFaults};
use crate::bound::{BucketBound, WindowBound};
use crate::charge_clock::CountAllowance;

/// The greatest of cost − B − r·(t − s) over all spans from an s, when something was sent, to a t, when
/// something was answered, rounded up to whole tokens. t − s is longer by what the bucket's refill clock has gained in it.
///
/// A span around a loss has the tokens that the loss has added to the bucket; one that begins up to `credit_us` after it has the
/// credit that was lent then. Of a loss of which only the time is known either may be one more B.
///
/// `entries` are in the order in which they were sent, here and below.
pub(super) fn bucket_excess(entries: &[&LedgerEntry], bucket: BucketBound, faults: &StoreFaults<'_>) -> i64 {
    let StoreFaults { losses_us, credit_us, refill_clock, .. } = *faults;
    let capacity = i64::from(bucket.capacity);
    let Some(first) = entries.first() else { return -capacity };
    let start_us = first.sent_us;
    // In fractions of a token per microsecond: what a period brings, spread over it.
    let unit = i128::from(bucket.period_us);
    let refilled = |us: u64, gain_us: Option<i64>| {
        (i128::from(us - start_us) + i128::from(gain_us.unwrap_or(0))) * i128::from(bucket.amount)
    };
    let lost = |us: u64| losses_until(losses_us, us) * i128::from(bucket.capacity) * unit;
    let tokens = |gained: Option<i64>| i128::from(gained.unwrap_or(0)) * unit;
    let before = |us: u64| {
        let gain_us = refill_clock.map(|clock| clock.gain_from_us(us));
        let gained = refill_clock.map(|clock| clock.gained_before(us, &bucket, credit_us));
        refilled(us, gain_us) + tokens(gained) + lost(us.saturating_sub(credit_us))
    };
    let until = |us: u64| {
        let gain_us = refill_clock.map(|clock| clock.gain_until_us(us));
        let gained = refill_clock.map(|clock| clock.gained_until(us, &bucket));
        refilled(us, gain_us) + tokens(gained) + lost(us)
    };
    worst_span(entries, unit, before, until) - capacity
}

/// The greatest of cost − L·n over all spans of n windows. Requests that were sent in one window and answered in another count in
/// spans that contain both. What the store has forgotten of a window may be admitted in it again. A loss of which only the time is
/// known gives one more L to a span that ends after it, if it came after the beginning of the first window: what was
/// taken of a window before a loss may be returned after it, as long as the window lasts.
pub(super) fn window_excess(entries: &[&LedgerEntry], window: WindowBound, losses: &LossAllowance) -> i64 {
    let LossAllowance { losses_us, counts, .. } = losses;
    let limit = i128::from(window.limit);
    if entries.is_empty() {
        return -i64::from(window.limit);
    }
    let number = |us: u64| us / window.length_us;
    // In windows before this one, and in this one by now.
    let forgotten = |number: u64, now_us: u64| {
        let is_allowed =
            |of: &&CountAllowance| of.number < number || of.number == number && of.from_us <= now_us;
        counts.iter().filter(is_allowed).map(|of| i128::from(of.tokens)).sum::<i128>()
    };
    let before = |us: u64| {
        let begins_us = us - us % window.length_us;
        let losses = losses_us.iter().filter(|loss_us| **loss_us < begins_us).count() as i128;
        (i128::from(number(us)) + losses) * limit + forgotten(number(us), 0)
    };
    let until = |us: u64| {
        (i128::from(number(us)) + 1 + losses_until(losses_us, us)) * limit + forgotten(number(us), us)
    };
    worst_span(entries, 1, before, until).max(-i64::from(window.limit))
}

/// How many losses there were until `us`, that instant included.
fn losses_until(losses_us: &[u64], us: u64) -> i128 {
    losses_us.iter().filter(|loss_us| **loss_us <= us).count() as i128
}

/// The greatest of cost − (`until`(t) − `before`(s)) over all spans from an s, when something was sent, to a t, when something
/// was answered: the cost of all that was sent and answered between them. `before` and `until` count in parts of a token, of
/// which `unit` are one. Rounded up to whole tokens.
fn worst_span(
    entries: &[&LedgerEntry],
    unit: i128,
    before: impl Fn(u64) -> i128,
    until: impl Fn(u64) -> i128,
) -> i64 {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_unstable_by_key(|index| entries[*index].received_us);
    // For every beginning: what was spent since, and answered by now, plus what had been allowed before it.
    let mut spans = SpanTree::new(entries.iter().map(|entry| before(entry.sent_us)).collect());
    let mut worst = i128::MIN;
    for index in order {
        let entry = entries[index];
        spans.add_up_to(index, i128::from(entry.cost) * unit);
        let count = entries.partition_point(|other| other.sent_us <= entry.received_us);
        worst = worst.max(spans.greatest(count) - until(entry.received_us));
    }
    let tokens = worst.div_euclid(unit) + i128::from(worst.rem_euclid(unit) > 0);
    tokens as i64
}

/// Numbers to the first of which a number can be added, and of which the greatest can be asked, both in the
/// time of the logarithm: a tree of which each node knows what was added to all below it.
struct SpanTree {
    leaves: usize,
    greatest: Vec<i128>,
    added: Vec<i128>,
}

impl SpanTree {
    fn new(values: Vec<i128>) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut greatest = vec![i128::MIN / 4; 2 * leaves];
        greatest[leaves..leaves + values.len()].copy_from_slice(&values);
        for node in (1..leaves).rev() {
            greatest[node] = greatest[2 * node].max(greatest[2 * node + 1]);
        }
        Self { leaves, greatest, added: vec![0; 2 * leaves] }
    }

    /// Adds `value` to the numbers up to `last`, that one included.
    fn add_up_to(&mut self, last: usize, value: i128) {
        let mut node = self.leaves + last;
        self.raise(node, value);
        while node > 1 {
            if node % 2 == 1 {
                self.raise(node - 1, value);
            }
            node /= 2;
            self.greatest[node] = self.greatest[2 * node].max(self.greatest[2 * node + 1]) + self.added[node];
        }
    }

    fn raise(&mut self, node: usize, value: i128) {
        self.greatest[node] += value;
        self.added[node] += value;
    }

    /// The greatest of the first `count`.
    fn greatest(&self, count: usize) -> i128 {
        if count == 0 {
            return i128::MIN / 4;
        }
        let mut node = self.leaves + count - 1;
        let mut found = self.greatest[node];
        while node > 1 {
            if node % 2 == 1 {
                found = found.max(self.greatest[node - 1]);
            }
            node /= 2;
            found += self.added[node];
        }
        found
    }
}
