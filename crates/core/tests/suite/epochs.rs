//! A rule is edited while tokens are held under its old numbers; some nodes have the new rule already, others still
//! the old one. Whichever asks next, nothing that can still be spent is forgotten: what is left and what is held never
//! exceed the capacity.

use crate::sample::{NOW_US, SECOND_US, at, bucket, buckets};
use tollgate_core::algorithm::Algorithm;
use tollgate_core::lending::{EPOCH_US, LeaseReport, Prefetch, StoredState};
use tollgate_core::limit::Meter;

const CAPACITY: u32 = 1_000;
const NODES: usize = 3;

struct Node {
    meter: usize,
    held: Vec<Held>,
}

struct Held {
    epoch: u32,
    left: u32,
    spent: u32,
    until_us: u64,
}

#[derive(Debug, Default)]
struct Met {
    lends: u32,
    edits: u32,
    reports: u32,
    nearly_full: u32,
}

#[test]
fn what_is_held_is_remembered_through_changes_of_the_rule() {
    for algorithm in buckets() {
        // A second, and a quarter, a half and a whole minute from empty to full.
        let limits = [1_000, 60, 30, 16].map(|rate| bucket(CAPACITY, rate, 1, 1).limit(algorithm));
        let meters = limits.each_ref().map(|limit| *limit.meter());
        let mut met = Met::default();
        for seed in 0..300 {
            walk(&meters, seed, &mut met);
        }
        let Met { lends, edits, reports, nearly_full } = met;
        let each = [lends, edits, reports, nearly_full];
        assert!(each.iter().all(|count| *count > 1_000), "{met:?}");
    }
}

fn walk(meters: &[Meter; 4], seed: u64, met: &mut Met) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut now_us = NOW_US + rng.u64(0..1 << 40);
    let mut account = StoredState::default();
    let mut nodes: [Node; NODES] = std::array::from_fn(|_| Node { meter: rng.usize(..4), held: Vec::new() });
    for step in 0..200 {
        now_us += match rng.u8(0..6) {
            0 | 1 => rng.u64(0..SECOND_US / 2),
            2 | 3 => EPOCH_US - now_us % EPOCH_US - rng.u64(0..=1),
            4 => rng.u64(0..4 * SECOND_US),
            _ => rng.u64(0..12 * SECOND_US),
        };
        for held in nodes.iter_mut().flat_map(|node| &mut node.held) {
            held.left = if held.until_us <= now_us { 0 } else { held.left };
        }
        let node = &mut nodes[rng.usize(..NODES)];
        match rng.u8(0..8) {
            0 => {
                node.meter = rng.usize(..4);
                met.edits += 1;
            }
            1 | 2 => {
                let reports: Vec<LeaseReport> =
                    node.held.iter_mut().map(|held| tell(held, &mut rng)).collect();
                account.re_anchor(&meters[node.meter], at(now_us));
                account.apply_reports(&meters[node.meter], at(now_us), &reports);
                met.reports += u32::from(reports.iter().any(|report| report.spent + report.returned > 0));
            }
            _ => {
                let meter = &meters[node.meter];
                account.re_anchor(meter, at(now_us));
                account.apply_reports(meter, at(now_us), &[]);
                let lends = account.lend(meter, at(now_us), &Prefetch::new(rng.u32(1..=CAPACITY / 4), 1));
                if lends > 0 {
                    let until_us = now_us + meter.credit_lifetime_us(at(now_us));
                    node.held.push(Held { epoch: account.lent.epoch, left: lends, spent: 0, until_us });
                    met.lends += 1;
                }
            }
        }
        let held: u32 = nodes.iter().flat_map(|node| &node.held).map(|held| held.left).sum();
        for meter in meters {
            let mut account = account;
            account.re_anchor(meter, at(now_us));
            account.apply_reports(meter, at(now_us), &[]);
            let there = account.available(meter, at(now_us));
            assert!(
                held + there <= CAPACITY,
                "seed {seed}, step {step}: {held} held, {there} left, {account:?}"
            );
            met.nearly_full += u32::from(held > 0 && held + there + 10 >= CAPACITY);
        }
    }
}

/// Spends a part, brings a part back, and tells both.
fn tell(held: &mut Held, rng: &mut fastrand::Rng) -> LeaseReport {
    let spends = rng.u32(0..=held.left);
    let returned = if rng.bool() { held.left - spends } else { 0 };
    held.left -= spends + returned;
    let spent = held.spent + spends;
    held.spent = 0;
    LeaseReport { epoch: held.epoch, spent, returned }
}

/// Tokens held under an old rule, more than the new capacity, keep the refill back for two epochs at most.
#[test]
fn a_capacity_lowered_far_below_what_is_lent_is_not_blocked() {
    for algorithm in buckets() {
        let (wide, narrow) =
            (bucket(6_000, 100, 1, 1).limit(algorithm), bucket(100, 50, 1, 1).limit(algorithm));
        let start_us = NOW_US - NOW_US % EPOCH_US;
        let mut account = StoredState::default();
        account.apply_reports(wide.meter(), at(start_us), &[]);
        assert_eq!(account.lend(wide.meter(), at(start_us), &Prefetch::new(1_500, 1)), 1_500);
        // A theoretical arrival time is waited for; it lies at most two capacities ahead.
        let blocked_seconds = if algorithm == Algorithm::Gcra { 5 } else { 4 };
        let mut now_us = start_us;
        for _ in 0..blocked_seconds {
            now_us += SECOND_US;
            account.re_anchor(narrow.meter(), at(now_us));
            account.apply_reports(narrow.meter(), at(now_us), &[]);
        }
        now_us += 2 * SECOND_US;
        account.apply_reports(narrow.meter(), at(now_us), &[]);
        assert_eq!(account.available(narrow.meter(), at(now_us)), 100, "{algorithm:?}: {account:?}");
    }
}
