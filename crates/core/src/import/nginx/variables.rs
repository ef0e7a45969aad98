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

const TOO_MANY_CASES: &str = "a key with so many cases has no equivalent";
const NOT_IMPORTED: &str = "the limit is not imported";
const SAME_VALUE: &str = "two maps over the same value have no equivalent";

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
pub(super) struct ConfigPlace {
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
    /// Whether the API key is used, which is in one header there.
    pub(super) needs_api_key: bool,
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
        let place = ConfigPlace { file, position: key.position };
        let mut cases = match self.evaluate(&key.text, place, 0) {
            Ok(cases) => cases,
            Err(message) => {
                self.problem(place, message, NOT_IMPORTED);
                return None;
            }
        };
        cases = cases.into_iter().flat_map(KeyCase::by_presence).collect();
        if cases.len() > MOST_CASES {
            self.problem(place, TOO_MANY_CASES.to_owned(), NOT_IMPORTED);
            return None;
        }
        // Values that differ in constant texts alone.
        let mut known = Vec::new();
        cases.retain(|case| {
            let rule = (case.matches.clone(), case.except.clone(), case.key());
            let is_new = !known.contains(&rule);
            known.push(rule);
            is_new
        });
        for case in &cases {
            for source in self.sources.iter().filter(|source| case.uses(source)) {
                self.ids.extend(source.custom_id());
                self.needs_user |= *source == KeySource::Named(NamedIdentity::User);
                self.needs_api_key |= *source == KeySource::Named(NamedIdentity::ApiKey);
            }
        }
        Some(cases)
    }

    fn evaluate(
        &mut self,
        expression: &str,
        place: ConfigPlace,
        depth: usize,
    ) -> Result<Vec<KeyCase>, String> {
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
                    combined.push(joined.ok_or(SAME_VALUE)?);
                }
            }
            if combined.len() > MOST_CASES {
                return Err(TOO_MANY_CASES.to_owned());
            }
            cases = combined;
        }
        Ok(cases)
    }

    fn variable(&mut self, name: &str, place: ConfigPlace, depth: usize) -> Result<Vec<KeyCase>, String> {
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
        if map.name.text == "geo" {
            return self.geo(map, depth);
        }
        let [source, _] = map.arguments.as_slice() else {
            return Err("`map` needs a source and a variable".to_owned());
        };
        let mut cases = Vec::new();
        for case in self.evaluate(&source.text, place_in(map, &source.text), depth + 1)? {
            for (condition, value) in self.map_cases(map, &case)? {
                for value in self.evaluate(value, place_in(map, value), depth + 1)? {
                    let joined = condition.and(&value);
                    cases.push(joined.ok_or(SAME_VALUE)?);
                }
            }
        }
        Ok(cases)
    }

    /// The cases of a `geo`, whose values are texts even if they begin with a dollar sign.
    fn geo(&mut self, geo: &'c NginxDirective, depth: usize) -> Result<Vec<KeyCase>, String> {
        let known = self.problems.len();
        let source = match geo.arguments.as_slice() {
            [_] => "$remote_addr",
            [source, _] => source.text.as_str(),
            _ => return Err("`geo` needs a variable".to_owned()),
        };
        let sources = self.evaluate(source, place_in(geo, source), depth + 1).unwrap_or_default();
        let is_address = |case: &KeyCase| case.pieces == [KeyPiece::Source(KeySource::Address)];
        if sources.is_empty() || !sources.iter().all(is_address) {
            self.problems.truncate(known);
            let message = "a geo over anything but the address of the client has no equivalent".to_owned();
            let hint = "the limits of all of its values apply; addresses behind proxies are `identity: { client_ip: … }` \
                        in the settings";
            self.problem(place_in(geo, source), message, hint);
            return Ok(self.values(geo).into_iter().map(KeyCase::constant).collect());
        }
        let mut cases = Vec::new();
        for case in &sources {
            for (condition, value) in self.geo_cases(geo, case)? {
                cases.push(condition.and(&KeyCase::constant(value)).ok_or(SAME_VALUE)?);
            }
        }
        Ok(cases)
    }

    /// The fields of the setting `identity` that the keys need.
    pub(super) fn settings(&self) -> Vec<String> {
        let mut fields = Vec::new();
        if self.needs_api_key {
            // By default bearer tokens are API keys as well.
            fields.push("api_key: { header: X-Api-Key }".to_owned());
        }
        if !self.ids.is_empty() {
            let ids: Vec<String> = self.ids.iter().map(|(id, source)| format!("{id}: {source}")).collect();
            fields.push(format!("ids: {{ {} }}", ids.join(", ")));
        }
        fields
    }

    /// Adds something that has no equivalent.
    pub(super) fn problem(&mut self, place: ConfigPlace, message: String, hint: &str) {
        let ConfigPlace { file, position } = place;
        self.problems.push(KeyProblem { file, position, message, hint: hint.to_owned() });
    }
}

/// Where a map has `expression`: its source, or the value of an entry.
fn place_in(map: &NginxDirective, expression: &str) -> ConfigPlace {
    let entries = map.block.iter().flatten().filter_map(|entry| entry.arguments.last());
    let mut words = map.arguments.iter().chain(entries);
    let word = words.find(|word| word.text == expression).unwrap_or(&map.name);
    ConfigPlace { file: map.file, position: word.position }
}

impl KeyCase {
    fn of(piece: KeyPiece) -> Self {
        Self { pieces: vec![piece], ..Self::default() }
    }

    /// Any request, with this text.
    fn constant(text: &str) -> Self {
        match text {
            "" => Self::default(),
            text => Self::of(KeyPiece::Text(text.to_owned())),
        }
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

    /// The cases of requests with and without the identities that the key has and requests may lack: without one, nginx
    /// counts by the others, and a rule by another identity.
    fn by_presence(self) -> Vec<Self> {
        let mut cases = vec![self];
        let pieces = cases[0].pieces.clone();
        for piece in &pieces {
            let KeyPiece::Source(source) = piece else { continue };
            if !source.is_always_present() {
                cases = cases.into_iter().flat_map(|case| case.split(source)).collect();
            }
        }
        cases.retain(|case| !case.pieces.is_empty());
        cases
    }

    fn split(self, source: &KeySource) -> Vec<Self> {
        let is_present = source.is_in(&self.matches);
        let mut absent = self.clone();
        absent.pieces.retain(|piece| !matches!(piece, KeyPiece::Source(known) if known == source));
        if source.is_absent_by(&self.except) {
            return vec![absent];
        }
        if is_present || absent.pieces.len() == self.pieces.len() {
            return vec![self];
        }
        let mut present = self;
        source.require_presence(&mut present.matches);
        source.require_absence(&mut absent.except);
        vec![present, absent]
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
