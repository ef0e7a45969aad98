//! Selection: which rules match a request.
//!
//! It is split into parts that can be cached: the client part ([`ClientMatch`]: tier, patterns, overrides), the path part
//! ([`PathMatch`]: templates and regular expressions), and both joined ([`Selection`]). For each request only the method,
//! the domain and the key remain: [`RuleSet::charge`] runs no pattern.

use super::pattern::PathStrictness;
use super::ruleset::{LimitId, RouteId, Rule, RuleSet, SizeId, Tier, TierId};
use crate::key::{Dimension, KeyHashes, RequestHasher, StateKey};
use crate::limit::Limit;
use crate::path::PathReadings;
use crate::request::{NamedIdentity, Request};
use smallvec::SmallVec;
use std::ops::Range;

/// The client part of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientMatch {
    /// For each rule, the size that applies to this client; `None` if the rule does not match the client.
    sizes: Vec<Option<SizeId>>,
    /// The tier, if any rule depends on it: only then clients with equal digests have the same.
    tier: Option<TierId>,
}

/// The path part of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathMatch {
    /// For each rule, whether it matches the path.
    rules: Vec<bool>,
    /// The hash of the route template that matches the path; 0 if none does.
    route: u64,
    route_id: Option<RouteId>,
}

/// The rules that match a client on a path.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Fallbacks last.
    items: Vec<SelectedRule>,
    route: u64,
    route_id: Option<RouteId>,
    tier: Option<TierId>,
    /// The limit if there is only one and it is enforced without conditions, as for most requests. The loop over
    /// `items` is then skipped.
    single: Option<SingleLimit>,
}

/// The only limit of a selection, with its `state_id`: the state can be looked up before the limit.
#[derive(Clone, Copy, Debug)]
struct SingleLimit {
    id: LimitId,
    state_id: u64,
    rule: u32,
    by_api_key: bool,
}

/// One rule of a selection.
#[derive(Clone, Debug)]
struct SelectedRule {
    rule: u32,
    limits: Range<u32>,
    /// Whether [`Rule::first_failure`] must be checked.
    has_conditions: bool,
    /// Whether the key is the API key alone, as for most rules.
    by_api_key: bool,
    enforced: bool,
    over: OverLimitEffect,
    names_endpoint: bool,
    fallback: bool,
}

/// One limit and key that a request is charged against.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'r> {
    /// The limit.
    pub limit: &'r Limit,
    /// The id of the limit in the rule set.
    pub id: LimitId,
    /// The key of the state.
    pub key: StateKey,
    /// The client: the key without limit and route.
    pub client: u64,
    /// Whether the request is refused over the limit.
    pub enforced: bool,
    /// If not enforced: the effect on a request over the limit.
    pub over: OverLimitEffect,
    /// Whose state `key` is.
    pub cell: CellKind,
}

/// Whether a state belongs to one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CellKind {
    /// The client's own state.
    #[default]
    Own,
    /// An overflow cell, shared by clients for whose states the embedded store has no room.
    Overflow,
}

/// The effect of a limit on a request that is over it and admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverLimitEffect {
    /// The refusal is counted and reported.
    #[default]
    Shadow,
    /// The upstream receives a header.
    Flag,
    /// None: `shed` has capacity left.
    Tolerated,
}

/// The charges of one request. Most have one or two.
pub type Charges<'r> = SmallVec<[Charge<'r>; 8]>;

impl RuleSet {
    /// The client part: tier, patterns, and the size of each rule for this client.
    pub fn match_client(&self, request: &Request<'_>) -> ClientMatch {
        let mut matched = ClientMatch::default();
        self.match_client_into(request, &mut matched);
        matched
    }

    /// [`Self::match_client`] into a reused buffer.
    pub fn match_client_into(&self, request: &Request<'_>, matched: &mut ClientMatch) {
        let tier = self.tier_of(request);
        matched.tier = tier.filter(|_| self.depends_on_tiers());
        matched.sizes.clear();
        for rule in &self.rules {
            let applies = rule.client.matches(request)
                && !rule.except.client.matches_any(request)
                && self.tier_matches(rule, tier);
            let tier = tier.or(rule.tier).or(self.default_tier);
            let size = if applies { rule.size_for(request, tier) } else { None };
            matched.sizes.push(size);
        }
    }

    /// The path part: one pass of all patterns over each reading of the path.
    pub fn match_path(&self, path: &str) -> PathMatch {
        let is_matched = self.pattern_matcher(path);
        let is_any_matched = |patterns: &Range<usize>| patterns.clone().any(&is_matched);
        let matches = |rule: &Rule| {
            rule.endpoints.as_ref().is_none_or(is_any_matched)
                && !rule.except.endpoints.as_ref().is_some_and(is_any_matched)
        };
        let rules = self.rules.iter().map(matches).collect();
        let route_id = self.routes.iter().position(|route| is_matched(route.pattern));
        let route = route_id.map_or(0, |route| self.routes[route].hash);
        PathMatch { rules, route, route_id: route_id.map(|route| route as RouteId) }
    }

    /// Whether each pattern matches `path`.
    fn pattern_matcher(&self, path: &str) -> impl Fn(usize) -> bool + '_ {
        let readings = PathReadings::of(path);
        let whole = self.endpoints.matches(&readings.whole);
        let plain = readings.plain.as_deref().map(|plain| self.endpoints.matches(plain));
        move |pattern: usize| {
            let is_folded = self.strictness[pattern] == PathStrictness::Folded;
            whole.matched(pattern) || is_folded && plain.as_ref().is_some_and(|plain| plain.matched(pattern))
        }
    }

    /// Whether one of the patterns matches `path`.
    pub(super) fn matches_any_pattern(&self, patterns: &Range<usize>, path: &str) -> bool {
        patterns.clone().any(self.pattern_matcher(path))
    }

    /// Joins both parts: everything that does not depend on the single request.
    pub fn join_into(&self, client: &ClientMatch, path: &PathMatch, selection: &mut Selection) {
        selection.route = path.route;
        selection.route_id = path.route_id;
        selection.tier = client.tier;
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
                by_api_key: rule.key.as_slice() == [Dimension::Named(NamedIdentity::ApiKey)],
                enforced: rule.on_exceed.is_enforced(),
                over: rule.on_exceed.over_limit_effect(),
                // A rule that is not enforced leaves the endpoint to the fallback.
                names_endpoint: !rule.fallback && rule.endpoints.is_some() && rule.on_exceed.is_enforced(),
                fallback: rule.fallback,
            });
        }
        selection.single = match selection.items.as_slice() {
            [item] if item.enforced && !item.has_conditions && item.limits.len() == 1 => {
                let id = LimitId(item.limits.start);
                let limit = self.limit(id);
                // A soft limit needs the tokens left, and requests in flight are counted elsewhere.
                let is_plain = limit.soft_floor == 0 && limit.longest_in_flight_us().is_none();
                let SelectedRule { rule, by_api_key, .. } = *item;
                is_plain.then_some(SingleLimit { id, state_id: limit.state_id, rule, by_api_key })
            }
            _ => None,
        };
    }

    /// The charge of a request with this selection, if there is only one and it has no conditions.
    #[inline]
    pub fn single_charge(
        &self,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
    ) -> Option<Charge<'_>> {
        let SingleLimit { id, state_id, rule, by_api_key } = selection.single?;
        let KeyHashes { client, with_route } =
            self.key_hashes(rule, by_api_key, request, hashes, selection.route);
        Some(Charge {
            limit: self.limit(id),
            id,
            key: StateKey::new(with_route, state_id),
            client,
            enforced: true,
            over: OverLimitEffect::Shadow,
            cell: CellKind::Own,
        })
    }

    /// The key of `request` under a rule.
    #[inline]
    fn key_hashes(
        &self,
        rule: u32,
        by_api_key: bool,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        route: u64,
    ) -> KeyHashes {
        match hashes.api_key() {
            Some(hash) if by_api_key => KeyHashes { client: hash, with_route: hash },
            _ => {
                let rule = &self.rules[rule as usize];
                hashes.hash_key(&rule.key, rule.ipv6_prefix, request, route)
            }
        }
    }

    /// Appends the charges of `request` under `selection`.
    pub fn charge<'r>(
        &'r self,
        selection: &Selection,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        charges: &mut Charges<'r>,
    ) {
        let mut endpoint_is_named = false;
        for item in &selection.items {
            // Fallbacks are last.
            if item.fallback && endpoint_is_named {
                break;
            }
            if item.has_conditions && self.rules[item.rule as usize].first_failure(request).is_some() {
                continue;
            }
            endpoint_is_named |= item.names_endpoint;
            let hashes = self.key_hashes(item.rule, item.by_api_key, request, hashes, selection.route);
            for limit in item.limits.clone() {
                let id = LimitId(limit);
                let limit = self.limit(id);
                let key = StateKey::new(hashes.with_route, limit.state_id);
                charges.push(Charge {
                    limit,
                    id,
                    key,
                    client: hashes.client,
                    enforced: item.enforced,
                    over: item.over,
                    cell: CellKind::Own,
                });
            }
        }
        if self.has_replacements {
            self.drop_replaced(charges);
        }
    }

    /// The tier that the caller states, else the tier that lists the client, else the tier of the most specific matching
    /// pattern.
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
        let specificity = |tier: &Tier| {
            tier.api_key.iter().filter(|glob| glob.matches(key)).map(|glob| glob.specificity() + 1).max()
        };
        let by_pattern =
            self.tiers.iter().enumerate().filter_map(|(id, tier)| Some((specificity(tier)?, id)));
        position(by_pattern.max_by_key(|(specificity, id)| (*specificity, usize::MAX - id)).map(|(_, id)| id))
    }

    /// Whether the rule applies to clients of `tier`. A client without a tier is in the rule's tier if it matches the
    /// rule's key pattern, else in the default tier.
    fn tier_matches(&self, rule: &Rule, tier: Option<TierId>) -> bool {
        match (rule.tier, tier) {
            (None, _) => true,
            (Some(wanted), Some(tier)) => wanted == tier,
            (Some(_), None) if rule.client.has_key_pattern() => true,
            (Some(wanted), None) => self.default_tier == Some(wanted),
        }
    }
}

impl Selection {
    /// The hash of the route template that matches the path; 0 if none does.
    pub fn route(&self) -> u64 {
        self.route
    }

    /// The route template that matches the path.
    #[inline]
    pub fn route_id(&self) -> Option<RouteId> {
        self.route_id
    }

    /// The tier of the client, if any rule depends on it.
    #[inline]
    pub fn tier(&self) -> Option<TierId> {
        self.tier
    }
}

impl PathMatch {
    pub(super) fn matches(&self, rule: usize) -> bool {
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
