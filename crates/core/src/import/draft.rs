//! A rule file in the making.

use super::WRITTEN;
use crate::diagnostic::Severity;
use crate::request::NamedIdentity;
use crate::rules;
use crate::rules::edit::yaml_text;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashSet};

/// The longest line of comments that are not names of files.
const LINE: usize = 116;
/// Leaves room for a number that makes an id unique.
const LONGEST_NAME: usize = 120;

/// A rule to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RuleDraft {
    /// The lines above it.
    pub(super) comments: Vec<String>,
    pub(super) domains: Vec<String>,
    pub(super) exactly: Vec<String>,
    pub(super) matches: ConditionDraft,
    pub(super) except: ConditionDraft,
    pub(super) key: Vec<String>,
    pub(super) algorithm: &'static str,
    /// The fields of the limit.
    pub(super) size: Vec<(&'static str, Value)>,
    pub(super) on_exceed: Option<Value>,
    pub(super) replaces: Vec<String>,
}

/// Conditions on requests, of `match` or of `except`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConditionDraft {
    pub(super) named: BTreeMap<&'static str, Vec<String>>,
    pub(super) ip: Vec<String>,
    pub(super) ids: BTreeMap<String, Vec<String>>,
    pub(super) endpoint_regex: Vec<String>,
    pub(super) methods: Vec<String>,
    pub(super) domain: Vec<String>,
}

impl ConditionDraft {
    /// Adds a glob over an identity.
    pub(super) fn add_named(&mut self, kind: NamedIdentity, glob: &str) {
        push_new(self.named.entry(kind.pattern_field()).or_default(), glob);
    }

    /// Adds a glob over a custom identity.
    pub(super) fn add_id(&mut self, name: &str, glob: &str) {
        push_new(self.ids.entry(name.to_owned()).or_default(), glob);
    }

    /// Adds the conditions of `other`: alternatives in the same field.
    pub(super) fn extend(&mut self, other: &Self) {
        for (name, globs) in &other.named {
            globs.iter().for_each(|glob| push_new(self.named.entry(name).or_default(), glob));
        }
        for (name, globs) in &other.ids {
            globs.iter().for_each(|glob| self.add_id(name, glob));
        }
        for (own, others) in [
            (&mut self.ip, &other.ip),
            (&mut self.endpoint_regex, &other.endpoint_regex),
            (&mut self.methods, &other.methods),
            (&mut self.domain, &other.domain),
        ] {
            others.iter().for_each(|text| push_new(own, text));
        }
    }

    /// As a mapping, with `exact` if there are endpoints and they are to be matched exactly.
    fn fields(&self, strictness: EndpointMatching) -> Map<String, Value> {
        let mut fields = Map::new();
        for (name, globs) in &self.named {
            fields.insert((*name).to_owned(), texts(globs));
        }
        if !self.ids.is_empty() {
            let ids = self.ids.iter().map(|(name, globs)| (name.clone(), texts(globs)));
            fields.insert("ids".to_owned(), Value::Object(ids.collect()));
        }
        for (name, list) in [
            ("ip", &self.ip),
            ("endpoint_regex", &self.endpoint_regex),
            ("methods", &self.methods),
            ("domain", &self.domain),
        ] {
            if !list.is_empty() {
                fields.insert(name.to_owned(), texts(list));
            }
        }
        if !self.endpoint_regex.is_empty() && strictness == EndpointMatching::Exact {
            fields.insert("exact".to_owned(), Value::Bool(true));
        }
        fields
    }
}

/// Whether `;parameters` distinguish paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointMatching {
    Exact,
    Folded,
}

/// The rules of a file, with their ids.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleFileDraft {
    pub(super) heading: Vec<String>,
    pub(super) rules: Vec<(String, RuleDraft)>,
    ids: HashSet<String>,
}

impl RuleFileDraft {
    /// Adds a rule, and returns its id: `name` with other characters replaced, and with a number if it is taken.
    pub(super) fn add(&mut self, name: &str, rule: RuleDraft) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
        let plain: String =
            name.chars().take(LONGEST_NAME).map(|c| if is_plain(c) { c } else { '_' }).collect();
        let plain = if plain.is_empty() { "rule".to_owned() } else { plain };
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        let mut candidates = std::iter::once(plain.clone()).chain(numbered);
        let id = candidates.find(|id| !self.ids.contains(id)).unwrap_or(plain);
        self.ids.insert(id.clone());
        self.rules.push((id.clone(), rule));
        id
    }

    /// The file as YAML.
    pub(super) fn write(&self, match_paths: EndpointMatching) -> String {
        let mut text = String::new();
        for line in self.heading.iter().flat_map(|line| wrapped(line)) {
            push_comment(&line, 0, &mut text);
        }
        if self.rules.is_empty() {
            text.push_str("\nallow_empty: true\n");
            return text;
        }
        text.push_str("\nrules:");
        for (id, rule) in &self.rules {
            text.push('\n');
            for line in rule.comments.iter().flat_map(|line| wrapped(line)) {
                push_comment(&line, 2, &mut text);
            }
            let fields = Value::Object(rule.fields(id, match_paths));
            text.push_str(&format!("  {}\n", yaml_text::rule_item(&fields, 2, "\n")));
        }
        text
    }
}

impl RuleDraft {
    /// Says why a rule file cannot have this rule.
    pub(super) fn check(&self, match_paths: EndpointMatching) -> Result<(), String> {
        let mut file = RuleFileDraft::default();
        file.add("rule", self.clone());
        rules::load(WRITTEN, &file.write(match_paths)).map(drop).map_err(|report| {
            let errors = report.diagnostics().iter().filter(|one| one.severity == Severity::Error);
            errors.map(|error| error.message.clone()).next().unwrap_or_default()
        })
    }

    fn fields(&self, id: &str, match_paths: EndpointMatching) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("id".to_owned(), json!(id));
        if !self.domains.is_empty() {
            fields.insert("domain".to_owned(), texts(&self.domains));
        }
        let mut matches = self.matches.fields(match_paths);
        if !self.exactly.is_empty() {
            matches.insert("exactly".to_owned(), json!(self.exactly));
        }
        if !matches.is_empty() {
            fields.insert("match".to_owned(), Value::Object(matches));
        }
        // A path that is excepted has no limit of this rule: exactly those of the configuration are.
        let except = self.except.fields(EndpointMatching::Exact);
        if !except.is_empty() {
            fields.insert("except".to_owned(), Value::Object(except));
        }
        if !self.replaces.is_empty() {
            fields.insert("replaces".to_owned(), texts(&self.replaces));
        }
        fields.insert("key".to_owned(), texts(&self.key));
        if self.key.iter().any(|name| name == "ip") {
            // Others count each IPv6 address by itself.
            fields.insert("ipv6_prefix".to_owned(), json!(128));
        }
        fields.insert("algorithm".to_owned(), json!(self.algorithm));
        fields.extend(self.size.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        if let Some(action) = &self.on_exceed {
            fields.insert("on_exceed".to_owned(), action.clone());
        }
        fields
    }
}

/// One text, or a list of several.
fn texts(list: &[String]) -> Value {
    match list {
        [one] => json!(one),
        several => json!(several),
    }
}

fn push_new(list: &mut Vec<String>, text: &str) {
    if !list.iter().any(|known| known == text) {
        list.push(text.to_owned());
    }
}

fn push_comment(line: &str, indent: usize, text: &mut String) {
    let line: String =
        line.chars().map(|c| if c.is_control() || is_separator(c) { '?' } else { c }).collect();
    let line = format!("{}# {line}", " ".repeat(indent));
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Characters that end a line for some YAML parsers, or that none allows.
fn is_separator(c: char) -> bool {
    matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// The lines of a paragraph.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + 1 + word.chars().count() > LINE {
            lines.push(format!("  {word}"));
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}
