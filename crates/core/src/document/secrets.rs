//! Which values of a document are secret, and are redacted in all reports about it.
//!
//! Passwords, secrets, tokens and credentials in URLs are secret. API keys are too: a rule file contains them in lists,
//! tiers, overrides, patterns and tests. Addresses, networks and bare wildcards among them are shown, because they help to
//! find the error.

use super::yaml_tree::{YamlContent, YamlEntry, YamlNode, YamlScalar};
use crate::diagnostic::{Redactions, TextRegion, lines};
use crate::request::NamedIdentity;
use crate::rules::lists::looks_like_an_address;
use crate::rules::pattern::network;

/// Parts of the names of fields that hold a secret, in lower case and without `-` and `_`.
const SECRET: [&str; 8] =
    ["password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "privatekey"];
/// In a text that is not YAML, the value of a name that contains one of these is redacted.
const SUSPECT: [&str; 16] = [
    "pass", "pwd", "secret", "token", "cred", "key", "auth", "private", "store", "allow", "deny", "list",
    "override", "url", "dsn", "headers",
];
/// Fields that hold secrets or API keys. A misspelled field that resembles one of them is treated like it.
const SECRET_FIELDS: [&str; 16] = [
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
    "headers",
];
/// Fields that resemble these and hold no secret.
const OPEN_FIELDS: [&str; 3] = ["allowempty", "over", "pass"];
/// Sources of identities: in the settings these replace a secret of the same field.
const SOURCES: [&str; 7] = ["header", "trusted_header", "query", "cookie", "bearer", "jwt", "ip"];

/// Which part of a value is redacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secrecy {
    /// Nothing, unless the name of an inner field says otherwise.
    Open,
    /// Everything.
    All,
    /// API keys: all but addresses, networks and wildcards.
    Keys,
    /// The names of entries, which are API keys; not their values.
    Names,
    /// All but the names of sources of identities.
    Source,
    /// All but plain words, such as the name of an identity.
    Words,
    /// The URL of a store: all but `memory`.
    Store,
}

/// The secrets of a document.
pub(super) fn in_tree(root: &YamlNode) -> Redactions {
    let mut redactions = Redactions::default();
    visit(root, Secrecy::Open, "", &mut redactions);
    redactions
}

/// Redacts an entry with its name, which may be a misplaced API key.
pub(super) fn redact_entry(entry: &YamlEntry, redactions: &mut Redactions) {
    redact_name(entry, redactions);
    visit(&entry.value, Secrecy::All, "", redactions);
}

/// Whether a text may be the name of a field rather than an API key.
pub(super) fn is_word(text: &str) -> bool {
    text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-'))
}

fn visit(node: &YamlNode, secrecy: Secrecy, parent: &str, redactions: &mut Redactions) {
    match &node.content {
        YamlContent::Scalar(value) => {
            if is_secret(secrecy, value) {
                redact(node.region(), value, redactions);
            }
        }
        YamlContent::Sequence(items) => {
            items.iter().for_each(|item| visit(item, secrecy, parent, redactions))
        }
        YamlContent::Mapping(entries) => {
            // The entry of an Envoy descriptor that is an API key.
            let is_key_entry = entries.iter().any(|entry| {
                let text = match &entry.value.content {
                    YamlContent::Scalar(YamlScalar::Text(text)) => text.as_str(),
                    _ => "",
                };
                entry.name == "key" && text == NamedIdentity::ApiKey.name()
            });
            for entry in entries.iter().chain(&node.repeated) {
                if is_key_entry && entry.name == "value" {
                    visit(&entry.value, Secrecy::Keys, &entry.name, redactions);
                    continue;
                }
                if is_secret_name(secrecy, &entry.name) {
                    redact_name(entry, redactions);
                }
                visit(&entry.value, below(secrecy, parent, entry), &entry.name, redactions);
            }
        }
    }
}

/// Which part of an entry's value is redacted.
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
        // Headers that are sent to another server; those at the top are no more than names.
        ("headers", parent) if !parent.is_empty() && entry.value.is_mapping() => Secrecy::All,
        ("store" | "storeurl" | "url" | "dsn", _) => Secrecy::Store,
        (name, _) if name.ends_with("file") || name.ends_with("path") || name.ends_with("header") => {
            Secrecy::Open
        }
        (name, _) if name == "auth" || SECRET.iter().any(|part| name.contains(part)) => Secrecy::All,
        _ => Secrecy::Open,
    }
}

fn is_secret(secrecy: Secrecy, value: &YamlScalar) -> bool {
    let text = match value {
        YamlScalar::Text(text) => text.as_str(),
        // A number where a word is expected is no secret.
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

fn is_secret_name(secrecy: Secrecy, name: &str) -> bool {
    match secrecy {
        Secrecy::Names => is_key(name),
        Secrecy::All => !is_word(name),
        Secrecy::Keys => is_key(name) && !is_word(name),
        _ => false,
    }
}

/// Whether a text identifies a client that could be impersonated.
fn is_key(text: &str) -> bool {
    let is_wildcard = text.chars().all(|c| matches!(c, '*' | '?'));
    !is_wildcard && network(text).is_none() && !looks_like_an_address(text)
}

fn redact_name(entry: &YamlEntry, redactions: &mut Redactions) {
    redactions.add_region(entry.name_region());
    redactions.add_text(&entry.name);
}

fn redact(region: TextRegion, value: &YamlScalar, redactions: &mut Redactions) {
    redactions.add_region(region);
    match value {
        YamlScalar::Null | YamlScalar::Bool(_) => {}
        YamlScalar::Unsigned(number) => redactions.add_text(&number.to_string()),
        YamlScalar::Signed(number) => redactions.add_text(&number.to_string()),
        // Messages print a number in one of these forms.
        YamlScalar::Float(number) => {
            redactions.add_text(&number.to_string());
            redactions.add_text(&format!("{number:?}"));
        }
        YamlScalar::Text(text) => redactions.add_text(text),
    }
}

/// The secrets of a text that is not YAML, where fields cannot be told apart: everything after a name that resembles that
/// of a secret, up to the end of its line and of its continuation lines.
pub(super) fn in_text(text: &str) -> Redactions {
    let mut redactions = Redactions::default();
    let mut open: Option<MultilineSecret> = None;
    for (line, number) in lines(text).zip(1..) {
        if let Some(value) = open.as_mut().filter(|value| value.continues(line)) {
            value.scan(line);
            redactions.add_region(TextRegion { start: (number, 1), end: (number, usize::MAX) });
            continue;
        }
        open = suspect_value(line).map(|start| {
            let column = line[..start].chars().count() + 1;
            redactions.add_region(TextRegion { start: (number, column), end: (number, usize::MAX) });
            let mut value = MultilineSecret { indent: indent(line), quote: None, depth: 0 };
            value.scan(&line[start..]);
            value
        });
    }
    redactions
}

/// A secret whose value may continue on the next line.
struct MultilineSecret {
    indent: usize,
    quote: Option<char>,
    depth: usize,
}

impl MultilineSecret {
    fn continues(&self, line: &str) -> bool {
        let text = line.trim_start();
        self.quote.is_some()
            || self.depth > 0
            || text.is_empty()
            || indent(line) > self.indent
            || indent(line) == self.indent && (text == "-" || text.starts_with("- "))
            || !starts_with_name(text)
    }

    fn scan(&mut self, line: &str) {
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

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Whether a line is the next entry of a mapping.
fn starts_with_name(line: &str) -> bool {
    let line = line.strip_prefix("- ").unwrap_or(line).trim_start().trim_start_matches(['"', '\'']);
    let rest = line.trim_start_matches(is_name_char);
    let after = rest.trim_start_matches(['"', '\'']).trim_start().strip_prefix(':');
    rest.len() < line.len() && after.is_some_and(|after| after.is_empty() || after.starts_with([' ', '\t']))
}

/// The start of the first value of a line that follows a suspect name or an anchor.
fn suspect_value(line: &str) -> Option<usize> {
    let mut name = String::new();
    let mut is_over = false;
    for (at, c) in line.char_indices() {
        if is_name_char(c) {
            if is_over {
                name.clear();
            }
            is_over = false;
            name.extend(c.to_lowercase());
        } else if matches!(c, ':' | '=') && SUSPECT.iter().any(|part| name.contains(part)) {
            return Some(at + 1);
        } else if c == '&' && line[..at].ends_with([' ', '\t', '[', '{', ',']) {
            let anchor =
                line[at + 1..].chars().take_while(|c| is_name_char(*c)).map(char::len_utf8).sum::<usize>();
            return Some(at + 1 + anchor);
        } else {
            is_over = true;
        }
    }
    None
}
