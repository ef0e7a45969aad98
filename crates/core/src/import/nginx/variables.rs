//! The keys of zones: variables of nginx as identities, and maps as conditions.
//!
//! A key such as `$binary_remote_addr` is an identity of the request. A variable of a `map` or `geo` has one of several
//! values, each under a condition: a key is therefore a list of cases, and each case becomes a rule. A request whose key is
//! empty is not limited.

use super::conditions::KeySource;
use super::differences;
use super::syntax::{ConfigWord, NginxDirective, shown};
use crate::diagnostic::TextPosition;
use crate::import::draft::ConditionDraft;
use crate::request::NamedIdentity;
use std::collections::{BTreeMap, HashMap};

/// More cases than this are not worth rules.
const MOST_CASES: usize = 64;
/// The name of the server that a request is in.
const SERVER_NAME: &str = "server_name";
/// Maps that refer to maps.
const DEEPEST: usize = 8;

/// One value of a key, and when the key has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KeyCase {
    pub(super) matches: ConditionDraft,
    pub(super) except: ConditionDraft,
    pub(super) pieces: Vec<KeyPiece>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyPiece {
    Text(String),
    Source(KeySource),
}

/// Where an expression is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) file: usize,
    pub(super) position: TextPosition,
}

/// Something about a key that has no equivalent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyProblem {
    pub(super) file: usize,
    pub(super) position: TextPosition,
    pub(super) message: String,
    pub(super) hint: String,
}

/// The maps of a configuration, and what was found out about keys.
#[derive(Debug, Default)]
pub(super) struct KeyEvaluator<'c> {
    maps: HashMap<&'c str, &'c NginxDirective>,
    pub(super) problems: Vec<KeyProblem>,
    /// The properties that were found in keys and in maps.
    sources: Vec<KeySource>,
    /// The sources of the custom identities that are used, by identity.
    pub(super) ids: BTreeMap<String, String>,
    /// Whether the user is used, whose source is not known.
    pub(super) needs_user: bool,
}

impl<'c> KeyEvaluator<'c> {
    /// Registers a `map` or `geo`.
    pub(super) fn add_map(&mut self, directive: &'c NginxDirective) {
        if let Some(name) = directive.arguments.last().and_then(|word| word.text.strip_prefix('$')) {
            self.maps.insert(name, directive);
        }
    }

    /// The cases of a key in which it is not empty. `None` if it has no equivalent.
    pub(super) fn cases(&mut self, file: usize, key: &ConfigWord) -> Option<Vec<KeyCase>> {
        let place = Place { file, position: key.position };
        let mut cases = match self.evaluate(&key.text, place, 0) {
            Ok(cases) => cases,
            Err(message) => {
                self.problem(place, message, "the limit is not imported");
                return None;
            }
        };
        cases.retain(|case| !case.pieces.is_empty());
        for case in &mut cases {
            case.require_presence();
            for source in self.sources.iter().filter(|source| case.uses(source)) {
                self.ids.extend(source.custom_id());
                self.needs_user |= *source == KeySource::Named(NamedIdentity::User);
            }
        }
        Some(cases)
    }

    fn evaluate(&mut self, expression: &str, place: Place, depth: usize) -> Result<Vec<KeyCase>, String> {
        let mut cases = vec![KeyCase::default()];
        for part in parts(expression) {
            let found = match part {
                ExpressionPart::Text("") => continue,
                ExpressionPart::Text(text) => vec![KeyCase::of(KeyPiece::Text(text.to_owned()))],
                ExpressionPart::Variable(name) => self.variable(name, place, depth)?,
            };
            let mut combined = Vec::new();
            for case in &cases {
                for other in &found {
                    let joined = case.and(other);
                    combined.push(joined.ok_or("two maps over the same value have no equivalent")?);
                }
            }
            if combined.len() > MOST_CASES {
                return Err("a key with so many cases has no equivalent".to_owned());
            }
            cases = combined;
        }
        Ok(cases)
    }

    fn variable(&mut self, name: &str, place: Place, depth: usize) -> Result<Vec<KeyCase>, String> {
        // A zone by server has a rule for each server, in which this is a constant.
        if name == SERVER_NAME {
            return Ok(vec![KeyCase::of(KeyPiece::Text(name.to_owned()))]);
        }
        if let Some(source) = KeySource::of_variable(name) {
            if let Some((message, hint)) = differences::of_variable(name) {
                self.problem(place, message, hint);
            }
            if !self.sources.contains(&source) {
                self.sources.push(source.clone());
            }
            return Ok(vec![KeyCase::of(KeyPiece::Source(source))]);
        }
        let Some(map) = self.maps.get(name).copied() else {
            return Err(format!("`${}` as a key has no equivalent", shown(name)));
        };
        if depth >= DEEPEST {
            return Err("maps that refer to each other have no equivalent".to_owned());
        }
        let is_geo = map.name.text == "geo";
        let source = match (is_geo, map.arguments.as_slice()) {
            (true, [_]) => "$remote_addr",
            (_, [source, _]) => source.text.as_str(),
            _ => return Err(format!("`{}` needs a source and a variable", map.name.text)),
        };
        let mut cases = Vec::new();
        for case in self.evaluate(source, place_in(map, source), depth + 1)? {
            for (condition, value) in self.map_cases(map, &case, is_geo)? {
                for value in self.evaluate(value, place_in(map, value), depth + 1)? {
                    let joined = condition.and(&value);
                    cases.push(joined.ok_or("two maps over the same value have no equivalent")?);
                }
            }
        }
        Ok(cases)
    }

    /// Adds something that has no equivalent.
    pub(super) fn problem(&mut self, place: Place, message: String, hint: &str) {
        let Place { file, position } = place;
        self.problems.push(KeyProblem { file, position, message, hint: hint.to_owned() });
    }
}

/// Where a map has `expression`: its source, or the value of an entry.
fn place_in(map: &NginxDirective, expression: &str) -> Place {
    let entries = map.block.iter().flatten().filter_map(|entry| entry.arguments.last());
    let mut words = map.arguments.iter().chain(entries);
    let word = words.find(|word| word.text == expression).unwrap_or(&map.name);
    Place { file: map.file, position: word.position }
}

impl KeyCase {
    fn of(piece: KeyPiece) -> Self {
        Self { pieces: vec![piece], ..Self::default() }
    }

    /// Both cases at once, with the values one after the other. `None` if their conditions are on the same property.
    fn and(&self, other: &Self) -> Option<Self> {
        let mut except = self.except.clone();
        except.extend(&other.except);
        let pieces = self.pieces.iter().chain(&other.pieces).cloned().collect();
        Some(Self { matches: combined(&self.matches, &other.matches)?, except, pieces })
    }

    /// The dimensions of the key.
    pub(super) fn key(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for piece in &self.pieces {
            if let KeyPiece::Source(source) = piece
                && !names.iter().any(|known| *known == source.dimension())
            {
                names.push(source.dimension());
            }
        }
        if names.is_empty() {
            names.push("all".to_owned());
        }
        names
    }

    /// Whether its key or its conditions are on this property.
    fn uses(&self, source: &KeySource) -> bool {
        let is_piece = |piece: &KeyPiece| matches!(piece, KeyPiece::Source(known) if known == source);
        self.pieces.iter().any(is_piece) || source.is_in(&self.matches) || source.is_in(&self.except)
    }

    /// If the key is empty without an identity, requests must have it.
    fn require_presence(&mut self) {
        let is_always_there = |piece: &KeyPiece| match piece {
            KeyPiece::Text(_) => true,
            KeyPiece::Source(source) => source.is_always_present(),
        };
        if self.pieces.iter().any(is_always_there) {
            return;
        }
        if let [KeyPiece::Source(source)] = self.pieces.clone().as_slice() {
            source.require_presence(&mut self.matches);
        }
    }

    /// Whether a request can be in it.
    pub(super) fn is_contradictory(&self) -> bool {
        let all =
            |globs: Option<&Vec<String>>| globs.is_some_and(|globs| globs.iter().any(|glob| glob == "*"));
        self.matches.named.keys().any(|name| all(self.except.named.get(name)))
            || self.matches.ids.keys().any(|name| all(self.except.ids.get(name)))
    }
}

/// Both conditions; `None` if both are on the same property.
pub(super) fn combined(one: &ConditionDraft, other: &ConditionDraft) -> Option<ConditionDraft> {
    let is_any = |globs: &Vec<String>| globs.as_slice() == ["*"];
    let mut joined = one.clone();
    for (name, globs) in &other.named {
        match joined.named.get(name) {
            Some(known) if !is_any(known) && !is_any(globs) && known != globs => return None,
            Some(known) if !is_any(known) => {}
            _ => drop(joined.named.insert(name, globs.clone())),
        }
    }
    for (name, globs) in &other.ids {
        match joined.ids.get(name) {
            Some(known) if !is_any(known) && !is_any(globs) && known != globs => return None,
            Some(known) if !is_any(known) => {}
            _ => drop(joined.ids.insert(name.clone(), globs.clone())),
        }
    }
    for (own, others) in [
        (&mut joined.ip, &other.ip),
        (&mut joined.endpoint_regex, &other.endpoint_regex),
        (&mut joined.methods, &other.methods),
        (&mut joined.domain, &other.domain),
    ] {
        if own.is_empty() {
            own.clone_from(others);
        } else if !others.is_empty() && own != others {
            return None;
        }
    }
    Some(joined)
}

/// Whether a key distinguishes servers.
pub(super) fn is_by_server(key: &str) -> bool {
    parts(key).iter().any(|part| matches!(part, ExpressionPart::Variable(SERVER_NAME)))
}

enum ExpressionPart<'e> {
    Text(&'e str),
    Variable(&'e str),
}

/// The texts and variables of a value such as `a$b${c}d`.
fn parts(expression: &str) -> Vec<ExpressionPart<'_>> {
    let mut parts = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find('$') {
        let (text, after) = (&rest[..at], &rest[at + 1..]);
        parts.push(ExpressionPart::Text(text));
        let (name, remaining) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(found) => found,
            None => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()))
            }
        };
        parts.push(ExpressionPart::Variable(name));
        rest = remaining;
    }
    parts.push(ExpressionPart::Text(rest));
    parts
}
