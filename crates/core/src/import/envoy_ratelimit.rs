//! Imports configurations of envoyproxy/ratelimit.
//!
//! There a descriptor of a request descends a tree: on each level the node with the value of the entry is taken, else the
//! first wildcard that matches, else the node without a value. It never goes back, and a limit applies only if the
//! descriptor ends at its node. Each combination of values has a counter, in windows that are aligned to the clock.
//!
//! Here every rule that matches is charged. A rule therefore states its path through the tree: `exactly` the keys, the
//! values in `match`, and in `except` the values that more specific nodes of a level take.

mod config;
mod levels;

use super::draft::{EndpointMatching, RuleDraft, RuleFileDraft};
use super::{ImportErrors, ImportedRules, finish};
use crate::document::{Document, DocumentPath};
use config::{DescriptorConfig, LimitConfig, RateLimitConfig};
use levels::{DescriptorLevel, LevelNode, LevelProblem};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// The most seconds in a period of a rule.
const LONGEST_PERIOD_S: u64 = 366 * 86_400;
const YEAR_S: u64 = 365 * 86_400;
const NOT_LIMITED: &str = "descriptors that match it are not limited";

/// A configuration file: its name in reports, and its text.
pub type ConfigFile<'f> = (&'f str, &'f str);

/// Imports configuration files. Several files of one domain are taken as one.
pub fn import(files: &[ConfigFile<'_>]) -> Result<ImportedRules, ImportErrors> {
    let mut reports = Vec::new();
    let mut parsed = Vec::new();
    for (name, text) in files {
        match Document::parse(name, text) {
            Err(report) => reports.push(report),
            Ok(mut document) => match document.decode::<RateLimitConfig>() {
                Some(config) => parsed.push(ParsedConfig { name, document, config }),
                None => reports.push(document.into_report()),
            },
        }
    }
    let mut importer = DescriptorImporter { files: parsed, ..DescriptorImporter::default() };
    importer.import();
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    importer.draft.heading = vec![
        format!("Imported from the envoyproxy/ratelimit configuration {}.", names.join(", ")),
        "Descriptor entries are identities of the request: api_key, user, tenant, remote_address (ip), path (endpoint), \
         method, and custom identities for all others."
            .to_owned(),
    ];
    let text = importer.draft.write(EndpointMatching::Exact);
    reports.extend(importer.files.into_iter().map(|file| file.document.into_report()));
    finish(text, reports)
}

struct ParsedConfig<'f> {
    name: &'f str,
    document: Document,
    config: RateLimitConfig,
}

/// A node of the tree: the file that it is in, its path there, and its content.
#[derive(Clone)]
struct TreeNode {
    file: usize,
    path: DocumentPath,
    descriptor: DescriptorConfig,
}

#[derive(Default)]
struct DescriptorImporter<'f> {
    files: Vec<ParsedConfig<'f>>,
    draft: RuleFileDraft,
    /// For each domain and name of a limit, the ids of its rules.
    named: HashMap<(String, String), Vec<String>>,
    /// For each rule, the names that it replaces, and where it says so.
    replacing: Vec<(usize, String, usize, DocumentPath, Vec<String>)>,
    /// For each domain and sorted list of keys, the first order of them.
    orders: HashMap<(String, Vec<String>), Vec<String>>,
}

impl DescriptorImporter<'_> {
    fn import(&mut self) {
        // In the order of the files.
        let mut domains: Vec<(String, Vec<TreeNode>)> = Vec::new();
        for index in 0..self.files.len() {
            let root = DocumentPath::root();
            let file = &mut self.files[index];
            let domain = file.config.domain.as_ref().map(|domain| domain.0.clone()).unwrap_or_default();
            if domain.is_empty() {
                let hint = "add `domain: …`, as in the requests of Envoy";
                file.document.missing(&root.field("domain"), "a configuration needs a domain", hint);
                continue;
            }
            let nodes = file.config.descriptors.iter().enumerate().map(|(item, descriptor)| TreeNode {
                file: index,
                path: root.field("descriptors").index(item),
                descriptor: descriptor.clone(),
            });
            let nodes: Vec<TreeNode> = nodes.collect();
            match domains.iter_mut().find(|(known, _)| *known == domain) {
                Some((_, known)) => known.extend(nodes),
                None => domains.push((domain, nodes)),
            }
        }
        for (domain, nodes) in &domains {
            self.level(domain, nodes, &[]);
        }
        self.replacements();
    }

    /// Imports the nodes of one level below `parents`.
    fn level(&mut self, domain: &str, nodes: &[TreeNode], parents: &[DescriptorLevel]) {
        let mut seen = HashSet::new();
        let mut known = Vec::new();
        for node in nodes {
            let key = node.descriptor.key();
            if key.is_empty() {
                let hint = "add `key: …`, the key of an entry";
                self.error(node, "key", "a descriptor needs a key", hint);
                continue;
            }
            if !seen.insert(node.descriptor.composite_key()) {
                let message = format!("`{key}` is given twice with the same value on this level");
                self.error(node, "key", &message, "keep one of them");
                continue;
            }
            known.push(node);
        }
        let nodes: Vec<LevelNode<'_>> = known.iter().map(|node| LevelNode::new(&node.descriptor)).collect();
        for (index, node) in known.iter().enumerate() {
            self.node(domain, node, parents, DescriptorLevel::new(&nodes, index));
        }
    }

    fn node(&mut self, domain: &str, node: &TreeNode, parents: &[DescriptorLevel], level: DescriptorLevel) {
        let TreeNode { file, path, descriptor } = node;
        self.warn_of_unused(node);
        if descriptor.share_threshold && !descriptor.composite_key().contains('*') {
            let hint = "remove it, or add a wildcard to the value";
            self.error(node, "share_threshold", "only values with a wildcard can share a threshold", hint);
        }
        let mut chain = parents.to_vec();
        chain.push(level);
        if let Some(limit) = &descriptor.rate_limit {
            self.limit(domain, node, limit, &chain);
        }
        if !descriptor.descriptors.is_empty() {
            let below = descriptor.descriptors.iter().enumerate().map(|(item, descriptor)| TreeNode {
                file: *file,
                path: path.field("descriptors").index(item),
                descriptor: descriptor.clone(),
            });
            let below: Vec<TreeNode> = below.collect();
            self.level(domain, &below, &chain);
        }
    }

    /// Fields that say nothing about limits, or not the same in all versions.
    fn warn_of_unused(&mut self, node: &TreeNode) {
        let descriptor = &node.descriptor;
        let value = descriptor.value().unwrap_or_default();
        if value.strip_suffix('*').unwrap_or(value).contains('*') {
            let message = "a star before the end of a value is a text in versions before March 2026; here it is a wildcard";
            let hint = "if yours is older, narrow the pattern of the rule to the values that requests have";
            self.warn_at_name(node, "value", message, hint);
        }
        for (name, is_given) in [
            ("detailed_metric", descriptor.detailed_metric),
            ("value_to_metric", descriptor.value_to_metric),
            ("metadata", descriptor.metadata.is_some()),
        ] {
            if is_given {
                let message = format!("`{name}` has no equivalent, and no effect on limits");
                let hint = "metrics have the rule as a label; values of clients are in the decision log";
                self.warn_at_name(node, name, &message, hint);
            }
        }
        if descriptor.quota_mode {
            let hint = "here the rule refuses by itself";
            self.warn_at_name(
                node,
                "quota_mode",
                "`quota_mode` has no equivalent: there a request is refused only if all of its quotas are spent",
                hint,
            );
        }
    }

    fn limit(&mut self, domain: &str, node: &TreeNode, limit: &LimitConfig, chain: &[DescriptorLevel]) {
        let Some(period_s) = self.period(node, limit) else { return };
        let names: Vec<String> = limit.replaces.iter().map(|replaced| replaced.name.0.clone()).collect();
        let path = node.path.field("rate_limit");
        for (index, name) in names.iter().enumerate() {
            let path = path.field("replaces").index(index).field("name");
            if Some(name) == limit.name.as_ref().map(|name| &name.0) {
                let document = &mut self.files[node.file].document;
                document.error(&path, "a limit cannot replace itself", "name another one, or remove it");
                return;
            }
        }
        if limit.unlimited {
            if !names.is_empty() {
                let message =
                    "`replaces` of an unlimited descriptor has no equivalent: the other limit still applies";
                self.warn_at_name(node, "rate_limit", message, "give it a large limit instead");
            }
            return;
        }
        let mut rule = RuleDraft { domains: vec![domain.to_owned()], ..RuleDraft::default() };
        for level in chain {
            if let Err(problem) = level.add_to(&mut rule) {
                self.warn_of_problem(node, &problem);
                return;
            }
        }
        if rule.key.is_empty() {
            rule.key.push("all".to_owned());
        }
        self.warn_of_order(domain, node, chain);
        let line = self.files[node.file].document.line(&node.path);
        let shown: Vec<String> = chain.iter().map(DescriptorLevel::to_string).collect();
        rule.comments.push(format!("{}:{line}: {}", self.files[node.file].name, shown.join(", ")));
        rule.algorithm = "fixed_window";
        let (requests, period) = self.numbers(node, limit, period_s, &mut rule);
        rule.size.push(("limit", json!(format!("{requests}/{period}"))));
        if node.descriptor.shadow_mode {
            rule.on_exceed = Some(Value::from("shadow"));
        }
        if let Err(why) = rule.check(EndpointMatching::Exact) {
            let message = format!("this limit has no equivalent: {why}");
            let hint = format!("the limit is not imported: {NOT_LIMITED}");
            self.files[node.file].document.warning(&path.field("requests_per_unit"), message, hint);
            return;
        }
        let name: Vec<String> =
            std::iter::once(domain.to_owned()).chain(chain.iter().map(DescriptorLevel::id_part)).collect();
        let index = self.draft.rules.len();
        let id = self.draft.add(&name.join("/"), rule);
        if let Some(name) = &limit.name {
            self.named.entry((domain.to_owned(), name.0.clone())).or_default().push(id);
        }
        if !names.is_empty() {
            let replaces = path.field("replaces");
            if node.descriptor.shadow_mode {
                let document = &mut self.files[node.file].document;
                let message = "a rule that is not enforced replaces nothing: the other limit still applies";
                document.warning(&replaces, message, "remove `shadow_mode` for the same effect");
            }
            self.replacing.push((index, domain.to_owned(), node.file, replaces, names));
        }
    }

    /// The length of the window in seconds; 0 for an unlimited descriptor. `None` if it is invalid.
    fn period(&mut self, node: &TreeNode, limit: &LimitConfig) -> Option<u64> {
        let path = node.path.field("rate_limit");
        let document = &mut self.files[node.file].document;
        let unit_s = limit.unit.as_ref().and_then(|unit| unit_seconds(&unit.0));
        match (limit.unlimited, unit_s, &limit.unit) {
            (true, Some(_), _) => {
                let hint = "remove `unit`, or `unlimited`";
                document.error(&path.field("unit"), "an unlimited descriptor has no unit", hint);
                None
            }
            (true, None, _) => Some(0),
            (false, None, Some(unit)) => {
                let hint = "use second, minute, hour, day, week, month or year";
                document.error(&path.field("unit"), format!("`{}` is not a unit", unit.0), hint);
                None
            }
            (false, None, None) => {
                let hint = "add `unit: minute`, or `unlimited: true`";
                document.missing(&path, "a limit needs a unit", hint);
                None
            }
            (false, Some(unit_s), _) => match limit.unit_multiplier.unwrap_or(1) {
                0 => {
                    let path = path.field("unit_multiplier");
                    document.error(&path, "a window cannot be 0 units long", "use 1 or more");
                    None
                }
                multiplier => Some(unit_s.saturating_mul(multiplier)),
            },
        }
    }

    /// The limit and the period as they are written, with notes where they differ.
    fn numbers(
        &mut self,
        node: &TreeNode,
        limit: &LimitConfig,
        period_s: u64,
        rule: &mut RuleDraft,
    ) -> (u64, String) {
        let path = node.path.field("rate_limit");
        let document = &mut self.files[node.file].document;
        let requests = limit.requests_per_unit.unwrap_or(0);
        if requests == 0 {
            let message = "a limit of 0 has no equivalent: a rule admits at least one request";
            document.warning(
                &path.field("requests_per_unit"),
                message,
                "imported as 1 per year and key; the deny list refuses all requests of API keys, users, tenants and \
                 addresses",
            );
            rule.comments.push("0 in the original: every request is refused there".to_owned());
            return (1, "365day".to_owned());
        }
        if period_s > LONGEST_PERIOD_S {
            let requests = (u128::from(requests) * u128::from(YEAR_S) / u128::from(period_s)).max(1) as u64;
            let message = "a period above 366 days has no equivalent";
            let hint = format!("imported with the same rate: {requests} per 365 days");
            document.warning(&path, message, hint);
            return (requests, "365day".to_owned());
        }
        (requests, period_text(period_s))
    }

    fn warn_of_problem(&mut self, node: &TreeNode, problem: &LevelProblem) {
        let hint = format!("the limit is not imported: {NOT_LIMITED}");
        self.warn_at_name(node, "key", &problem.to_string(), &hint);
    }

    /// Descriptors with the same entries in another order are the same requests here.
    fn warn_of_order(&mut self, domain: &str, node: &TreeNode, chain: &[DescriptorLevel]) {
        let order: Vec<String> = chain.iter().map(|level| level.key.clone()).collect();
        let mut sorted = order.clone();
        sorted.sort();
        let known = self.orders.entry((domain.to_owned(), sorted)).or_insert_with(|| order.clone());
        if *known != order {
            let message = format!(
                "the order of entries has no equivalent: descriptors ({}) also match the rules for ({})",
                known.join(", "),
                order.join(", ")
            );
            self.warn_at_name(node, "key", &message, "rename the keys of one of the two");
        }
    }

    fn replacements(&mut self) {
        for (rule, domain, file, path, names) in std::mem::take(&mut self.replacing) {
            for (index, name) in names.into_iter().enumerate() {
                let own = self.draft.rules[rule].0.clone();
                let replaced = self.named.get(&(domain.clone(), name.clone()));
                let replaced: Vec<String> =
                    replaced.into_iter().flatten().filter(|id| **id != own).cloned().collect();
                if replaced.is_empty() {
                    let message = format!("no imported limit of this domain has the name `{name}`");
                    let path = path.index(index);
                    self.files[file].document.warning(&path, message, "it replaces nothing");
                }
                let replaces = &mut self.draft.rules[rule].1.replaces;
                for id in replaced {
                    if !replaces.contains(&id) {
                        replaces.push(id);
                    }
                }
            }
        }
    }

    fn error(&mut self, node: &TreeNode, field: &str, message: &str, hint: &str) {
        let document = &mut self.files[node.file].document;
        if !document.is_damaged(&node.path) {
            document.error(&node.path.field(field), message, hint);
        }
    }

    fn warn_at_name(&mut self, node: &TreeNode, field: &str, message: &str, hint: &str) {
        self.files[node.file].document.warning_at_name(&node.path.field(field), message, hint);
    }
}

/// The length of a unit: a month is 30 days there, a year 365.
fn unit_seconds(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        "week" => 7 * 86_400,
        "month" => 30 * 86_400,
        "year" => YEAR_S,
        _ => return None,
    })
}

/// The period in the largest unit that divides it.
fn period_text(period_s: u64) -> String {
    let units = [(7 * 86_400, "week"), (86_400, "day"), (3_600, "h"), (60, "min"), (1, "s")];
    let unit = units.into_iter().find(|(seconds, _)| period_s.is_multiple_of(*seconds));
    let (seconds, name) = unit.unwrap_or((1, "s"));
    match period_s / seconds {
        1 => name.to_owned(),
        count => format!("{count}{name}"),
    }
}
