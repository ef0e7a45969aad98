//! The tests beside rules, run before the rules are used.

use std::fmt;
use std::path::{Path, PathBuf};
use tollgate_core::rules::{LoadedRules, RuleTestResult, run_some_tests};
use tollgate_limiter::Clock;

/// More requests than this are not sent before a change is live.
const MOST_REQUESTS: u64 = 500_000;
/// No test begins later than this. A change is to be live within two seconds.
const LONGEST_US: u64 = 1_000_000;
/// Failures that are listed; the rest are only counted.
const MOST_SHOWN: usize = 10;

/// What becomes of a rule file whose tests fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailedTests {
    /// It is not used.
    #[default]
    Refuse,
    /// It is used, and a warning is logged.
    Warn,
}

/// Tests of a rule file that failed.
#[derive(Clone, Debug)]
pub struct TestFailures {
    path: PathBuf,
    failed: Vec<RuleTestResult>,
    ran: usize,
}

impl TestFailures {
    /// Runs the tests beside `loaded`, which was read from `path`, as long as that is soon done.
    pub(crate) fn find(path: &Path, loaded: &LoadedRules) -> Option<Self> {
        let clock = Clock::system();
        let (start_us, mut left) = (clock.now_us(), MOST_REQUESTS);
        let run = run_some_tests(loaded, |requests| {
            let fits = requests <= left && clock.now_us().saturating_sub(start_us) < LONGEST_US;
            left -= if fits { requests } else { 0 };
            fits
        });
        if run.left_out > 0 {
            tracing::warn!(
                file = %path.display(),
                tests = loaded.tests.len(),
                left_out = run.left_out,
                "not all tests of the rule file were run: they take too long for a reload; use `tollgate rules test`"
            );
        }
        let ran = run.results.len();
        let failed: Vec<RuleTestResult> =
            run.results.into_iter().filter(|result| !result.failures.is_empty()).collect();
        (!failed.is_empty()).then(|| Self { path: path.to_owned(), failed, ran })
    }
}

impl fmt::Display for TestFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, failed, ran } = self;
        let path = path.display();
        let differences = failed.iter().flat_map(|result| {
            result.failures.iter().map(move |(step, difference)| (result, step, difference))
        });
        writeln!(f, "{path}: error: of {ran} tests, {} failed", failed.len())?;
        let more = differences.clone().count().saturating_sub(MOST_SHOWN);
        for (result, step, difference) in differences.take(MOST_SHOWN) {
            writeln!(f, "  {path}:{}: {}: step {step}, {difference}", result.line, result.name)?;
        }
        if more > 0 {
            writeln!(f, "  and {more} more")?;
        }
        write!(f, "  hint: run `tollgate rules test {path}`")
    }
}
