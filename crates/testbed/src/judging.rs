//! A run in which the machine stood still for too long proves nothing: it is repeated, and does not pass.

use crate::StallMonitor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

/// How often a run is tried that cannot be judged.
const ATTEMPTS: usize = 5;
/// The next attempt starts when the machine has not stalled for [`CALM`], or after so many times that.
const MOST_WAITS: usize = 60;
const CALM: Duration = Duration::from_secs(1);
/// A store call that takes longer by this may time out.
const LONGEST_CALM_STALL: Duration = Duration::from_millis(20);
/// A run is not judged if the machine disturbed it for more than one part in so many of its time.
const DISTURBED_ONE_IN: u32 = 2;

/// Ends a run that could not be judged.
struct CouldNotJudge(String);

/// The machine stood still: what was found says nothing about the code.
pub fn could_not_judge(why: String) -> ! {
    // Without the words and the backtrace of a panic: it is none yet.
    resume_unwind(Box::new(CouldNotJudge(why)))
}

/// Ends a run of which the machine has `disturbed` too much.
pub fn must_be_judgeable(disturbed: Duration, length: Duration) {
    if disturbed * DISTURBED_ONE_IN > length {
        could_not_judge(format!("disturbed for {disturbed:?} of {length:?}"));
    }
}

/// Runs a test, and again if it could not be judged. Fails if it could not in any attempt.
pub fn judged(run: impl Fn()) {
    judged_between(run, wait_for_calm);
}

/// Other users of a shared machine disturb it for minutes: attempts in a row would all end alike.
fn wait_for_calm() {
    for _ in 0..MOST_WAITS {
        let monitor = StallMonitor::start();
        thread::sleep(CALM);
        if monitor.longest() < LONGEST_CALM_STALL {
            return;
        }
    }
}

fn judged_between(run: impl Fn(), wait: impl Fn()) {
    for attempt in 1..=ATTEMPTS {
        if attempt > 1 {
            wait();
        }
        let Err(panic) = catch_unwind(AssertUnwindSafe(&run)) else { return };
        match panic.downcast::<CouldNotJudge>() {
            Ok(why) => println!("could not judge, attempt {attempt} of {ATTEMPTS}: {}", why.0),
            Err(panic) => resume_unwind(panic),
        }
    }
    panic!("could not judge in {ATTEMPTS} attempts: the machine stood still for too long");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Runs what ends as `end` says by the number of the attempt. Returns how many there were, and whether it passed.
    fn attempts(end: impl Fn(usize)) -> (usize, bool) {
        let count = Cell::new(0);
        let run = || {
            count.set(count.get() + 1);
            end(count.get());
        };
        let passed = catch_unwind(AssertUnwindSafe(|| judged_between(run, || {}))).is_ok();
        (count.get(), passed)
    }

    #[test]
    fn what_could_not_be_judged_is_repeated_and_never_passes_by_itself() {
        assert_eq!(attempts(|_| {}), (1, true));
        assert_eq!(attempts(|_| panic!("wrong")), (1, false), "a failure is not repeated");
        let stalled = |_| must_be_judgeable(Duration::from_secs(6), Duration::from_secs(10));
        assert_eq!(attempts(stalled), (ATTEMPTS, false));
        let stalled_once = |attempt| {
            if attempt == 1 {
                stalled(attempt)
            }
        };
        assert_eq!(attempts(stalled_once), (2, true));
        assert_eq!(
            attempts(|_| must_be_judgeable(Duration::from_secs(4), Duration::from_secs(10))),
            (1, true)
        );
    }
}
