//! Writes values as YAML.

use serde_json::{Map, Value};
use std::fmt::Write;

/// The longest collection that is written on the line of its name.
const LONGEST_INLINE: usize = 72;

/// Fields in the order in which the documentation writes them. All others follow by name.
const ORDER: [&str; 39] = [
    "id",
    "name",
    "version",
    "description",
    "tier",
    "domain",
    "match",
    "exactly",
    "api_key_pattern",
    "user_pattern",
    "tenant_pattern",
    "ids",
    "ip",
    "endpoint",
    "endpoint_regex",
    "methods",
    "exact",
    "except",
    "replaces",
    "fallback",
    "key",
    "ipv6_prefix",
    "algorithm",
    "limit",
    "capacity",
    "refill_rate",
    "leak_rate",
    "window",
    "burst",
    "limits",
    "params",
    "override",
    "ip_safety_net",
    "on_exceed",
    "soft",
    "penalty",
    "on_store_failure",
    "expires",
    "reason",
];

/// A value in one line, as it may stand in `[…]` and `{…}`.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => scalar(text),
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let fields = ordered(fields).map(|(name, value)| format!("{}: {}", scalar(name), inline(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

/// The entry `name: value` of a block mapping at column `indent`, without that indentation on its first line.
pub(super) fn block_entry(name: &str, value: &Value, indent: usize, line_break: &str) -> String {
    let name = scalar(name);
    match short_form(value) {
        Some(text) => format!("{name}: {text}"),
        None => {
            let below = indent + 2;
            let lines = block(value, below, line_break);
            format!("{name}:{line_break}{}{lines}", " ".repeat(below))
        }
    }
}

/// The entries or items of `value` as a block at column `indent`, without that indentation on its first line.
pub(super) fn block(value: &Value, indent: usize, line_break: &str) -> String {
    let parts: Vec<String> = match value {
        Value::Object(fields) if !fields.is_empty() => {
            ordered(fields).map(|(name, value)| block_entry(name, value, indent, line_break)).collect()
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|item| block_item(item, indent, line_break)).collect()
        }
        _ => vec![inline(value)],
    };
    parts.join(&format!("{line_break}{}", " ".repeat(indent)))
}

/// The item `- value` of a block sequence at column `indent`, without that indentation on its first line.
pub(super) fn block_item(value: &Value, indent: usize, line_break: &str) -> String {
    match short_form(value) {
        Some(text) => format!("- {text}"),
        None => format!("- {}", block(value, indent + 2, line_break)),
    }
}

/// A rule as an item of `rules:`: each field on its line.
pub(crate) fn rule_item(rule: &Value, indent: usize, line_break: &str) -> String {
    format!("- {}", block(rule, indent + 2, line_break))
}

fn short_form(value: &Value) -> Option<String> {
    let text = inline(value);
    let is_short = text.chars().count() <= LONGEST_INLINE;
    (is_short || !matches!(value, Value::Array(_) | Value::Object(_))).then_some(text)
}

fn ordered(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let rank = |name: &str| ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len());
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
    fields.into_iter()
}

/// A text: plain where every YAML parser reads the same text, else in double quotes.
pub(super) fn scalar(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { quoted(text) }
}

fn is_plain(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "/_".contains(c));
    let is_usual = |c: char| c.is_ascii_alphanumeric() || " -_./*?@+:%=()".contains(c);
    let has_pair = text.contains(": ") || text.ends_with([':', ' ']);
    // Words and numbers of YAML 1.1 and 1.2 that are not texts.
    let word = text.to_ascii_lowercase();
    let is_reserved = matches!(
        word.as_str(),
        "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | "inf" | "nan" | "infinity"
    );
    let is_number_like = word.parse::<f64>().is_ok()
        || word.starts_with("0x")
        || word.starts_with("0o")
        || word.bytes().all(|byte| byte.is_ascii_digit() || b"_:.+-e".contains(&byte));
    // A date is a text here; it consists of digits as well.
    let is_date = word.len() == 10 && word.bytes().filter(|byte| *byte == b'-').count() == 2;
    starts_well
        && text.len() <= 256
        && text.chars().all(is_usual)
        && !has_pair
        && !is_reserved
        && (is_date || !is_number_like)
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                // Control characters and these separators are below U+10000.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
