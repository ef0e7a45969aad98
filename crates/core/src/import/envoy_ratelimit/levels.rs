//! One level of a path through the tree of descriptors, as conditions of a rule.

use super::config::DescriptorConfig;
use crate::descriptor::EntryMeaning;
use crate::import::draft::{ConditionDraft, RuleDraft};
use crate::key::Dimension;
use crate::path::{self, PathReadings};
use crate::request::Method;
use crate::rules::pattern::{Glob, network};
use std::fmt;
use std::net::IpAddr;

/// The node that a descriptor takes on one level.
#[derive(Clone, Debug)]
pub(super) struct DescriptorLevel {
    pub(super) key: String,
    value: EntryValue,
    /// The values that other nodes of the level take: they are more specific, or are asked first.
    taken: Vec<EntryValue>,
    /// All values that match the wildcard have one count.
    shares: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum EntryValue {
    Any,
    Exact(String),
    Wildcard(String),
}

/// A node of a level, with its value.
pub(super) struct LevelNode<'c> {
    descriptor: &'c DescriptorConfig,
    value: EntryValue,
}

impl<'c> LevelNode<'c> {
    pub(super) fn new(descriptor: &'c DescriptorConfig) -> Self {
        Self { descriptor, value: EntryValue::of(descriptor) }
    }
}

/// Why a level cannot be expressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LevelProblem {
    /// A star in the key.
    WildcardKey(String),
    /// The same identity twice.
    Repeated(String),
    /// A custom identity cannot have this name.
    ReservedName(String),
    /// The value matches no request.
    Value { key: String, value: String, why: &'static str },
}

impl fmt::Display for LevelProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WildcardKey(key) => write!(f, "a wildcard in a key has no equivalent: `{key}`"),
            Self::Repeated(key) => {
                write!(f, "a descriptor with two entries for the same identity has no equivalent: `{key}`")
            }
            Self::ReservedName(key) => write!(f, "no custom identity can have the name `{key}`"),
            Self::Value { key, value, why } => write!(f, "`{value}` as `{key}` has no equivalent: {why}"),
        }
    }
}

impl EntryValue {
    fn of(descriptor: &DescriptorConfig) -> Self {
        match descriptor.value() {
            None => Self::Any,
            Some(value) if value.contains('*') => Self::Wildcard(value.to_owned()),
            Some(value) => Self::Exact(value.to_owned()),
        }
    }

    /// Whether a value may match both.
    fn may_overlap(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Exact(one), Self::Exact(other)) => one == other,
            // A star alone is a wildcard there.
            (Self::Wildcard(pattern), Self::Exact(value)) | (Self::Exact(value), Self::Wildcard(pattern)) => {
                Glob::new(&pattern.replace('?', "*")).matches(value)
            }
            (Self::Wildcard(one), Self::Wildcard(other)) => may_both_match(one, other),
        }
    }
}

impl DescriptorLevel {
    /// The level of the node `index` of `nodes`, which are in the order of the file.
    pub(super) fn new(nodes: &[LevelNode<'_>], index: usize) -> Self {
        let LevelNode { descriptor, value } = &nodes[index];
        let others = nodes.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.filter(|(_, other)| other.descriptor.key() == descriptor.key());
        let taken = others.filter_map(|(place, LevelNode { value: other, .. })| {
            let takes = match (value, other) {
                (EntryValue::Exact(_), _) | (_, EntryValue::Any) => false,
                (_, EntryValue::Exact(_)) | (EntryValue::Any, EntryValue::Wildcard(_)) => true,
                (EntryValue::Wildcard(_), EntryValue::Wildcard(_)) => place < index,
            };
            (takes && value.may_overlap(other)).then(|| other.clone())
        });
        let taken = taken.collect();
        let shares = descriptor.share_threshold && matches!(value, EntryValue::Wildcard(_));
        Self { key: descriptor.key().to_owned(), value: value.clone(), taken, shares }
    }

    /// Whether its values are credentials, which neither ids nor comments show.
    fn is_credential(&self) -> bool {
        matches!(EntryMeaning::of(&self.key), EntryMeaning::Named(kind) if kind.is_credential())
    }

    /// The part of a rule's id.
    pub(super) fn id_part(&self) -> String {
        match &self.value {
            _ if self.is_credential() => self.key.clone(),
            EntryValue::Any => self.key.clone(),
            EntryValue::Exact(value) | EntryValue::Wildcard(value) => {
                format!("{}.{}", self.key, value.trim_start_matches('/'))
            }
        }
    }

    /// Adds this level to the conditions and the key of a rule.
    pub(super) fn add_to(&self, rule: &mut RuleDraft) -> Result<(), LevelProblem> {
        if self.key.contains('*') {
            return Err(LevelProblem::WildcardKey(self.key.clone()));
        }
        let meaning = EntryMeaning::of(&self.key);
        let name = match meaning {
            EntryMeaning::Named(kind) => kind.name(),
            EntryMeaning::Address => "ip",
            EntryMeaning::Endpoint => "endpoint",
            EntryMeaning::Method => "method",
            EntryMeaning::Custom => &self.key,
        };
        if meaning == EntryMeaning::Custom && !matches!(Dimension::from_name(name), Dimension::Custom(_)) {
            return Err(LevelProblem::ReservedName(self.key.clone()));
        }
        if rule.exactly.iter().any(|known| known == name) {
            return Err(LevelProblem::Repeated(self.key.clone()));
        }
        rule.exactly.push(name.to_owned());
        if !self.shares {
            rule.key.push(name.to_owned());
        }
        self.add_value(&self.value, meaning, &mut rule.matches)?;
        for value in &self.taken {
            // A value that no request has takes nothing.
            let _ = self.add_value(value, meaning, &mut rule.except);
        }
        Ok(())
    }

    fn add_value(
        &self,
        value: &EntryValue,
        meaning: EntryMeaning,
        conditions: &mut ConditionDraft,
    ) -> Result<(), LevelProblem> {
        let (EntryValue::Exact(text) | EntryValue::Wildcard(text)) = value else { return Ok(()) };
        let problem = |why| LevelProblem::Value { key: self.key.clone(), value: text.clone(), why };
        match meaning {
            EntryMeaning::Named(kind) => conditions.add_named(kind, text),
            EntryMeaning::Custom => conditions.add_id(&self.key, text),
            EntryMeaning::Address => {
                conditions.ip.push(match value {
                    EntryValue::Wildcard(pattern) => network_of(pattern)
                        .ok_or_else(|| problem("wildcards over addresses are written as `10.1.*`"))?,
                    _ => match text.parse::<IpAddr>() {
                        Ok(ip) => ip.to_canonical().to_string(),
                        Err(_) if network(text).is_some() => {
                            return Err(problem("values are compared as texts, and no address is this text"));
                        }
                        Err(_) => return Err(problem("it is not an address")),
                    },
                });
            }
            EntryMeaning::Endpoint => {
                if text.contains(['?', '#']) {
                    return Err(problem("paths are matched without their query"));
                }
                conditions.endpoint_regex.push(match value {
                    EntryValue::Wildcard(pattern) => {
                        let parts: Vec<String> = pattern.split('*').map(regex::escape).collect();
                        // The rest of a path is not matched where anything matches: large configurations are mostly this.
                        match parts.join(".*").strip_suffix(".*") {
                            Some("") => ".*".to_owned(),
                            Some(start) => format!("^{start}"),
                            None => format!("^{}$", parts.join(".*")),
                        }
                    }
                    _ => {
                        let canonical =
                            path::endpoint(text).map_err(|_| problem("no request has this path"))?;
                        let read = if canonical.starts_with('/') {
                            PathReadings::of(&canonical).whole.into_owned()
                        } else {
                            canonical.into_owned()
                        };
                        format!("^{}$", regex::escape(&read))
                    }
                });
            }
            EntryMeaning::Method => {
                let glob = Glob::new(text);
                let known = Method::NAMED.iter().map(|(name, _)| *name).filter(|name| glob.matches(name));
                let known: Vec<String> = known.map(str::to_owned).collect();
                if known.is_empty() {
                    return Err(problem("rules know no such method"));
                }
                conditions.methods.extend(known);
            }
        }
        Ok(())
    }
}

/// Whether a text may match both patterns: what they have before the first star and after the last one must agree.
fn may_both_match(one: &str, other: &str) -> bool {
    // Here a `?` matches any character.
    let is_same = |(one, other): (char, char)| one == other || one == '?' || other == '?';
    let starts = |pattern: &'_ str| pattern.find('*').unwrap_or(pattern.len());
    let ends = |pattern: &'_ str| pattern.rfind('*').map_or(0, |star| star + 1);
    let (start, other_start) = (&one[..starts(one)], &other[..starts(other)]);
    let (end, other_end) = (&one[ends(one)..], &other[ends(other)..]);
    start.chars().zip(other_start.chars()).all(is_same)
        && end.chars().rev().zip(other_end.chars().rev()).all(is_same)
}

/// `10.*` as a network.
fn network_of(pattern: &str) -> Option<String> {
    let parts: Vec<&str> = pattern.strip_suffix(".*")?.split('.').collect();
    let octets: Vec<u8> = parts.iter().map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let mut address = octets.clone();
    address.resize(4, 0);
    let texts: Vec<String> = address.iter().map(u8::to_string).collect();
    (octets.len() < 4).then(|| format!("{}/{}", texts.join("."), octets.len() * 8))
}

impl fmt::Display for DescriptorLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            EntryValue::Any => f.write_str(&self.key),
            _ if self.is_credential() => write!(f, "{}=…", self.key),
            EntryValue::Exact(value) | EntryValue::Wildcard(value) => write!(f, "{}={value}", self.key),
        }
    }
}
