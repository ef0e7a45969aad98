//! A lenient parser for the structured fields (RFC 9651) of rate limits: parts that cannot be parsed are skipped.

/// Longer lists are cut off.
const MAX_ITEMS: usize = 16;

/// An item of a list: `"name";r=17;t=13`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StructuredItem {
    pub(crate) name: String,
    parameters: Vec<(String, u64)>,
}

impl StructuredItem {
    /// The number of the parameter `key`; the last one wins, as RFC 9651 requires.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.parameters.iter().rev().find(|(known, _)| known == key).map(|(_, number)| *number)
    }
}

/// The items of a list.
pub(crate) fn items(text: &str) -> Vec<StructuredItem> {
    split(text, ',').into_iter().filter(|part| !part.is_empty()).take(MAX_ITEMS).map(item).collect()
}

fn item(text: &str) -> StructuredItem {
    let mut parts = split(text, ';').into_iter();
    let name = unquoted(parts.next().unwrap_or_default());
    let parameters = parts.take(MAX_ITEMS).filter_map(parameter).collect();
    StructuredItem { name, parameters }
}

fn parameter(text: &str) -> Option<(String, u64)> {
    let (key, value) = text.split_once('=')?;
    Some((key.trim().to_ascii_lowercase(), number(&unquoted(value.trim()))?))
}

/// A number that is not negative. A fraction is rounded up, so that no wait is too short.
pub(crate) fn number(text: &str) -> Option<u64> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    // A number that is too large counts as the largest.
    let whole = whole.parse().unwrap_or(u64::MAX);
    let is_more = fraction.bytes().any(|digit| digit != b'0');
    Some(whole.saturating_add(u64::from(is_more)))
}

/// The parts between `separator`s outside of quotes, trimmed.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut is_quoted, mut is_escaped) = (0, false, false);
    for (at, letter) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if is_quoted && letter == '\\' {
            is_escaped = true;
        } else if letter == '"' {
            is_quoted = !is_quoted;
        } else if letter == separator && !is_quoted {
            parts.push(text[start..at].trim());
            start = at + letter.len_utf8();
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// A string without its quotes and escapes; a token unchanged.
fn unquoted(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"') else { return text.to_owned() };
    let inner = inner.strip_suffix('"').unwrap_or(inner);
    let mut letters = inner.chars();
    let mut plain = String::with_capacity(inner.len());
    while let Some(letter) = letters.next() {
        plain.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row<'a> = (&'a str, &'a [(&'a str, &'a [(&'a str, u64)])]);

    #[test]
    fn lists_are_parsed_leniently() {
        let rows: &[Row<'_>] = &[
            ("", &[]),
            (r#""default";r=50;t=30"#, &[("default", &[("r", 50), ("t", 30)])]),
            (r#""a";r=1;t=2, "b";r=3;t=4"#, &[("a", &[("r", 1), ("t", 2)]), ("b", &[("r", 3), ("t", 4)])]),
            (r#"  token ; R=5 ;t="6""#, &[("token", &[("r", 5), ("t", 6)])]),
            (r#""with, comma; and \"quotes\"";q=7"#, &[("with, comma; and \"quotes\"", &[("q", 7)])]),
            (r#""p";pk=:cHsdsRa894==:;q=100;w=60"#, &[("p", &[("q", 100), ("w", 60)])]),
            (r#""p";r=-1;t=2.5;x=a;qu="requests""#, &[("p", &[("t", 3)])]),
            (r#""open;r=5"#, &[("open;r=5", &[])]),
            (r#""p";r=1;r=2"#, &[("p", &[("r", 1), ("r", 2)])]),
            (",,;,", &[("", &[])]),
            ("limit=10, remaining=5", &[("limit=10", &[]), ("remaining=5", &[])]),
        ];
        for (text, expected) in rows {
            let found = items(text);
            let found: Vec<_> = found
                .iter()
                .map(|item| {
                    let parameters: Vec<_> = item.parameters.iter().map(|(k, n)| (k.as_str(), *n)).collect();
                    (item.name.as_str(), parameters)
                })
                .collect();
            let expected: Vec<_> = expected.iter().map(|(name, numbers)| (*name, numbers.to_vec())).collect();
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(items(r#""p";r=1;r=2"#)[0].number("r"), Some(2));
        assert_eq!(items(&"a,".repeat(1_000)).len(), MAX_ITEMS);
    }

    #[test]
    fn numbers_are_rounded_up() {
        for (text, expected) in [
            ("0", Some(0)),
            (" 17 ", Some(17)),
            ("1.0", Some(1)),
            ("1.01", Some(2)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("", None),
            (".5", None),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            ("ten", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }
}
