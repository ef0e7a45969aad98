//! Redaction of secrets and API keys in reports, by region of the text and by value.
//!
//! A report shows the line of an error, and its message quotes values. Both end up in terminals, logs and tickets. A
//! document therefore declares which of its values are secret, and all output passes through this module.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// Replaces a secret of any length.
pub(crate) const MASK: &str = "***";
/// Texts up to this length also occur in the words of messages: they are redacted only in quotes.
const SHORT: usize = 3;
/// Parts of the names of URL parameters whose values are secret.
const PARAMETERS: [&str; 6] = ["pass", "pwd", "secret", "token", "key", "credential"];

/// Credentials in the hints of Tollgate itself.
const EXAMPLES: [&str; 3] = ["user:password", ":password", ":p%40ss"];

/// A run of a text, possibly over several lines: lines and columns from 1, the end exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TextRegion {
    pub(crate) start: (usize, usize),
    pub(crate) end: (usize, usize),
}

/// The regions and values of a document that are secret.
#[derive(Clone, Default)]
pub(crate) struct Redactions {
    regions: Vec<TextRegion>,
    /// Longest first, so that a text is replaced before the texts it contains.
    texts: BTreeSet<(Reverse<usize>, String)>,
}

impl Redactions {
    /// Redacts a run of the text in excerpts.
    pub(crate) fn add_region(&mut self, region: TextRegion) {
        self.regions.push(region);
    }

    /// Redacts a value wherever a message quotes it.
    pub(crate) fn add_text(&mut self, text: &str) {
        let escaped = format!("{text:?}");
        let escaped = &escaped[1..escaped.len() - 1];
        for form in [text, text.trim(), escaped] {
            if !form.is_empty() {
                self.texts.insert((Reverse(form.len()), form.to_owned()));
            }
        }
    }

    /// The message without secrets and control characters.
    pub(crate) fn redact(&self, message: &str) -> String {
        let mut message = message.to_owned();
        for (_, text) in &self.texts {
            if message.contains(text.as_str()) {
                message = without(&message, text);
            }
        }
        printable(&message)
    }

    /// The redacted columns of a line, from 0.
    pub(super) fn columns(&self, line: usize) -> impl Iterator<Item = Range<usize>> {
        self.regions.iter().filter(move |region| (region.start.0..=region.end.0).contains(&line)).map(
            move |TextRegion { start, end }| {
                let from = if start.0 == line { start.1.saturating_sub(1) } else { 0 };
                let to = if end.0 == line { end.1.saturating_sub(1) } else { usize::MAX };
                from..to
            },
        )
    }
}

/// Without the texts.
impl fmt::Debug for Redactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hidden({} texts)", self.texts.len())
    }
}

/// `message` with `text` replaced where it is a word of its own, not part of a longer word.
fn without(message: &str, text: &str) -> String {
    let is_short = text.chars().count() <= SHORT;
    let bounds = |before: Option<char>, after: Option<char>| {
        let is_quote = |c: Option<char>| c.is_some_and(|c| matches!(c, '`' | '"'));
        let is_apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        if is_short { is_quote(before) && is_quote(after) } else { is_apart(before) && is_apart(after) }
    };
    let mut shown = String::new();
    let mut rest = message;
    while let Some(at) = rest.find(text) {
        let (before, after) = (&rest[..at], &rest[at + text.len()..]);
        shown.push_str(before);
        let last = before.chars().last().or_else(|| shown.chars().last());
        shown.push_str(if bounds(last, after.chars().next()) { MASK } else { text });
        rest = after;
    }
    shown + rest
}

/// An external text made safe to print: credentials in URLs are redacted, and control characters other than line ends
/// are escaped.
pub fn sanitized(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// One line with credentials redacted and control characters escaped.
fn printable(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut shown = String::with_capacity(text.len());
    let mut credentials = credentials(&chars).into_iter().peekable();
    for (index, c) in chars.iter().enumerate() {
        while credentials.peek().is_some_and(|range| range.end <= index) {
            credentials.next();
        }
        match credentials.peek() {
            Some(range) if range.start == index => shown.push_str(MASK),
            Some(range) if range.contains(&index) => {}
            _ => push_escaped(*c, &mut shown),
        }
    }
    shown
}

/// Appends `c`, escaped if it would move the cursor or reorder the text around it.
pub(super) fn push_escaped(c: char, to: &mut String) {
    let reorders = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}');
    if c.is_control() || reorders || c == '\u{feff}' {
        to.extend(c.escape_default());
    } else {
        to.push(c);
    }
}

/// The credentials in the URLs of a line and the values of parameters such as `password=`, in order. Credentials are the
/// part of a word before its last `@`, after its `://` if it has one.
pub(super) fn credentials(line: &[char]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let ends_word = |c: &char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
    let mut at = 0;
    while at < line.len() {
        let word = line[at..].iter().position(ends_word).map_or(line.len(), |length| at + length);
        let scheme = line[at..word].windows(3).position(|three| three == [':', '/', '/']);
        let start = scheme.map_or(at, |scheme| at + scheme + 3);
        let at_sign = line[start..word].iter().rposition(|c| *c == '@').filter(|length| *length > 0);
        if let Some(end) = at_sign.map(|length| start + length)
            && (scheme.is_some() || line[start..end].contains(&':'))
            && !EXAMPLES.contains(&line[start..end].iter().collect::<String>().as_str())
        {
            found.push(start..end);
        }
        let from = found.last().map_or(at, |range| range.end.max(at));
        let equals = line[from..word].iter().position(|c| *c == '=').map(|equals| from + equals);
        if let Some(equals) = equals {
            let name: String = line[from..equals].iter().collect::<String>().to_lowercase();
            if PARAMETERS.iter().any(|part| name.contains(part)) && equals + 1 < word {
                found.push(equals + 1..word);
            }
        }
        at = word + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted_wherever_a_message_quotes_them() {
        let mut redactions = Redactions::default();
        for text in ["hunter2", "b", "say \"hi\"", "12345", "5", "hunter2-long"] {
            redactions.add_text(text);
        }
        for (message, expected) in [
            ("`hunter2` is not a size", "`***` is not a size"),
            ("hunter22 and xhunter2 are other words", "hunter22 and xhunter2 are other words"),
            ("`hunter2-long`, hunter2", "`***`, ***"),
            ("`b` is a blob, or b", "`***` is a blob, or b"),
            ("the text `say \\\"hi\\\"`", "the text `***`"),
            ("not 12345", "not ***"),
            ("5 of 5 cannot pass", "5 of 5 cannot pass"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
        ] {
            assert_eq!(redactions.redact(message), expected);
        }
    }

    #[test]
    fn credentials_in_urls_are_redacted() {
        for (text, expected) in [
            ("redis://u:p@h:1/2", "redis://***@h:1/2"),
            ("a http://u:p@x@h, b", "a http://***@h, b"),
            ("redis://h", "redis://h"),
            (
                "write redis://user:password@host or redis://:password@host",
                "write redis://user:password@host or redis://:password@host",
            ),
            ("mail me@home", "mail me@home"),
            ("u:p@h:1", "***@h:1"),
            ("rediss://h/?sentinel_password=x&y", "rediss://h/?sentinel_password=***"),
            ("limit=5 token=abc", "limit=5 token=***"),
            ("one\ntwo\t3", "one\ntwo\\t3"),
        ] {
            assert_eq!(sanitized(text), expected);
        }
    }
}
