//! Rules: as written, compiled, selected, explained and tested.

mod compile;
mod coverage;
pub mod doors;
pub mod exceeding;
mod explain;
pub mod leasing;
pub mod lists;
pub mod pattern;
mod ruleset;
mod selection;
mod sizing;
pub mod spelling;
mod summary;
mod testing;
mod virtual_node;
pub mod written;

pub use compile::{Loaded, load, load_for};
pub use doors::{Ability, OpenDoor};
pub use explain::{Explanation, RuleExplanation, explain};
pub use leasing::Leasing;
pub use ruleset::{LimitId, Rule, RuleSet};
pub use selection::{Charge, Charges, ClientMatch, Over, PathMatch, Selection};
pub use summary::{ClientNumber, ClientTraits};
pub use testing::{START_US, TestResult, TestRun, run_some_tests, run_tests};
pub use virtual_node::VirtualNode;

/// The JSON Schema of a rule file, for editors.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(written::RuleFile).to_value()
}
