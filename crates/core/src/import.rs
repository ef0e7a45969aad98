//! Imports the limits of other rate limiters as a rule file.
//!
//! An importer parses a configuration, maps what it means to rules, and writes them as YAML with comments that name the
//! lines they came from. What has no equivalent is a warning at its line; input that cannot be parsed is an error. Files
//! are read by the caller.

mod draft;
pub mod envoy_ratelimit;
pub mod nginx;

use crate::diagnostic::DiagnosticReport;
use crate::rules;

/// The name of the written file in reports about it.
const WRITTEN: &str = "imported rules";

/// A rule file that was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedRules {
    /// The rule file.
    pub text: String,
    /// What has no equivalent, for each file that was read.
    pub warnings: Vec<DiagnosticReport>,
}

/// Why nothing was imported: the errors of each file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportErrors(pub Vec<DiagnosticReport>);

impl std::fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, report) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{report}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ImportErrors {}

/// Checks the written rules, and adds what is wrong with them to the reports.
fn finish(text: String, mut reports: Vec<DiagnosticReport>) -> Result<ImportedRules, ImportErrors> {
    match rules::load(WRITTEN, &text) {
        Ok(loaded) => reports.push(loaded.warnings),
        Err(errors) => reports.push(errors),
    }
    reports.retain(|report| !report.is_empty());
    if reports.iter().any(|report| report.errors() > 0) {
        return Err(ImportErrors(reports));
    }
    Ok(ImportedRules { text, warnings: reports })
}
