//! Changes of a rule file as text: what a change does not touch keeps its bytes, so that comments, order and formatting
//! survive edits by programs.
//!
//! A change either gives a text whose values are those of the old text with exactly that change, or an error. That is
//! checked after each step (`rule_text.rs`), because YAML has more layouts than any list of cases.

mod list_entries;
mod rule_fields;
mod rule_text;
mod source_tree;
mod text_lines;
mod tier_numbers;
pub(crate) mod yaml_text;

use super::lists::ListVerdict;
use super::ruleset::RuleSet;
use super::written::WrittenListEntry;
use crate::diagnostic::DiagnosticReport;
use crate::document::DocumentPath;
use rule_text::RuleText;
use serde_json::Value;
use std::fmt;
pub use tier_numbers::{TierNumbers, WrittenNumber};

/// One change of a rule file.
#[derive(Clone, Debug)]
pub enum RuleEdit {
    /// Sets numbers of a tier, in the spelling that the file uses for them.
    SetTierNumbers {
        /// The name of the tier.
        tier: String,
        /// The numbers; those that are absent stay.
        numbers: TierNumbers,
    },
    /// Changes fields of a rule: a JSON merge patch, in which `null` removes a field.
    PatchRule {
        /// The id of the rule.
        id: String,
        /// An object.
        patch: Value,
    },
    /// Adds a rule, or replaces the rule with this id. Fields with the same value keep their text.
    PutRule {
        /// The id of the rule.
        id: String,
        /// An object.
        rule: Value,
    },
    /// Removes a rule.
    RemoveRule {
        /// The id of the rule.
        id: String,
    },
    /// Adds a list entry, or replaces the entry with the same key.
    AddListEntry {
        /// The list.
        list: ListVerdict,
        /// The entry.
        entry: WrittenListEntry,
    },
    /// Removes all entries of a list with this key. Addresses and networks may be spelled differently.
    RemoveListEntry {
        /// The list.
        list: ListVerdict,
        /// The key, glob, address or network.
        key: String,
    },
}

/// Why a rule file was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleEditError {
    /// The file has no such rule, tier or entry.
    NotFound(String),
    /// The change is invalid by itself.
    Invalid(String),
    /// The text is not valid YAML, or cannot be changed in this place.
    Text(DiagnosticReport),
}

impl std::error::Error for RuleEditError {}

impl fmt::Display for RuleEditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(message) | Self::Invalid(message) => f.write_str(message),
            Self::Text(report) => report.fmt(f),
        }
    }
}

impl From<DiagnosticReport> for RuleEditError {
    fn from(report: DiagnosticReport) -> Self {
        Self::Text(report)
    }
}

impl RuleEdit {
    /// The text with this change; `source` is its name in reports. The result is YAML, but may be refused as a rule file.
    pub fn apply(&self, source: &str, text: &str) -> Result<String, RuleEditError> {
        let mut text = RuleText::parse(source, text)?;
        match self {
            Self::SetTierNumbers { tier, numbers } => tier_numbers::set(&mut text, tier, numbers)?,
            Self::PatchRule { id, patch } => rule_fields::patch(&mut text, id, patch)?,
            Self::PutRule { id, rule } => rule_fields::put(&mut text, id, rule)?,
            Self::RemoveRule { id } => text.remove(&rule_fields::find(&text, id)?)?,
            Self::AddListEntry { list, entry } => list_entries::add(&mut text, *list, entry)?,
            Self::RemoveListEntry { list, key } => list_entries::remove(&mut text, *list, key)?,
        }
        Ok(text.into_text())
    }

    /// Fails if the change that made the rules `new` of the text `old` is without effect: numbers of a tier that no rule
    /// takes.
    pub fn verify_effect(&self, source: &str, old: &str, new: &RuleSet) -> Result<(), RuleEditError> {
        let Self::SetTierNumbers { tier, numbers } = self else { return Ok(()) };
        // The same numbers again change nothing, and need not.
        let is_same = self.apply(source, old).is_ok_and(|text| text == old);
        let before = super::load(source, old).ok().filter(|_| !is_same);
        tier_numbers::verify_effect(tier, numbers, before.as_ref().map(|before| &before.rules), new)
    }
}

/// A rule file that is written as JSON, as YAML in the usual layout.
pub fn to_yaml(file: &Value) -> String {
    let mut text = String::new();
    let Some(sections) = file.as_object() else { return yaml_text::inline(file) + "\n" };
    const ORDER: [&str; 8] =
        ["defaults", "tiers", "routes", "rules", "allow", "whitelist", "deny", "blacklist"];
    let rank = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
    let mut sections: Vec<_> = sections.iter().collect();
    sections.sort_by_key(|(name, _)| (rank(name), name.as_str()));
    for (name, value) in sections {
        if !text.is_empty() {
            text.push('\n');
        }
        match value {
            Value::Array(rules) if name == "rules" && !rules.is_empty() => {
                let rules: Vec<_> = rules.iter().map(|rule| yaml_text::rule_item(rule, 2, "\n")).collect();
                text.push_str(&format!("rules:\n  {}\n", rules.join("\n\n  ")));
            }
            _ => text.push_str(&format!("{}\n", yaml_text::block_entry(name, value, 0, "\n"))),
        }
    }
    if text.is_empty() { "{}\n".to_owned() } else { text }
}

fn field(name: &str) -> DocumentPath {
    DocumentPath::root().field(name)
}
