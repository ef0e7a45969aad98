//! Warnings about parts that never take effect: conditions that no client meets, fallbacks whose endpoints other rules
//! name, overrides of clients that the rule does not match, numbers of tiers that no rule takes.
//!
//! All matching rules apply, so apart from fallbacks no rule hides another. Unreachable are clients that a list decides
//! first, and contradictory conditions. A warning is given only where this is certain if callers state no tier. List
//! entries with an expiry are ignored.

use super::RuleCompiler;
use crate::document::DocumentPath;
use crate::request::NamedIdentity;
use crate::rules::lists::{AccessLists, ListVerdict};
use crate::rules::pattern::{Glob, PathStrictness, network};
use crate::rules::ruleset::Rule;
use crate::rules::short_forms::OneOrMany;
use crate::rules::size_layers::SizeLayer;
use crate::rules::written::{WrittenMatch, WrittenRule};
use std::net::IpAddr;

impl RuleCompiler<'_> {
    pub(super) fn warn_of_unreachable(&mut self, lists: &AccessLists) {
        let root = DocumentPath::root();
        for (index, rule) in self.file.rules.iter().enumerate() {
            let path = root.field("rules").index(index);
            if let Some(matches) = &rule.matches {
                self.warn_of_listed_clients(matches, lists, &path.field("match"));
            }
            self.warn_of_unused_overrides(rule, index, lists, &path.field("override"));
        }
        self.warn_of_listed_members(lists);
        self.warn_of_covered_tiers();
        self.warn_of_foreign_tiers();
        self.warn_of_unused_tier_sizes();
        self.warn_of_denied_allowances(lists);
        self.warn_of_covered_fallbacks();
    }

    /// Conditions on clients that are on a list.
    fn warn_of_listed_clients(&mut self, matches: &WrittenMatch, lists: &AccessLists, path: &DocumentPath) {
        for kind in NamedIdentity::ALL {
            self.warn_of_listed(matches.pattern(kind), &path.field(kind.pattern_field()), |text| {
                lists.decide_names(&Glob::new(text))
            });
        }
        self.warn_of_listed(matches.ip.as_ref(), &path.field("ip"), |text| {
            lists.decide_network(network(text)?)
        });
    }

    fn warn_of_listed(
        &mut self,
        patterns: Option<&OneOrMany<String>>,
        path: &DocumentPath,
        decide: impl Fn(&str) -> Option<ListVerdict>,
    ) {
        for (index, pattern) in patterns.iter().flat_map(|patterns| patterns.0.iter().enumerate()) {
            if let Some(verdict) = decide(pattern) {
                let message = format!("the rule never applies to these clients: {}", verdict_text(verdict));
                self.document.warning(&path.index(index), message, "remove it here, or from the list");
            }
        }
    }

    fn warn_of_unused_overrides(
        &mut self,
        rule: &WrittenRule,
        index: usize,
        lists: &AccessLists,
        path: &DocumentPath,
    ) {
        let Some(compiled) = self.origins.iter().position(|origin| *origin == index) else { return };
        for name in rule.overrides.keys() {
            let compiled = &self.parts.rules[compiled];
            let (verdict, may_match) = match name.parse::<IpAddr>() {
                Ok(ip) => (lists.decide_network(ip.to_canonical().into()), compiled.may_match_address(ip)),
                Err(_) => {
                    let verdict = lists.decide_names(&Glob::new(name));
                    (
                        verdict.filter(|_| compiled.custom_names().next().is_none()),
                        compiled.may_match_name(name),
                    )
                }
            };
            let path = path.field(name);
            if let Some(verdict) = verdict {
                let message = format!("this override never applies: {}", verdict_text(verdict));
                self.document.warning_at_name(&path, message, "remove it here, or from the list");
            } else if !may_match {
                let message = "this override never applies: the rule's `match` excludes this client";
                self.document.warning_at_name(&path, message, "remove it, or widen `match`");
            }
        }
    }

    /// Members of tiers that are on a list.
    fn warn_of_listed_members(&mut self, lists: &AccessLists) {
        for (name, tier) in &self.file.tiers {
            let path = DocumentPath::root().field("tiers").field(name);
            let keys =
                tier.keys.iter().enumerate().map(|(index, key)| (key, path.field("keys").index(index)));
            let patterns = tier.api_key_pattern.iter().flat_map(|patterns| patterns.0.iter().enumerate());
            let patterns =
                patterns.map(|(index, pattern)| (pattern, path.field("api_key_pattern").index(index)));
            for (text, path) in keys.chain(patterns) {
                let Some(verdict) = lists.decide_names(&Glob::new(text)) else { continue };
                let message = format!("the tier has no effect on these clients: {}", verdict_text(verdict));
                self.document.warning(&path, message, "remove it here, or from the list");
            }
        }
    }

    /// Patterns of tiers that are always preceded by a pattern of another tier.
    fn warn_of_covered_tiers(&mut self) {
        for (id, tier) in self.parts.tiers.iter().enumerate() {
            for (index, glob) in tier.api_key.iter().enumerate() {
                let precedes = |(other_id, other): &(usize, &Glob)| {
                    let rank = |glob: &Glob, id: usize| (glob.specificity(), usize::MAX - id);
                    *other_id != id && other.covers(glob) && rank(other, *other_id) > rank(glob, id)
                };
                let others = self.parts.tiers.iter().enumerate();
                let mut others =
                    others.flat_map(|(id, tier)| tier.api_key.iter().map(move |glob| (id, glob)));
                let Some((other, _)) = others.find(precedes) else { continue };
                let message = format!(
                    "no key is in the tier by this pattern: tier `{}` has a pattern that matches the same keys",
                    self.parts.tiers[other].name
                );
                let path = DocumentPath::root()
                    .field("tiers")
                    .field(&tier.name)
                    .field("api_key_pattern")
                    .index(index);
                self.document.warning(&path, message, "a key is in one tier; keep one of the two");
            }
        }
    }

    /// Rules for a tier that match only keys of other tiers.
    fn warn_of_foreign_tiers(&mut self) {
        for (rule, origin) in self.parts.rules.iter().zip(&self.origins) {
            let (Some(wanted), Some(globs)) = (rule.tier, &rule.client.named[NamedIdentity::ApiKey]) else {
                continue;
            };
            let own = &self.parts.tiers[wanted as usize];
            // A member may be listed by its user, with any key.
            if !own.keys.is_empty()
                || globs.iter().any(|glob| own.api_key.iter().any(|own| own.may_overlap(glob)))
            {
                continue;
            }
            let tier_of = |glob: &Glob| {
                let is_in = |tier: &&crate::rules::ruleset::Tier| {
                    tier.name != own.name
                        && (tier.api_key.iter().any(|other| other.covers(glob))
                            || glob.is_exact() && tier.keys.iter().any(|key| key == glob.as_str()))
                };
                self.parts.tiers.iter().find(is_in).map(|tier| tier.name.clone())
            };
            let Some(tiers) = globs.iter().map(tier_of).collect::<Option<Vec<_>>>() else { continue };
            let Some(other) = tiers.first() else { continue };
            let message = format!(
                "rule `{}` never applies: the keys that it matches are in tier `{other}`, unless the caller states \
                 another",
                rule.id
            );
            let path = DocumentPath::root().field("rules").index(*origin).field("tier");
            self.document.warning(&path, message, "remove `tier`, or change the pattern");
        }
    }

    /// Numbers of tiers that no rule takes.
    fn warn_of_unused_tier_sizes(&mut self) {
        let root = DocumentPath::root();
        for (name, tier) in &self.file.tiers {
            let is_taken_by = |rule: &WrittenRule| {
                let own = SizeLayer::of_rule(rule, &root);
                match &rule.tier {
                    Some(only) => only == name && !own.covers(),
                    None => !own.states_a_size(),
                }
            };
            if SizeLayer::of_tier(tier, &root).states_a_size() && !self.file.rules.iter().any(is_taken_by) {
                let message = format!(
                    "the numbers of tier `{name}` have no effect: all rules have numbers of their own"
                );
                let hint = "remove `limit` from the rule that should take them, or the numbers here";
                self.document.warning_at_name(&root.field("tiers").field(name), message, hint);
            }
        }
    }

    /// Entries of the allow list that the deny list covers.
    fn warn_of_denied_allowances(&mut self, lists: &AccessLists) {
        let file = self.file;
        for (name, entries) in [("whitelist", &file.whitelist), ("allow", &file.allow)] {
            for (index, entry) in entries.iter().enumerate() {
                let decided = match network(&entry.key) {
                    Some(network) => lists.decide_network(network),
                    None => lists.decide_names(&Glob::new(&entry.key)),
                };
                if decided == Some(ListVerdict::Denied) {
                    let path = DocumentPath::root().field(name).index(index);
                    let message = "this entry has no effect: the deny list covers it and takes precedence";
                    self.document.warning(&path, message, "remove one of the two");
                }
            }
        }
    }

    /// Fallbacks whose endpoints other rules name for the same clients.
    fn warn_of_covered_fallbacks(&mut self) {
        for (index, fallback) in self.file.rules.iter().enumerate().filter(|(_, rule)| rule.fallback) {
            let covering = self.file.rules.iter().enumerate().filter(|(other_index, other)| {
                let compiled = self.origins.iter().position(|origin| origin == other_index);
                let applies = compiled.map(|compiled| &self.parts.rules[compiled]).is_some_and(|compiled| {
                    compiled.on_exceed.is_enforced() && compiled.sizes.common.default.is_some()
                });
                let is_replaced = self
                    .file
                    .rules
                    .iter()
                    .any(|rule| rule.replaces.as_ref().is_some_and(|names| names.0.contains(&other.id)));
                !other.fallback && applies && !is_replaced && covers_conditions(other, fallback)
            });
            let covering: Vec<&WrittenRule> = covering.map(|(_, other)| other).collect();
            let path = DocumentPath::root().field("rules").index(index).field("fallback");
            let message =
                if let Some(other) = covering.iter().find(|other| super::names_every_endpoint(other)) {
                    format!("rule `{}` never applies: `{}` names every endpoint", fallback.id, other.id)
                } else if let Some(other) = find_covering_endpoints(fallback, &covering) {
                    format!("rule `{}` never applies: `{}` names the same endpoint", fallback.id, other.id)
                } else {
                    continue;
                };
            self.document.warning(&path, message, "remove one of the two");
        }
    }
}

fn verdict_text(verdict: ListVerdict) -> &'static str {
    match verdict {
        ListVerdict::Denied => "they are on the deny list",
        ListVerdict::Allowed => "they are on the allow list",
    }
}

impl Rule {
    /// Whether a client at `ip` may match.
    fn may_match_address(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.client.ip.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(&ip)))
    }

    /// Whether a client with this API key, user, tenant or custom identity may match.
    fn may_match_name(&self, name: &str) -> bool {
        let may_match = |(_, globs): (NamedIdentity, &Option<Vec<Glob>>)| {
            globs.as_ref().is_none_or(|globs| globs.iter().any(|glob| glob.matches(name)))
        };
        self.client.named.iter().any(may_match) || self.custom_names().next().is_some()
    }
}

/// Whether every request that matches `fallback`, endpoints aside, matches `other`.
fn covers_conditions(other: &WrittenRule, fallback: &WrittenRule) -> bool {
    fn is_wider<T: PartialEq>(other: Option<&T>, fallback: Option<&T>) -> bool {
        other.is_none() || other == fallback
    }
    let empty = WrittenMatch::default();
    let (wide, narrow) =
        (other.matches.as_ref().unwrap_or(&empty), fallback.matches.as_ref().unwrap_or(&empty));
    let methods = |rule: &WrittenRule| {
        let inner = rule.matches.as_ref().and_then(|matches| matches.methods.clone());
        rule.methods.clone().or(inner)
    };
    other.except.is_none()
        && wide.exactly.is_none()
        && is_wider(other.tier.as_ref(), fallback.tier.as_ref())
        && is_wider(other.domain.as_ref(), fallback.domain.as_ref())
        && is_wider(methods(other).as_ref(), methods(fallback).as_ref())
        && NamedIdentity::ALL.into_iter().all(|kind| is_wider(wide.pattern(kind), narrow.pattern(kind)))
        && is_wider(wide.ip.as_ref(), narrow.ip.as_ref())
        && (wide.ids.is_empty() || wide.ids == narrow.ids)
}

/// If the rules in `covering` together name all endpoints of `fallback`, the rule that names the first.
fn find_covering_endpoints<'r>(
    fallback: &WrittenRule,
    covering: &[&'r WrittenRule],
) -> Option<&'r WrittenRule> {
    let regexes = fallback.matches.as_ref().and_then(|matches| matches.endpoint_regex.as_ref());
    if regexes.is_some() {
        return None;
    }
    let covering_of = |template: &str| {
        covering.iter().copied().find(|other| {
            let is_exact =
                [other, &fallback].map(|rule| rule.path_strictness()).contains(&PathStrictness::Exact);
            templates(other)
                .any(|wide| if is_exact { wide == template } else { covers_template(wide, template) })
        })
    };
    let found = templates(fallback).map(covering_of).collect::<Option<Vec<_>>>()?;
    found.first().copied()
}

fn templates(rule: &WrittenRule) -> impl Iterator<Item = &str> {
    let inner = rule.matches.as_ref().and_then(|matches| matches.endpoint.as_ref());
    rule.endpoint.iter().chain(inner).flat_map(|some| &some.0).map(String::as_str)
}

/// Whether every path that matches `narrow` matches `wide`.
fn covers_template(wide: &str, narrow: &str) -> bool {
    let mut wide = wide.trim_end_matches('/').split('/');
    let mut narrow = narrow.trim_end_matches('/').split('/');
    loop {
        match (wide.next(), narrow.next()) {
            (Some(rest), Some(_)) if rest.starts_with("{*") => return true,
            (Some(name), Some(segment)) if name.starts_with('{') => {
                if segment.starts_with("{*") {
                    return false;
                }
            }
            (Some(literal), Some(segment)) if literal.eq_ignore_ascii_case(segment) => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}
