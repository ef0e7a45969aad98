//! Compiles a rule file to a rule set. All errors are reported at once.

mod doors;
mod exceptions;
mod lease_timing;
mod lists;
mod matching;
mod on_exceed;
mod penalties;
mod sizes;
mod test_cases;
mod unmatchable_regex;
mod unreachable;

use super::doors::OpenDoor;
use super::lists::AccessLists;
use super::pattern::PathStrictness;
use super::ruleset::{Rule, RuleSet, RuleSetParts, Tier, TierId};
use super::written::{RuleFile, RuleTestCase, WrittenRule};
use crate::diagnostic::{DiagnosticReport, nearest};
use crate::document::{Document, DocumentPath};
use regex::RegexSetBuilder;
use std::collections::HashMap;

/// The largest compiled pattern; all patterns together may take four times as much.
const PATTERN_BYTES: usize = 2 << 20;

const NO_RULES: &str = "there are no rules, so nothing is limited";
const NO_RULES_HINT: &str =
    "start with `rules: [{ id: api, limit: 100/min }]`; to limit nothing, write `allow_empty: true`";

/// A compiled rule file.
#[derive(Debug)]
pub struct LoadedRules {
    /// The rule set.
    pub rules: RuleSet,
    /// The lists.
    pub lists: AccessLists,
    /// The test cases, each with the line on which it starts.
    pub tests: Vec<(usize, RuleTestCase)>,
    /// Warnings.
    pub warnings: DiagnosticReport,
}

/// Compiles the rule file `text`; `source` is its name in reports. The error is a report of all errors.
pub fn load(source: &str, text: &str) -> Result<LoadedRules, DiagnosticReport> {
    load_for(source, text, &[])
}

/// Like [`load`], with warnings about rules that the given doors cannot apply.
pub fn load_for(source: &str, text: &str, doors: &[OpenDoor]) -> Result<LoadedRules, DiagnosticReport> {
    let mut document = Document::parse(source, text)?;
    let Some(file) = document.decode::<RuleFile>() else { return Err(document.into_report()) };
    let mut compiler = RuleCompiler::new(&file, document);
    compiler.compile();
    let allow = compiler.list([("whitelist", &file.whitelist), ("allow", &file.allow)]);
    let deny = compiler.list([("blacklist", &file.blacklist), ("deny", &file.deny)]);
    let lists = AccessLists::new(allow, deny);
    let tests = compiler.tests();
    // Warnings about a file with errors would be noise.
    if !compiler.document.has_errors() {
        compiler.warn_of_unreachable(&lists);
        compiler.warn_of_doors(doors);
    }
    let (parts, document) = (compiler.parts, compiler.document);
    let report = document.into_report();
    if report.errors() > 0 {
        return Err(report);
    }
    Ok(LoadedRules { rules: RuleSet::new(parts), lists, tests, warnings: report })
}

/// The value of a field of a rule, or else that of `defaults`, with its path.
fn inherited<'f, T>(
    own: Option<&'f T>,
    default: Option<&'f T>,
    field: &str,
    rule_path: &DocumentPath,
) -> Option<(&'f T, DocumentPath)> {
    let own = own.map(|value| (value, rule_path.field(field)));
    own.or_else(|| Some((default?, DocumentPath::root().field("defaults").field(field))))
}

struct RuleCompiler<'f> {
    file: &'f RuleFile,
    document: Document,
    parts: RuleSetParts,
    patterns: Vec<String>,
    tier_ids: HashMap<String, TierId>,
    /// For each compiled rule, the index of its rule in the file: a rule with a safety net is compiled to two.
    origins: Vec<usize>,
}

impl<'f> RuleCompiler<'f> {
    fn new(file: &'f RuleFile, document: Document) -> Self {
        Self {
            file,
            document,
            parts: RuleSetParts::default(),
            patterns: Vec::new(),
            tier_ids: HashMap::new(),
            origins: Vec::new(),
        }
    }

    fn compile(&mut self) {
        let root = DocumentPath::root();
        self.parts.on_store_failure = self.file.defaults.on_store_failure.unwrap_or_default();
        self.tiers();
        for (index, template) in self.file.routes.iter().enumerate() {
            self.template(template, PathStrictness::Folded, &root.field("routes").index(index));
        }
        for (index, rule) in self.file.rules.iter().enumerate() {
            self.rule(index, rule, &root.field("rules").index(index));
        }
        self.check_zeros();
        self.check_names();
        self.replacements();
        self.parts.routes.sort_by_key(|route| route.generality.clone());
        let mut set = RegexSetBuilder::new(&self.patterns);
        match set.size_limit(4 * PATTERN_BYTES).dot_matches_new_line(true).build() {
            Ok(set) => self.parts.endpoints = set,
            Err(_) => self.document.error(
                &root.field("rules"),
                "the endpoint patterns of all rules together are too large",
                "use templates, or simpler regular expressions",
            ),
        }
        // A file whose rules were commented out, or lost by a tool, would switch off all limits.
        if self.file.rules.is_empty() && !self.file.allow_empty && !self.document.is_damaged(&root) {
            self.document.error(&root.field("rules"), NO_RULES, NO_RULES_HINT);
        }
    }

    /// Numbers the tiers: those in `tiers`, then those that only rules mention.
    fn tiers(&mut self) {
        let root = DocumentPath::root();
        let mut members: HashMap<&str, &str> = HashMap::new();
        for (name, tier) in &self.file.tiers {
            let path = root.field("tiers").field(name);
            if !is_plain(name) {
                let message = format!("`{name}` is not a valid name of a tier");
                self.document.error_at_name(&path, message, PLAIN_HINT);
            }
            for (index, key) in tier.keys.iter().enumerate() {
                if let Some(other) = members.insert(key, name) {
                    let message = format!("`{key}` is already in tier `{other}`");
                    self.document.error(&path.field("keys").index(index), message, "a client is in one tier");
                }
            }
            let patterns = tier.api_key_pattern.as_ref();
            let api_key = self.globs(patterns, &path.field("api_key_pattern")).unwrap_or_default();
            self.add_tier(Tier { name: name.clone(), keys: tier.keys.clone(), api_key });
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
        let incomplete = self.document.is_damaged(&root.field("tiers"));
        for (name, path) in mentioned {
            if self.is_unknown(name) && !incomplete {
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

    /// A file with `tiers:` must declare all its tiers there.
    fn is_unknown(&self, tier: &str) -> bool {
        !self.file.tiers.is_empty() && !self.file.tiers.contains_key(tier)
    }

    fn add_tier(&mut self, tier: Tier) {
        if !self.tier_ids.contains_key(&tier.name) {
            self.tier_ids.insert(tier.name.clone(), self.parts.tiers.len() as TierId);
            self.parts.tiers.push(tier);
        }
    }

    /// Compiles one rule. Every part is checked, also after an error in another.
    fn rule(&mut self, index: usize, rule: &WrittenRule, path: &DocumentPath) {
        let defaults = &self.file.defaults;
        self.check_id(rule, path);
        let (on_exceed, soft) = (self.on_exceed(rule, path), self.soft(rule, path));
        let sizes = self.sizes(rule, path);
        let endpoints = self.endpoints(rule, path);
        let client = self.client(rule.matches.as_ref(), &path.field("match"));
        let methods = self.rule_methods(rule, path);
        let domains = self.domains(rule.domain.as_ref(), &path.field("domain"));
        let (except, exactly) = (self.except(rule, path), self.exactly(rule, path));
        let key = self.key(rule, path);
        let ipv6_prefix = self.ipv6_prefix(rule, path);
        let tier = rule.tier.as_ref().and_then(|name| self.tier_ids.get(name)).copied();
        let unknown = rule.tier.as_ref().is_some_and(|name| self.is_unknown(name));
        if tier.is_some() && !client.has_key_pattern() && !unknown && !self.has_members(tier) {
            self.document.warning(
                &path.field("tier"),
                "no client is in this tier unless the caller states it",
                "add `api_key_pattern` or `keys` to the tier under `tiers:`, or a match to the rule",
            );
        }
        let penalty = self.penalty(rule, path);
        let leasing = self.lease_timing(rule, path);
        let net = self.net_factor(rule, &key, path);
        let Some(sizes) = sizes else { return };
        let compiled = Rule {
            id: rule.id.clone(),
            on_exceed,
            soft,
            penalty,
            on_store_failure: rule.on_store_failure.or(defaults.on_store_failure).unwrap_or_default(),
            consistency: rule.consistency.or(defaults.consistency).unwrap_or_default(),
            leasing,
            key,
            ipv6_prefix,
            tier,
            domains,
            methods,
            client,
            exactly,
            except,
            // Known when all rules are compiled.
            replaces: Vec::new(),
            endpoints,
            fallback: rule.fallback,
            needs_address: false,
            sizes,
        };
        self.warn_of_unused_lease(rule, &compiled, path);
        let net = net.map(|(factor, path)| self.safety_net(&compiled, factor, &path));
        self.push(compiled, index);
        if let Some(net) = net {
            self.push(net, index);
        }
    }

    fn push(&mut self, rule: Rule, origin: usize) {
        let owner = self.parts.rules.len() as u32;
        for size in rule.sizes.all() {
            for limit in self.parts.sizes[size as usize].clone() {
                self.parts.owners[limit as usize] = owner;
                if let Some(soft) = &rule.soft {
                    let limit = &mut self.parts.limits[limit as usize];
                    limit.soft_floor = limit.quota - soft.at.of(u64::from(limit.quota)) as u32;
                }
            }
        }
        self.parts.rules.push(rule);
        self.origins.push(origin);
    }

    fn has_members(&self, tier: Option<TierId>) -> bool {
        let Some(tier) = tier else { return true };
        let members = &self.parts.tiers[tier as usize];
        self.parts.default_tier == Some(tier) || !members.keys.is_empty() || !members.api_key.is_empty()
    }

    /// An id appears in headers and metrics: it must be plain.
    fn check_id(&mut self, rule: &WrittenRule, path: &DocumentPath) {
        let id_path = path.field("id");
        if rule.id.is_empty() && !self.document.is_removed(&id_path) {
            let hint = "add `id: …`: a name for responses, metrics and logs";
            self.document.error(&id_path, "this rule has no id", hint);
        } else if !rule.id.is_empty() && !is_plain(&rule.id) {
            self.document.error(&id_path, format!("`{}` is not a valid id", rule.id), PLAIN_HINT);
        }
    }

    /// States are found by the names of limits, so names must be unique: ids, and the derived names of safety nets and of
    /// several limits.
    fn check_names(&mut self) {
        let id_path = |index| DocumentPath::root().field("rules").index(index).field("id");
        let mut ids: HashMap<&str, usize> = HashMap::new();
        for (index, rule) in self.file.rules.iter().enumerate().filter(|(_, rule)| !rule.id.is_empty()) {
            if let Some(first) = ids.get(rule.id.as_str()) {
                let line = self.document.line(&id_path(*first));
                let message = format!("rule `{}` already exists on line {line}", rule.id);
                self.document.error(&id_path(index), message, "each rule needs its own id");
            } else {
                ids.insert(&rule.id, index);
            }
        }
        for (rule, origin) in self.parts.rules.iter().zip(&self.origins) {
            let limits = rule.sizes.all().flat_map(|size| self.parts.sizes[size as usize].clone());
            let policies = limits.map(|limit| self.parts.limits[limit as usize].policy.as_str());
            for name in policies.chain([rule.id.as_str()]) {
                let Some(taken) = ids.get(name).filter(|index| {
                    // A repeated id is already reported.
                    *index != origin && self.file.rules[**index].id != self.file.rules[*origin].id
                }) else {
                    continue;
                };
                let owner = &self.file.rules[*origin].id;
                let message = format!("`{name}` is the name of a limit of rule `{owner}`");
                self.document.error(&id_path(*taken), message, "give this rule another id");
            }
        }
    }
}

const PLAIN_HINT: &str = "use up to 128 letters, digits and - _ . : /";

/// Whether a name can appear in headers and metrics.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    !name.is_empty() && name.len() <= 128 && name.chars().all(plain)
}

/// Whether the rule names every path.
fn names_every_endpoint(rule: &WrittenRule) -> bool {
    let matches = rule.matches.as_ref();
    let regexes = matches.and_then(|matches| matches.endpoint_regex.as_ref());
    let by_regex = regexes.is_some_and(|regexes| {
        regexes
            .0
            .iter()
            .any(|regex| matches!(regex.as_str(), ".*" | "^.*" | "^.*$" | "^/.*" | "^/.*$" | "^/"))
    });
    let templates = rule.endpoint.iter().chain(matches.and_then(|matches| matches.endpoint.as_ref()));
    let by_template = templates.flat_map(|some| &some.0).any(|template| template.starts_with("/{*"));
    by_regex || by_template
}
