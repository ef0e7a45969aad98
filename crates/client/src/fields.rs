//! Structured fields, as far as limits use them, read with patience: what cannot be understood is passed over.

/// Longer lists are cut: nobody states so many limits.
const MOST_ITEMS: usize = 16;

/// An item of a list: `"name";r=17;t=13`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    parameters: Vec<(String, u64)>,
}

impl Item {
    /// The whole number called `key`; of several the last, as structured fields have it.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.parameters.iter().rev().find(|(known, _)| known == key).map(|(_, number)| *number)
    }
}

/// The items of a list.
pub(crate) fn items(text: &str) -> Vec<Item> {
    split(text, ',').into_iter().filter(|part| !part.is_empty()).take(MOST_ITEMS).map(item).collect()
}

fn item(text: &str) -> Item {
    let mut parts = split(text, ';').into_iter();
    let name = unquoted(parts.next().unwrap_or_default());
    let parameters = parts.take(MOST_ITEMS).filter_map(parameter).collect();
    Item { name, parameters }
}

fn parameter(text: &str) -> Option<(String, u64)> {
    let (key, value) = text.split_once('=')?;
    Some((key.trim().to_ascii_lowercase(), number(&unquoted(value.trim()))?))
}

/// A whole number that is not negative; of a fraction, the next one above, so that nobody waits too little.
pub(crate) fn number(text: &str) -> Option<u64> {
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    // What is too large for a number is as good as the largest.
    let whole = whole.parse().unwrap_or(u64::MAX);
    let is_more = fraction.bytes().any(|digit| digit != b'0');
    Some(whole.saturating_add(u64::from(is_more)))
}

/// The parts between `separator`s that stand outside of quotes, trimmed.
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

/// A string without its quotes and escapes; a token as it is.
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
    fn lists() {
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
        assert_eq!(items(&"a,".repeat(1_000)).len(), MOST_ITEMS);
    }

    #[test]
    fn numbers() {
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
