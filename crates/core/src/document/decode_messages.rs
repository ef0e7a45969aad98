//! The message and the hint of a value that cannot be decoded.

use super::decode::{DecodeError, ExpectedValue, FoundValue};
use crate::diagnostic::nearest;
use crate::rules::short_forms::TEXT_FORMS;

/// What is wrong with the entry `name`, or with an item of a list.
pub(super) fn message(error: &DecodeError, name: Option<&str>) -> String {
    match error {
        DecodeError::UnknownField { name, .. } => format!("unknown field `{name}`"),
        DecodeError::UnknownWord { word, .. } => format!("unknown {} `{word}`", name.unwrap_or("value")),
        DecodeError::MissingField(field) => format!("`{field}` is missing here"),
        DecodeError::Mismatch { found, expected } => {
            let subject = name.map_or_else(|| "this".to_owned(), |name| format!("`{name}`"));
            format!("{subject} must be {}, not {}", expected_text(expected), found_text(found))
        }
        DecodeError::Refused { message, .. } => message.clone(),
    }
}

/// What to write instead.
pub(super) fn hint(error: &DecodeError) -> Option<String> {
    match error {
        DecodeError::UnknownField { name: word, known } | DecodeError::UnknownWord { word, known } => {
            Some(match nearest(word, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", known.join(", ")),
            })
        }
        DecodeError::MissingField(field) => Some(format!("add `{field}: …`")),
        DecodeError::Mismatch { found, expected } => mismatch_hint(found, expected),
        DecodeError::Refused { hint, .. } => hint.clone(),
    }
}

/// The message and the hint for an entry, or an item of a list, without a value.
pub(super) fn empty(name: Option<&str>) -> (String, String) {
    let subject = name.map_or_else(|| "this item".to_owned(), |name| format!("`{name}`"));
    (format!("{subject} is empty"), "give it a value, or remove it".to_owned())
}

fn expected_text(expected: &ExpectedValue) -> &str {
    match expected {
        ExpectedValue::Bool => "`true` or `false`",
        ExpectedValue::WholeNumber => "a whole number",
        ExpectedValue::Number => "a number",
        ExpectedValue::Text => "a text",
        ExpectedValue::List => "a list",
        ExpectedValue::Mapping => "a mapping",
        ExpectedValue::Word => "a word",
        ExpectedValue::Form(form) => form,
    }
}

fn found_text(found: &FoundValue) -> String {
    match found {
        FoundValue::Null => "empty".to_owned(),
        FoundValue::Bool(value) => format!("`{value}`"),
        FoundValue::Unsigned(number) => number.to_string(),
        FoundValue::Signed(number) => number.to_string(),
        FoundValue::Float(number) => format!("{number:?}"),
        FoundValue::Text(text) => {
            let quoted = format!("{text:?}");
            format!("the text `{}`", &quoted[1..quoted.len() - 1])
        }
        FoundValue::List => "a list".to_owned(),
        FoundValue::Mapping => "a mapping".to_owned(),
        FoundValue::Other(other) => other.clone(),
    }
}

fn mismatch_hint(found: &FoundValue, expected: &ExpectedValue) -> Option<String> {
    let takes_text = match expected {
        ExpectedValue::Text => true,
        ExpectedValue::Form(form) => TEXT_FORMS.contains(&form.as_str()),
        _ => false,
    };
    let quoted = |value: String| Some(format!("put it in quotes: \"{value}\"")).filter(|_| takes_text);
    let hint = match (found, expected) {
        (FoundValue::Text(text), ExpectedValue::Bool) if matches!(text.as_str(), "true" | "false") => {
            "without quotes".to_owned()
        }
        (FoundValue::Text(text), ExpectedValue::WholeNumber) => {
            let digits = text.replace(['_', ','], "");
            match digits.parse::<u64>() {
                Ok(number) if digits.starts_with('0') && number > 0 => {
                    format!("write {number}, without leading zeros")
                }
                Ok(number) => format!("write {number}, without quotes or separators"),
                Err(_) => "such as 100".to_owned(),
            }
        }
        (FoundValue::Signed(_), ExpectedValue::WholeNumber) => "it cannot be below zero".to_owned(),
        (FoundValue::Unsigned(_), ExpectedValue::WholeNumber) => "use a smaller one".to_owned(),
        (FoundValue::Float(number), ExpectedValue::WholeNumber) => match number {
            number if number.fract() != 0.0 => "without a fraction".to_owned(),
            number if (0.0..1e15).contains(number) => format!("write {}", number.abs()),
            _ => "write it with digits only, and smaller".to_owned(),
        },
        (_, ExpectedValue::List) => "start each item with `- `, or write [one, two]".to_owned(),
        (_, ExpectedValue::Mapping) => "write `name: value` lines below it, or { name: value }".to_owned(),
        (FoundValue::Bool(value), _) => return quoted(value.to_string()),
        (FoundValue::Unsigned(number), _) => return quoted(number.to_string()),
        (FoundValue::Signed(number), _) => return quoted(number.to_string()),
        (FoundValue::Float(number), _) => return quoted(format!("{number:?}")),
        _ => return None,
    };
    Some(hint)
}
