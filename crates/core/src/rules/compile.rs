//! From a rule file to a rule set: everything is checked, and everything wrong is said at once.

use super::lists::{Entry, List, Lists};
use super::pattern::{Glob, template_regex};
use super::ruleset::{ClientCondition, Parts, Route, Rule, RuleSet, SizeId, Sizes, Tier, TierId};
use super::sizing::{Layer, sizes_of};
use super::spelling::OneOrMany;
use super::written::{self, ListEntry, Match, RuleFile, TestCase};
use crate::algorithm::Algorithm;
use crate::document::{Document, Path};
use crate::key::Dimension;
use crate::limit::{Limit, LimitError, Size};
use crate::problem::{Report, nearest};
use crate::rate::short_duration;
use crate::request::{Method, MethodSet};
use ipnet::IpNet;
use regex::RegexSetBuilder;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// A compiled pattern may take this much memory; all of them together four times as much.
const PATTERN_BYTES: usize = 2 << 20;

/// A rule file, ready to use.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// The lists.
    pub lists: Lists,
    /// The tests beside the rules, with the line each begins on.
    pub tests: Vec<(usize, TestCase)>,
    /// What is allowed but odd.
    pub warnings: Report,
}

/// Reads and compiles the rule file `text`; `source` is its name in reports. On any error, all of them.
pub fn load(source: &str, text: &str) -> Result<Loaded, Report> {
    let mut document = Document::parse(source, text)?;
    let Some(file) = document.decode::<RuleFile>() else { return Err(document.into_report()) };
    let mut compiler = Compiler::new(&file, document);
    compiler.compile();
    let allow = compiler.list([("whitelist", &file.whitelist), ("allow", &file.allow)]);
    let deny = compiler.list([("blacklist", &file.blacklist), ("deny", &file.deny)]);
    let tests = compiler.tests();
    let (parts, document) = (compiler.parts, compiler.document);
    let report = document.into_report();
    if report.errors() > 0 {
        return Err(report);
    }
    Ok(Loaded { rules: RuleSet::new(parts), lists: Lists::new(allow, deny), tests, warnings: report })
}

struct Compiler<'f> {
    file: &'f RuleFile,
    document: Document,
    parts: Parts,
    patterns: Vec<String>,
    tier_ids: HashMap<String, TierId>,
}

impl<'f> Compiler<'f> {
    fn new(file: &'f RuleFile, document: Document) -> Self {
        Self { file, document, parts: Parts::default(), patterns: Vec::new(), tier_ids: HashMap::new() }
    }

    fn compile(&mut self) {
        let root = Path::root();
        self.tiers();
        for (index, template) in self.file.routes.iter().enumerate() {
            self.template(template, &root.field("routes").index(index));
        }
        let mut ids = HashMap::new();
        for (index, rule) in self.file.rules.iter().enumerate() {
            let path = root.field("rules").index(index);
            self.check_id(rule, &path);
            if let Some(first) = ids.insert(rule.id.as_str(), index) {
                let line = self.document.line(&root.field("rules").index(first).field("id"));
                let message = format!("a rule `{}` exists already, on line {line}", rule.id);
                self.document.error(&path.field("id"), message, "give each rule an id of its own");
            }
            self.rule(rule, &path);
        }
        let set = RegexSetBuilder::new(&self.patterns).size_limit(4 * PATTERN_BYTES).build();
        match set {
            Ok(set) => self.parts.endpoints = set,
            Err(_) => self.document.error(
                &root.field("rules"),
                "the endpoints of all rules together are too much to match at once",
                "use templates, or simpler regular expressions",
            ),
        }
        self.warn_of_unreachable_fallbacks();
    }

    /// Names the tiers: those in `tiers`, and those that only rules mention.
    fn tiers(&mut self) {
        let root = Path::root();
        for (name, tier) in &self.file.tiers {
            let globs = tier.api_key_pattern.as_ref().map(|patterns| globs(&patterns.0));
            self.add_tier(Tier {
                name: name.clone(),
                keys: tier.keys.clone(),
                api_key: globs.unwrap_or_default(),
            });
        }
        let declared: Vec<&str> = self.file.tiers.keys().map(String::as_str).collect();
        let mut mentioned = Vec::new();
        if let Some(name) = &self.file.defaults.tier {
            mentioned.push((name, root.field("defaults").field("tier")));
        }
        for (index, rule) in self.file.rules.iter().enumerate() {
            if let Some(name) = &rule.tier {
                mentioned.push((name, root.field("rules").index(index).field("tier")));
            }
        }
        for (name, path) in mentioned {
            if !declared.is_empty() && !declared.contains(&name.as_str()) {
                let near = nearest(name, declared.iter().copied());
                let hint = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("`tiers:` has {}", declared.join(", ")),
                };
                self.document.error(&path, format!("there is no tier `{name}`"), hint);
            }
            self.add_tier(Tier { name: name.clone(), ..Tier::default() });
        }
        self.parts.default_tier =
            self.file.defaults.tier.as_ref().and_then(|name| self.tier_ids.get(name)).copied();
    }

    fn add_tier(&mut self, tier: Tier) {
        if !self.tier_ids.contains_key(&tier.name) {
            self.tier_ids.insert(tier.name.clone(), self.parts.tiers.len() as TierId);
            self.parts.tiers.push(tier);
        }
    }

    /// An id goes into headers and metrics: it has to be plain.
    fn check_id(&mut self, rule: &written::Rule, path: &Path) {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
        if rule.id.is_empty() || rule.id.len() > 128 || !rule.id.chars().all(plain) {
            self.document.error(
                &path.field("id"),
                format!("`{}` cannot be an id", rule.id),
                "use up to 128 letters, digits and - _ . : /",
            );
        }
    }

    fn rule(&mut self, rule: &written::Rule, path: &Path) {
        let defaults = &self.file.defaults;
        let Some(sizes) = self.sizes(rule, path) else { return };
        let endpoints = self.endpoints(rule, path);
        let client = self.client(rule.matches.as_ref(), &path.field("match"));
        let methods = self.methods(rule, path);
        let tier = rule.tier.as_ref().and_then(|name| self.tier_ids.get(name)).copied();
        if tier.is_some() && client.api_key.is_none() && !self.somebody_is_in(tier) {
            self.document.warning(
                &path.field("tier"),
                "nobody is in this tier unless the caller says so",
                "give the tier an `api_key_pattern` or `keys` under `tiers:`, or the rule a match",
            );
        }
        let compiled = Rule {
            id: rule.id.clone(),
            on_exceed: rule.on_exceed.or(defaults.on_exceed).unwrap_or_default(),
            on_store_failure: rule.on_store_failure.or(defaults.on_store_failure).unwrap_or_default(),
            consistency: rule.consistency.or(defaults.consistency).unwrap_or_default(),
            key: self.key(rule, path),
            tier,
            domain: rule.domain.clone(),
            methods,
            client,
            endpoints,
            fallback: rule.fallback,
            needs_address: false,
            sizes,
        };
        let net = rule.ip_safety_net.or(defaults.ip_safety_net).unwrap_or(0);
        if rule.ip_safety_net == Some(0) {
            let net_path = path.field("ip_safety_net");
            self.document.error(&net_path, "a safety net of 0 would reject all", "10 is a good start");
        }
        let net = (net > 0).then(|| self.safety_net(&compiled, rule, net, path)).flatten();
        self.push(compiled);
        if let Some(net) = net {
            self.push(net);
        }
    }

    fn push(&mut self, rule: Rule) {
        let owner = self.parts.rules.len() as u32;
        let sizes = &rule.sizes;
        let used = sizes
            .default
            .iter()
            .chain(sizes.by_tier.iter().map(|(_, size)| size))
            .chain(sizes.by_key.values());
        for size in used {
            for limit in self.parts.sizes[*size as usize].clone() {
                self.parts.owners[limit as usize] = owner;
            }
        }
        self.parts.rules.push(rule);
    }

    /// The numbers of a rule for everybody, for each tier, and for single keys.
    fn sizes(&mut self, rule: &written::Rule, path: &Path) -> Option<Sizes> {
        let root = Path::root();
        let file = self.file;
        let defaults = Layer::of_defaults(&file.defaults, &root.field("defaults"));
        let own = Layer::of_rule(rule, path);
        let tier_layer = |name: &String| {
            file.tiers.get(name).map(|tier| Layer::of_tier(tier, &root.field("tiers").field(name)))
        };
        let of_this_tier = rule.tier.as_ref().and_then(tier_layer);
        let layers: Vec<&Layer<'_>> =
            [Some(&defaults), of_this_tier.as_ref(), Some(&own)].into_iter().flatten().collect();

        let mut sizes = Sizes::default();
        let stated = layers.iter().any(|layer| layer.states_a_size());
        if stated {
            sizes.default = self.size(rule, &layers, path);
        }
        if rule.tier.is_none() && !own.states_a_size() {
            for (name, tier) in &file.tiers {
                let layer = Layer::of_tier(tier, &root.field("tiers").field(name));
                if layer.states_a_size() {
                    let id = self.tier_ids[name];
                    if let Some(size) = self.size(rule, &[&defaults, &layer, &own], path) {
                        sizes.by_tier.push((id, size));
                    }
                }
            }
        }
        if !stated && sizes.by_tier.is_empty() {
            self.document.missing(
                path,
                format!("rule `{}` has no limit", rule.id),
                "add `limit: 100/min`, or `params`, or a limit in its tier or in `defaults`",
            );
            return None;
        }
        for (key, params) in &rule.overrides {
            let path = path.field("override").field(key);
            let over = Layer::of_params(params, &path);
            let mut layers = layers.clone();
            layers.push(&over);
            if let Some(size) = self.size(rule, &layers, &path) {
                let name =
                    key.parse::<IpAddr>().map_or_else(|_| key.clone(), |ip| ip.to_canonical().to_string());
                sizes.by_key.insert(name, size);
            }
        }
        Some(sizes)
    }

    /// Builds the limits that the layers add up to, later ones over earlier ones.
    fn size(&mut self, rule: &written::Rule, layers: &[&Layer<'_>], path: &Path) -> Option<SizeId> {
        let algorithm = layers.iter().rev().find_map(|layer| layer.algorithm).unwrap_or_default();
        let sizes = sizes_of(algorithm, layers, &mut self.document)?;
        let several = sizes.len() > 1;
        let named = sizes.into_iter().map(|(size, path)| (policy_name(&rule.id, several, size), size, path));
        let named: Vec<(String, Size, Path)> = named.collect();
        let mut seen = HashSet::new();
        for (policy, _, path) in &named {
            if !seen.insert(policy) {
                let hint = "the wider of the two never decides; remove it";
                self.document.error(path, "there is another limit over the same time", hint);
                return None;
            }
        }
        self.build(algorithm, &named, path)
    }

    fn build(
        &mut self,
        algorithm: Algorithm,
        named: &[(String, Size, Path)],
        whole: &Path,
    ) -> Option<SizeId> {
        let first = self.parts.limits.len() as u32;
        for (policy, size, path) in named {
            match Limit::new(policy, algorithm, *size) {
                Ok(limit) => {
                    self.parts.limits.push(limit);
                    self.parts.owners.push(0);
                }
                Err(error) => {
                    self.explain_limit_error(algorithm, &error, path, whole);
                    return None;
                }
            }
        }
        self.parts.sizes.push(first..self.parts.limits.len() as u32);
        Some(self.parts.sizes.len() as SizeId - 1)
    }

    fn explain_limit_error(&mut self, algorithm: Algorithm, error: &LimitError, path: &Path, whole: &Path) {
        let name = algorithm.name();
        match error {
            LimitError::Missing(what) => self.document.missing(
                whole,
                format!("{error} for this {name}"),
                match *what {
                    "limit" => "add `limit: 100/min`, or `params: { limit: 100, window: 60 }`".to_owned(),
                    "window" => "add `window: 60`, in seconds, or write the limit as `100/min`".to_owned(),
                    "rate" if algorithm == Algorithm::LeakyBucket => {
                        "add `leak_rate: 1.67`, per second".to_owned()
                    }
                    "rate" => "add `refill_rate: 1.67`, per second, or write `limit: 100/min`".to_owned(),
                    _ => "add `capacity: 100`, or write `limit: 100/min`".to_owned(),
                },
            ),
            LimitError::RejectsAll => {
                self.document.error(
                    path,
                    error.to_string(),
                    "a limit must be at least 1; to refuse somebody, use `deny:`",
                );
            }
            LimitError::OutOfRange(_) => self.document.error(path, error.to_string(), None),
        }
    }

    /// The same rule per address, `factor` times as wide.
    fn safety_net(&mut self, rule: &Rule, written: &written::Rule, factor: u32, path: &Path) -> Option<Rule> {
        let mut widen = |size: SizeId| -> Option<SizeId> {
            let range = self.parts.sizes[size as usize].clone();
            let wide: Option<Vec<Limit>> =
                range.map(|limit| self.parts.limits[limit as usize].widened(factor)).collect();
            let Some(wide) = wide else {
                let path = path.field("ip_safety_net");
                self.document.error(
                    &path,
                    "so many times the limit cannot be counted exactly",
                    "use a smaller factor",
                );
                return None;
            };
            let first = self.parts.limits.len() as u32;
            self.parts.owners.extend(wide.iter().map(|_| 0));
            self.parts.limits.extend(wide);
            self.parts.sizes.push(first..self.parts.limits.len() as u32);
            Some(self.parts.sizes.len() as SizeId - 1)
        };
        let by_tier =
            rule.sizes.by_tier.iter().filter_map(|(tier, size)| Some((*tier, widen(*size)?))).collect();
        let default = rule.sizes.default.and_then(&mut widen);
        Some(Rule {
            id: format!("{}.ip", written.id),
            key: SmallVec::from_iter([Dimension::Ip]),
            needs_address: true,
            sizes: Sizes { default, by_tier, by_key: HashMap::new() },
            ..rule.clone()
        })
    }

    fn somebody_is_in(&self, tier: Option<TierId>) -> bool {
        let Some(tier) = tier else { return true };
        let members = &self.parts.tiers[tier as usize];
        self.parts.default_tier == Some(tier) || !members.keys.is_empty() || !members.api_key.is_empty()
    }

    fn key(&mut self, rule: &written::Rule, path: &Path) -> SmallVec<[Dimension; 2]> {
        let (names, path) = match (&rule.key, &self.file.defaults.key) {
            (Some(names), _) => (names, path.field("key")),
            (None, Some(names)) => (names, Path::root().field("defaults").field("key")),
            (None, None) => return SmallVec::from_iter([Dimension::ApiKey]),
        };
        if names.0.is_empty() || names.0.iter().any(String::is_empty) {
            self.document.error(&path, "a key needs at least one identity", "such as `key: [api_key]`");
        }
        if names.0.iter().collect::<HashSet<_>>().len() < names.0.len() {
            self.document.error(&path, "an identity is named twice", "once is enough");
        }
        names.0.iter().map(|name| Dimension::from_name(name)).collect()
    }

    fn methods(&mut self, rule: &written::Rule, path: &Path) -> MethodSet {
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
            self.document.error(
                &path,
                "with no method this rule matches nothing",
                "leave it out to match any",
            );
        }
        for (index, name) in names.0.iter().enumerate() {
            match Method::from_name(name) {
                Method::Other => {
                    let known: Vec<&str> = Method::NAMED.iter().map(|(name, _)| *name).collect();
                    let item = if names.0.len() > 1 { path.index(index) } else { path.clone() };
                    let hint = format!("known are {}", known.join(", "));
                    self.document.error(&item, format!("`{name}` is not a method"), hint);
                }
                method => set.insert(method),
            }
        }
        set
    }

    fn client(&mut self, matches: Option<&Match>, path: &Path) -> ClientCondition {
        let Some(matches) = matches else { return ClientCondition::default() };
        let list =
            |patterns: &Option<OneOrMany<String>>| patterns.as_ref().map(|patterns| globs(&patterns.0));
        let ids = matches.ids.iter().map(|(name, patterns)| (name.clone(), globs(&patterns.0)));
        let named = [
            ("api_key_pattern", &matches.api_key_pattern),
            ("user_pattern", &matches.user_pattern),
            ("tenant_pattern", &matches.tenant_pattern),
        ];
        for (name, patterns) in named {
            if patterns
                .as_ref()
                .is_some_and(|patterns| patterns.0.iter().any(String::is_empty) || patterns.0.is_empty())
            {
                self.document.error(
                    &path.field(name),
                    "an empty pattern matches nobody",
                    "use `*` for anybody",
                );
            }
        }
        ClientCondition {
            api_key: list(&matches.api_key_pattern),
            user: list(&matches.user_pattern),
            tenant: list(&matches.tenant_pattern),
            ip: matches.ip.as_ref().map(|networks| self.networks(networks, &path.field("ip"))),
            ids: ids.collect(),
        }
    }

    fn networks(&mut self, texts: &OneOrMany<String>, path: &Path) -> Vec<IpNet> {
        let mut networks = Vec::new();
        for (index, text) in texts.0.iter().enumerate() {
            match text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
                Ok(network) => networks.push(network),
                Err(_) => {
                    let item = if texts.0.len() > 1 { path.index(index) } else { path.clone() };
                    let hint = "write it like 10.0.0.0/8, 203.0.113.9 or 2001:db8::/32";
                    self.document.error(&item, format!("`{text}` is not an address or a network"), hint);
                }
            }
        }
        networks
    }

    /// The patterns of a rule's templates and regular expressions, as a run in the set's.
    fn endpoints(&mut self, rule: &written::Rule, path: &Path) -> Option<std::ops::Range<usize>> {
        let matches = rule.matches.as_ref();
        let inner = matches.and_then(|matches| matches.endpoint.as_ref());
        let regexes = matches.and_then(|matches| matches.endpoint_regex.as_ref());
        let match_path = path.field("match");
        if rule.endpoint.is_some() && inner.is_some() {
            let hint = "keep the one in `match`, or the one beside it";
            self.document.error_at_name(&path.field("endpoint"), "endpoints are given twice", hint);
        }
        if rule.endpoint.is_none() && inner.is_none() && regexes.is_none() {
            return None;
        }
        let first = self.patterns.len();
        for (templates, path) in
            [(rule.endpoint.as_ref(), path.field("endpoint")), (inner, match_path.field("endpoint"))]
        {
            for (item, template) in items(templates, &path) {
                self.template(template, &item);
            }
        }
        for (item, regex) in items(regexes, &match_path.field("endpoint_regex")) {
            self.regex(regex, &item);
        }
        Some(first..self.patterns.len())
    }

    fn template(&mut self, template: &str, path: &Path) {
        match template_regex(template) {
            Ok(regex) => {
                if !self.parts.routes.iter().any(|route| route.template == template) {
                    self.parts.routes.push(Route {
                        template: template.to_owned(),
                        hash: siphasher::sip::SipHasher13::new().hash(template.as_bytes()) | 1,
                        pattern: self.patterns.len(),
                    });
                }
                self.patterns.push(regex);
            }
            Err(message) => self.document.error(
                path,
                message,
                "templates look like /v1/users/{id} or /files/{*rest}; for more, use `endpoint_regex`",
            ),
        }
    }

    fn regex(&mut self, regex: &str, path: &Path) {
        match regex::RegexBuilder::new(regex).size_limit(PATTERN_BYTES).build() {
            Ok(_) => self.patterns.push(regex.to_owned()),
            Err(error) => {
                let message = error.to_string();
                let last = message.lines().last().unwrap_or_default();
                let reason = last.trim_start_matches("error: ");
                self.document.error(path, format!("this regular expression cannot be used: {reason}"), None);
            }
        }
    }

    /// Both spellings of a list.
    fn list(&mut self, spellings: [(&str, &Vec<ListEntry>); 2]) -> List {
        let mut list = List::default();
        for (name, entries) in spellings {
            for (index, entry) in entries.iter().enumerate() {
                let path = Path::root().field(name).index(index);
                let looks_like_network = entry.key.contains('/') && entry.key.parse::<IpNet>().is_err();
                let address = entry.key.split('/').next().unwrap_or_default().parse::<IpAddr>();
                if entry.key.is_empty() {
                    self.document.error(&path, "an empty entry matches nobody", "remove it");
                } else if looks_like_network && address.is_ok() {
                    let hint = "write it like 10.0.0.0/8 or 2001:db8::/32";
                    self.document.error(&path, format!("`{}` is not a network", entry.key), hint);
                }
                if Glob::new(&entry.key).is_any() && matches!(name, "blacklist" | "deny") {
                    self.document.error(&path, "this refuses everybody", "name who is to be refused");
                } else if Glob::new(&entry.key).is_any() {
                    self.document.warning(&path, "with this entry nobody is limited", None);
                }
                list.insert(Entry {
                    pattern: entry.key.clone(),
                    expires_us: entry.expires.map(|expires| expires.unix_us),
                    reason: entry.reason.clone(),
                });
            }
        }
        list
    }

    /// A fallback beside a rule that names every endpoint for everybody never applies.
    fn warn_of_unreachable_fallbacks(&mut self) {
        let takes_all = self.file.rules.iter().find(|rule| {
            let matches = rule.matches.as_ref();
            let regexes = matches.and_then(|matches| matches.endpoint_regex.as_ref());
            let everywhere = regexes.is_some_and(|regexes| {
                regexes.0.iter().any(|regex| matches!(regex.as_str(), ".*" | "^.*" | "^.*$" | "^/.*" | "^/"))
            });
            let everybody = rule.tier.is_none()
                && rule.domain.is_none()
                && rule.methods.is_none()
                && matches.is_some_and(|matches| {
                    matches.methods.is_none()
                        && matches.api_key_pattern.is_none()
                        && matches.user_pattern.is_none()
                        && matches.tenant_pattern.is_none()
                        && matches.ip.is_none()
                        && matches.ids.is_empty()
                });
            everywhere && everybody && !rule.fallback
        });
        let Some(takes_all) = takes_all else { return };
        for (index, rule) in self.file.rules.iter().enumerate() {
            if rule.fallback {
                let path = Path::root().field("rules").index(index).field("fallback");
                let message =
                    format!("rule `{}` is never reached: `{}` names every endpoint", rule.id, takes_all.id);
                self.document.warning(&path, message, "remove one of the two");
            }
        }
    }

    fn tests(&mut self) -> Vec<(usize, TestCase)> {
        let mut tests = Vec::new();
        for (index, test) in self.file.tests.iter().enumerate() {
            let path = Path::root().field("tests").index(index);
            if test.steps.is_empty() {
                let hint = "add `steps: [{ at: 0s, send: 100, expect: pass }]`";
                self.document.missing(&path, format!("the test `{}` does nothing", test.name), hint);
            }
            let mut last_us = 0;
            for (number, step) in test.steps.iter().enumerate() {
                let path = path.field("steps").index(number);
                let at_us = step.at.map_or(last_us, |at| at.us);
                if at_us < last_us {
                    self.document.error(
                        &path.field("at"),
                        "this step lies before the one above",
                        "put steps in order",
                    );
                }
                last_us = at_us;
                if step.expect.is_some() && step.pass.is_some() {
                    self.document.error_at_name(
                        &path.field("pass"),
                        "`expect` and `pass` exclude each other",
                        None,
                    );
                }
                if step.expect.is_none()
                    && step.pass.is_none()
                    && step.remaining.is_none()
                    && step.rule.is_none()
                    && step.retry_after.is_none()
                {
                    self.document.missing(
                        &path,
                        "this step expects nothing",
                        "add `expect: pass` or `expect: limited`",
                    );
                }
                if step.send == Some(0) || step.send.is_some_and(|send| send > 1_000_000) {
                    self.document.error(&path.field("send"), "send between 1 and 1,000,000 requests", None);
                }
            }
            tests.push((self.document.line(&path), test.clone()));
        }
        tests
    }
}

/// Each value with the path to it, whether it stands alone or in a list.
fn items<'v>(values: Option<&'v OneOrMany<String>>, path: &Path) -> Vec<(Path, &'v String)> {
    let values = values.map_or(&[][..], |values| &values.0);
    let place = |index| if values.len() > 1 { path.index(index) } else { path.clone() };
    values.iter().enumerate().map(|(index, value)| (place(index), value)).collect()
}

fn globs(patterns: &[String]) -> Vec<Glob> {
    patterns.iter().map(|pattern| Glob::new(pattern)).collect()
}

/// A rule's only limit has the rule's name; one of several also its period, which outlives a reordering.
fn policy_name(id: &str, several: bool, size: Size) -> String {
    match size.window_us {
        Some(window_us) if several => format!("{id}.{}", short_duration(window_us)),
        _ => id.to_owned(),
    }
}
