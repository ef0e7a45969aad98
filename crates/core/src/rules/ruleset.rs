//! Compiled rules.

use super::client_digest::{ClientDigest, ClientDigester};
use super::explain::said_pattern;
use super::lease_timing::LeaseTiming;
use super::pattern::{Glob, PathStrictness};
use super::selection::Charge;
use super::written::{Consistency, OnExceed, OnStoreFailure, SoftLimit};
use crate::key::{Dimension, Identity, Ipv6Prefix, RequestHasher, identity};
use crate::limit::Limit;
use crate::penalty::Penalty;
use crate::request::{MethodSet, Request};
use ipnet::IpNet;
use regex::RegexSet;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Range;

/// A compiled rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub id: String,
    /// What happens over the limit.
    pub on_exceed: OnExceed,
    /// What happens to clients that ignore what they are told.
    pub penalty: Option<Penalty>,
    /// What happens in the last part of the limit.
    pub soft: Option<SoftLimit>,
    /// What happens without the store.
    pub on_store_failure: OnStoreFailure,
    /// Whether tokens may be taken ahead.
    pub consistency: Consistency,
    /// How they are.
    pub leasing: LeaseTiming,
    /// What it counts by.
    pub key: SmallVec<[Dimension; 2]>,
    /// By which networks it counts IPv6 addresses.
    pub ipv6_prefix: Ipv6Prefix,
    pub(super) tier: Option<TierId>,
    pub(super) domain: Option<String>,
    pub(super) methods: MethodSet,
    pub(super) client: ClientCondition,
    /// Which patterns of the set's regexes are this rule's; none means any path.
    pub(super) endpoints: Option<Range<usize>>,
    /// Only where no other rule names the endpoint.
    pub(super) fallback: bool,
    /// A safety net per address: without an address it does not apply.
    pub(super) needs_address: bool,
    pub(super) sizes: RuleSizes,
}

/// Which numbers a rule gives to whom.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleSizes {
    pub(super) everybody: SizesByTier,
    /// Single keys with numbers of their own.
    pub(super) by_key: HashMap<String, SizesByTier>,
}

/// Which numbers the members of each tier get, and the others.
#[derive(Clone, Debug, Default)]
pub(super) struct SizesByTier {
    pub(super) default: Option<SizeId>,
    pub(super) tiers: Vec<(TierId, SizeId)>,
}

impl RuleSizes {
    pub(super) fn all(&self) -> impl Iterator<Item = SizeId> {
        std::iter::once(&self.everybody).chain(self.by_key.values()).flat_map(SizesByTier::all)
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

pub(super) type TierId = u32;

/// A run of limits in [`RuleSet::limits`].
pub(super) type SizeId = u32;

/// What a rule asks of the client.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientCondition {
    pub(super) api_key: Option<Vec<Glob>>,
    pub(super) user: Option<Vec<Glob>>,
    pub(super) tenant: Option<Vec<Glob>>,
    pub(super) ip: Option<Vec<IpNet>>,
    pub(super) ids: Vec<(String, Vec<Glob>)>,
}

impl ClientCondition {
    pub(super) fn holds(&self, request: &Request<'_>) -> bool {
        let any =
            |globs: &Option<Vec<Glob>>, text| globs.as_ref().is_none_or(|globs| any_matches(globs, text));
        any(&self.api_key, request.api_key)
            && any(&self.user, request.user)
            && any(&self.tenant, request.tenant)
            && self.ip.as_ref().is_none_or(|networks| contains(networks, request.ip))
            && self.ids.iter().all(|(name, globs)| any_matches(globs, request.id(name)))
    }

    /// The first condition that the client does not meet, as written.
    pub(super) fn first_failure(&self, request: &Request<'_>) -> Option<String> {
        let named = [
            ("api_key_pattern", &self.api_key, request.api_key),
            ("user_pattern", &self.user, request.user),
            ("tenant_pattern", &self.tenant, request.tenant),
        ];
        for (name, globs, text) in named {
            if globs.as_ref().is_some_and(|globs| !any_matches(globs, text)) {
                let said = |globs| match name {
                    "api_key_pattern" => said_keys(globs),
                    _ => said_globs(globs),
                };
                return globs.as_ref().map(|globs| format!("{name} {}", said(globs)));
            }
        }
        if let Some(networks) = &self.ip
            && !contains(networks, request.ip)
        {
            let said: Vec<String> = networks.iter().map(IpNet::to_string).collect();
            return Some(format!("ip {}", said.join(" or ")));
        }
        let failing = self.ids.iter().find(|(name, globs)| !any_matches(globs, request.id(name)));
        failing.map(|(name, globs)| format!("{name} {}", said_globs(globs)))
    }

    pub(super) fn classifies(&self) -> bool {
        self.api_key.is_some()
    }
}

fn any_matches(globs: &[Glob], text: Option<&str>) -> bool {
    text.is_some_and(|text| globs.iter().any(|glob| glob.matches(text)))
}

fn contains(networks: &[IpNet], ip: Option<std::net::IpAddr>) -> bool {
    ip.is_some_and(|ip| networks.iter().any(|network| network.contains(&ip.to_canonical())))
}

/// Keys of other clients are not for everybody who asks why.
fn said_keys(globs: &[Glob]) -> String {
    globs.iter().map(|glob| said_pattern(glob.as_str())).collect::<Vec<_>>().join(" or ")
}

fn said_globs(globs: &[Glob]) -> String {
    globs.iter().map(Glob::as_str).collect::<Vec<_>>().join(" or ")
}

/// A tier, and who belongs to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tier {
    pub(super) name: String,
    pub(super) keys: Vec<String>,
    pub(super) api_key: Vec<Glob>,
}

/// Names a limit within a [`RuleSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitId(pub(super) u32);

impl LimitId {
    /// Of a limit that is in no set.
    pub const NONE: Self = Self(u32::MAX);

    /// Its place among [`RuleSet::limits`].
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All rules, compiled. Never edited: a change is another set.
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
    /// Of each of `endpoints`: whether it is about a path with its parameters only.
    pub(super) closeness: Vec<PathStrictness>,
    /// The patterns of `endpoints` as they were written.
    pub(super) written: Vec<String>,
    /// Route templates, the most specific first.
    pub(super) routes: Vec<CompiledTemplate>,
    summary: ClientDigester,
    looks_at_paths: bool,
    looks_at_domains: bool,
    penalizes: bool,
}

#[derive(Clone, Debug)]
pub(super) struct CompiledTemplate {
    pub(super) template: String,
    pub(super) hash: u64,
    /// Which of `endpoints` it is.
    pub(super) pattern: usize,
    /// See [`super::pattern::RouteTemplate`].
    pub(super) generality: Vec<u8>,
}

/// The compiler's output, before what follows from it is worked out.
#[derive(Debug, Default)]
pub(super) struct RuleSetParts {
    pub(super) rules: Vec<Rule>,
    pub(super) tiers: Vec<Tier>,
    pub(super) default_tier: Option<TierId>,
    pub(super) limits: Vec<Limit>,
    pub(super) owners: Vec<u32>,
    pub(super) sizes: Vec<Range<u32>>,
    pub(super) endpoints: RegexSet,
    pub(super) closeness: Vec<PathStrictness>,
    pub(super) written: Vec<String>,
    pub(super) routes: Vec<CompiledTemplate>,
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
            closeness,
            written,
            routes,
        } = parts;
        let summary = ClientDigester::new(&rules, &tiers);
        let looks_at_paths = !endpoints.is_empty();
        let looks_at_domains = rules.iter().any(|rule| rule.domain.is_some());
        let penalizes = rules.iter().any(|rule| rule.penalty.is_some());
        Self {
            rules,
            tiers,
            default_tier,
            limits,
            owners,
            sizes,
            endpoints,
            closeness,
            written,
            routes,
            summary,
            looks_at_paths,
            looks_at_domains,
            penalizes,
        }
    }

    /// A set that limits nothing.
    pub fn empty() -> Self {
        Self::new(RuleSetParts::default())
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// All limits by their [`LimitId`], each with its rule.
    pub fn limits(&self) -> impl Iterator<Item = (&Rule, &Limit)> {
        self.owners.iter().map(|owner| &self.rules[*owner as usize]).zip(&self.limits)
    }

    /// The limit called `id`.
    #[inline]
    pub fn limit(&self, id: LimitId) -> &Limit {
        &self.limits[id.0 as usize]
    }

    /// The rule to which the limit belongs.
    #[inline]
    pub fn rule_of(&self, id: LimitId) -> &Rule {
        &self.rules[self.owners[id.0 as usize] as usize]
    }

    /// Whether any rule has a penalty.
    #[inline]
    pub fn penalizes(&self) -> bool {
        self.penalizes
    }

    /// By what the conduct of a charge's client under the charge's rule is known, if that has a penalty and can
    /// refuse.
    pub fn conduct_key(&self, charge: &Charge<'_>) -> Option<u64> {
        let penalty = self.rule_of(charge.id).penalty.filter(|_| charge.enforced)?;
        // Whoever shares a state shares a conduct; the limits of a rule have one conduct together.
        Some(charge.key ^ charge.limit.state_id ^ penalty.identity)
    }

    pub(super) fn owner_index(&self, id: LimitId) -> u32 {
        self.owners[id.0 as usize]
    }

    /// The client summed up: those with the same number meet the same rules.
    #[inline]
    pub fn sum_up(&self, request: &Request<'_>, hashes: &RequestHasher<'_>) -> ClientDigest {
        self.summary.of(request, &self.tiers, hashes)
    }

    /// Whether any rule looks at paths.
    #[inline]
    pub fn looks_at_paths(&self) -> bool {
        self.looks_at_paths
    }

    /// Whether any rule looks at domains.
    pub fn looks_at_domains(&self) -> bool {
        self.looks_at_domains
    }
}

impl Rule {
    /// The numbers for this client: its own, else its tier's, else everybody's.
    pub(super) fn size_for(&self, request: &Request<'_>, tier: Option<TierId>) -> Option<SizeId> {
        if !self.sizes.by_key.is_empty() {
            let names = [request.api_key, request.user, request.tenant];
            let own = names.iter().flatten().find_map(|name| self.sizes.by_key.get(*name));
            let by_id = || self.custom_names().find_map(|name| self.sizes.by_key.get(request.id(name)?));
            let by_address =
                || request.ip.and_then(|ip| self.sizes.by_key.get(&ip.to_canonical().to_string()));
            let own = own.or_else(by_id).or_else(by_address);
            if let Some(size) = own.and_then(|own| own.of(tier)) {
                return Some(size);
            }
        }
        self.sizes.everybody.of(tier)
    }

    /// The custom identities that it counts by.
    pub(super) fn custom_names(&self) -> impl Iterator<Item = &str> {
        self.key.iter().filter_map(|dimension| match dimension {
            Dimension::Custom(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether it has conditions that neither the client nor the path decides.
    pub(super) fn has_conditions(&self) -> bool {
        self.methods != MethodSet::default() || self.domain.is_some() || self.needs_address
    }

    /// The first condition that fails of those that neither the client nor the path decides.
    #[inline(never)]
    pub(super) fn first_failure(&self, request: &Request<'_>) -> Option<&'static str> {
        if !self.methods.admits(request.method) {
            Some("methods")
        } else if !self.admits_domain(request.domain) {
            Some("domain")
        } else if self.needs_address && request.ip.is_none() {
            Some("an address")
        } else {
            None
        }
    }

    /// In any case: to most doors the domain is a host.
    fn admits_domain(&self, domain: Option<&str>) -> bool {
        let is_own = |own: &String| domain.is_some_and(|domain| domain.eq_ignore_ascii_case(own));
        self.domain.as_ref().is_none_or(is_own)
    }

    /// The identities that make up the key of `request`.
    pub(super) fn identities<'a>(&self, request: &Request<'a>, route: u64) -> Vec<Identity<'a>> {
        self.key.iter().map(|dimension| identity(dimension, self.ipv6_prefix, request, route)).collect()
    }
}
