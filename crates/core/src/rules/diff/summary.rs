//! What a change does, by rule, tier and list.

use crate::document::Document;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// The most changes in a summary.
const MOST_CHANGES: usize = 500;
/// The sections that hold values by name.
const SECTIONS: [(&str, ChangedPart); 2] =
    [("defaults", ChangedPart::Defaults), ("tiers", ChangedPart::Tier)];
/// The sections of lists, with both names of each list.
const LISTS: [(&[&str], ChangedPart); 3] = [
    (&["allow", "whitelist"], ChangedPart::Allow),
    (&["deny", "blacklist"], ChangedPart::Deny),
    (&["routes"], ChangedPart::Route),
];

/// One difference of two rule files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartChange {
    /// What happened to it.
    pub kind: PartChangeKind,
    /// What it is.
    pub part: ChangedPart,
    /// Its name: the id of a rule, the key of a list entry.
    pub name: String,
    /// The fields that differ, for a change.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub fields: Vec<FieldChange>,
}

/// What happened to a part of a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartChangeKind {
    /// Only the second file has it.
    Added,
    /// Only the first file has it.
    Removed,
    /// Both have it, with other values.
    Changed,
}

/// A part of a rule file that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangedPart {
    /// A rule.
    Rule,
    /// A tier.
    Tier,
    /// A field of `defaults`.
    Defaults,
    /// An entry of the allow list.
    Allow,
    /// An entry of the deny list.
    Deny,
    /// An entry of `routes`.
    Route,
    /// A test case.
    Test,
    /// Another field of the file.
    Setting,
}

/// A field with another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldChange {
    /// Its name, such as `params.capacity`.
    pub name: String,
    /// The value in the first file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<Value>,
    /// The value in the second file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<Value>,
}

impl fmt::Display for PartChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self.part {
            ChangedPart::Rule => "rule",
            ChangedPart::Tier => "tier",
            ChangedPart::Defaults => "default",
            ChangedPart::Allow => "allow list entry",
            ChangedPart::Deny => "deny list entry",
            ChangedPart::Route => "route",
            ChangedPart::Test => "test",
            ChangedPart::Setting => "field",
        };
        let sign = match self.kind {
            PartChangeKind::Added => '+',
            PartChangeKind::Removed => '-',
            PartChangeKind::Changed => '~',
        };
        write!(f, "{sign} {part} {}", self.name)?;
        for (index, FieldChange { name, before, after }) in self.fields.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { ", " })?;
            let text = |value: &Option<Value>| match value {
                None => "none".to_owned(),
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
            };
            write!(f, "{name} {} -> {}", text(before), text(after))?;
        }
        Ok(())
    }
}

/// The differences of two rule files by name; none if one of them is not YAML.
pub(super) fn summarise(a: &str, b: &str) -> Vec<PartChange> {
    let parse = |text: &str| Document::parse("", text).ok().map(|document| document.to_json());
    let (Some(a), Some(b)) = (parse(a), parse(b)) else { return Vec::new() };
    let mut changes = Vec::new();
    compare(ChangedPart::Rule, &named(&a, "rules", "id"), &named(&b, "rules", "id"), &mut changes);
    for (section, part) in SECTIONS {
        compare(part, &entries(&a, section), &entries(&b, section), &mut changes);
    }
    for (names, part) in LISTS {
        let keys = |file: &Value| names.iter().flat_map(|name| named(file, name, "key")).collect::<Vec<_>>();
        compare(part, &keys(&a), &keys(&b), &mut changes);
    }
    compare(ChangedPart::Test, &named(&a, "tests", "name"), &named(&b, "tests", "name"), &mut changes);
    let known: Vec<&str> = ["rules", "tests"]
        .into_iter()
        .chain(SECTIONS.map(|(name, _)| name))
        .chain(LISTS.into_iter().flat_map(|(names, _)| names.iter().copied()))
        .collect();
    let others = |file: &Value| {
        let fields = file.as_object().into_iter().flatten();
        let others = fields.filter(|(name, _)| !known.contains(&name.as_str()));
        others.map(|(name, value)| (name.clone(), value.clone())).collect::<Vec<_>>()
    };
    compare(ChangedPart::Setting, &others(&a), &others(&b), &mut changes);
    changes.truncate(MOST_CHANGES);
    changes
}

/// The items of a list by their field `key`, or by themselves.
fn named(file: &Value, section: &str, key: &str) -> Vec<(String, Value)> {
    let items = file.get(section).and_then(Value::as_array).into_iter().flatten();
    let name = |item: &Value| match item.get(key).unwrap_or(item) {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    items.map(|item| (name(item), item.clone())).collect()
}

fn entries(file: &Value, section: &str) -> Vec<(String, Value)> {
    let entries = file.get(section).and_then(Value::as_object).into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn compare(part: ChangedPart, a: &[(String, Value)], b: &[(String, Value)], changes: &mut Vec<PartChange>) {
    // The first of several with the same name counts.
    let index = |items: &'_ [(String, Value)]| {
        let mut known: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
        for (position, (name, _)) in items.iter().enumerate() {
            known.entry(name.clone()).or_insert(position);
        }
        known
    };
    let (in_a, in_b) = (index(a), index(b));
    let change = |kind, name: &str, fields| PartChange { kind, part, name: name.to_owned(), fields };
    for (position, (name, old)) in a.iter().enumerate().filter(|(at, (name, _))| in_a[name] == *at) {
        debug_assert_eq!(in_a[name], position);
        match in_b.get(name).map(|found| &b[*found].1) {
            None => changes.push(change(PartChangeKind::Removed, name, Vec::new())),
            Some(new) if new != old => {
                let mut fields = Vec::new();
                compare_fields("", Some(old), Some(new), &mut fields);
                changes.push(change(PartChangeKind::Changed, name, fields));
            }
            Some(_) => {}
        }
    }
    for (_, (name, _)) in b.iter().enumerate().filter(|(at, (name, _))| in_b[name] == *at) {
        if !in_a.contains_key(name) {
            changes.push(change(PartChangeKind::Added, name, Vec::new()));
        }
    }
}

fn compare_fields(path: &str, a: Option<&Value>, b: Option<&Value>, fields: &mut Vec<FieldChange>) {
    if a == b || fields.len() >= MOST_CHANGES {
        return;
    }
    let none = Map::new();
    match (a, b) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let only_b = b.keys().filter(|name| !a.contains_key(*name));
            for name in a.keys().chain(only_b) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                compare_fields(&path, a.get(name), b.get(name), fields);
            }
        }
        // A list entry with a reason becomes one without.
        (Some(Value::Object(a)), Some(_)) if path.is_empty() => {
            compare_fields("", Some(&Value::Object(without_key(a))), Some(&Value::Object(none)), fields);
        }
        (Some(_), Some(Value::Object(b))) if path.is_empty() => {
            compare_fields("", Some(&Value::Object(none)), Some(&Value::Object(without_key(b))), fields);
        }
        _ => {
            let name = if path.is_empty() { "value".to_owned() } else { path.to_owned() };
            fields.push(FieldChange { name, before: a.cloned(), after: b.cloned() });
        }
    }
}

fn without_key(entry: &Map<String, Value>) -> Map<String, Value> {
    entry
        .iter()
        .filter(|(name, _)| *name != "key")
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
