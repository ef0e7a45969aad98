//! Where limits apply: servers and locations, and what they inherit.
//!
//! As in nginx, a block that has a `limit_req` of its own inherits none, and likewise for `limit_conn` and for each of the
//! other directives. A server is divided into areas: one for each location, and one for paths without a location. A request
//! is in one area.

use super::syntax::{NginxDirective, shown};
use crate::diagnostic::TextPosition;
use regex::Regex;

/// A use of a zone, with the directive that states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ZoneUse {
    pub(super) file: usize,
    pub(super) position: TextPosition,
    pub(super) text: String,
    pub(super) zone: String,
    pub(super) terms: UseTerms,
}

/// The numbers of a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum UseTerms {
    /// `limit_req`: requests beyond the rate, and how many of them are not delayed.
    Requests { burst: u64, undelayed: u64 },
    /// `limit_conn`.
    Connections(u64),
}

/// Whether limits are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Enforcement {
    #[default]
    Enforced,
    DryRun,
}

/// The directives of a block that are inherited.
#[derive(Clone, Debug, Default)]
pub(super) struct InheritedLimits {
    pub(super) requests: Option<Vec<ZoneUse>>,
    pub(super) connections: Option<Vec<ZoneUse>>,
    pub(super) request_dry_run: Option<Enforcement>,
    pub(super) connection_dry_run: Option<Enforcement>,
}

impl InheritedLimits {
    /// With those of the outer block where this one has none.
    pub(super) fn within(self, outer: &Self) -> Self {
        Self {
            requests: self.requests.or_else(|| outer.requests.clone()),
            connections: self.connections.or_else(|| outer.connections.clone()),
            request_dry_run: self.request_dry_run.or(outer.request_dry_run),
            connection_dry_run: self.connection_dry_run.or(outer.connection_dry_run),
        }
    }

    /// The limits that apply, and whether they are enforced.
    pub(super) fn applied(&self) -> impl Iterator<Item = (&ZoneUse, Enforcement)> {
        let requests = self.requests.iter().flatten();
        let requests = requests.map(|used| (used, self.request_dry_run.unwrap_or_default()));
        let connections = self.connections.iter().flatten();
        requests.chain(connections.map(|used| (used, self.connection_dry_run.unwrap_or_default())))
    }
}

/// A server.
#[derive(Clone, Debug)]
pub(super) struct ServerBlock {
    /// Its names as patterns of domains.
    pub(super) names: Vec<String>,
    /// It also gets requests for hosts that no server names.
    pub(super) is_default: bool,
    pub(super) areas: Vec<ServerArea>,
}

/// A part of a server.
#[derive(Clone, Debug)]
pub(super) struct ServerArea {
    pub(super) pattern: LocationPattern,
    pub(super) limits: InheritedLimits,
    pub(super) file: usize,
    pub(super) position: TextPosition,
}

/// The paths of an area.
#[derive(Clone, Debug)]
pub(super) enum LocationPattern {
    /// `= /path`.
    Exact(String),
    /// `/path`; the empty prefix is that of the server itself.
    Prefix { prefix: String, over_regexes: bool },
    /// `~` and `~*`, with the place among all of them; none if it is not supported.
    Regex { text: String, regex: Option<Regex>, order: usize },
}

impl LocationPattern {
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
        Some(match modifier {
            "=" => Self::Exact(text.to_owned()),
            "~" | "~*" => {
                let flag = if modifier == "~*" { "(?i)" } else { "" };
                let text = match outer {
                    // Only paths of the outer location are matched.
                    Self::Prefix { prefix, .. } if prefix.len() > 1 && !text.starts_with('^') => {
                        format!("^{}.*(?:{flag}{text})", regex::escape(prefix))
                    }
                    _ => format!("{flag}{text}"),
                };
                Self::Regex { regex: Regex::new(&text).ok(), text, order }
            }
            _ => Self::Prefix { prefix: text.to_owned(), over_regexes: modifier == "^~" },
        })
    }

    /// Whether every path matches.
    pub(super) fn is_everything(&self) -> bool {
        matches!(self, Self::Prefix { prefix, .. } if prefix.is_empty() || prefix == "/")
    }

    /// The regular expression over paths; `None` if it is not supported.
    pub(super) fn endpoint_regex(&self) -> Option<String> {
        match self {
            Self::Exact(path) => Some(format!("^{}$", regex::escape(path))),
            Self::Prefix { prefix, .. } => Some(format!("^{}", regex::escape(prefix))),
            Self::Regex { text, regex, .. } => regex.as_ref().map(|_| text.clone()),
        }
    }

    /// Whether a path may match both.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Exact(path), Self::Prefix { prefix, .. })
            | (Self::Prefix { prefix, .. }, Self::Exact(path)) => path.starts_with(prefix),
            (Self::Prefix { prefix: one, .. }, Self::Prefix { prefix: other, .. }) => {
                one.starts_with(other) || other.starts_with(one)
            }
            (Self::Exact(path), Self::Regex { regex, .. })
            | (Self::Regex { regex, .. }, Self::Exact(path)) => {
                regex.as_ref().is_none_or(|regex| regex.is_match(path))
            }
            (Self::Prefix { prefix, .. }, Self::Regex { text, .. })
            | (Self::Regex { text, .. }, Self::Prefix { prefix, .. }) => {
                let literal = literal_start(text);
                literal.starts_with(prefix) || prefix.starts_with(&literal)
            }
            (Self::Regex { text: one, .. }, Self::Regex { text: other, .. }) => {
                let (one, other) = (literal_start(one), literal_start(other));
                one.starts_with(&other) || other.starts_with(&one)
            }
        }
    }

    /// Whether it is selected where both match.
    pub(super) fn precedes(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(_)) => false,
            (Self::Exact(_), _) => true,
            (Self::Prefix { prefix: one, .. }, Self::Prefix { prefix: other, .. }) => one.len() > other.len(),
            (Self::Regex { order: one, .. }, Self::Regex { order: other, .. }) => one < other,
            (Self::Prefix { over_regexes, .. }, Self::Regex { .. }) => *over_regexes,
            (Self::Regex { .. }, Self::Prefix { over_regexes, .. }) => !over_regexes,
        }
    }

    /// As in a configuration.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Exact(path) => format!("location = {}", shown(path)),
            Self::Prefix { prefix, .. } if prefix.is_empty() => "the server".to_owned(),
            Self::Prefix { prefix, over_regexes: true } => format!("location ^~ {}", shown(prefix)),
            Self::Prefix { prefix, .. } => format!("location {}", shown(prefix)),
            Self::Regex { text, .. } => format!("location ~ {}", shown(text)),
        }
    }
}

/// The literal text that every match of an anchored regular expression begins with.
fn literal_start(regex: &str) -> String {
    let Some(rest) = regex.strip_prefix('^') else { return String::new() };
    let mut literal = String::new();
    let mut chars = rest.chars().peekable();
    while let Some(c) = chars.next() {
        let c = match c {
            '\\' => match chars.next() {
                Some(c) if !c.is_ascii_alphanumeric() => c,
                _ => break,
            },
            c if c.is_ascii_alphanumeric() || "-_/@~:,=%".contains(c) => c,
            _ => break,
        };
        // A character that may be absent is not part of it, and alternatives make all of it uncertain.
        if chars.peek().is_some_and(|next| matches!(next, '?' | '*' | '{')) {
            break;
        }
        literal.push(c);
    }
    if rest.contains('|') { String::new() } else { literal }
}
