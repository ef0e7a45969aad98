//! The worked example at the top of each algorithm's file, as rows of (time, cost, answer).

use crate::sample::{Kept, SECOND_US, bucket, window};
use tollgate_core::algorithm::Algorithm;

/// What a row expects: the request passes and leaves so many, or has to wait so long.
#[derive(Debug, PartialEq, Eq)]
enum Expect {
    Left(u32),
    WaitUs(u64),
}
use Expect::{Left, WaitUs};

/// The start of a minute, and so of every window used here.
const START_US: u64 = 1_700_000_040 * SECOND_US;

#[track_caller]
fn rows(kept: &mut Kept, rows: &[(u64, u32, Expect)]) {
    for (at_us, cost, expect) in rows {
        let step = kept.step(START_US + at_us, *cost);
        let answer = if step.admitted { Left(step.remaining) } else { WaitUs(step.retry_after_us) };
        assert_eq!(answer, *expect, "cost {cost} at {at_us} µs");
    }
}

#[test]
fn token_bucket() {
    let mut kept = Kept::new(crate::sample::HUNDRED.limit(Algorithm::TokenBucket));
    for left in (0..100).rev() {
        rows(&mut kept, &[(0, 1, Left(left))]);
    }
    rows(
        &mut kept,
        &[
            (0, 1, WaitUs(598_803)),
            (598_802, 1, WaitUs(1)),
            (598_803, 1, Left(0)),
            // 598,803 µs brought 100,000,101 fractions: 101 are left over and shorten the next wait.
            (598_803, 1, WaitUs(598_802)),
        ],
    );
}

#[test]
fn leaky_bucket() {
    rows(
        &mut Kept::new(bucket(3, 2, 1, 1).limit(Algorithm::LeakyBucket)),
        &[
            (0, 1, Left(2)),
            (0, 1, Left(1)),
            (0, 1, Left(0)),
            (0, 1, WaitUs(500_000)),
            (400_000, 1, WaitUs(100_000)),
            (499_999, 1, WaitUs(1)),
            (500_000, 1, Left(0)),
        ],
    );
}

#[test]
fn gcra() {
    rows(
        &mut Kept::new(bucket(1, 10, 1, 1).limit(Algorithm::Gcra)),
        &[(0, 1, Left(0)), (30_000, 1, WaitUs(70_000)), (99_999, 1, WaitUs(1)), (100_000, 1, Left(0))],
    );
}

#[test]
fn fixed_window() {
    let seven = 7 * SECOND_US;
    rows(
        &mut Kept::new(window(5, 10 * SECOND_US, 1).limit(Algorithm::FixedWindow)),
        &[
            (seven, 1, Left(4)),
            (seven, 1, Left(3)),
            (seven, 1, Left(2)),
            (seven, 1, Left(1)),
            (seven, 1, Left(0)),
            (seven, 1, WaitUs(3 * SECOND_US)),
            (10 * SECOND_US - 1, 1, WaitUs(1)),
            (10 * SECOND_US, 1, Left(4)),
        ],
    );
}

#[test]
fn sliding_window_log() {
    rows(
        &mut Kept::new(window(5, 60 * SECOND_US, 1).limit(Algorithm::SlidingWindowLog)),
        &[
            (0, 1, Left(4)),
            (10 * SECOND_US, 1, Left(3)),
            (20 * SECOND_US, 1, Left(2)),
            (30 * SECOND_US, 1, Left(1)),
            (40 * SECOND_US, 1, Left(0)),
            (45 * SECOND_US, 1, WaitUs(15 * SECOND_US)),
            (45 * SECOND_US, 2, WaitUs(25 * SECOND_US)),
            (60 * SECOND_US - 1, 1, WaitUs(1)),
            (60 * SECOND_US, 1, Left(0)),
        ],
    );
}

#[test]
fn sliding_window_counter() {
    // 80 in the first minute and 50 in the second, when nothing of the 80 had faded enough to refuse them.
    let mut kept = Kept::new(window(200, 60 * SECOND_US, 1).limit(Algorithm::SlidingWindowCounter));
    rows(&mut kept, &[(0, 80, Left(120)), (60 * SECOND_US, 50, Left(70))]);
    // The example's counts exceed its own limit, which a lowered limit is one way to come by.
    kept.limit = window(100, 60 * SECOND_US, 1).limit(Algorithm::SlidingWindowCounter);
    let fifteen = 75 * SECOND_US;
    rows(
        &mut kept,
        &[
            (fifteen, 1, WaitUs(8_250_000)),
            (fifteen + 8_249_999, 1, WaitUs(1)),
            (fifteen + 8_250_000, 1, Left(0)),
        ],
    );
}
