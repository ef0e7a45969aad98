//! The paths of a location, and which of two locations is selected.
//!
//! nginx first takes the exact location of a path, else the longest prefix, and descends into it. If no exact location and
//! no regular expression inside of it matches, the regular expressions beside it are tried in their order, unless the
//! prefix has `^~`. A location inside of another one is for paths that match both.

use super::nested_regex::{RegexWithin, within_prefix};
use super::syntax::{NginxDirective, shown};
use regex::Regex;
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Hir, HirKind, Look};

/// What a `location` states.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LocationStep {
    /// `= /path`.
    Exact(String),
    /// `/path`.
    Prefix { prefix: String, over_regexes: bool },
    /// `~` and `~*`, with the place among all of them.
    Regex { text: String, order: usize },
}

/// The paths of an area: of a location inside of others, or of the server itself.
#[derive(Clone, Debug)]
pub(super) struct LocationPattern {
    /// From the outermost location; none for the server itself.
    steps: Vec<LocationStep>,
    exact: Option<String>,
    /// The longest prefix.
    prefix: String,
    /// All must match. Not compiled if it is not supported.
    regexes: Vec<(String, Option<Regex>)>,
    /// Every path of the area begins with one of them.
    starts: Vec<Vec<u8>>,
}

/// The paths of an area as a regular expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndpointRegex {
    Exactly(String),
    /// It also matches paths outside of the outer location.
    Wider(String),
    /// No path is in the area.
    Nothing,
    /// The regular expression of the location is not supported.
    Unsupported,
}

impl LocationPattern {
    /// The pattern of a server.
    pub(super) fn server() -> Self {
        let (steps, regexes) = (Vec::new(), Vec::new());
        Self { steps, exact: None, prefix: String::new(), regexes, starts: vec![Vec::new()] }
    }

    /// The pattern of a `location`; `None` for named ones, which no path selects.
    pub(super) fn parse(directive: &NginxDirective, outer: &Self, order: usize) -> Option<Self> {
        let (modifier, text) = match directive.arguments.as_slice() {
            [one] => match ["=", "^~", "~*", "~"].into_iter().find(|m| one.text.starts_with(m)) {
                Some(modifier) => (modifier, &one.text[modifier.len()..]),
                None => ("", one.text.as_str()),
            },
            [modifier, text] => (modifier.text.as_str(), text.text.as_str()),
            _ => return None,
        };
        if text.starts_with('@') {
            return None;
        }
        let mut pattern = outer.clone();
        pattern.steps.push(match modifier {
            "=" => {
                pattern.exact = Some(text.to_owned());
                LocationStep::Exact(text.to_owned())
            }
            "~" | "~*" => {
                let text = format!("{}{text}", if modifier == "~*" { "(?i)" } else { "" });
                pattern.regexes.push((text.clone(), Regex::new(&text).ok()));
                LocationStep::Regex { text, order }
            }
            _ => {
                text.clone_into(&mut pattern.prefix);
                LocationStep::Prefix { prefix: text.to_owned(), over_regexes: modifier == "^~" }
            }
        });
        pattern.starts = match pattern.endpoint_regex(&[]) {
            EndpointRegex::Exactly(regex) | EndpointRegex::Wider(regex) => starts_of(&regex),
            EndpointRegex::Nothing => Vec::new(),
            EndpointRegex::Unsupported => vec![pattern.prefix.clone().into_bytes()],
        };
        Some(pattern)
    }

    /// Whether every path matches.
    pub(super) fn is_everything(&self) -> bool {
        self.exact.is_none() && self.regexes.is_empty() && matches!(self.prefix.as_str(), "" | "/")
    }

    /// Whether only prefixes select it.
    pub(super) fn is_prefix(&self) -> bool {
        self.exact.is_none() && self.regexes.is_empty()
    }

    /// Whether it is an exact location or a prefix inside of a regular expression.
    pub(super) fn is_static_within_regex(&self) -> bool {
        !self.regexes.is_empty() && !matches!(self.steps.last(), Some(LocationStep::Regex { .. }))
    }

    /// The longest prefix of the paths.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether a path is in it, if no location precedes it there. Regular expressions that are not supported match.
    pub(super) fn matches(&self, path: &str) -> bool {
        let is_match = |regex: &Option<Regex>| regex.as_ref().is_none_or(|regex| regex.is_match(path));
        self.exact.as_ref().is_none_or(|exact| exact == path)
            && path.starts_with(&self.prefix)
            && self.regexes.iter().all(|(_, regex)| is_match(regex))
    }

    /// The regular expression over paths, among those that match the patterns of all `within`.
    pub(super) fn endpoint_regex(&self, within: &[&Self]) -> EndpointRegex {
        if let Some(path) = &self.exact {
            let is_reachable = self.matches(path);
            let regex = format!("^{}$", regex::escape(path));
            return if is_reachable { EndpointRegex::Exactly(regex) } else { EndpointRegex::Nothing };
        }
        let has = |pattern: &Self, text: &String| pattern.regexes.iter().any(|(known, _)| known == text);
        let is_given = |text: &String| !within.is_empty() && within.iter().all(|pattern| has(pattern, text));
        let own = self.regexes.iter().filter(|(text, _)| !is_given(text));
        let own: Vec<(&String, bool)> = own.map(|(text, regex)| (text, regex.is_some())).collect();
        let Some(((last, is_supported), outer)) = own.split_last() else {
            return EndpointRegex::Exactly(format!("^{}", regex::escape(&self.prefix)));
        };
        if !is_supported {
            return EndpointRegex::Unsupported;
        }
        let is_wider = outer.iter().any(|(text, is_supported)| {
            let start = format!("^{}", regex::escape(&self.prefix));
            let is_implied =
                implies(last, text) || within_prefix(&self.prefix, text) == RegexWithin::Regex(start);
            !is_supported || !is_implied
        });
        // Every path begins with a slash.
        let within = match self.prefix.len() {
            0 | 1 => RegexWithin::Regex((*last).clone()),
            _ => within_prefix(&self.prefix, last),
        };
        match within {
            RegexWithin::Regex(regex) if is_wider => EndpointRegex::Wider(regex),
            RegexWithin::Regex(regex) => EndpointRegex::Exactly(regex),
            RegexWithin::Nothing => EndpointRegex::Nothing,
            RegexWithin::Unsupported if anchored_within(last, &self.prefix) && !is_wider => {
                EndpointRegex::Exactly((*last).clone())
            }
            RegexWithin::Unsupported => EndpointRegex::Wider((*last).clone()),
        }
    }

    /// Whether a path may match both.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        match (&self.exact, &other.exact) {
            (Some(path), _) => self.matches(path) && other.matches(path),
            (_, Some(path)) => self.matches(path) && other.matches(path),
            (None, None) => self
                .starts
                .iter()
                .any(|one| other.starts.iter().any(|other| one.starts_with(other) || other.starts_with(one))),
        }
    }

    /// Whether it is selected where both match.
    pub(super) fn precedes(&self, other: &Self) -> bool {
        let same = self.steps.iter().zip(&other.steps).take_while(|(one, other)| one == other).count();
        match (self.steps.get(same), other.steps.get(same)) {
            (None, _) => false,
            (Some(_), None) => true,
            (_, Some(LocationStep::Exact(_))) => false,
            (Some(LocationStep::Exact(_)), _) => true,
            (
                Some(LocationStep::Prefix { prefix: one, .. }),
                Some(LocationStep::Prefix { prefix: other, .. }),
            ) => one.len() > other.len(),
            (
                Some(LocationStep::Regex { order: one, .. }),
                Some(LocationStep::Regex { order: other, .. }),
            ) => one < other,
            (Some(LocationStep::Prefix { .. }), Some(LocationStep::Regex { .. })) => {
                self.is_over_regexes(same)
            }
            (Some(LocationStep::Regex { .. }), Some(LocationStep::Prefix { .. })) => {
                !other.is_over_regexes(same)
            }
        }
    }

    /// Whether the regular expressions beside the prefix `step` are not tried.
    fn is_over_regexes(&self, step: usize) -> bool {
        let is_final = |step: &LocationStep| !matches!(step, LocationStep::Prefix { .. });
        matches!(self.steps[step], LocationStep::Prefix { over_regexes: true, .. })
            || self.steps[step..].iter().any(is_final)
    }

    /// As in a configuration.
    pub(super) fn shown(&self) -> String {
        match self.steps.last() {
            None => "the server".to_owned(),
            Some(LocationStep::Exact(path)) => format!("location = {}", shown(path)),
            Some(LocationStep::Prefix { prefix, over_regexes: true }) => {
                format!("location ^~ {}", shown(prefix))
            }
            Some(LocationStep::Prefix { prefix, .. }) => format!("location {}", shown(prefix)),
            Some(LocationStep::Regex { text, .. }) => format!("location ~ {}", shown(text)),
        }
    }
}

/// Texts of which every path that matches begins with one.
fn starts_of(regex: &str) -> Vec<Vec<u8>> {
    let anything = || vec![Vec::new()];
    let Ok(hir) = regex_syntax::parse(regex) else { return anything() };
    if !hir.properties().look_set_prefix().contains(Look::Start) {
        return anything();
    }
    let found = Extractor::new().extract(&hir);
    let texts = |literals: &[regex_syntax::hir::literal::Literal]| -> Vec<Vec<u8>> {
        literals.iter().map(|literal| literal.as_bytes().to_vec()).collect()
    };
    found.literals().map_or_else(anything, texts)
}

/// Whether every path that matches begins with `prefix`.
fn anchored_within(regex: &str, prefix: &str) -> bool {
    starts_of(regex).iter().all(|start| start.starts_with(prefix.as_bytes()))
}

/// Whether every path that matches `regex` is known to match `other`, which must be a literal text.
fn implies(regex: &str, other: &str) -> bool {
    let (Ok(hir), Ok(other)) = (regex_syntax::parse(regex), regex_syntax::parse(other)) else { return false };
    let HirKind::Literal(text) = other.kind() else { return false };
    requires(&hir, &text.0)
}

/// Whether every match contains `text`.
fn requires(hir: &Hir, text: &[u8]) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.windows(text.len()).any(|part| part == text),
        HirKind::Concat(parts) => parts.iter().any(|part| requires(part, text)),
        HirKind::Alternation(parts) => parts.iter().all(|part| requires(part, text)),
        HirKind::Capture(capture) => requires(&capture.sub, text),
        HirKind::Repetition(repetition) => repetition.min > 0 && requires(&repetition.sub, text),
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}
