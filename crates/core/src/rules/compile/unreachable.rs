//! What can never take effect: conditions that no client meets, fallbacks that another rule leaves nothing, overrides
//! of clients that the rule is not about.
//!
//! Every rule that matches counts, so no rule stands in another's way, but for fallbacks. Out of reach is what the lists
//! decide before any rule is looked at, and what contradicts itself. A warning is given only where that is certain, as
//! long as callers do not state a tier; entries that expire are left aside.

use super::RuleCompiler;
use crate::document::DocumentPath;
use crate::rules::lists::{AccessLists, ListVerdict};
use crate::rules::pattern::{Glob, network};
use crate::rules::ruleset::Rule;
use crate::rules::short_forms::OneOrMany;
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
            self.warn_of_idle_overrides(rule, index, lists, &path.field("override"));
        }
        self.warn_of_listed_members(lists);
        self.warn_of_covered_tiers();
        self.warn_of_foreign_tiers();
        self.warn_of_denied_allowances(lists);
        self.warn_of_covered_fallbacks();
    }

    /// Conditions on clients about whom a list has decided.
    fn warn_of_listed_clients(&mut self, matches: &WrittenMatch, lists: &AccessLists, path: &DocumentPath) {
        let names = [
            ("api_key_pattern", &matches.api_key_pattern),
            ("user_pattern", &matches.user_pattern),
            ("tenant_pattern", &matches.tenant_pattern),
        ];
        for (field, patterns) in names {
            self.warn_of_listed(patterns.as_ref(), &path.field(field), |text| {
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
            if let Some(listed) = decide(pattern) {
                let message = format!("the rule never applies to these: {}", on_list(listed));
                self.document.warning(&path.index(index), message, "remove it here, or from the list");
            }
        }
    }

    fn warn_of_idle_overrides(
        &mut self,
        rule: &WrittenRule,
        index: usize,
        lists: &AccessLists,
        path: &DocumentPath,
    ) {
        let Some(place) = self.origins.iter().position(|origin| *origin == index) else { return };
        for name in rule.overrides.keys() {
            let compiled = &self.parts.rules[place];
            let (listed, is_met) = match name.parse::<IpAddr>() {
                Ok(ip) => (lists.decide_network(ip.to_canonical().into()), compiled.may_meet_address(ip)),
                Err(_) => {
                    let listed = lists.decide_names(&Glob::new(name));
                    (
                        listed.filter(|_| compiled.custom_names().next().is_none()),
                        compiled.may_meet_name(name),
                    )
                }
            };
            let path = path.field(name);
            if let Some(listed) = listed {
                let message = format!("this override never applies: {}", on_list(listed));
                self.document.warning_at_name(&path, message, "remove it here, or from the list");
            } else if !is_met {
                let message = "this override never applies: the rule's `match` excludes this client";
                self.document.warning_at_name(&path, message, "remove it, or widen `match`");
            }
        }
    }

    /// Members of tiers about whom a list has decided.
    fn warn_of_listed_members(&mut self, lists: &AccessLists) {
        for (name, tier) in &self.file.tiers {
            let path = DocumentPath::root().field("tiers").field(name);
            let keys =
                tier.keys.iter().enumerate().map(|(index, key)| (key, path.field("keys").index(index)));
            let patterns = tier.api_key_pattern.iter().flat_map(|patterns| patterns.0.iter().enumerate());
            let patterns =
                patterns.map(|(index, pattern)| (pattern, path.field("api_key_pattern").index(index)));
            for (text, path) in keys.chain(patterns) {
                let Some(listed) = lists.decide_names(&Glob::new(text)) else { continue };
                let message = format!("the tier makes no difference to these: {}", on_list(listed));
                self.document.warning(&path, message, "remove it here, or from the list");
            }
        }
    }

    /// Patterns of tiers that another tier's pattern always outdoes.
    fn warn_of_covered_tiers(&mut self) {
        for (id, tier) in self.parts.tiers.iter().enumerate() {
            for (index, glob) in tier.api_key.iter().enumerate() {
                let outdoes = |(other_id, other): &(usize, &Glob)| {
                    let rank = |glob: &Glob, id: usize| (glob.exactness(), usize::MAX - id);
                    *other_id != id && other.covers(glob) && rank(other, *other_id) > rank(glob, id)
                };
                let others = self.parts.tiers.iter().enumerate();
                let mut others =
                    others.flat_map(|(id, tier)| tier.api_key.iter().map(move |glob| (id, glob)));
                let Some((other, _)) = others.find(outdoes) else { continue };
                let message = format!(
                    "this pattern puts no key into the tier: tier `{}` has one that matches the same keys",
                    self.parts.tiers[other].name
                );
                let path = DocumentPath::root()
                    .field("tiers")
                    .field(&tier.name)
                    .field("api_key_pattern")
                    .index(index);
                self.document.warning(&path, message, "one key has one tier; keep one of the two");
            }
        }
    }

    /// Rules for a tier that match only keys of other tiers.
    fn warn_of_foreign_tiers(&mut self) {
        for (rule, origin) in self.parts.rules.iter().zip(&self.origins) {
            let (Some(wanted), Some(globs)) = (rule.tier, &rule.client.api_key) else { continue };
            let own = &self.parts.tiers[wanted as usize];
            // A member may be named by its user, whatever its key.
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
                "rule `{}` is never reached: the keys that it matches are in tier `{other}`, unless the caller says \
                 otherwise",
                rule.id
            );
            let path = DocumentPath::root().field("rules").index(*origin).field("tier");
            self.document.warning(&path, message, "remove `tier`, or change the pattern");
        }
    }

    /// Entries of the allow list that the deny list decides.
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
                    let message = "this entry lets nobody pass: the deny list has the same, and comes first";
                    self.document.warning(&path, message, "remove one of the two");
                }
            }
        }
    }

    /// Fallbacks whose endpoints other rules name for the same clients.
    fn warn_of_covered_fallbacks(&mut self) {
        for (index, fallback) in self.file.rules.iter().enumerate().filter(|(_, rule)| rule.fallback) {
            let takers = self.file.rules.iter().enumerate().filter(|(other, taker)| {
                let compiled = self.origins.iter().position(|origin| origin == other);
                let applies = compiled.map(|place| &self.parts.rules[place]).is_some_and(|compiled| {
                    compiled.on_exceed.is_enforced() && compiled.sizes.everybody.default.is_some()
                });
                !taker.fallback && applies && is_for_all_of(taker, fallback)
            });
            let takers: Vec<&WrittenRule> = takers.map(|(_, taker)| taker).collect();
            let path = DocumentPath::root().field("rules").index(index).field("fallback");
            let message = if let Some(taker) = takers.iter().find(|taker| super::names_every_endpoint(taker))
            {
                format!("rule `{}` is never reached: `{}` names every endpoint", fallback.id, taker.id)
            } else if let Some(taker) = taker_of_all(fallback, &takers) {
                format!("rule `{}` is never reached: `{}` names the same endpoint", fallback.id, taker.id)
            } else {
                continue;
            };
            self.document.warning(&path, message, "remove one of the two");
        }
    }
}

fn on_list(listed: ListVerdict) -> &'static str {
    match listed {
        ListVerdict::Denied => "the deny list refuses them",
        ListVerdict::Allowed => "the allow list lets them pass without any limit",
    }
}

impl Rule {
    /// Whether its conditions leave room for a client at `ip`.
    fn may_meet_address(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.client.ip.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(&ip)))
    }

    /// Whether its conditions leave room for a client with this API key, user, tenant or custom identity.
    fn may_meet_name(&self, name: &str) -> bool {
        let admits = |globs: &Option<Vec<Glob>>| {
            globs.as_ref().is_none_or(|globs| globs.iter().any(|glob| glob.matches(name)))
        };
        let client = &self.client;
        admits(&client.api_key)
            || admits(&client.user)
            || admits(&client.tenant)
            || self.custom_names().next().is_some()
    }
}

/// Whether every request that meets the conditions of `fallback`, endpoints aside, meets those of `taker`.
fn is_for_all_of(taker: &WrittenRule, fallback: &WrittenRule) -> bool {
    fn is_wider<T: PartialEq>(taker: Option<&T>, fallback: Option<&T>) -> bool {
        taker.is_none() || taker == fallback
    }
    let empty = WrittenMatch::default();
    let (one, other) =
        (taker.matches.as_ref().unwrap_or(&empty), fallback.matches.as_ref().unwrap_or(&empty));
    let methods = |rule: &WrittenRule| {
        let inner = rule.matches.as_ref().and_then(|matches| matches.methods.clone());
        rule.methods.clone().or(inner)
    };
    is_wider(taker.tier.as_ref(), fallback.tier.as_ref())
        && is_wider(taker.domain.as_ref(), fallback.domain.as_ref())
        && is_wider(methods(taker).as_ref(), methods(fallback).as_ref())
        && is_wider(one.api_key_pattern.as_ref(), other.api_key_pattern.as_ref())
        && is_wider(one.user_pattern.as_ref(), other.user_pattern.as_ref())
        && is_wider(one.tenant_pattern.as_ref(), other.tenant_pattern.as_ref())
        && is_wider(one.ip.as_ref(), other.ip.as_ref())
        && (one.ids.is_empty() || one.ids == other.ids)
}

/// A rule that names an endpoint of `fallback`, if all its endpoints are named by one or another.
fn taker_of_all<'r>(fallback: &WrittenRule, takers: &[&'r WrittenRule]) -> Option<&'r WrittenRule> {
    let regexes = fallback.matches.as_ref().and_then(|matches| matches.endpoint_regex.as_ref());
    if regexes.is_some() {
        return None;
    }
    let templates: Vec<(&str, bool)> = templates(fallback).collect();
    let taker_of = |(template, exact): &(&str, bool)| {
        takers.iter().copied().find(|taker| {
            self::templates(taker)
                .any(|(other, other_exact)| covers_template(other, template, *exact || other_exact))
        })
    };
    let taken = templates.iter().map(taker_of).collect::<Option<Vec<_>>>()?;
    taken.first().copied()
}

/// The templates of a rule, each with whether it is exact.
fn templates(rule: &WrittenRule) -> impl Iterator<Item = (&str, bool)> {
    let matches = rule.matches.as_ref();
    let exact = matches.is_some_and(|matches| matches.exact);
    let templates = rule.endpoint.iter().chain(matches.and_then(|matches| matches.endpoint.as_ref()));
    templates.flat_map(|some| &some.0).map(move |template| (template.as_str(), exact))
}

/// Whether every path under `template` is under `other`.
fn covers_template(other: &str, template: &str, exact: bool) -> bool {
    if exact {
        return other == template;
    }
    let mut others = other.trim_end_matches('/').split('/');
    let mut own = template.trim_end_matches('/').split('/');
    loop {
        match (others.next(), own.next()) {
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
