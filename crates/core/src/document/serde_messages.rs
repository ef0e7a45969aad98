//! What serde says about a value it cannot read, as a person would say it.

use crate::diagnostic::nearest;

/// How a hint begins that guesses at what was meant.
pub(super) const GUESS: &str = "did you mean";

/// The message and the hint for serde's `message` about the entry called `name`.
pub(super) fn explain(message: &str, name: Option<&str>) -> (String, Option<String>) {
    if let Some(rest) = message.strip_prefix("unknown field `") {
        return unknown("field", rest);
    }
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        return unknown(name.unwrap_or("value"), rest);
    }
    if let Some(rest) = message.strip_prefix("missing field `") {
        let missing = rest.trim_end_matches('`');
        return (format!("`{missing}` is missing here"), Some(format!("add `{missing}: …`")));
    }
    let wrong = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    // Expectations of our own have commas in them, what was found may have any text: ours come last.
    if let Some((found, expected)) = wrong.and_then(|wrong| wrong.rsplit_once(", expected ")) {
        return wrong_kind(found, expected, name);
    }
    if message.starts_with("invalid length") {
        return wrong_kind("sequence", "a map", name);
    }
    if message == "invalid IP address syntax" {
        return (
            "this is not an address".to_owned(),
            Some("write it like 203.0.113.9 or 2001:db8::1".into()),
        );
    }
    // Messages of our own may carry a hint behind a semicolon.
    match message.rsplit_once("; ") {
        Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
        None => (message.to_owned(), None),
    }
}

/// An entry, or an item of a list, without a value.
pub(super) fn empty(name: Option<&str>) -> (String, String) {
    match name {
        Some(name) => (format!("`{name}` is left empty"), "give it a value, or remove it".to_owned()),
        None => ("this item is empty".to_owned(), "give it a value, or remove it".to_owned()),
    }
}

/// `rest` is what serde says after "unknown field `": the word, then what it expected.
fn unknown(what: &str, rest: &str) -> (String, Option<String>) {
    let (word, expected) = rest.rsplit_once("`, expected ").unwrap_or((rest.trim_end_matches('`'), ""));
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let hint = match nearest(word, known.iter().copied()) {
        Some(near) => format!("{GUESS} `{near}`?"),
        None => format!("known here: {}", known.join(", ")),
    };
    (format!("unknown {what} `{word}`"), Some(hint))
}

fn wrong_kind(found: &str, expected: &str, name: Option<&str>) -> (String, Option<String>) {
    let subject = name.map_or_else(|| "this".to_owned(), |name| format!("`{name}`"));
    let hint = hint(found, expected);
    let found = match found.split_once(' ') {
        Some(("string", text)) => {
            format!("the text {}", text.replacen('"', "`", 1).trim_end_matches('"')) + "`"
        }
        Some(("integer", number)) => number.trim_matches('`').to_owned(),
        Some(("floating", rest)) => rest.trim_start_matches("point `").trim_end_matches('`').to_owned(),
        Some(("boolean", value)) => value.to_owned(),
        _ => match found {
            "sequence" => "a list".to_owned(),
            "map" => "a mapping".to_owned(),
            "null" => "nothing".to_owned(),
            other => other.to_owned(),
        },
    };
    let expected = match expected {
        "a sequence" => "a list",
        "a map" => "a mapping",
        "a string" => "a text",
        "a boolean" => "`true` or `false`",
        "string or map" | "map with a single key" => "a word",
        number if is_whole(number) => "a whole number",
        record if record.starts_with("struct ") => "a mapping",
        ours => ours,
    };
    (format!("{subject} has to be {expected}, not {found}"), hint)
}

fn hint(found: &str, expected: &str) -> Option<String> {
    let (kind, value) = found.split_once(' ').unwrap_or((found, ""));
    let hint = match (kind, expected) {
        ("integer" | "floating" | "boolean", text)
            if text == "a string" || text.starts_with("a key") || text.starts_with("a text") =>
        {
            let value = value.trim_start_matches("point ").trim_matches('`');
            return Some(format!("put it in quotes: \"{value}\""));
        }
        ("string", "a boolean") if matches!(value, "\"true\"" | "\"false\"") => "without quotes",
        ("string", number) if is_whole(number) => {
            let digits = value.trim_matches('"').replace(['_', ','], "");
            if let Ok(number) = digits.parse::<u64>() {
                let what = if digits.starts_with('0') && number > 0 {
                    "zeros before it"
                } else {
                    "quotes or separators"
                };
                return Some(format!("write {number}, without {what}"));
            }
            "such as 100"
        }
        ("integer", number) if is_whole(number) && value.starts_with("`-") => "it cannot be below zero",
        ("integer", number) if is_whole(number) => "use a smaller one",
        ("floating", number) if is_whole(number) => {
            let number: f64 = value.trim_start_matches("point ").trim_matches('`').parse().unwrap_or(0.0);
            if number.fract() == 0.0 && (0.0..1e15).contains(&number) {
                return Some(format!("write {}", number.abs()));
            } else if number.fract() == 0.0 {
                "write it with digits only, and smaller"
            } else {
                "without a fraction"
            }
        }
        (_, "a sequence") => "begin each item with `- `, or write [one, two]",
        (_, "a map") => "write `name: value` lines below it, or { name: value }",
        (_, record) if record.starts_with("struct ") => {
            "write `name: value` lines below it, or { name: value }"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

fn is_whole(expected: &str) -> bool {
    matches!(expected, "u64" | "u32" | "u16" | "u8")
}
