//! Rules: the file format, compilation, selection, explanation and rule tests.

mod client_digest;
mod client_limits;
mod compile;
pub mod doors;
mod explain;
mod glob_coverage;
pub mod lease_timing;
pub mod lists;
pub mod on_exceed;
pub mod pattern;
mod ruleset;
mod selection;
pub mod short_forms;
mod size_layers;
mod testing;
mod virtual_node;
pub mod written;

pub use client_digest::{ClientDigest, ClientTraits};
pub use client_limits::{ClientLimit, EndpointScope, MOST_CLIENT_LIMITS};
pub use compile::{LoadedRules, load, load_for};
pub use doors::{DoorCapability, OpenDoor};
pub use explain::{Explanation, RuleExplanation, explain};
pub use lease_timing::LeaseTiming;
pub use ruleset::{LimitId, RouteId, Rule, RuleSet, TierId};
pub use selection::{CellKind, Charge, Charges, ClientMatch, OverLimitEffect, PathMatch, Selection};
pub use testing::{RULE_TEST_START, RuleTestResult, RuleTestRun, run_tests, run_tests_if};
pub use virtual_node::VirtualNode;

/// The JSON Schema of a rule file, for editors.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(written::RuleFile).to_value()
}
