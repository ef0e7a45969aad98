//! What reports must not show: secrets and API keys, by their place in the text and by what they say.
//!
//! A report shows the line that is at fault, and its message quotes what was written. Both end in terminals, logs and
//! tickets. So a document says which of its values are secret, and everything that is shown passes through here.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// Stands for what is not shown, whatever its length.
pub(crate) const MASK: &str = "***";
/// Texts this short also stand in messages of our own: they are hidden where they are quoted.
const SHORT: usize = 3;
/// Names of parameters whose values are secret, in addresses and the like.
const PARAMETERS: [&str; 6] = ["pass", "pwd", "secret", "token", "key", "credential"];

/// Logins that stand in our own hints.
const EXAMPLES: [&str; 3] = ["user:password", ":password", ":p%40ss"];

/// A run of a text, over several lines if need be: lines and columns from 1, the end exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TextRegion {
    pub(crate) start: (usize, usize),
    pub(crate) end: (usize, usize),
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Redactions {
    regions: Vec<TextRegion>,
    /// The longest first, so that none is cut by one that it contains.
    texts: BTreeSet<(Reverse<usize>, String)>,
}

impl Redactions {
    /// Hides a run of the text.
    pub(crate) fn hide_region(&mut self, region: TextRegion) {
        self.regions.push(region);
    }

    /// Hides a text wherever a message quotes it.
    pub(crate) fn hide_text(&mut self, text: &str) {
        let escaped = format!("{text:?}");
        let escaped = &escaped[1..escaped.len() - 1];
        for form in [text, text.trim(), escaped] {
            if !form.is_empty() {
                self.texts.insert((Reverse(form.len()), form.to_owned()));
            }
        }
    }

    /// A message without what is hidden, and fit for a terminal.
    pub(crate) fn scrub(&self, message: &str) -> String {
        let mut message = message.to_owned();
        for (_, text) in &self.texts {
            if message.contains(text.as_str()) {
                message = without(&message, text);
            }
        }
        printable(&message)
    }

    /// The columns of a line that are hidden, from 0.
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

/// Never the texts themselves.
impl fmt::Debug for Redactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hidden({} texts)", self.texts.len())
    }
}

/// `message` with `text` hidden where it stands by itself; in the middle of a word it is another word's part.
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

/// A text that is not ours, fit to be shown: without logins in addresses, and with control characters escaped, but for
/// the ends of lines.
pub fn sanitized(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// One line without logins, its control characters escaped.
fn printable(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut shown = String::with_capacity(text.len());
    let mut logins = logins(&chars).into_iter().peekable();
    for (index, c) in chars.iter().enumerate() {
        while logins.peek().is_some_and(|login| login.end <= index) {
            logins.next();
        }
        match logins.peek() {
            Some(login) if login.start == index => shown.push_str(MASK),
            Some(login) if login.contains(&index) => {}
            _ => push_escaped(*c, &mut shown),
        }
    }
    shown
}

/// Appends `c`; what would move the cursor, or reorder what stands around it, in an escaped form.
pub(super) fn push_escaped(c: char, to: &mut String) {
    let reorders = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}');
    if c.is_control() || reorders || c == '\u{feff}' {
        to.extend(c.escape_default());
    } else {
        to.push(c);
    }
}

/// The logins in the addresses of a line, and the values of parameters such as `password=`, in order: what stands before the
/// last `@` of a word, behind its `://` if it has one.
pub(super) fn logins(line: &[char]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let ends_word = |c: &char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
    let mut at = 0;
    while at < line.len() {
        let word = line[at..].iter().position(ends_word).map_or(line.len(), |length| at + length);
        let scheme = line[at..word].windows(3).position(|three| three == [':', '/', '/']);
        let start = scheme.map_or(at, |scheme| at + scheme + 3);
        let login = line[start..word].iter().rposition(|c| *c == '@').filter(|length| *length > 0);
        if let Some(end) = login.map(|length| start + length)
            && (scheme.is_some() || line[start..end].contains(&':'))
            && !EXAMPLES.contains(&line[start..end].iter().collect::<String>().as_str())
        {
            found.push(start..end);
        }
        let from = found.last().map_or(at, |login| login.end.max(at));
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
    fn what_is_hidden_is_hidden_wherever_it_is_quoted() {
        let mut hidden = Redactions::default();
        for text in ["hunter2", "b", "say \"hi\"", "12345", "5", "hunter2-long"] {
            hidden.hide_text(text);
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
            assert_eq!(hidden.scrub(message), expected);
        }
    }

    #[test]
    fn logins_in_addresses_are_not_shown() {
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
