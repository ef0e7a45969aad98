//! Compiled rules, and which of them a request meets.
//!
//! Selection is cut in two so that each half can be remembered: what the client decides ([`ClientMatch`]:
//! tier, patterns, overrides) and what the path decides ([`PathMatch`]: templates and regular expressions).
//! [`RuleSet::select`] joins the halves bit by bit and runs no pattern at all.

use super::pattern::Glob;
use super::summary::Summary;
use super::written::{Consistency, OnExceed, OnStoreFailure};
use crate::key::{Dimension, Hashes, Identity, identity};
use crate::limit::Limit;
use crate::request::{MethodSet, Request};
use ipnet::IpNet;
use regex::RegexSet;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Range;

/// A set of rules by their index.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bits(Vec<u64>);

impl Bits {
    fn empty(rules: usize) -> Self {
        Self(vec![0; rules.div_ceil(64)])
    }

    fn reset(&mut self, rules: usize) {
        self.0.clear();
        self.0.resize(rules.div_ceil(64), 0);
    }

    fn insert(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    fn contains(&self, rule: usize) -> bool {
        self.0[rule / 64] & 1 << (rule % 64) != 0
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

/// A compiled rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub id: String,
    /// What happens over the limit.
    pub on_exceed: OnExceed,
    /// What happens without the store.
    pub on_store_failure: OnStoreFailure,
    /// Whether tokens may be taken ahead.
    pub consistency: Consistency,
    /// What it counts by.
    pub key: SmallVec<[Dimension; 2]>,
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
    pub(super) sizes: Sizes,
    /// Whether [`Rule::other_half_fails`] looks at anything; set by [`RuleSet::new`], as is the next.
    pub(super) has_other_half: bool,
    /// Whether the key is the API key and nothing else, as in most rules.
    pub(super) counts_by_api_key: bool,
}

/// Which numbers a rule gives to whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    pub(super) default: Option<SizeId>,
    pub(super) by_tier: Vec<(TierId, SizeId)>,
    pub(super) by_key: HashMap<String, SizeId>,
}

impl Sizes {
    pub(super) fn all(&self) -> impl Iterator<Item = SizeId> {
        let others = self.by_tier.iter().map(|(_, size)| size).chain(self.by_key.values());
        self.default.iter().chain(others).copied()
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
    fn holds(&self, request: &Request<'_>) -> bool {
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
                return globs.as_ref().map(|globs| format!("{name} {}", said_globs(globs)));
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

    fn classifies(&self) -> bool {
        self.api_key.is_some()
    }
}

fn any_matches(globs: &[Glob], text: Option<&str>) -> bool {
    text.is_some_and(|text| globs.iter().any(|glob| glob.matches(text)))
}

fn contains(networks: &[IpNet], ip: Option<std::net::IpAddr>) -> bool {
    ip.is_some_and(|ip| networks.iter().any(|network| network.contains(&ip.to_canonical())))
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

/// The client half of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientMatch {
    rules: Bits,
    /// For each rule the numbers that this client gets.
    sizes: Vec<Option<SizeId>>,
}

/// The path half of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathMatch {
    rules: Bits,
    /// The route that the path falls under, by its hash; 0 if under none.
    route: u64,
}

/// Names a limit within a [`RuleSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitId(u32);

impl LimitId {
    /// Its place among [`RuleSet::limits`].
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
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
    /// Whether it can refuse. A shadow limit only counts.
    pub enforced: bool,
}

/// The charges of one request. Most have one or two.
pub type Charges<'r> = SmallVec<[Charge<'r>; 4]>;

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
    /// The patterns of `endpoints` as they were written.
    pub(super) written: Vec<String>,
    /// Route templates, the most specific first.
    pub(super) routes: Vec<Route>,
    summary: Summary,
    /// What every client and every path meets if nothing about it matters.
    any_client: ClientMatch,
    any_path: PathMatch,
    fallbacks: Bits,
    /// Rules that name an endpoint. One that only counts leaves it to the fallback.
    named: Bits,
}

#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) template: String,
    pub(super) hash: u64,
    /// Which of `endpoints` it is.
    pub(super) pattern: usize,
    /// See [`super::pattern::Template`].
    pub(super) generality: Vec<u8>,
}

/// The compiler's output, before what follows from it is worked out.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) rules: Vec<Rule>,
    pub(super) tiers: Vec<Tier>,
    pub(super) default_tier: Option<TierId>,
    pub(super) limits: Vec<Limit>,
    pub(super) owners: Vec<u32>,
    pub(super) sizes: Vec<Range<u32>>,
    pub(super) endpoints: RegexSet,
    pub(super) written: Vec<String>,
    pub(super) routes: Vec<Route>,
}

impl RuleSet {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { mut rules, tiers, default_tier, limits, owners, sizes, endpoints, written, routes } =
            parts;
        let count = rules.len();
        let any_path = PathMatch { rules: Bits::empty(count), route: 0 };
        let (mut fallbacks, mut named) = (Bits::empty(count), Bits::empty(count));
        for (index, rule) in rules.iter_mut().enumerate() {
            rule.has_other_half =
                rule.methods != MethodSet::default() || rule.domain.is_some() || rule.needs_address;
            rule.counts_by_api_key = rule.key.as_slice() == [Dimension::ApiKey];
            if rule.fallback {
                fallbacks.insert(index);
            } else if rule.endpoints.is_some() && rule.on_exceed == OnExceed::Reject {
                named.insert(index);
            }
        }
        let summary = Summary::new(&rules, &tiers);
        let mut set = Self {
            rules,
            tiers,
            default_tier,
            limits,
            owners,
            sizes,
            endpoints,
            written,
            routes,
            summary,
            any_client: ClientMatch::default(),
            any_path,
            fallbacks,
            named,
        };
        set.any_client = set.match_client(&Request::default());
        set.any_path = set.match_path("");
        set
    }

    /// A set that limits nothing.
    pub fn empty() -> Self {
        Self::new(Parts::default())
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

    pub(super) fn owner_index(&self, id: LimitId) -> u32 {
        self.owners[id.0 as usize]
    }

    /// The number of the client: those with the same number meet the same rules. None if all clients do.
    #[inline]
    pub fn sum_up(&self, request: &Request<'_>, hashes: &Hashes<'_>) -> Option<u64> {
        self.summary.of(request, &self.tiers, hashes)
    }

    /// What a client meets of which [`RuleSet::sum_up`] says nothing.
    pub fn any_client(&self) -> &ClientMatch {
        &self.any_client
    }

    /// What any path meets, if no rule looks at paths.
    pub fn any_path(&self) -> Option<&PathMatch> {
        self.endpoints.is_empty().then_some(&self.any_path)
    }

    /// The client half: tier, patterns, and the numbers this client gets from each rule.
    pub fn match_client(&self, request: &Request<'_>) -> ClientMatch {
        let mut matched = ClientMatch::default();
        self.match_client_into(request, &mut matched);
        matched
    }

    /// The same, in memory that was used before.
    pub fn match_client_into(&self, request: &Request<'_>, matched: &mut ClientMatch) {
        let tier = self.tier_of(request);
        matched.rules.reset(self.rules.len());
        matched.sizes.clear();
        for (index, rule) in self.rules.iter().enumerate() {
            let applies = rule.client.holds(request) && self.tier_admits(rule, tier);
            let tier = tier.or(rule.tier).or(self.default_tier);
            let size = if applies { rule.size_for(request, tier) } else { None };
            if size.is_some() {
                matched.rules.insert(index);
            }
            matched.sizes.push(size);
        }
    }

    /// The path half: one pass of all patterns over the path.
    pub fn match_path(&self, path: &str) -> PathMatch {
        let found = self.endpoints.matches(path);
        let mut rules = Bits::empty(self.rules.len());
        for (index, rule) in self.rules.iter().enumerate() {
            let meets = match &rule.endpoints {
                None => true,
                Some(patterns) => patterns.clone().any(|pattern| found.matched(pattern)),
            };
            if meets {
                rules.insert(index);
            }
        }
        let route = self.routes.iter().find(|route| found.matched(route.pattern));
        PathMatch { rules, route: route.map_or(0, |route| route.hash) }
    }

    /// Joins the halves to the charges of `request`.
    #[inline]
    pub fn select<'r>(
        &'r self,
        client: &ClientMatch,
        path: &PathMatch,
        request: &Request<'_>,
        hashes: &Hashes<'_>,
        charges: &mut Charges<'r>,
    ) {
        let mut endpoint_is_named = false;
        for (word, (by_client, by_path)) in client.rules.0.iter().zip(&path.rules.0).enumerate() {
            let mut left = by_client & by_path & !self.fallbacks.0[word];
            while left != 0 {
                let index = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if self.charge(index, client, path, request, hashes, charges) {
                    endpoint_is_named |= self.named.contains(index);
                }
            }
        }
        if endpoint_is_named || self.fallbacks.is_empty() {
            return;
        }
        for index in 0..self.rules.len() {
            if self.fallbacks.contains(index) && client.rules.contains(index) && path.rules.contains(index) {
                self.charge(index, client, path, request, hashes, charges);
            }
        }
    }

    /// Adds the charges of one rule, if its method and domain are the request's.
    #[inline]
    fn charge<'r>(
        &'r self,
        index: usize,
        client: &ClientMatch,
        path: &PathMatch,
        request: &Request<'_>,
        hashes: &Hashes<'_>,
        charges: &mut Charges<'r>,
    ) -> bool {
        let rule = &self.rules[index];
        if rule.has_other_half && rule.other_half_fails(request).is_some() {
            return false;
        }
        let Some(size) = client.sizes[index] else { return false };
        let who = match hashes.api_key() {
            Some(hash) if rule.counts_by_api_key => hash,
            _ => hashes.of_key(&rule.key, request, path.route),
        };
        for limit in self.sizes[size as usize].clone() {
            let id = LimitId(limit);
            let limit = self.limit(id);
            let enforced = rule.on_exceed == OnExceed::Reject;
            // `who` is an unpredictable hash: to tell limits apart, their fixed identities are enough.
            charges.push(Charge { limit, id, key: who ^ limit.identity, enforced });
        }
        true
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

impl Rule {
    /// The numbers for this client: its own, else its tier's, else everybody's.
    fn size_for(&self, request: &Request<'_>, tier: Option<TierId>) -> Option<SizeId> {
        if !self.sizes.by_key.is_empty() {
            let names = [request.api_key, request.user, request.tenant];
            let own = names.iter().flatten().find_map(|name| self.sizes.by_key.get(*name));
            let by_id = || self.custom_names().find_map(|name| self.sizes.by_key.get(request.id(name)?));
            let by_address =
                || request.ip.and_then(|ip| self.sizes.by_key.get(&ip.to_canonical().to_string()));
            if let Some(size) = own.or_else(by_id).or_else(by_address) {
                return Some(*size);
            }
        }
        let by_tier = self.sizes.by_tier.iter().find(|(known, _)| Some(*known) == tier);
        by_tier.map(|(_, size)| *size).or(self.sizes.default)
    }

    /// The custom identities that it counts by.
    pub(super) fn custom_names(&self) -> impl Iterator<Item = &str> {
        self.key.iter().filter_map(|dimension| match dimension {
            Dimension::Custom(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// What neither half of the match looks at: the name of the first condition that fails.
    #[inline]
    pub(super) fn other_half_fails(&self, request: &Request<'_>) -> Option<&'static str> {
        if !self.methods.admits(request.method) {
            Some("methods")
        } else if self.domain.is_some() && self.domain.as_deref() != request.domain {
            Some("domain")
        } else if self.needs_address && request.ip.is_none() {
            Some("an address")
        } else {
            None
        }
    }

    /// The identities that make up the key of `request`.
    pub(super) fn identities<'a>(&self, request: &Request<'a>, route: u64) -> Vec<Identity<'a>> {
        self.key.iter().map(|dimension| identity(dimension, request, route)).collect()
    }
}

impl PathMatch {
    pub(super) fn meets(&self, rule: usize) -> bool {
        self.rules.contains(rule)
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
