//! The compiled rule set.

use super::client_digest::{ClientDigest, ClientDigester};
use super::exceptions::{ExactIdentities, RuleException};
use super::explain::pattern_text;
use super::lease_timing::LeaseTiming;
use super::pattern::{DomainPattern, Glob, PathStrictness};
use super::selection::Charge;
use super::written::{Consistency, OnExceed, OnStoreFailure, SoftLimit};
use crate::key::{Dimension, Identity, Ipv6Prefix, RequestHasher, identity};
use crate::limit::Limit;
use crate::penalty::Penalty;
use crate::request::{MethodSet, NamedIdentity, PerIdentity, Request};
use ipnet::IpNet;
use regex::RegexSet;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Range;

/// A compiled rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The id in the rule file.
    pub id: String,
    /// The action over the limit.
    pub on_exceed: OnExceed,
    /// The penalty for clients that ignore `Retry-After`.
    pub penalty: Option<Penalty>,
    /// The action near the limit.
    pub soft: Option<SoftLimit>,
    /// The failure policy.
    pub on_store_failure: OnStoreFailure,
    /// Whether nodes may lease tokens.
    pub consistency: Consistency,
    /// The interval and horizon of leases.
    pub leasing: LeaseTiming,
    /// The identities of its keys.
    pub key: SmallVec<[Dimension; 2]>,
    /// The prefix by which IPv6 addresses are counted.
    pub ipv6_prefix: Ipv6Prefix,
    pub(super) tier: Option<TierId>,
    /// The domains that it applies to; none means all.
    pub(super) domains: Vec<DomainPattern>,
    pub(super) methods: MethodSet,
    pub(super) client: ClientCondition,
    pub(super) exactly: Option<ExactIdentities>,
    pub(super) except: RuleException,
    /// The indices of the rules that it replaces.
    pub(super) replaces: Vec<u32>,
    /// The patterns of this rule in [`RuleSet::endpoints`]; `None` matches any path.
    pub(super) endpoints: Option<Range<usize>>,
    /// Applies only where no other rule names the endpoint.
    pub(super) fallback: bool,
    /// A safety net per address: it does not apply without an address.
    pub(super) needs_address: bool,
    pub(super) sizes: RuleSizes,
}

/// The sizes of a rule by client.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleSizes {
    pub(super) common: SizesByTier,
    /// Overrides of single keys.
    pub(super) by_key: HashMap<String, SizesByTier>,
}

/// The sizes for each tier, and for clients of no tier.
#[derive(Clone, Debug, Default)]
pub(super) struct SizesByTier {
    pub(super) default: Option<SizeId>,
    pub(super) tiers: Vec<(TierId, SizeId)>,
}

impl RuleSizes {
    pub(super) fn all(&self) -> impl Iterator<Item = SizeId> {
        std::iter::once(&self.common).chain(self.by_key.values()).flat_map(SizesByTier::all)
    }
}

impl SizesByTier {
    fn of(&self, tier: Option<TierId>) -> Option<SizeId> {
        let own = self.tiers.iter().find(|(known, _)| Some(*known) == tier);
        own.map(|(_, size)| *size).or(self.default)
    }

    fn all(&self) -> impl Iterator<Item = SizeId> {
        self.default.into_iter().chain(self.tiers.iter().map(|(_, size)| *size))
    }
}

/// The index of a tier in its rule set.
pub type TierId = u32;

/// The index of a route template in its rule set.
pub type RouteId = u32;

/// A run of limits in [`RuleSet::limits`].
pub(super) type SizeId = u32;

/// The conditions of a rule on the client.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientCondition {
    pub(super) named: PerIdentity<Option<Vec<Glob>>>,
    pub(super) ip: Option<Vec<IpNet>>,
    pub(super) ids: Vec<(String, Vec<Glob>)>,
}

impl ClientCondition {
    pub(super) fn matches(&self, request: &Request<'_>) -> bool {
        let holds = |(kind, globs): (NamedIdentity, &Option<Vec<Glob>>)| {
            globs.as_ref().is_none_or(|globs| any_matches(globs, request.named(kind)))
        };
        self.named.iter().all(holds)
            && self.ip.as_ref().is_none_or(|networks| contains(networks, request.ip))
            && self.ids.iter().all(|(name, globs)| any_matches(globs, request.id(name)))
    }

    /// The first condition that the client matches, as written.
    pub(super) fn first_match(&self, request: &Request<'_>) -> Option<String> {
        for (kind, globs) in self.named.iter() {
            if let Some(globs) = globs
                && any_matches(globs, request.named(kind))
            {
                let texts = if kind.is_credential() { keys_text(globs) } else { globs_text(globs) };
                return Some(format!("{} {texts}", kind.pattern_field()));
            }
        }
        if self.ip.as_ref().is_some_and(|networks| contains(networks, request.ip)) {
            return Some("ip".to_owned());
        }
        let matching = self.ids.iter().find(|(name, globs)| any_matches(globs, request.id(name)));
        matching.map(|(name, globs)| format!("{name} {}", globs_text(globs)))
    }

    /// Whether the client matches any of the conditions.
    pub(super) fn matches_any(&self, request: &Request<'_>) -> bool {
        self.named
            .iter()
            .any(|(kind, globs)| globs.as_ref().is_some_and(|globs| any_matches(globs, request.named(kind))))
            || self.ip.as_ref().is_some_and(|networks| contains(networks, request.ip))
            || self.ids.iter().any(|(name, globs)| any_matches(globs, request.id(name)))
    }

    /// The first condition that the client does not match, as written.
    pub(super) fn first_failure(&self, request: &Request<'_>) -> Option<String> {
        for (kind, globs) in self.named.iter() {
            if let Some(globs) = globs
                && !any_matches(globs, request.named(kind))
            {
                // Explanations do not reveal keys of other clients.
                let texts = if kind.is_credential() { keys_text(globs) } else { globs_text(globs) };
                return Some(format!("{} {texts}", kind.pattern_field()));
            }
        }
        if let Some(networks) = &self.ip
            && !contains(networks, request.ip)
        {
            let texts: Vec<String> = networks.iter().map(IpNet::to_string).collect();
            return Some(format!("ip {}", texts.join(" or ")));
        }
        let failing = self.ids.iter().find(|(name, globs)| !any_matches(globs, request.id(name)));
        failing.map(|(name, globs)| format!("{name} {}", globs_text(globs)))
    }

    pub(super) fn has_key_pattern(&self) -> bool {
        self.named[NamedIdentity::ApiKey].is_some()
    }
}

/// Whether one of `patterns` matches the domain of a request.
pub(super) fn has_domain(patterns: &[DomainPattern], domain: Option<&str>) -> bool {
    domain.is_some_and(|domain| patterns.iter().any(|pattern| pattern.matches(domain)))
}

fn any_matches(globs: &[Glob], text: Option<&str>) -> bool {
    text.is_some_and(|text| globs.iter().any(|glob| glob.matches(text)))
}

fn contains(networks: &[IpNet], ip: Option<std::net::IpAddr>) -> bool {
    ip.is_some_and(|ip| networks.iter().any(|network| network.contains(&ip.to_canonical())))
}

fn keys_text(globs: &[Glob]) -> String {
    globs.iter().map(|glob| pattern_text(glob.as_str())).collect::<Vec<_>>().join(" or ")
}

fn globs_text(globs: &[Glob]) -> String {
    globs.iter().map(Glob::as_str).collect::<Vec<_>>().join(" or ")
}

/// A tier and its members.
#[derive(Clone, Debug, Default)]
pub(super) struct Tier {
    pub(super) name: String,
    pub(super) keys: Vec<String>,
    pub(super) api_key: Vec<Glob>,
}

/// The id of a limit in a [`RuleSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimitId(pub(super) u32);

impl LimitId {
    /// For a limit that is in no rule set.
    pub const NONE: Self = Self(u32::MAX);

    /// The index in [`RuleSet::limits`].
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All rules, compiled. Immutable: a change of the rules is a new rule set.
#[derive(Debug)]
pub struct RuleSet {
    pub(super) rules: Vec<Rule>,
    pub(super) tiers: Vec<Tier>,
    pub(super) default_tier: Option<TierId>,
    pub(super) limits: Vec<Limit>,
    /// The rule of each limit.
    pub(super) owners: Vec<u32>,
    pub(super) sizes: Vec<Range<u32>>,
    pub(super) endpoints: RegexSet,
    /// For each of `endpoints`, how strictly a path must match.
    pub(super) strictness: Vec<PathStrictness>,
    /// The patterns of `endpoints` as written.
    pub(super) written: Vec<String>,
    /// Route templates, the most specific first.
    pub(super) routes: Vec<CompiledTemplate>,
    on_store_failure: OnStoreFailure,
    digester: ClientDigester,
    has_endpoints: bool,
    has_domains: bool,
    pub(super) has_replacements: bool,
    has_penalties: bool,
    depends_on_tiers: bool,
}

#[derive(Clone, Debug)]
pub(super) struct CompiledTemplate {
    pub(super) template: String,
    pub(super) hash: u64,
    /// The index in `endpoints`.
    pub(super) pattern: usize,
    /// See [`super::pattern::RouteTemplate`].
    pub(super) generality: Vec<u8>,
}

/// The output of the compiler, from which [`RuleSet::new`] derives the rest.
#[derive(Debug, Default)]
pub(super) struct RuleSetParts {
    pub(super) rules: Vec<Rule>,
    pub(super) tiers: Vec<Tier>,
    pub(super) default_tier: Option<TierId>,
    pub(super) limits: Vec<Limit>,
    pub(super) owners: Vec<u32>,
    pub(super) sizes: Vec<Range<u32>>,
    pub(super) endpoints: RegexSet,
    pub(super) strictness: Vec<PathStrictness>,
    pub(super) written: Vec<String>,
    pub(super) routes: Vec<CompiledTemplate>,
    pub(super) on_store_failure: OnStoreFailure,
}

impl RuleSet {
    pub(super) fn new(parts: RuleSetParts) -> Self {
        let RuleSetParts {
            rules,
            tiers,
            default_tier,
            limits,
            owners,
            sizes,
            endpoints,
            strictness,
            written,
            routes,
            on_store_failure,
        } = parts;
        let digester = ClientDigester::new(&rules, &tiers);
        let has_endpoints = !endpoints.is_empty();
        let has_domains = rules.iter().any(Rule::looks_at_domain);
        let has_replacements = rules.iter().any(|rule| !rule.replaces.is_empty());
        let has_penalties = rules.iter().any(|rule| rule.penalty.is_some());
        let depends_on_tiers = rules.iter().any(Rule::depends_on_tiers);
        Self {
            rules,
            tiers,
            default_tier,
            limits,
            owners,
            sizes,
            endpoints,
            strictness,
            written,
            routes,
            on_store_failure,
            digester,
            has_endpoints,
            has_domains,
            has_replacements,
            has_penalties,
            depends_on_tiers,
        }
    }

    /// A rule set without rules.
    pub fn empty() -> Self {
        Self::new(RuleSetParts::default())
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The failure policy of limits that no rule states: that of `defaults`.
    pub fn default_on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// All limits in the order of their [`LimitId`], each with its rule.
    pub fn limits(&self) -> impl Iterator<Item = (&Rule, &Limit)> {
        self.owners.iter().map(|owner| &self.rules[*owner as usize]).zip(&self.limits)
    }

    /// The limit `id`.
    #[inline]
    pub fn limit(&self, id: LimitId) -> &Limit {
        &self.limits[id.0 as usize]
    }

    /// The rule of the limit `id`.
    #[inline]
    pub fn rule_of(&self, id: LimitId) -> &Rule {
        &self.rules[self.owners[id.0 as usize] as usize]
    }

    /// The name of the tier whose numbers apply to a client of `tier` under the rule of the limit `id`.
    pub fn tier_name(&self, id: LimitId, tier: Option<TierId>) -> Option<&str> {
        let tier = tier.or(self.rule_of(id).tier).or(self.default_tier)?;
        self.tiers.get(tier as usize).map(|tier| tier.name.as_str())
    }

    /// The template of a route.
    pub fn route_template(&self, route: RouteId) -> &str {
        &self.routes[route as usize].template
    }

    /// Whether the numbers of any rule depend on the tier of the client.
    pub(super) fn depends_on_tiers(&self) -> bool {
        self.depends_on_tiers
    }

    /// Whether any rule has a penalty.
    #[inline]
    pub fn has_penalties(&self) -> bool {
        self.has_penalties
    }

    /// The key of the penalty record of a charge, if its rule has a penalty and is enforced.
    pub fn penalty_key(&self, charge: &Charge<'_>) -> Option<u64> {
        let penalty = self.rule_of(charge.id).penalty.filter(|_| charge.enforced)?;
        // One record for each key; the limits of a rule share it.
        Some(charge.key.identity_hash(charge.limit.state_id) ^ penalty.record_id)
    }

    pub(super) fn owner_index(&self, id: LimitId) -> u32 {
        self.owners[id.0 as usize]
    }

    /// The digest of the client: clients with equal digests match the same rules.
    #[inline]
    pub fn client_digest(&self, request: &Request<'_>, hashes: &RequestHasher<'_>) -> ClientDigest {
        self.digester.digest(request, &self.tiers, hashes)
    }

    /// Whether any rule has conditions on the path.
    #[inline]
    pub fn has_endpoints(&self) -> bool {
        self.has_endpoints
    }

    /// Whether any rule has a condition on the domain.
    pub fn has_domains(&self) -> bool {
        self.has_domains
    }
}

impl Rule {
    /// The size for this client: its override, else that of its tier, else the common one.
    pub(super) fn size_for(&self, request: &Request<'_>, tier: Option<TierId>) -> Option<SizeId> {
        if !self.sizes.by_key.is_empty() {
            let names = NamedIdentity::ALL.map(|kind| request.named(kind));
            let own = names.iter().flatten().find_map(|name| self.sizes.by_key.get(*name));
            let by_id = || self.custom_names().find_map(|name| self.sizes.by_key.get(request.id(name)?));
            let by_address =
                || request.ip.and_then(|ip| self.sizes.by_key.get(&ip.to_canonical().to_string()));
            let own = own.or_else(by_id).or_else(by_address);
            if let Some(size) = own.and_then(|own| own.of(tier)) {
                return Some(size);
            }
        }
        self.sizes.common.of(tier)
    }

    /// Whether its numbers, or whether it matches, depend on the tier of the client.
    pub(super) fn depends_on_tiers(&self) -> bool {
        self.tier.is_some() || !self.sizes.common.tiers.is_empty()
    }

    /// The custom identities of its keys.
    pub(super) fn custom_names(&self) -> impl Iterator<Item = &str> {
        self.key.iter().filter_map(|dimension| match dimension {
            Dimension::Custom(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether it has conditions beyond client and path.
    pub(super) fn has_conditions(&self) -> bool {
        !self.methods.is_empty()
            || !self.domains.is_empty()
            || self.needs_address
            || self.exactly.is_some()
            || self.except.has_conditions()
    }

    /// Whether it depends on the domain of a request.
    fn looks_at_domain(&self) -> bool {
        let by_domain = self.key.contains(&Dimension::Domain);
        !self.domains.is_empty() || !self.except.domains.is_empty() || by_domain
    }

    /// The first condition beyond client and path that fails.
    #[inline(never)]
    pub(super) fn first_failure(&self, request: &Request<'_>) -> Option<&'static str> {
        if !self.methods.contains(request.method) {
            Some("methods")
        } else if !self.domains.is_empty() && !has_domain(&self.domains, request.domain) {
            Some("domain")
        } else if let Some(failed) = self.except.first_failure(request) {
            Some(failed)
        } else if self.exactly.as_ref().is_some_and(|exactly| !exactly.are_those_of(request)) {
            Some("exactly the identities in `exactly`")
        } else if self.needs_address && request.ip.is_none() {
            Some("an address")
        } else {
            None
        }
    }

    /// The identities of the key of `request`.
    pub(super) fn identities<'a>(&self, request: &Request<'a>, route: u64) -> Vec<Identity<'a>> {
        self.key.iter().map(|dimension| identity(dimension, self.ipv6_prefix, request, route)).collect()
    }
}
