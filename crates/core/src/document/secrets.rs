//! Which values of a document are secret, and are hidden in everything that is said about it.
//!
//! Secret are passwords, secrets, tokens and logins in addresses. API keys are, too: each is a
//! credential, and a rule file has them in lists, tiers, overrides, patterns and tests. Addresses, networks and bare wildcards among
//! them are not, and help to see what is wrong.

use super::yaml::{YamlContent, YamlEntry, YamlNode};
use crate::diagnostic::{Redactions, TextRegion, lines};
use crate::rules::lists::looks_like_an_address;
use crate::rules::pattern::network;
use serde_json::Value;

/// Parts of names that are followed by a secret, in lower case and without `-` and `_`.
const SECRET: [&str; 8] =
    ["password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "privatekey"];
/// Where a document cannot be read as YAML, the value of a name with one of these in it is hidden.
const SUSPECT: [&str; 15] = [
    "pass", "pwd", "secret", "token", "cred", "key", "auth", "private", "store", "allow", "deny", "list",
    "override", "url", "dsn",
];
/// Fields that hold secrets or API keys: one that is misspelled like these holds the same.
const SECRET_FIELDS: [&str; 15] = [
    "allow",
    "deny",
    "whitelist",
    "blacklist",
    "override",
    "overrides",
    "keys",
    "apikey",
    "apikeypattern",
    "apikeypatterns",
    "password",
    "secret",
    "token",
    "credential",
    "auth",
];
/// Fields that resemble these and hold nothing of the kind.
const OPEN_FIELDS: [&str; 3] = ["allowempty", "over", "pass"];
/// What stands for such a secret in the settings, and is none.
const SOURCES: [&str; 7] = ["header", "trusted_header", "query", "cookie", "bearer", "jwt", "ip"];

/// What of a value is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secrecy {
    /// Nothing, as far as the names above it tell.
    Open,
    /// Everything.
    All,
    /// API keys: all but addresses, networks and wildcards.
    Keys,
    /// The names of entries, which are API keys; not their values.
    Names,
    /// What is not the name of a source of identities.
    Source,
    /// What is not a plain word, such as the name of an identity.
    Words,
    /// The address of a store: all but `memory`.
    Store,
}

/// Everything secret under `root`.
pub(super) fn in_tree(root: &YamlNode) -> Redactions {
    let mut hidden = Redactions::default();
    visit(root, Secrecy::Open, "", &mut hidden);
    hidden
}

/// Hides an entry as a whole: its name may be an API key that stands in the wrong place.
pub(super) fn hide_entry(entry: &YamlEntry, hidden: &mut Redactions) {
    hide(entry.region(), &Value::String(entry.name.clone()), hidden);
    visit(&entry.value, Secrecy::All, "", hidden);
}

/// Whether a text may be the name of a field, rather than an API key.
pub(super) fn is_word(text: &str) -> bool {
    text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-'))
}

fn visit(node: &YamlNode, secrecy: Secrecy, parent: &str, hidden: &mut Redactions) {
    match &node.content {
        YamlContent::Scalar(value) => {
            if hides(secrecy, value) {
                hide(node.region(), value, hidden);
            }
        }
        YamlContent::Sequence(items) => items.iter().for_each(|item| visit(item, secrecy, parent, hidden)),
        YamlContent::Mapping(entries) => {
            for entry in entries.iter().chain(&node.repeated) {
                if hides_name(secrecy, &entry.name) {
                    hide(entry.region(), &Value::String(entry.name.clone()), hidden);
                }
                visit(&entry.value, below(secrecy, parent, entry), &entry.name, hidden);
            }
        }
    }
}

/// What is hidden of an entry's value.
fn below(secrecy: Secrecy, parent: &str, entry: &YamlEntry) -> Secrecy {
    match (secrecy, entry.name.as_str()) {
        (Secrecy::All, _) => Secrecy::All,
        (Secrecy::Names, _) => Secrecy::Open,
        (Secrecy::Keys, "expires" | "reason") => Secrecy::Open,
        (Secrecy::Keys, _) => Secrecy::Keys,
        _ => by_name(parent, entry),
    }
}

fn by_name(parent: &str, entry: &YamlEntry) -> Secrecy {
    let plain = entry.name.to_lowercase().replace(['-', '_', ' '], "");
    let secrecy = by_plain_name(&plain, parent, entry);
    if secrecy != Secrecy::Open || OPEN_FIELDS.contains(&plain.as_str()) || plain.ends_with("file") {
        return secrecy;
    }
    let meant = SECRET_FIELDS.iter().find(|field| strsim::jaro_winkler(&plain, field) > 0.88);
    meant.map_or(Secrecy::Open, |meant| by_plain_name(meant, parent, entry))
}

fn by_plain_name(plain: &str, parent: &str, entry: &YamlEntry) -> Secrecy {
    let is_list = matches!(entry.value.content, YamlContent::Sequence(_));
    match (plain, parent) {
        ("allow" | "deny" | "whitelist" | "blacklist", "") => Secrecy::Keys,
        ("allow" | "deny" | "whitelist" | "blacklist", _) if is_list => Secrecy::Keys,
        ("override" | "overrides", _) if entry.value.is_mapping() => Secrecy::Names,
        ("override" | "overrides" | "keys" | "apikeys" | "apikeypattern" | "apikeypatterns", _) => {
            Secrecy::Keys
        }
        ("key", "request" | "match") => Secrecy::Keys,
        ("key", "jwt") => Secrecy::All,
        ("key", "tls") => Secrecy::Open,
        ("key", _) => Secrecy::Words,
        ("apikey" | "token", _) if entry.value.is_mapping() => Secrecy::Open,
        ("apikey" | "token", _) => Secrecy::Source,
        ("store" | "storeurl" | "url" | "dsn", _) => Secrecy::Store,
        (name, _) if name.ends_with("file") || name.ends_with("path") || name.ends_with("header") => {
            Secrecy::Open
        }
        (name, _) if name == "auth" || SECRET.iter().any(|part| name.contains(part)) => Secrecy::All,
        _ => Secrecy::Open,
    }
}

fn hides(secrecy: Secrecy, value: &Value) -> bool {
    let text = match value {
        Value::String(text) => text.as_str(),
        // So short a number says nothing where a word is expected.
        _ => return matches!(secrecy, Secrecy::All | Secrecy::Keys | Secrecy::Source | Secrecy::Store),
    };
    match secrecy {
        Secrecy::Open | Secrecy::Names => false,
        Secrecy::All => !text.is_empty(),
        Secrecy::Keys => is_key(text),
        Secrecy::Source => !text.is_empty() && !SOURCES.contains(&text),
        Secrecy::Words => !is_word(text),
        Secrecy::Store => !text.is_empty() && !matches!(text, "memory" | "memory:" | "memory://"),
    }
}

fn hides_name(secrecy: Secrecy, name: &str) -> bool {
    match secrecy {
        Secrecy::Names => is_key(name),
        Secrecy::All => !is_word(name),
        Secrecy::Keys => is_key(name) && !is_word(name),
        _ => false,
    }
}

/// Whether a text stands for a client that could be impersonated.
fn is_key(text: &str) -> bool {
    let is_wildcard = text.chars().all(|c| matches!(c, '*' | '?'));
    !is_wildcard && network(text).is_none() && !looks_like_an_address(text)
}

fn hide(region: TextRegion, value: &Value, hidden: &mut Redactions) {
    hidden.hide_region(region);
    match value {
        Value::String(text) => hidden.hide_text(text),
        Value::Number(number) => {
            hidden.hide_text(&number.to_string());
            // Messages may show a number in another form than it was written in.
            number.as_f64().into_iter().for_each(|number| hidden.hide_text(&number.to_string()));
        }
        _ => {}
    }
}

/// What is hidden of a text that is not YAML, where fields cannot be told apart: everything that follows a name that
/// looks like that of a secret, to the end of the line and over the lines that belong to it.
pub(super) fn in_text(text: &str) -> Redactions {
    let mut hidden = Redactions::default();
    let mut open: Option<MultilineSecret> = None;
    for (line, number) in lines(text).zip(1..) {
        if let Some(value) = open.as_mut().filter(|value| value.goes_on(line)) {
            value.read(line);
            hidden.hide_region(TextRegion { start: (number, 1), end: (number, usize::MAX) });
            continue;
        }
        open = suspect_value(line).map(|start| {
            let column = line[..start].chars().count() + 1;
            hidden.hide_region(TextRegion { start: (number, column), end: (number, usize::MAX) });
            let mut value = MultilineSecret { indent: indent(line), quote: None, depth: 0 };
            value.read(&line[start..]);
            value
        });
    }
    hidden
}

/// A secret whose value may go on in the next line.
struct MultilineSecret {
    indent: usize,
    quote: Option<char>,
    depth: usize,
}

impl MultilineSecret {
    fn goes_on(&self, line: &str) -> bool {
        let text = line.trim_start();
        self.quote.is_some()
            || self.depth > 0
            || text.is_empty()
            || indent(line) > self.indent
            || indent(line) == self.indent && (text == "-" || text.starts_with("- "))
            || !begins_with_a_name(text)
    }

    fn read(&mut self, line: &str) {
        let mut before = ' ';
        for c in line.chars() {
            match (self.quote, c) {
                (Some(quote), c) if c == quote && before != '\\' => self.quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') if before.is_whitespace() || "[{,:".contains(before) => {
                    self.quote = Some(c)
                }
                (None, '[' | '{') => self.depth += 1,
                (None, ']' | '}') => self.depth = self.depth.saturating_sub(1),
                (None, '#') if before.is_whitespace() => break,
                _ => {}
            }
            before = c;
        }
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Whether a line is the next entry of a mapping.
fn begins_with_a_name(line: &str) -> bool {
    let line = line.strip_prefix("- ").unwrap_or(line).trim_start().trim_start_matches(['"', '\'']);
    let rest = line.trim_start_matches(is_of_a_name);
    let after = rest.trim_start_matches(['"', '\'']).trim_start().strip_prefix(':');
    rest.len() < line.len() && after.is_some_and(|after| after.is_empty() || after.starts_with([' ', '\t']))
}

/// Where the first value of a line begins that a suspect name or an anchor stands before.
fn suspect_value(line: &str) -> Option<usize> {
    let mut name = String::new();
    let mut is_over = false;
    for (at, c) in line.char_indices() {
        if is_of_a_name(c) {
            if is_over {
                name.clear();
            }
            is_over = false;
            name.extend(c.to_lowercase());
        } else if matches!(c, ':' | '=') && SUSPECT.iter().any(|part| name.contains(part)) {
            return Some(at + 1);
        } else if c == '&' && line[..at].ends_with([' ', '\t', '[', '{', ',']) {
            let anchor =
                line[at + 1..].chars().take_while(|c| is_of_a_name(*c)).map(char::len_utf8).sum::<usize>();
            return Some(at + 1 + anchor);
        } else {
            is_over = true;
        }
    }
    None
}
