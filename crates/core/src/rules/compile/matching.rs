//! Compiles the conditions of a rule on client, endpoint and method, and its key.

use super::unmatchable_regex::{UnmatchableRegex, find_unmatchable};
use super::{PATTERN_BYTES, RuleCompiler, inherited};
use crate::document::DocumentPath;
use crate::key::{Dimension, Ipv6Prefix};
use crate::request::{Method, MethodSet, NamedIdentity, PerIdentity};
use crate::rules::pattern::{Glob, PathStrictness, RouteTemplate, network};
use crate::rules::ruleset::{ClientCondition, CompiledTemplate};
use crate::rules::short_forms::OneOrMany;
use crate::rules::written::{WrittenMatch, WrittenRule};
use ipnet::IpNet;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::ops::Range;

/// Common other names of the dimensions. As custom identities they would match nothing.
const OTHER_NAMES: [(&str, &str); 12] = [
    ("key", "api_key"),
    ("token", "api_key"),
    ("userid", "user"),
    ("tenantid", "tenant"),
    ("ipaddress", "ip"),
    ("address", "ip"),
    ("remoteaddress", "ip"),
    ("clientip", "ip"),
    ("path", "route"),
    ("template", "route"),
    ("host", "domain"),
    ("httpmethod", "method"),
];

/// How a pattern over paths is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatternSyntax {
    Template,
    Regex,
}

impl RuleCompiler<'_> {
    pub(super) fn key(&mut self, rule: &WrittenRule, path: &DocumentPath) -> SmallVec<[Dimension; 2]> {
        let defaults = &self.file.defaults;
        let Some((names, path)) = inherited(rule.key.as_ref(), defaults.key.as_ref(), "key", path) else {
            return SmallVec::from_iter([Dimension::Named(NamedIdentity::ApiKey)]);
        };
        if names.0.is_empty() {
            self.document.missing(&path, "a key needs at least one identity", "such as `key: [api_key]`");
        }
        let mut seen = HashSet::new();
        for (index, name) in names.0.iter().enumerate() {
            let path = path.index(index);
            if Dimension::from_name(name) == Dimension::All && names.0.len() > 1 {
                let hint = "keep `all`, or the other identities";
                self.document.error(
                    &path,
                    "`all` cannot be combined: it is one count for all requests",
                    hint,
                );
            }
            if name.is_empty() {
                self.document.error(&path, "an identity cannot be empty", "such as `key: [api_key]`");
            } else if !seen.insert(name) {
                self.document.error(&path, format!("`{name}` is given twice"), "remove one of them");
            }
            let plain = name.to_ascii_lowercase().replace(['-', '_', ' '], "");
            let meant = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map(|(_, meant)| *meant);
            let names = NamedIdentity::ALL.into_iter().map(NamedIdentity::name).chain(["ip", "route"]);
            let meant = meant.or_else(|| names.into_iter().find(|name| name.replace('_', "") == plain));
            if let Some(meant) = meant.filter(|meant| meant != name) {
                let message =
                    format!("`{name}` is a custom identity, which callers must send under this name");
                self.document.warning(&path, message, format!("did you mean `{meant}`?"));
            }
        }
        names.0.iter().map(|name| Dimension::from_name(name)).collect()
    }

    pub(super) fn ipv6_prefix(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Ipv6Prefix {
        let (own, default) = (rule.ipv6_prefix.as_ref(), self.file.defaults.ipv6_prefix.as_ref());
        let Some((bits, path)) = inherited(own, default, "ipv6_prefix", path) else {
            return Ipv6Prefix::default();
        };
        u8::try_from(*bits).ok().and_then(Ipv6Prefix::new).unwrap_or_else(|| {
            let message = format!("a prefix cannot have {bits} bits");
            self.document.error(&path, message, "use 16 to 128; 64 is the network of a household");
            Ipv6Prefix::default()
        })
    }

    pub(super) fn rule_methods(&mut self, rule: &WrittenRule, path: &DocumentPath) -> MethodSet {
        let inner = rule.matches.as_ref().and_then(|matches| matches.methods.as_ref());
        let (names, path) = match (&rule.methods, inner) {
            (Some(_), Some(_)) => {
                let hint = "keep the one inside `match` or the one outside";
                self.document.error_at_name(&path.field("methods"), "methods are given twice", hint);
                return MethodSet::default();
            }
            (Some(names), None) => (names, path.field("methods")),
            (None, Some(names)) => (names, path.field("match").field("methods")),
            (None, None) => return MethodSet::default(),
        };
        self.methods(names, &path)
    }

    pub(super) fn methods(&mut self, names: &OneOrMany<String>, path: &DocumentPath) -> MethodSet {
        let mut set = MethodSet::default();
        if names.0.is_empty() {
            let hint = "omit it to match any";
            self.document.missing(path, "without a method this rule matches nothing", hint);
        }
        for (index, name) in names.0.iter().enumerate() {
            match Method::from_name(name) {
                Method::Other => {
                    let known: Vec<&str> = Method::NAMED.iter().map(|(name, _)| *name).collect();
                    let hint = format!("known methods: {}", known.join(", "));
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
            named: PerIdentity::from_fn(|kind| {
                self.globs(matches.pattern(kind), &path.field(kind.pattern_field()))
            }),
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
            self.document.missing(path, "an empty list matches no client", "omit it to match any");
        }
        for (index, _) in patterns.iter().enumerate().filter(|(_, pattern)| pattern.is_empty()) {
            let hint = "use `*` for any client";
            self.document.error(&path.index(index), "an empty pattern matches no client", hint);
        }
        Some(patterns.iter().map(|pattern| Glob::new(pattern)).collect())
    }

    fn networks(&mut self, texts: &OneOrMany<String>, path: &DocumentPath) -> Vec<IpNet> {
        if texts.0.is_empty() {
            self.document.missing(path, "an empty list matches no client", "omit it to match any");
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

    /// Adds the templates and regular expressions of a rule, and returns their range in the set.
    pub(super) fn endpoints(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<Range<usize>> {
        let matches = rule.matches.as_ref();
        let inner = matches.and_then(|matches| matches.endpoint.as_ref());
        let regexes = matches.and_then(|matches| matches.endpoint_regex.as_ref());
        let match_path = path.field("match");
        if rule.endpoint.is_some() && inner.is_some() {
            let hint = "keep the one inside `match` or the one outside";
            self.document.error_at_name(&path.field("endpoint"), "endpoints are given twice", hint);
        }
        let strictness = rule.path_strictness();
        if strictness == PathStrictness::Exact
            && rule.endpoint.is_none()
            && inner.is_none()
            && regexes.is_none()
        {
            let hint = "it applies to `endpoint` and `endpoint_regex`";
            let path = match_path.field("exact");
            self.document.error_at_name(&path, "`exact` needs an endpoint", hint);
        }
        let sources = [
            (rule.endpoint.as_ref(), path.field("endpoint"), PatternSyntax::Template),
            (inner, match_path.field("endpoint"), PatternSyntax::Template),
            (regexes, match_path.field("endpoint_regex"), PatternSyntax::Regex),
        ];
        self.endpoint_patterns(sources, strictness)
    }

    /// Adds templates and regular expressions, and returns their range in the set; `None` if none is given.
    pub(super) fn endpoint_patterns<'t>(
        &mut self,
        sources: impl IntoIterator<Item = (Option<&'t OneOrMany<String>>, DocumentPath, PatternSyntax)>,
        strictness: PathStrictness,
    ) -> Option<Range<usize>> {
        let first = self.patterns.len();
        let mut given = false;
        for (texts, path, syntax) in sources {
            let Some(texts) = texts else { continue };
            given = true;
            if texts.0.is_empty() {
                self.document.missing(&path, "an empty list matches no endpoint", "omit it to match any");
            }
            for (index, text) in texts.0.iter().enumerate() {
                let path = path.index(index);
                match syntax {
                    PatternSyntax::Regex => self.regex(text, strictness, &path),
                    PatternSyntax::Template => self.template(text, strictness, &path),
                }
            }
        }
        given.then_some(first..self.patterns.len())
    }

    pub(super) fn template(&mut self, text: &str, strictness: PathStrictness, path: &DocumentPath) {
        match RouteTemplate::parse(text, strictness) {
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
                self.add_pattern(regex, text, strictness);
            }
            Err(error) => self.document.error(
                path,
                error.to_string(),
                "templates look like /v1/users/{id} or /files/{*rest}; for more, use `endpoint_regex`",
            ),
        }
    }

    fn regex(&mut self, regex: &str, strictness: PathStrictness, path: &DocumentPath) {
        if regex.is_empty() {
            let hint = "omit it, or write `.*`";
            self.document.error(path, "an empty regular expression matches every path", hint);
        }
        match regex::RegexBuilder::new(regex).size_limit(PATTERN_BYTES).build() {
            Ok(_) => {
                self.warn_of_unmatchable(regex, path);
                self.add_pattern(regex.to_owned(), regex, strictness);
            }
            Err(regex::Error::CompiledTooBig(_)) => {
                let hint = "use smaller repetitions, or a template";
                self.document.error(path, "this regular expression is too large", hint);
            }
            Err(error) => {
                let reason = syntax_error(regex).unwrap_or_else(|| error.to_string());
                let message = format!("invalid regular expression: {reason}");
                self.document.error(path, message, "the syntax is that of https://docs.rs/regex");
            }
        }
    }

    fn warn_of_unmatchable(&mut self, regex: &str, path: &DocumentPath) {
        let (message, hint) = match find_unmatchable(regex) {
            None => return,
            Some(UnmatchableRegex::Anchor) => (
                "this regular expression matches no path: it has an anchor in the middle".to_owned(),
                "`^` matches the start of a path, `$` its end",
            ),
            Some(UnmatchableRegex::EmptyClass) => (
                "this regular expression matches no path: it has an empty class".to_owned(),
                "remove it, or use a larger class",
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
                    "this regular expression needs `{}`, which paths contain only as an escape",
                    c.escape_default()
                ),
                "paths are matched without their query; those with a backslash or a control character are refused",
            ),
        };
        self.document.warning(path, message, hint);
    }

    fn add_pattern(&mut self, regex: String, written: &str, strictness: PathStrictness) {
        self.patterns.push(regex);
        self.parts.strictness.push(strictness);
        self.parts.written.push(written.to_owned());
    }
}

/// The reason without the excerpt of the expression that the error of `regex` begins with.
fn syntax_error(regex: &str) -> Option<String> {
    match regex_syntax::parse(regex).err()? {
        regex_syntax::Error::Parse(error) => Some(error.kind().to_string()),
        regex_syntax::Error::Translate(error) => Some(error.kind().to_string()),
        _ => None,
    }
}
