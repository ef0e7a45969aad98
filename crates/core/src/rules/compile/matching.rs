//! Whom and what a rule is about: clients, endpoints, methods, and the key it counts by.

use super::unmatchable_regex::{UnmatchableRegex, impossible};
use super::{PATTERN_BYTES, RuleCompiler};
use crate::document::DocumentPath;
use crate::key::{Dimension, Ipv6Prefix};
use crate::request::{Method, MethodSet};
use crate::rules::pattern::{Glob, PathStrictness, RouteTemplate, network};
use crate::rules::ruleset::{ClientCondition, CompiledTemplate};
use crate::rules::short_forms::OneOrMany;
use crate::rules::written::{WrittenMatch, WrittenRule};
use ipnet::IpNet;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::ops::Range;

/// What people call the dimensions elsewhere. As custom identities these would never be found.
const OTHER_NAMES: [(&str, &str); 12] = [
    ("apikey", "api_key"),
    ("key", "api_key"),
    ("token", "api_key"),
    ("userid", "user"),
    ("tenantid", "tenant"),
    ("ipaddress", "ip"),
    ("address", "ip"),
    ("remoteaddress", "ip"),
    ("clientip", "ip"),
    ("endpoint", "route"),
    ("path", "route"),
    ("template", "route"),
];

impl RuleCompiler<'_> {
    pub(super) fn key(&mut self, rule: &WrittenRule, path: &DocumentPath) -> SmallVec<[Dimension; 2]> {
        let (names, path) = match (&rule.key, &self.file.defaults.key) {
            (Some(names), _) => (names, path.field("key")),
            (None, Some(names)) => (names, DocumentPath::root().field("defaults").field("key")),
            (None, None) => return SmallVec::from_iter([Dimension::ApiKey]),
        };
        if names.0.is_empty() {
            self.document.missing(&path, "a key needs at least one identity", "such as `key: [api_key]`");
        }
        let mut seen = HashSet::new();
        for (index, name) in names.0.iter().enumerate() {
            let path = path.index(index);
            if name.is_empty() {
                self.document.error(&path, "an identity has a name", "such as `key: [api_key]`");
            } else if !seen.insert(name) {
                self.document.error(&path, format!("`{name}` is named twice"), "once is enough");
            }
            let plain = name.to_ascii_lowercase().replace(['-', '_', ' '], "");
            let meant = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map(|(_, meant)| *meant);
            let meant =
                meant.or_else(|| ["user", "tenant", "ip", "route"].into_iter().find(|own| *own == plain));
            if let Some(meant) = meant.filter(|meant| meant != name) {
                let message = format!("`{name}` is a custom identity, which the caller has to name so");
                self.document.warning(&path, message, format!("did you mean `{meant}`?"));
            }
        }
        names.0.iter().map(|name| Dimension::from_name(name)).collect()
    }

    pub(super) fn ipv6_prefix(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Ipv6Prefix {
        let (bits, path) = match (rule.ipv6_prefix, self.file.defaults.ipv6_prefix) {
            (Some(bits), _) => (bits, path.field("ipv6_prefix")),
            (None, Some(bits)) => (bits, DocumentPath::root().field("defaults").field("ipv6_prefix")),
            (None, None) => return Ipv6Prefix::default(),
        };
        u8::try_from(bits).ok().and_then(Ipv6Prefix::new).unwrap_or_else(|| {
            let message = format!("addresses cannot be counted by {bits} bits");
            self.document.error(&path, message, "a network has 16 to 128 bits; 64 is a household");
            Ipv6Prefix::default()
        })
    }

    pub(super) fn methods(&mut self, rule: &WrittenRule, path: &DocumentPath) -> MethodSet {
        let inner = rule.matches.as_ref().and_then(|matches| matches.methods.as_ref());
        let (names, path) = match (&rule.methods, inner) {
            (Some(_), Some(_)) => {
                let hint = "keep the one in `match`, or the one beside it";
                self.document.error_at_name(&path.field("methods"), "methods are given twice", hint);
                return MethodSet::default();
            }
            (Some(names), None) => (names, path.field("methods")),
            (None, Some(names)) => (names, path.field("match").field("methods")),
            (None, None) => return MethodSet::default(),
        };
        let mut set = MethodSet::default();
        if names.0.is_empty() {
            let hint = "leave it out to match any";
            self.document.missing(&path, "with no method this rule matches nothing", hint);
        }
        for (index, name) in names.0.iter().enumerate() {
            match Method::from_name(name) {
                Method::Other => {
                    let known: Vec<&str> = Method::NAMED.iter().map(|(name, _)| *name).collect();
                    let hint = format!("known are {}", known.join(", "));
                    self.document.error(&path.index(index), format!("`{name}` is not a method"), hint);
                }
                method => set.insert(method),
            }
        }
        set
    }

    pub(super) fn client(&mut self, matches: Option<&WrittenMatch>, path: &DocumentPath) -> ClientCondition {
        let Some(matches) = matches else { return ClientCondition::default() };
        let ids = matches.ids.iter().map(|(name, patterns)| {
            let globs = self.globs(Some(patterns), &path.field("ids").field(name));
            (name.clone(), globs.unwrap_or_default())
        });
        ClientCondition {
            ids: ids.collect(),
            api_key: self.globs(matches.api_key_pattern.as_ref(), &path.field("api_key_pattern")),
            user: self.globs(matches.user_pattern.as_ref(), &path.field("user_pattern")),
            tenant: self.globs(matches.tenant_pattern.as_ref(), &path.field("tenant_pattern")),
            ip: matches.ip.as_ref().map(|networks| self.networks(networks, &path.field("ip"))),
        }
    }

    pub(super) fn globs(
        &mut self,
        patterns: Option<&OneOrMany<String>>,
        path: &DocumentPath,
    ) -> Option<Vec<Glob>> {
        let patterns = &patterns?.0;
        if patterns.is_empty() {
            self.document.missing(path, "an empty list matches nobody", "leave it out to match anybody");
        }
        for (index, _) in patterns.iter().enumerate().filter(|(_, pattern)| pattern.is_empty()) {
            let hint = "use `*` for anybody";
            self.document.error(&path.index(index), "an empty pattern matches nobody", hint);
        }
        Some(patterns.iter().map(|pattern| Glob::new(pattern)).collect())
    }

    fn networks(&mut self, texts: &OneOrMany<String>, path: &DocumentPath) -> Vec<IpNet> {
        if texts.0.is_empty() {
            self.document.missing(path, "an empty list matches nobody", "leave it out to match anybody");
        }
        let mut networks = Vec::new();
        for (index, text) in texts.0.iter().enumerate() {
            match network(text) {
                Some(network) => networks.push(network),
                None => {
                    let hint = "write it like 10.0.0.0/8, 203.0.113.9 or 2001:db8::/32";
                    let message = format!("`{text}` is not an address or a network");
                    self.document.error(&path.index(index), message, hint);
                }
            }
        }
        networks
    }

    /// The patterns of a rule's templates and regular expressions, as a run in the set's.
    pub(super) fn endpoints(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<Range<usize>> {
        let matches = rule.matches.as_ref();
        let inner = matches.and_then(|matches| matches.endpoint.as_ref());
        let regexes = matches.and_then(|matches| matches.endpoint_regex.as_ref());
        let match_path = path.field("match");
        if rule.endpoint.is_some() && inner.is_some() {
            let hint = "keep the one in `match`, or the one beside it";
            self.document.error_at_name(&path.field("endpoint"), "endpoints are given twice", hint);
        }
        let closeness = match matches {
            Some(matches) if matches.exact => PathStrictness::Exact,
            _ => PathStrictness::Folded,
        };
        if closeness == PathStrictness::Exact
            && rule.endpoint.is_none()
            && inner.is_none()
            && regexes.is_none()
        {
            let hint = "it is about `endpoint` and `endpoint_regex`";
            let path = match_path.field("exact");
            self.document.error_at_name(&path, "there is no endpoint to be exact about", hint);
        }
        let first = self.patterns.len();
        let mut given = false;
        for (texts, path, is_regex) in [
            (rule.endpoint.as_ref(), path.field("endpoint"), false),
            (inner, match_path.field("endpoint"), false),
            (regexes, match_path.field("endpoint_regex"), true),
        ] {
            let Some(texts) = texts else { continue };
            given = true;
            if texts.0.is_empty() {
                self.document.missing(
                    &path,
                    "an empty list matches no endpoint",
                    "leave it out to match any",
                );
            }
            for (index, text) in texts.0.iter().enumerate() {
                let path = path.index(index);
                if is_regex {
                    self.regex(text, closeness, &path)
                } else {
                    self.template(text, closeness, &path)
                }
            }
        }
        given.then_some(first..self.patterns.len())
    }

    pub(super) fn template(&mut self, text: &str, closeness: PathStrictness, path: &DocumentPath) {
        match RouteTemplate::parse(text, closeness) {
            Ok(RouteTemplate { regex, generality }) => {
                let same = |route: &CompiledTemplate| {
                    route.template == text && self.patterns[route.pattern] == regex
                };
                if !self.parts.routes.iter().any(same) {
                    self.parts.routes.push(CompiledTemplate {
                        template: text.to_owned(),
                        hash: siphasher::sip::SipHasher13::new().hash(text.as_bytes()) | 1,
                        pattern: self.patterns.len(),
                        generality,
                    });
                }
                self.add_pattern(regex, text, closeness);
            }
            Err(message) => self.document.error(
                path,
                message,
                "templates look like /v1/users/{id} or /files/{*rest}; for more, use `endpoint_regex`",
            ),
        }
    }

    fn regex(&mut self, regex: &str, closeness: PathStrictness, path: &DocumentPath) {
        if regex.is_empty() {
            let hint = "leave it out, or write `.*`";
            self.document.error(path, "an empty regular expression matches every path", hint);
        }
        match regex::RegexBuilder::new(regex).size_limit(PATTERN_BYTES).build() {
            Ok(_) => {
                self.warn_of_impossible(regex, path);
                self.add_pattern(regex.to_owned(), regex, closeness);
            }
            Err(regex::Error::CompiledTooBig(_)) => {
                let hint = "use smaller repetitions, or a template";
                self.document.error(path, "this regular expression is too large", hint);
            }
            Err(error) => {
                let message = error.to_string();
                let last = message.lines().last().unwrap_or_default();
                let reason = last.trim_start_matches("error: ");
                let message = format!("this regular expression cannot be used: {reason}");
                self.document.error(path, message, "the syntax is that of https://docs.rs/regex");
            }
        }
    }

    fn warn_of_impossible(&mut self, regex: &str, path: &DocumentPath) {
        let (message, hint) = match impossible(regex) {
            None => return,
            Some(UnmatchableRegex::Anchor) => (
                "this regular expression matches no path: an anchor stands in the middle".to_owned(),
                "`^` is where a path begins, `$` where it ends",
            ),
            Some(UnmatchableRegex::Nothing) => (
                "this regular expression matches no path: a class has no characters".to_owned(),
                "remove it, or use a wider class",
            ),
            Some(UnmatchableRegex::Text(text)) => (
                format!("this regular expression matches no path: it needs `{text}`"),
                "paths are matched in their canonical form, without empty and dot segments",
            ),
            Some(UnmatchableRegex::Escape) => (
                "this regular expression needs an escape such as `%20`, and paths are matched decoded"
                    .to_owned(),
                "write the character itself",
            ),
            Some(UnmatchableRegex::Character(c)) => (
                format!(
                    "this regular expression needs `{}`, which no path has but as an escape",
                    c.escape_default()
                ),
                "paths are matched without their query; those with a backslash or a control character are refused",
            ),
        };
        self.document.warning(path, message, hint);
    }

    fn add_pattern(&mut self, regex: String, written: &str, closeness: PathStrictness) {
        self.patterns.push(regex);
        self.parts.closeness.push(closeness);
        self.parts.written.push(written.to_owned());
    }
}
