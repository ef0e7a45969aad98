//! Validates rules and runs their tests, as data.

use super::problem::{PositionedProblem, Problem};
use crate::rule_tests;
use serde::Serialize;
use tollgate_core::diagnostic::Severity;
use tollgate_core::rules::{self, LoadedRules, OpenDoor, RuleTestResult};
use utoipa::ToSchema;

/// The name of the rules in messages.
pub(super) const SOURCE: &str = "rules.yaml";

/// What is right and wrong about rules.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RuleVerdict {
    /// Whether they can be published: no errors, and all tests passed.
    pub(super) valid: bool,
    /// What must be changed.
    errors: Vec<PositionedProblem>,
    /// What is probably not meant.
    warnings: Vec<PositionedProblem>,
    /// The tests beside the rules. None ran if there are errors.
    tests: Vec<TestVerdict>,
    /// How many tests did not run, because they take too long.
    skipped_tests: usize,
}

/// The result of a test.
#[derive(Debug, Serialize, ToSchema)]
struct TestVerdict {
    /// Its name.
    name: String,
    /// The line on which it starts.
    line: usize,
    /// Whether all steps went as expected.
    passed: bool,
    /// What did not.
    failures: Vec<String>,
}

/// Rules that were examined.
#[derive(Debug)]
pub(super) struct CheckedRules {
    pub(super) verdict: RuleVerdict,
    /// None if there are errors.
    pub(super) loaded: Option<LoadedRules>,
}

impl CheckedRules {
    /// Compiles `text`, and runs its tests. It takes up to a few seconds.
    pub(super) fn of(text: &str, doors: &[OpenDoor]) -> Self {
        match rules::load_for(SOURCE, text, doors) {
            Err(report) => {
                let errors = PositionedProblem::of_severity(&report, Severity::Error);
                let warnings = PositionedProblem::of_severity(&report, Severity::Warning);
                let verdict =
                    RuleVerdict { valid: false, errors, warnings, tests: Vec::new(), skipped_tests: 0 };
                Self { verdict, loaded: None }
            }
            Ok(loaded) => {
                let run = rule_tests::run_bounded(SOURCE, &loaded);
                let tests: Vec<TestVerdict> = run.results.into_iter().map(TestVerdict::from).collect();
                let verdict = RuleVerdict {
                    valid: tests.iter().all(|test| test.passed),
                    errors: Vec::new(),
                    warnings: PositionedProblem::of_severity(&loaded.warnings, Severity::Warning),
                    tests,
                    skipped_tests: run.skipped,
                };
                Self { verdict, loaded: Some(loaded) }
            }
        }
    }

    /// The rules, if they may be published; else why not, with positions.
    pub(super) fn publishable(self) -> Result<LoadedRules, Problem> {
        let Self { verdict, loaded } = self;
        let Some(loaded) = loaded else {
            let detail = match verdict.errors.as_slice() {
                [one] => format!("the rules are invalid: line {}: {}", one.line, one.message),
                errors => format!("the rules are invalid: {} errors", errors.len()),
            };
            return Err(Problem::invalid(detail).with_errors(verdict.errors));
        };
        let failed = verdict.tests.iter().filter(|test| !test.passed);
        let errors: Vec<_> = failed.flat_map(TestVerdict::problems).collect();
        if errors.is_empty() {
            return Ok(loaded);
        }
        let failed = verdict.tests.iter().filter(|test| !test.passed).count();
        let detail = format!("{failed} of the {} tests of the rules failed", verdict.tests.len());
        Err(Problem::invalid(detail).with_errors(errors))
    }
}

impl TestVerdict {
    fn problems(&self) -> impl Iterator<Item = PositionedProblem> {
        self.failures.iter().map(|failure| PositionedProblem {
            line: self.line,
            column: 1,
            length: 1,
            message: format!("test `{}`: {failure}", self.name),
            hint: None,
        })
    }
}

impl From<RuleTestResult> for TestVerdict {
    fn from(result: RuleTestResult) -> Self {
        let RuleTestResult { name, line, failures, .. } = result;
        let failures: Vec<_> =
            failures.into_iter().map(|(step, difference)| format!("step {step}, {difference}")).collect();
        Self { name, line, passed: failures.is_empty(), failures }
    }
}
