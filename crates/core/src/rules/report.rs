//! The result of validating a rule file, as data. It contains no secret of the file.

use super::compile::LoadedRules;
use super::testing::{RuleTestResult, RuleTestRun};
use crate::diagnostic::{Diagnostic, DiagnosticReport, Severity};
use serde::{Deserialize, Serialize};

/// The result of validating a rule file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Whether it can be used: it has no error, and none of its tests failed.
    pub valid: bool,
    /// Why it is refused, in the order of the text.
    pub errors: Vec<ReportedProblem>,
    /// What is probably unintended, in the order of the text.
    pub warnings: Vec<ReportedProblem>,
    /// The tests that ran; none if there is an error.
    pub tests: Vec<ReportedTest>,
    /// The number of tests that were left out because they take too long.
    #[serde(default)]
    pub skipped_tests: usize,
}

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedProblem {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// In characters; at least 1.
    pub length: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
}

/// A test case that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedTest {
    /// Its name.
    pub name: String,
    /// The line on which it starts.
    pub line: usize,
    /// The number of requests sent.
    pub requests: u64,
    /// Whether all went as expected.
    pub passed: bool,
    /// What did not, such as `step 1, at 0s: expected pass, found …`.
    pub failures: Vec<String>,
}

impl RuleReport {
    /// The report of a file that was loaded and tested.
    pub fn new(loaded: &LoadedRules, run: &RuleTestRun) -> Self {
        let tests: Vec<ReportedTest> = run.results.iter().map(ReportedTest::from).collect();
        Self {
            valid: tests.iter().all(|test| test.passed),
            tests,
            skipped_tests: run.skipped,
            ..Self::from(&loaded.warnings)
        }
    }
}

/// Without tests: they cannot run if there is an error.
impl From<&DiagnosticReport> for RuleReport {
    fn from(report: &DiagnosticReport) -> Self {
        let of = |severity| {
            let found = report.diagnostics().iter().filter(move |found| found.severity == severity);
            found.map(ReportedProblem::from).collect::<Vec<_>>()
        };
        let errors = of(Severity::Error);
        let (valid, warnings) = (errors.is_empty(), of(Severity::Warning));
        Self { valid, errors, warnings, tests: Vec::new(), skipped_tests: 0 }
    }
}

impl From<&Diagnostic> for ReportedProblem {
    fn from(found: &Diagnostic) -> Self {
        Self {
            line: found.position.line,
            column: found.position.column,
            length: found.position.width,
            message: found.message.clone(),
            hint: found.hint.clone(),
        }
    }
}

impl From<&RuleTestResult> for ReportedTest {
    fn from(result: &RuleTestResult) -> Self {
        let failures = result.failures.iter().map(|(step, difference)| format!("step {step}, {difference}"));
        Self {
            name: result.name.clone(),
            line: result.line,
            requests: result.requests,
            passed: result.failures.is_empty(),
            failures: failures.collect(),
        }
    }
}
