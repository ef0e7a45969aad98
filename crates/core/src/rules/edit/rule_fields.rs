//! Changes of one rule.

use super::rule_text::{ItemForm, RuleText};
use super::{RuleEditError, field};
use crate::diagnostic::DiagnosticReport;
use crate::document::DocumentPath;
use serde_json::{Map, Value};

/// Deeper patches are refused: no field of a rule is that deep.
const DEEPEST: usize = 8;
/// Each changed field parses the text again.
const MOST_CHANGES: usize = 200;

/// The path of the rule `id`.
pub(super) fn find(text: &RuleText, id: &str) -> Result<DocumentPath, RuleEditError> {
    let rules = text.value().get("rules").and_then(Value::as_array);
    let index = rules.and_then(|rules| {
        rules.iter().position(|rule| rule.get("id").and_then(Value::as_str).is_some_and(|known| known == id))
    });
    match index {
        Some(index) => Ok(field("rules").index(index)),
        None => Err(RuleEditError::NotFound(format!("there is no rule `{id}`"))),
    }
}

/// Applies a JSON merge patch (RFC 7396) to the rule `id`.
pub(super) fn patch(text: &mut RuleText, id: &str, patch: &Value) -> Result<(), RuleEditError> {
    let Value::Object(fields) = patch else {
        return Err(RuleEditError::Invalid("a patch is an object with fields of the rule".to_owned()));
    };
    let rule = find(text, id)?;
    check_size(patch, 0)?;
    Ok(merge(text, &rule, fields)?)
}

/// Adds or replaces the rule `id`.
pub(super) fn put(text: &mut RuleText, id: &str, rule: &Value) -> Result<(), RuleEditError> {
    let Value::Object(fields) = rule else {
        return Err(RuleEditError::Invalid("a rule is an object with its fields".to_owned()));
    };
    let mut fields = fields.clone();
    match fields.insert("id".to_owned(), id.into()) {
        Some(other) if other != id => {
            return Err(RuleEditError::Invalid(format!("the rule has the id {other} instead of `{id}`")));
        }
        _ => {}
    }
    check_size(rule, 0)?;
    match find(text, id) {
        Ok(path) => {
            let old = text.get(&path).cloned().unwrap_or_default();
            Ok(merge(text, &path, &difference(&old, &fields))?)
        }
        Err(_) => Ok(text.append(&field("rules"), Value::Object(fields), ItemForm::Lines)?),
    }
}

fn check_size(patch: &Value, depth: usize) -> Result<usize, RuleEditError> {
    let parts: Vec<&Value> = match patch {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => return Ok(1),
    };
    let mut count = 1;
    for part in parts {
        count += check_size(part, depth + 1)?;
    }
    let is_large = depth == 0 && count > MOST_CHANGES && patch.is_object();
    if depth > DEEPEST || is_large {
        let most = format!("at most {MOST_CHANGES} values, {DEEPEST} levels deep");
        return Err(RuleEditError::Invalid(format!(
            "the rule is too large to be changed field by field: {most}"
        )));
    }
    Ok(count)
}

fn merge(
    text: &mut RuleText,
    path: &DocumentPath,
    patch: &Map<String, Value>,
) -> Result<(), DiagnosticReport> {
    // New fields first: a mapping that loses its only field is written as `{}`.
    let (removed, set): (Vec<_>, Vec<_>) = patch.iter().partition(|(_, value)| value.is_null());
    for (name, value) in set.into_iter().chain(removed) {
        let path = path.field(name);
        match value {
            Value::Null => text.remove(&path)?,
            Value::Object(fields) if text.get(&path).is_some_and(Value::is_object) => {
                merge(text, &path, fields)?;
            }
            Value::Object(_) => text.set(&path, without_nulls(value))?,
            _ => text.set(&path, value.clone())?,
        }
    }
    Ok(())
}

/// A patch applied to nothing.
fn without_nulls(patch: &Value) -> Value {
    match patch {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls(value)))
            .collect(),
        _ => patch.clone(),
    }
}

/// The merge patch that turns `old` into `new`.
fn difference(old: &Value, new: &Map<String, Value>) -> Map<String, Value> {
    let none = Map::new();
    let old = old.as_object().unwrap_or(&none);
    let mut patch = Map::new();
    for (name, value) in new {
        match (old.get(name), value) {
            (Some(known), _) if known == value => {}
            (Some(known @ Value::Object(_)), Value::Object(fields)) => {
                patch.insert(name.clone(), Value::Object(difference(known, fields)));
            }
            _ => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    patch
}
