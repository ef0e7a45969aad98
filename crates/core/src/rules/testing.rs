//! Runs the test cases of a rule file on a virtual clock. They do not see the list entries that operators added at run
//! time: in an attack a client must be blocked whatever the tests expect of it.

use super::compile::LoadedRules;
use super::lists::AccessLists;
use super::virtual_node::VirtualNode;
use super::written::{RuleTestCase, RuleTestExpectation, RuleTestRequest, RuleTestStep};
use crate::decision::{InvalidRequest, LimitStatus, Outcome};
use crate::rate::duration_text;
use crate::time::UnixTime;
use std::fmt;
use std::sync::Arc;

/// The default start of a case: midnight UTC on a Monday, the boundary of every window up to a week.
pub const RULE_TEST_START: UnixTime = UnixTime::from_us(1_767_571_200_000_000);

/// The result of one test case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleTestResult {
    /// The name of the case.
    pub name: String,
    /// The line on which it starts.
    pub line: usize,
    /// The number of requests sent.
    pub requests: u64,
    /// What went otherwise than expected: the step, from 1, and how.
    pub failures: Vec<(usize, String)>,
}

/// The results of the test cases of a rule file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTestRun {
    /// The cases that ran.
    pub results: Vec<RuleTestResult>,
    /// The number of cases that were skipped.
    pub skipped: usize,
}

/// Runs all cases of a rule file, each on a new node.
pub fn run_tests(loaded: &LoadedRules) -> Vec<RuleTestResult> {
    run_tests_if(loaded, |_| true).results
}

/// Runs the cases for which `may_run` returns true; its argument is the number of requests of the case.
pub fn run_tests_if(loaded: &LoadedRules, mut may_run: impl FnMut(u64) -> bool) -> RuleTestRun {
    let mut run = RuleTestRun::default();
    let lists = loaded.lists.of_author().map(Arc::new);
    for (line, case) in &loaded.tests {
        if may_run(requests(case)) {
            run.results.push(run_case(loaded, lists.clone(), *line, case));
        } else {
            run.skipped += 1;
        }
    }
    run
}

fn requests(case: &RuleTestCase) -> u64 {
    case.steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.send.unwrap_or(1)))
}

fn run_case(
    loaded: &LoadedRules,
    lists: Option<Arc<AccessLists>>,
    line: usize,
    case: &RuleTestCase,
) -> RuleTestResult {
    let mut node = VirtualNode::with_lists(lists);
    let mut result =
        RuleTestResult { name: case.name.clone(), line, requests: requests(case), failures: Vec::new() };
    let start = case.start.map_or(RULE_TEST_START, |start| start.time);
    let mut at_us = 0;
    for (index, step) in case.steps.iter().enumerate() {
        at_us = step.at.map_or(at_us, |at| at.us);
        if let Err(mismatch) = run_step(loaded, &mut node, &case.request, step, start + at_us) {
            result.failures.push((index + 1, format!("at {}: {mismatch}", duration_text(at_us))));
        }
    }
    result
}

/// The first expectation of a step that was not met.
enum StepMismatch {
    /// Of the requests sent, number `number` had another outcome.
    Outcome { number: u64, sent: u64, expected: RuleTestExpectation, found: String },
    /// Another number of requests was admitted.
    Admitted { expected: u64, sent: u64, found: u64 },
    /// The last request had another value.
    Value { name: &'static str, expected: String, found: String },
}

impl fmt::Display for StepMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outcome { number, sent, expected, found } => {
                if *sent > 1 {
                    write!(f, "request {number} of {sent}: ")?;
                }
                write!(f, "expected {}, found {found}", expected.name())
            }
            Self::Admitted { expected, sent, found } => {
                write!(f, "expected {expected} of {sent} to pass, found {found}")
            }
            Self::Value { name, expected, found } => write!(f, "expected {name} {expected}, found {found}"),
        }
    }
}

fn run_step(
    loaded: &LoadedRules,
    node: &mut VirtualNode,
    base: &RuleTestRequest,
    step: &RuleTestStep,
    now: UnixTime,
) -> Result<(), StepMismatch> {
    let fields = step.request.over(base);
    let ids: Vec<(&str, &str)> = fields.ids.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let request = fields.as_request(&ids);
    let mut admitted = 0;
    let mut last = Ok(Outcome::Unlimited);
    let sent = step.send.unwrap_or(1);
    for number in 1..=sent {
        last = node.check(loaded, &request, now);
        admitted += u64::from(matches!(last, Ok(Outcome::Unlimited | Outcome::Admitted(_))));
        if let Some(expected) = step.expect.filter(|expected| !meets(*expected, &last)) {
            let found = describe(loaded, &last);
            return Err(StepMismatch::Outcome { number, sent, expected, found });
        }
    }
    if let Some(expected) = step.pass.filter(|expected| *expected != admitted) {
        return Err(StepMismatch::Admitted { expected, sent, found: admitted });
    }
    check_last(loaded, step, &last)
}

/// Checks the expectations on the last request of a step.
fn check_last(
    loaded: &LoadedRules,
    step: &RuleTestStep,
    last: &Result<Outcome, InvalidRequest>,
) -> Result<(), StepMismatch> {
    let status = match last {
        Ok(Outcome::Admitted(status) | Outcome::Limited(status)) => Some(*status),
        _ => None,
    };
    let mismatch = |name, expected: String, found: Option<String>| {
        let found = found.unwrap_or_else(|| describe(loaded, last));
        Err(StepMismatch::Value { name, expected, found })
    };
    if let Some(expected) = step.retry_after
        && status.map(|status| status.wait_us().unwrap_or(0)) != Some(expected.us)
    {
        let wait_us = status.and_then(|status| status.wait_us());
        return mismatch("a wait of", duration_text(expected.us), wait_us.map(duration_text));
    }
    if let Some(expected) = step.remaining {
        let found = status.map(|status| u64::from(status.remaining));
        if found != Some(expected) {
            return mismatch("remaining", expected.to_string(), found.map(|found| found.to_string()));
        }
    }
    if let Some(expected) = &step.rule {
        let found = status.map(|status| loaded.rules.rule_of(status.limit).id.clone());
        if found.as_ref() != Some(expected) {
            return mismatch("the rule", format!("`{expected}`"), found.map(|found| format!("`{found}`")));
        }
    }
    Ok(())
}

fn meets(expected: RuleTestExpectation, found: &Result<Outcome, InvalidRequest>) -> bool {
    match expected {
        RuleTestExpectation::Pass => matches!(found, Ok(Outcome::Admitted(_) | Outcome::Unlimited)),
        RuleTestExpectation::Limited => matches!(found, Ok(Outcome::Limited(_))),
        RuleTestExpectation::Denied => matches!(found, Ok(Outcome::Denied)),
        RuleTestExpectation::Unlimited => matches!(found, Ok(Outcome::Unlimited)),
        RuleTestExpectation::TooCostly => matches!(found, Err(InvalidRequest::CostAboveLimit { .. })),
    }
}

impl RuleTestExpectation {
    fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Limited => "limited",
            Self::Denied => "denied",
            Self::Unlimited => "unlimited",
            Self::TooCostly => "too_costly",
        }
    }
}

fn describe(loaded: &LoadedRules, found: &Result<Outcome, InvalidRequest>) -> String {
    let rule = |status: &LimitStatus| loaded.rules.rule_of(status.limit).id.clone();
    match found {
        Ok(Outcome::Unlimited) => "pass, with no limit".to_owned(),
        Ok(Outcome::Denied) => "denied".to_owned(),
        Ok(Outcome::Admitted(status)) => format!("pass, {} left by `{}`", status.remaining, rule(status)),
        Ok(Outcome::Limited(status)) => match status.wait_us() {
            Some(wait_us) => format!("limited by `{}` for {}", rule(status), duration_text(wait_us)),
            None => format!("limited by `{}`, without a retry time", rule(status)),
        },
        Err(invalid) => invalid.to_string(),
    }
}
