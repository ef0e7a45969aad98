//! The decoder of replies and the lease table together, against a store that replies anything: a correct reply, a damaged
//! one, noise, an old reply, the reply to another call, or none; at any time, in any order.
//!
//! Each input is a list of choices ([`FuzzChoices`]), each choice a step of a [`FuzzRun`]. After every step:
//! - No request was told that it passes unless the reply to its call says so.
//! - For each key, what was spent, returned and is still in hand never exceeds what valid replies granted, and no
//!   reply grants more than its call asked for. What is spent without a call was granted by replies whose tokens are
//!   alive: for two epochs of the store, or until two seconds have passed or the window has ended.
//! - Every waiter has received exactly one verdict, or is in a call or a queue. A call that fails is
//!   reported to the waiters of its own group only.
//! - There is one call for each group, no more leases than keys, and no more reports than a call can carry.
//!
//! In the end everything fails that is still under way, time passes, and nothing is left.

mod choices;
mod fuzz_run;
mod grant_ledger;

use choices::FuzzChoices;
use fuzz_run::FuzzRun;
use std::sync::atomic::{AtomicU64, Ordering};

/// Choices of one input, each of one byte or two.
const LONGEST: usize = 4_096;

/// How often what was met, so that the target cannot pass by meeting nothing.
#[derive(Debug, Default)]
struct LeaseFuzzCoverage {
    decided: AtomicU64,
    spent: AtomicU64,
    honest: AtomicU64,
    believed: AtomicU64,
    invalid: AtomicU64,
    late: AtomicU64,
    lent: AtomicU64,
    returned: AtomicU64,
    tentative: AtomicU64,
}

impl LeaseFuzzCoverage {
    fn note(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn lease_table_grants_no_more_than_valid_replies() {
    let met = LeaseFuzzCoverage::default();
    let choices = bolero::produce::<Vec<u8>>().with().len(0..LONGEST);
    let input = bolero::check!().with_iterations(3_000).with_max_len(2 * LONGEST).with_generator(choices);
    input.for_each(|bytes| FuzzRun::new(FuzzChoices::new(bytes), &met).walk());
    println!("{met:?}");
    let counts = [
        &met.decided,
        &met.spent,
        &met.honest,
        &met.believed,
        &met.invalid,
        &met.late,
        &met.lent,
        &met.returned,
        &met.tentative,
    ];
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 1_000), "{met:?}");
}
