//! Which rules a request meets.
//!
//! Selection is cut in parts so that each can be remembered: what the client decides ([`ClientMatch`]: tier,
//! patterns, overrides), what the path decides ([`PathMatch`]: templates and regular expressions), and the
//! two joined ([`Selection`]). What is left for the single request is a method, a domain, and whose count it
//! is: [`RuleSet::charge`] runs no pattern at all.

use super::pattern::PathStrictness;
use super::ruleset::{LimitId, Rule, RuleSet, SizeId, Tier, TierId};
use super::written::OnExceed;
use crate::key::{Dimension, KeyHashes, RequestHasher};
use crate::limit::Limit;
use crate::path::PathReadings;
use crate::request::Request;
use smallvec::SmallVec;
use std::ops::Range;

/// The client half of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientMatch {
    /// For each rule the numbers that this client gets; none if it is not about this client.
    sizes: Vec<Option<SizeId>>,
}

/// The path half of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathMatch {
    /// For each rule whether it is about this path.
    rules: Vec<bool>,
    /// The route that the path falls under, by its hash; 0 if under none.
    route: u64,
}

/// The rules that a client meets on a path, ready to charge.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Fallbacks last.
    items: Vec<SelectedRule>,
    route: u64,
    /// The limit, if there is but one, and it can refuse without conditions. So it is for most requests, and there
    /// is nothing left to go through for them.
    only: Option<SingleLimit>,
}

/// The only limit of a selection, and its identity: the state can be looked up before the limit is.
#[derive(Clone, Copy, Debug)]
struct SingleLimit {
    id: LimitId,
    identity: u64,
    rule: u32,
    by_api_key: bool,
}

/// One rule of a selection.
#[derive(Clone, Debug)]
struct SelectedRule {
    rule: u32,
    limits: Range<u32>,
    /// Whether [`Rule::first_failure`] has to be asked.
    has_conditions: bool,
    /// Whether it counts by the API key and nothing else, as most rules do.
    by_api_key: bool,
    enforced: bool,
    over: OverLimitEffect,
    names_endpoint: bool,
    fallback: bool,
}

/// One limit that a request has to be charged against, for one key.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'r> {
    /// The limit.
    pub limit: &'r Limit,
    /// Its name within the set.
    pub id: LimitId,
    /// Whose state.
    pub key: u64,
    /// Whose, under any limit and on any route.
    pub client: u64,
    /// Whether it can refuse.
    pub enforced: bool,
    /// If it cannot: what else becomes of a request over it.
    pub over: OverLimitEffect,
}

/// What becomes of a request that passes although it is over a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverLimitEffect {
    /// It is reported.
    #[default]
    Shadow,
    /// The upstream is told.
    Flag,
    /// Nothing: there is room for it.
    Tolerated,
}

/// The charges of one request. Most have one or two.
pub type Charges<'r> = SmallVec<[Charge<'r>; 8]>;

impl RuleSet {
    /// The client half: tier, patterns, and the numbers this client gets from each rule.
    pub fn match_client(&self, request: &Request<'_>) -> ClientMatch {
        let mut matched = ClientMatch::default();
        self.match_client_into(request, &mut matched);
        matched
    }

    /// The same, in memory that was used before.
    pub fn match_client_into(&self, request: &Request<'_>, matched: &mut ClientMatch) {
        let tier = self.tier_of(request);
        matched.sizes.clear();
        for rule in &self.rules {
            let applies = rule.client.holds(request) && self.tier_admits(rule, tier);
            let tier = tier.or(rule.tier).or(self.default_tier);
            let size = if applies { rule.size_for(request, tier) } else { None };
            matched.sizes.push(size);
        }
    }

    /// The path half: one pass of all patterns over each reading of the path.
    pub fn match_path(&self, path: &str) -> PathMatch {
        let readings = PathReadings::of(path);
        let whole = self.endpoints.matches(&readings.whole);
        let plain = readings.plain.as_deref().map(|plain| self.endpoints.matches(plain));
        let is_found = |pattern: usize| {
            let is_folded = self.closeness[pattern] == PathStrictness::Folded;
            whole.matched(pattern) || is_folded && plain.as_ref().is_some_and(|plain| plain.matched(pattern))
        };
        let meets = |rule: &Rule| match &rule.endpoints {
            None => true,
            Some(patterns) => patterns.clone().any(is_found),
        };
        let rules = self.rules.iter().map(meets).collect();
        let route = self.routes.iter().find(|route| is_found(route.pattern));
        PathMatch { rules, route: route.map_or(0, |route| route.hash) }
    }

    /// Joins the halves: everything but what only the single request tells.
    pub fn join_into(&self, client: &ClientMatch, path: &PathMatch, selection: &mut Selection) {
        selection.route = path.route;
        selection.items.clear();
        let rules = || self.rules.iter().enumerate();
        let (others, fallbacks) =
            (rules().filter(|(_, rule)| !rule.fallback), rules().filter(|(_, rule)| rule.fallback));
        for (index, rule) in others.chain(fallbacks) {
            if !path.rules[index] {
                continue;
            }
            let Some(size) = client.sizes[index] else { continue };
            selection.items.push(SelectedRule {
                rule: index as u32,
                limits: self.sizes[size as usize].clone(),
                has_conditions: rule.has_conditions(),
                by_api_key: rule.key.as_slice() == [Dimension::ApiKey],
                enforced: rule.on_exceed.is_enforced(),
                over: if matches!(rule.on_exceed, OnExceed::Flag(_)) {
                    OverLimitEffect::Flag
                } else {
                    OverLimitEffect::Shadow
                },
                // One that only counts leaves the endpoint to the fallback.
                names_endpoint: !rule.fallback && rule.endpoints.is_some() && rule.on_exceed.is_enforced(),
                fallback: rule.fallback,
            });
        }
        selection.only = match selection.items.as_slice() {
            [item] if item.enforced && !item.has_conditions && item.limits.len() == 1 => {
                let id = LimitId(item.limits.start);
                let limit = self.limit(id);
                // A soft limit looks at what is left, and requests in flight are counted elsewhere.
                let is_plain = limit.soft_floor == 0 && limit.longest_in_flight_us().is_none();
                let SelectedRule { rule, by_api_key, .. } = *item;
                is_plain.then_some(SingleLimit { id, identity: limit.state_id, rule, by_api_key })
            }
            _ => None,
        };
    }

    /// The charge of a request that meets `selection`, if it is seen at a glance that there is only one.
    #[inline]
    pub fn only_charge(
        &self,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
    ) -> Option<Charge<'_>> {
        let SingleLimit { id, identity, rule, by_api_key } = selection.only?;
        let KeyHashes { client, all } = self.whom(rule, by_api_key, request, hashes, selection.route);
        Some(Charge {
            limit: self.limit(id),
            id,
            key: all ^ identity,
            client,
            enforced: true,
            over: OverLimitEffect::Shadow,
        })
    }

    /// With whom `request` counts under a rule, of which it is known whether it counts by the API key and nothing else.
    #[inline]
    fn whom(
        &self,
        rule: u32,
        by_api_key: bool,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        route: u64,
    ) -> KeyHashes {
        match hashes.api_key() {
            Some(hash) if by_api_key => KeyHashes { client: hash, all: hash },
            _ => {
                let rule = &self.rules[rule as usize];
                hashes.of_key(&rule.key, rule.ipv6_prefix, request, route)
            }
        }
    }

    /// The charges of `request`, which meets `selection`.
    pub fn charge<'r>(
        &'r self,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        charges: &mut Charges<'r>,
    ) {
        let mut endpoint_is_named = false;
        for item in &selection.items {
            // Fallbacks stand last.
            if item.fallback && endpoint_is_named {
                break;
            }
            if item.has_conditions && self.rules[item.rule as usize].first_failure(request).is_some() {
                continue;
            }
            endpoint_is_named |= item.names_endpoint;
            let who = self.whom(item.rule, item.by_api_key, request, hashes, selection.route);
            for limit in item.limits.clone() {
                let id = LimitId(limit);
                let limit = self.limit(id);
                // `who` is an unpredictable hash: to tell limits apart, their fixed identities are enough.
                let key = who.all ^ limit.state_id;
                charges.push(Charge {
                    limit,
                    id,
                    key,
                    client: who.client,
                    enforced: item.enforced,
                    over: item.over,
                });
            }
        }
    }

    /// The tier that the caller states, else that a list gives, else the pattern that says most about the
    /// key; none if nothing does.
    pub(super) fn tier_of(&self, request: &Request<'_>) -> Option<TierId> {
        let position = |found: Option<usize>| found.map(|index| index as TierId);
        if let Some(stated) = request.tier {
            let known = position(self.tiers.iter().position(|tier| tier.name == stated));
            if known.is_some() {
                return known;
            }
        }
        let names = [request.api_key, request.user];
        let listed = |tier: &Tier| tier.keys.iter().any(|key| names.contains(&Some(key)));
        if let Some(listed) = position(self.tiers.iter().position(listed)) {
            return Some(listed);
        }
        let key = request.api_key?;
        let exactness = |tier: &Tier| {
            tier.api_key.iter().filter(|glob| glob.matches(key)).map(|glob| glob.exactness() + 1).max()
        };
        let by_pattern = self.tiers.iter().enumerate().filter_map(|(id, tier)| Some((exactness(tier)?, id)));
        position(by_pattern.max_by_key(|(exactness, id)| (*exactness, usize::MAX - id)).map(|(_, id)| id))
    }

    /// Whether a client of `tier` is one of the rule's. Where nothing else gives a tier, the rule's own key
    /// pattern does; failing that, the default.
    fn tier_admits(&self, rule: &Rule, tier: Option<TierId>) -> bool {
        match (rule.tier, tier) {
            (None, _) => true,
            (Some(wanted), Some(tier)) => wanted == tier,
            (Some(_), None) if rule.client.classifies() => true,
            (Some(wanted), None) => self.default_tier == Some(wanted),
        }
    }
}

impl Selection {
    /// The route that the path falls under, by its hash; 0 if under none.
    pub fn route(&self) -> u64 {
        self.route
    }
}

impl PathMatch {
    pub(super) fn meets(&self, rule: usize) -> bool {
        self.rules[rule]
    }

    pub(super) fn route(&self) -> u64 {
        self.route
    }
}

impl ClientMatch {
    pub(super) fn size(&self, rule: usize) -> Option<SizeId> {
        self.sizes[rule]
    }
}
