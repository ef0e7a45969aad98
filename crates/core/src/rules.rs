//! Rules: the file format, compilation, selection, explanation and rule tests.

mod client_digest;
mod client_limits;
mod compile;
mod diff;
pub mod doors;
pub mod edit;
mod exceptions;
mod explain;
mod glob_coverage;
pub mod lease_timing;
pub mod lists;
pub mod on_exceed;
pub mod pattern;
mod preview;
mod report;
mod request_limit;
mod rule_tiers;
mod ruleset;
mod selection;
pub mod short_forms;
mod size_layers;
mod testing;
mod virtual_node;
pub mod written;

use crate::diagnostic::DiagnosticReport;
use crate::document::Document;
pub use client_digest::{ClientDigest, ClientTraits};
pub use client_limits::{ClientLimit, EndpointScope, MOST_CLIENT_LIMITS};
pub use compile::{LoadedRules, load, load_for};
pub use diff::{
    ChangedPart, DiffLine, DiffLineKind, FieldChange, PartChange, PartChangeKind, RuleDiff, diff,
};
pub use doors::{DoorCapability, OpenDoor};
pub use explain::{
    ExplainedLimit, ExplainedListing, ExplainedOutcome, ExplainedVerdict, Explanation, RuleExplanation,
    explain,
};
pub use lease_timing::LeaseTiming;
pub use preview::{
    PreviewCounts, PreviewKey, PreviewRule, PreviewTotals, RulePreview, SampledRequest, preview,
};
pub use report::{ReportedProblem, ReportedTest, RuleReport};
pub use request_limit::{REQUEST_KEY, REQUEST_LIMIT};
pub use ruleset::{LimitId, RouteId, Rule, RuleSet, TierId};
pub use selection::{CellKind, Charge, Charges, ClientMatch, OverLimitEffect, PathMatch, Selection};
pub use testing::{RULE_TEST_START, RuleTestResult, RuleTestRun, run_tests, run_tests_if};
pub use virtual_node::VirtualNode;

/// The rule file `text` as JSON, with aliases written out; `source` is its name in the report of errors. It is not
/// validated beyond YAML.
pub fn rule_file_json(source: &str, text: &str) -> Result<serde_json::Value, DiagnosticReport> {
    let document = Document::parse(source, text)?;
    if document.has_errors() { Err(document.into_report()) } else { Ok(document.to_json()) }
}

/// The JSON Schema of a rule file, for editors.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(written::RuleFile).to_value()
}
