//! Properties of a request in nginx as properties in rules, and patterns of maps over them as conditions.

use super::variables::KeyCase;
use crate::import::draft::ConditionDraft;
use crate::request::{Method, NamedIdentity};
use crate::rules::pattern::{DomainPattern, network};
use regex::Regex;

/// A property that a variable of nginx stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    /// The client's address.
    Address,
    /// The host of the request.
    Domain,
    /// The path.
    Endpoint,
    /// The method.
    Method,
    /// An identity with its own field.
    Named(NamedIdentity),
    /// A custom identity with this name, from this source in the settings.
    Custom { name: String, setting: String },
}

/// A pattern of a map or geo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourcePattern {
    /// The empty text: the property is absent.
    Absence,
    Exact(String),
    /// A network of a geo.
    Network(ipnet::IpNet),
    /// A regular expression, as it is written in rules.
    Regex(String),
}

impl SourcePattern {
    pub(super) fn parse(text: &str, is_geo: bool) -> Self {
        if text.is_empty() {
            return Self::Absence;
        }
        if is_geo && let Some(network) = network(text) {
            return Self::Network(network);
        }
        match text.strip_prefix('~') {
            Some(regex) => match regex.strip_prefix('*') {
                Some(regex) => Self::Regex(format!("(?i){regex}")),
                None => Self::Regex(regex.to_owned()),
            },
            None => Self::Exact(text.strip_prefix('\\').unwrap_or(text).to_owned()),
        }
    }

    /// Whether a constant matches.
    pub(super) fn matches_text(&self, text: &str) -> bool {
        match self {
            Self::Absence => text.is_empty(),
            Self::Exact(exact) => exact.eq_ignore_ascii_case(text),
            Self::Network(_) => false,
            Self::Regex(regex) => Regex::new(regex).is_ok_and(|regex| regex.is_match(text)),
        }
    }

    pub(super) fn is_absence(&self) -> bool {
        *self == Self::Absence
    }

    pub(super) fn is_exact(&self) -> bool {
        matches!(self, Self::Exact(_) | Self::Absence)
    }

    /// Whether both can be alternatives of one condition.
    pub(super) fn is_mergeable(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Exact(_), Self::Exact(_)) | (Self::Network(_), Self::Network(_)))
    }

    /// Whether everything that matches `other` matches this too.
    pub(super) fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Network(wide), Self::Network(narrow)) => wide != narrow && wide.contains(narrow),
            (Self::Regex(_), Self::Exact(text)) => self.matches_text(text),
            (Self::Regex(_), Self::Regex(_)) => true,
            _ => false,
        }
    }

    /// Whether nothing matches both.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) => !one.eq_ignore_ascii_case(other),
            (Self::Network(one), Self::Network(other)) => !one.contains(other) && !other.contains(one),
            (Self::Absence, Self::Exact(_)) | (Self::Exact(_), Self::Absence) => true,
            _ => false,
        }
    }

    /// Whether it is taken before `other` where both match; `index` and `other_index` are their places in the map.
    pub(super) fn precedes(&self, index: usize, other: &Self, other_index: usize) -> bool {
        match (self, other) {
            (Self::Network(one), Self::Network(other)) => one.prefix_len() > other.prefix_len(),
            (Self::Exact(_) | Self::Absence, Self::Regex(_)) => true,
            (Self::Regex(_), Self::Regex(_)) => index < other_index,
            _ => false,
        }
    }
}

impl KeySource {
    /// The property of the variable `name`, if it is one that rules know.
    pub(super) fn of_variable(name: &str) -> Option<Self> {
        let custom = |kind: &str, name: &str| {
            let setting = format!("{{ {kind}: {name} }}");
            Self::Custom { name: name.to_ascii_lowercase().replace('-', "_"), setting }
        };
        Some(match name {
            "binary_remote_addr" | "remote_addr" => Self::Address,
            "host" | "http_host" => Self::Domain,
            "uri" | "document_uri" | "request_uri" => Self::Endpoint,
            "request_method" => Self::Method,
            "remote_user" => Self::Named(NamedIdentity::User),
            "http_x_api_key" => Self::Named(NamedIdentity::ApiKey),
            _ => {
                let (kind, name) = ["http_", "cookie_", "arg_"]
                    .into_iter()
                    .find_map(|prefix| Some((prefix, name.strip_prefix(prefix)?)))?;
                if name.is_empty() {
                    return None;
                }
                match kind {
                    "http_" => custom("header", &name.replace('_', "-")),
                    "cookie_" => custom("cookie", name),
                    _ => custom("query", name),
                }
            }
        })
    }

    /// The name in `key:`.
    pub(super) fn dimension(&self) -> String {
        match self {
            Self::Address => "ip".to_owned(),
            Self::Domain => "domain".to_owned(),
            Self::Endpoint => "endpoint".to_owned(),
            Self::Method => "method".to_owned(),
            Self::Named(kind) => kind.name().to_owned(),
            Self::Custom { name, .. } => custom_name(name),
        }
    }

    /// A custom identity and its source in the settings.
    pub(super) fn custom_id(&self) -> Option<(String, String)> {
        match self {
            Self::Custom { setting, .. } => Some((self.dimension(), setting.clone())),
            _ => None,
        }
    }

    /// Whether it is an identity that these conditions are on.
    pub(super) fn is_in(&self, conditions: &ConditionDraft) -> bool {
        match self {
            Self::Named(kind) => conditions.named.contains_key(kind.pattern_field()),
            Self::Custom { .. } => conditions.ids.contains_key(&self.dimension()),
            _ => false,
        }
    }

    pub(super) fn is_always_present(&self) -> bool {
        matches!(self, Self::Address | Self::Domain | Self::Endpoint | Self::Method)
    }

    /// Requires the identity.
    pub(super) fn require_presence(&self, conditions: &mut ConditionDraft) {
        match self {
            Self::Named(kind) if !conditions.named.contains_key(kind.pattern_field()) => {
                conditions.add_named(*kind, "*");
            }
            Self::Custom { .. } if !conditions.ids.contains_key(&self.dimension()) => {
                conditions.add_id(&self.dimension(), "*");
            }
            _ => {}
        }
    }

    /// Requires that requests lack the identity, as conditions of `except`.
    pub(super) fn require_absence(&self, except: &mut ConditionDraft) {
        match self {
            Self::Named(kind) => drop(except.named.insert(kind.pattern_field(), vec!["*".to_owned()])),
            Self::Custom { .. } => drop(except.ids.insert(self.dimension(), vec!["*".to_owned()])),
            _ => {}
        }
    }

    /// Whether no request has the identity, by these conditions of `except`.
    pub(super) fn is_absent_by(&self, except: &ConditionDraft) -> bool {
        let globs = match self {
            Self::Named(kind) => except.named.get(kind.pattern_field()),
            Self::Custom { .. } => except.ids.get(&self.dimension()),
            _ => None,
        };
        globs.is_some_and(|globs| globs.iter().any(|glob| glob == "*"))
    }

    /// Requires that the property matches. The pattern is known to have a condition.
    pub(super) fn require(&self, pattern: &SourcePattern, case: &mut KeyCase) {
        if pattern.is_absence() {
            self.require_absence(&mut case.except);
        } else {
            let _ = self.condition(pattern, &mut case.matches);
        }
    }

    /// Requires that the property does not match.
    pub(super) fn exclude(&self, pattern: &SourcePattern, case: &mut KeyCase) {
        if pattern.is_absence() {
            self.require_presence(&mut case.matches);
        } else {
            let _ = self.condition(pattern, &mut case.except);
        }
    }

    /// Adds the condition that the property matches `pattern`, or says why there is none.
    pub(super) fn condition(
        &self,
        pattern: &SourcePattern,
        conditions: &mut ConditionDraft,
    ) -> Result<(), &'static str> {
        match (self, pattern) {
            (_, SourcePattern::Absence) => {}
            (Self::Address, SourcePattern::Network(network)) => {
                let network = network.trunc();
                let is_single = network.prefix_len() == network.max_prefix_len();
                let text = if is_single { network.addr().to_string() } else { network.to_string() };
                conditions.ip.push(text);
            }
            (Self::Address, _) => return Err("it is not an address or a network"),
            (Self::Domain, SourcePattern::Exact(text)) => {
                let texts = domain_patterns(text).ok_or("it is not a domain")?;
                conditions.domain.extend(texts);
            }
            (Self::Endpoint, SourcePattern::Exact(text)) => {
                // Strings of a map ignore case.
                let flag = if text.contains(char::is_alphabetic) { "(?i)" } else { "" };
                conditions.endpoint_regex.push(format!("{flag}^{}$", regex::escape(text)));
            }
            (Self::Endpoint, SourcePattern::Regex(regex)) => {
                if Regex::new(regex).is_err() {
                    return Err("this regular expression is not supported");
                }
                conditions.endpoint_regex.push(regex.clone());
            }
            (Self::Method, pattern) => {
                let known = Method::NAMED.iter().map(|(name, _)| *name);
                let known: Vec<String> =
                    known.filter(|name| pattern.matches_text(name)).map(str::to_owned).collect();
                if known.is_empty() {
                    return Err("rules know no such method");
                }
                conditions.methods.extend(known);
            }
            (Self::Named(_) | Self::Custom { .. }, pattern) => {
                let glob = match pattern {
                    SourcePattern::Exact(text) if !text.contains(['*', '?']) => Some(text.clone()),
                    SourcePattern::Regex(regex) => glob_of(regex),
                    _ => None,
                };
                let glob = glob.ok_or("identities are matched by globs, with * and ?")?;
                match self {
                    Self::Named(kind) => conditions.add_named(*kind, &glob),
                    _ => conditions.add_id(&self.dimension(), &glob),
                }
            }
            (Self::Domain, _) => return Err("domains are matched as a whole, or by *.suffix"),
            (Self::Endpoint, SourcePattern::Network(_)) => return Err("it is not a path"),
        }
        Ok(())
    }
}

/// A name that is not taken by a dimension.
fn custom_name(name: &str) -> String {
    use crate::key::Dimension;
    match Dimension::from_name(name) {
        Dimension::Custom(name) => name,
        _ => format!("{name}_"),
    }
}

/// The patterns of domains of a server name or host name; `None` for others.
pub(super) fn domain_patterns(name: &str) -> Option<Vec<String>> {
    let name = name.to_ascii_lowercase();
    let patterns = match name.strip_prefix('.') {
        Some(suffix) => vec![suffix.to_owned(), format!("*.{suffix}")],
        None => vec![name],
    };
    let is_valid = |pattern: &String| {
        let is_usual = |c: char| c.is_ascii_alphanumeric() || "-_.*:[]".contains(c);
        !pattern.is_empty() && pattern.chars().all(is_usual) && DomainPattern::parse(pattern).is_some()
    };
    patterns.iter().all(is_valid).then_some(patterns)
}

/// A regular expression without special characters but anchors, as a glob.
fn glob_of(regex: &str) -> Option<String> {
    let (start, rest) = regex.strip_prefix('^').map_or(("*", regex), |rest| ("", rest));
    let (rest, end) = rest.strip_suffix('$').map_or((rest, "*"), |rest| (rest, ""));
    let (rest, end) = rest.strip_suffix(".*").map_or((rest, end), |rest| (rest, "*"));
    let mut literal = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                c if c.is_ascii_alphanumeric() || matches!(c, '*' | '?') => return None,
                c => literal.push(c),
            },
            c if c.is_ascii_alphanumeric() || "-_/@ ~:,=%&!#<>".contains(c) => literal.push(c),
            _ => return None,
        }
    }
    (!literal.is_empty()).then(|| format!("{start}{literal}{end}"))
}
