//! Changes of the allow and deny lists.

use super::rule_text::{ItemForm, RuleText};
use super::{RuleEditError, field};
use crate::document::DocumentPath;
use crate::rate::rfc3339;
use crate::rules::lists::ListVerdict;
use crate::rules::pattern::network;
use crate::rules::written::WrittenListEntry;
use serde_json::{Map, Value};

impl ListVerdict {
    /// The names of the list in a rule file, the usual one first.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Allowed => ["allow", "whitelist"],
            Self::Denied => ["deny", "blacklist"],
        }
    }
}

/// Adds `entry`, in the place of the first entry with its key. One that the author of the file wrote stays the author's:
/// the tests of the rules may rely on it.
pub(super) fn add(
    text: &mut RuleText,
    list: ListVerdict,
    entry: &WrittenListEntry,
) -> Result<(), RuleEditError> {
    if entry.key.is_empty() {
        return Err(RuleEditError::Invalid("an empty entry matches no client".to_owned()));
    }
    let mut known = entries(text, list, &entry.key).into_iter();
    match known.next() {
        Some(first) => {
            let is_of_author = text.get(&first).is_some_and(|first| first.get("by").is_none());
            let by = entry.by.clone().filter(|_| !is_of_author);
            let value = to_json(&WrittenListEntry { by, ..entry.clone() });
            // From the end, so that the other paths stay valid.
            for other in known.rev() {
                text.remove(&other)?;
            }
            text.set(&first, value)?;
        }
        None => {
            let [usual, other] = list.names();
            let has = |name: &str| text.get(&field(name)).is_some();
            let name = if has(other) && !has(usual) { other } else { usual };
            text.append(&field(name), to_json(entry), ItemForm::Inline)?;
        }
    }
    Ok(())
}

/// Removes all entries with `key`.
pub(super) fn remove(text: &mut RuleText, list: ListVerdict, key: &str) -> Result<(), RuleEditError> {
    let known = entries(text, list, key);
    if known.is_empty() {
        let [name, _] = list.names();
        return Err(RuleEditError::NotFound(format!("the {name} list has no such entry")));
    }
    for path in known.into_iter().rev() {
        text.remove(&path)?;
    }
    Ok(())
}

/// The paths of the entries with `key`, in the order of each list.
fn entries(text: &RuleText, list: ListVerdict, key: &str) -> Vec<DocumentPath> {
    let paths = list.names().into_iter().flat_map(|name| {
        let items = text.get(&field(name)).and_then(Value::as_array).into_iter().flatten();
        let found =
            items.enumerate().filter(|(_, item)| key_of(item).is_some_and(|known| is_same_key(&known, key)));
        found.map(move |(index, _)| field(name).index(index))
    });
    paths.collect()
}

/// Whether two keys match the same clients: the same text, or the same addresses, which have many spellings.
fn is_same_key(one: &str, other: &str) -> bool {
    let addresses = |key: &str| network(key).map(|network| network.trunc());
    one == other || addresses(one).is_some_and(|found| addresses(other) == Some(found))
}

fn key_of(item: &Value) -> Option<String> {
    match item {
        Value::Object(fields) => key_of(fields.get("key")?),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn to_json(entry: &WrittenListEntry) -> Value {
    if entry.expires.is_none() && entry.reason.is_none() && entry.by.is_none() {
        return entry.key.as_str().into();
    }
    let mut fields = Map::new();
    fields.insert("key".to_owned(), entry.key.as_str().into());
    if let Some(expires) = entry.expires {
        fields.insert("expires".to_owned(), rfc3339(expires.time).into());
    }
    if let Some(reason) = &entry.reason {
        fields.insert("reason".to_owned(), reason.as_str().into());
    }
    if let Some(by) = &entry.by {
        fields.insert("by".to_owned(), by.as_str().into());
    }
    Value::Object(fields)
}
