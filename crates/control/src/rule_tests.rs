//! The tests in a rule file, run before its rules are used.

use std::fmt;
use tollgate_core::rules::{LoadedRules, RuleTestResult, RuleTestRun, run_tests_if};
use tollgate_limiter::Clock;

/// The most requests that the tests may send at a reload.
const MAX_REQUESTS: u64 = 500_000;
/// No test starts later than this: a change must be in force within two seconds.
const MAX_TIME_US: u64 = 1_000_000;
/// How many failures are listed; the rest are only counted.
const MAX_SHOWN: usize = 10;

/// What happens to a rule file whose tests fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailedTestPolicy {
    /// It is not used.
    #[default]
    Refuse,
    /// It is used, and a warning is logged.
    Warn,
}

/// The failed tests of a rule file.
#[derive(Clone, Debug)]
pub struct RuleTestFailures {
    origin: String,
    failed: Vec<RuleTestResult>,
    ran: usize,
}

impl RuleTestFailures {
    /// Runs the tests of `loaded`, which came from `origin`, within the bounds of a reload.
    pub(crate) fn find(origin: &str, loaded: &LoadedRules) -> Option<Self> {
        let run = run_bounded(origin, loaded);
        let ran = run.results.len();
        let failed: Vec<RuleTestResult> =
            run.results.into_iter().filter(|result| !result.failures.is_empty()).collect();
        (!failed.is_empty()).then(|| Self { origin: origin.to_owned(), failed, ran })
    }
}

/// Runs the tests of `loaded`, which came from `origin`, as far as the bounds of a reload allow.
pub(crate) fn run_bounded(origin: &str, loaded: &LoadedRules) -> RuleTestRun {
    let clock = Clock::system();
    let (start, mut left) = (clock.now(), MAX_REQUESTS);
    let run = run_tests_if(loaded, |requests| {
        let fits = requests <= left && clock.now().since(start) < MAX_TIME_US;
        left -= if fits { requests } else { 0 };
        fits
    });
    if run.skipped > 0 {
        tracing::warn!(
            file = %origin,
            tests = loaded.tests.len(),
            left_out = run.skipped,
            "not all tests of the rule file were run: they take too long for a reload; run `tollgate rules test`"
        );
    }
    run
}

impl fmt::Display for RuleTestFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, failed, ran } = self;
        let differences = failed.iter().flat_map(|result| {
            result.failures.iter().map(move |(step, difference)| (result, step, difference))
        });
        writeln!(f, "{origin}: error: of {ran} tests, {} failed", failed.len())?;
        let more = differences.clone().count().saturating_sub(MAX_SHOWN);
        for (result, step, difference) in differences.take(MAX_SHOWN) {
            writeln!(f, "  {origin}:{}: {}: step {step}, {difference}", result.line, result.name)?;
        }
        if more > 0 {
            writeln!(f, "  and {more} more")?;
        }
        write!(f, "  hint: run `tollgate rules test {origin}`")
    }
}
