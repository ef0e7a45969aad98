//! The rule file format. The JSON Schema is derived from these types, and its descriptions are their comments.

pub use super::lease_timing::WrittenLease;
pub use super::on_exceed::{
    FlagSettings, OnExceed, Percent, QueueSettings, ShedSettings, SoftLimit, TarpitSettings,
};
use super::pattern::PathStrictness;
use super::short_forms::{
    AddressText, DurationText, LimitAmount, OneOrMany, RateText, ShortLimit, Timestamp, WrittenPenalty,
};
use crate::algorithm::Algorithm;
use crate::path::endpoint;
use crate::request::{Door, Method, NamedIdentity, Request};
use schemars::JsonSchema;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A rule file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// The rules. A request is charged against every rule that matches it, all or nothing.
    #[serde(default)]
    pub rules: Vec<WrittenRule>,
    /// What every rule inherits, unless it or its tier has its own value.
    #[serde(default)]
    pub defaults: WrittenDefaults,
    /// The tiers by name: their members and limits.
    #[serde(default)]
    pub tiers: BTreeMap<String, WrittenTier>,
    /// Route templates in addition to those of rules, for `key: [route]`.
    #[serde(default)]
    pub routes: Vec<String>,
    /// Clients without limits: exact keys, globs (`sk_internal_*`), addresses and networks.
    #[serde(default)]
    pub whitelist: Vec<WrittenListEntry>,
    /// The same as `whitelist`.
    #[serde(default)]
    pub allow: Vec<WrittenListEntry>,
    /// Clients that are refused with 403.
    #[serde(default)]
    pub blacklist: Vec<WrittenListEntry>,
    /// The same as `blacklist`.
    #[serde(default)]
    pub deny: Vec<WrittenListEntry>,
    /// Test cases on a virtual clock, run by `tollgate rules test` and before a server uses the file.
    #[serde(default)]
    pub tests: Vec<RuleTestCase>,
    /// Whether the file may have no rules, so that nothing is limited.
    #[serde(default)]
    pub allow_empty: bool,
}

/// One rule: which requests it matches, and their limits.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Rule", extend("required" = ["id"]))]
pub struct WrittenRule {
    /// The name in responses, metrics and logs. It also names the states: a renamed rule starts with new states.
    // Optional for serde, so that the compiler reports a missing id together with other errors of the rule.
    #[serde(default)]
    pub id: String,
    /// A version number for operators. It has no effect.
    pub version: Option<u64>,
    /// Applies only to members of this tier.
    pub tier: Option<String>,
    /// Applies only to requests of these domains, case-insensitive; `*.example.com` and `www.example.*` are patterns. At
    /// the gateway and the tower layer it is the host without its port; in the check API, the `domain` of the request.
    pub domain: Option<OneOrMany<String>>,
    /// The requests that it matches; all if absent.
    #[serde(rename = "match")]
    pub matches: Option<WrittenMatch>,
    /// The requests that it does not match, although `match` does: those that meet any of these conditions.
    pub except: Option<WrittenExcept>,
    /// Rules that do not apply to a request that this rule applies to, by their ids.
    pub replaces: Option<OneOrMany<String>>,
    /// Short for `match: { endpoint: … }`.
    pub endpoint: Option<OneOrMany<String>>,
    /// Short for `match: { methods: … }`.
    pub methods: Option<OneOrMany<String>>,
    /// Applies only to endpoints that no other rule names. A rule that is not enforced (`shadow`, `flag`) names none.
    #[serde(default)]
    pub fallback: bool,
    /// The identities that share one state: `api_key`, `ip`, `user`, `tenant`, `route`, `endpoint`, `method`, `domain` or
    /// the name of a custom identity, or several of them combined; `all` is one state for all requests. By default the
    /// API key, else the address.
    pub key: Option<OneOrMany<String>>,
    /// The prefix length by which IPv6 addresses are counted; 64 by default.
    pub ipv6_prefix: Option<u64>,
    /// The algorithm; `token_bucket` by default.
    pub algorithm: Option<Algorithm>,
    /// The numbers, in full.
    pub params: Option<WrittenParams>,
    /// The numbers, in short: `100/min`.
    pub limit: Option<LimitAmount>,
    /// With `limit`: the most tokens that can be spent at once.
    pub burst: Option<u64>,
    /// Several limits at once: `[10/s, 250/day]`.
    pub limits: Option<Vec<ShortLimit>>,
    /// Other numbers for single clients.
    #[serde(rename = "override", default)]
    pub overrides: BTreeMap<String, WrittenParams>,
    /// A second limit per address, this many times as large. Users behind one shared address reach their own limits
    /// first.
    pub ip_safety_net: Option<u32>,
    /// The action on a request over the limit.
    pub on_exceed: Option<OnExceed>,
    /// Cooldowns for clients that ignore `Retry-After`; off by default.
    pub penalty: Option<WrittenPenalty>,
    /// The share of the limit above which requests are flagged or delayed: `80%`.
    pub soft: Option<SoftLimit>,
    /// The failure policy: the decision while the shared store is unavailable.
    pub on_store_failure: Option<OnStoreFailure>,
    /// Whether nodes may lease tokens.
    pub consistency: Option<Consistency>,
    /// How far ahead nodes lease tokens, and how often they report spent ones.
    pub lease: Option<WrittenLease>,
    /// A note for operators.
    pub description: Option<String>,
}

impl WrittenRule {
    /// How strictly paths must match the endpoints of the rule.
    pub(super) fn path_strictness(&self) -> PathStrictness {
        PathStrictness::from_exact(self.matches.as_ref().is_some_and(|matches| matches.exact))
    }
}

/// The requests that a rule matches. All given conditions must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Match")]
pub struct WrittenMatch {
    /// Globs over the API key.
    pub api_key_pattern: Option<OneOrMany<String>>,
    /// Globs over the user.
    pub user_pattern: Option<OneOrMany<String>>,
    /// Globs over the tenant.
    pub tenant_pattern: Option<OneOrMany<String>>,
    /// Addresses and networks.
    pub ip: Option<OneOrMany<String>>,
    /// Globs over custom identities, by name.
    #[serde(default)]
    pub ids: BTreeMap<String, OneOrMany<String>>,
    /// Templates such as `/v1/users/{id}`; `{*rest}` at the end matches any rest.
    pub endpoint: Option<OneOrMany<String>>,
    /// Whether `;parameters`, and for templates also case and a trailing slash, distinguish endpoints. Off by default.
    #[serde(default)]
    pub exact: bool,
    /// Regular expressions over the canonical path, decoded, with and without `;parameters`; unanchored.
    pub endpoint_regex: Option<OneOrMany<String>>,
    /// HTTP methods.
    pub methods: Option<OneOrMany<String>>,
    /// Requests that have these identities and no others: `api_key`, `user`, `tenant`, `ip`, `endpoint`, `method` or the
    /// names of custom identities. Envoy descriptors with exactly these entries.
    pub exactly: Option<OneOrMany<String>>,
}

/// The requests that a rule does not match. One condition that holds is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Except")]
pub struct WrittenExcept {
    /// Globs over the API key.
    pub api_key_pattern: Option<OneOrMany<String>>,
    /// Globs over the user.
    pub user_pattern: Option<OneOrMany<String>>,
    /// Globs over the tenant.
    pub tenant_pattern: Option<OneOrMany<String>>,
    /// Addresses and networks.
    pub ip: Option<OneOrMany<String>>,
    /// Globs over custom identities, by name.
    #[serde(default)]
    pub ids: BTreeMap<String, OneOrMany<String>>,
    /// Templates, as in `match`.
    pub endpoint: Option<OneOrMany<String>>,
    /// See `match`.
    #[serde(default)]
    pub exact: bool,
    /// Regular expressions, as in `match`.
    pub endpoint_regex: Option<OneOrMany<String>>,
    /// HTTP methods.
    pub methods: Option<OneOrMany<String>>,
    /// Domains, as in `domain` of the rule.
    pub domain: Option<OneOrMany<String>>,
}

impl WrittenExcept {
    /// The same conditions as those of a match; `domain` is not part of one.
    pub(super) fn as_match(&self) -> WrittenMatch {
        let Self { api_key_pattern, user_pattern, tenant_pattern, ip, ids, .. } = self.clone();
        let Self { endpoint, exact, endpoint_regex, methods, .. } = self.clone();
        WrittenMatch {
            api_key_pattern,
            user_pattern,
            tenant_pattern,
            ip,
            ids,
            endpoint,
            exact,
            endpoint_regex,
            methods,
            exactly: None,
        }
    }
}

impl WrittenMatch {
    /// The globs over the identity `kind`.
    pub(super) fn pattern(&self, kind: NamedIdentity) -> Option<&OneOrMany<String>> {
        let pattern = match kind {
            NamedIdentity::ApiKey => &self.api_key_pattern,
            NamedIdentity::User => &self.user_pattern,
            NamedIdentity::Tenant => &self.tenant_pattern,
        };
        pattern.as_ref()
    }
}

/// The numbers of a limit: buckets have a capacity and a rate, windows a limit and a window.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Params")]
pub struct WrittenParams {
    /// The most tokens in the bucket; the burst.
    pub capacity: Option<u64>,
    /// Tokens per second, or `100/min`.
    pub refill_rate: Option<RateText>,
    /// The leak rate per second, or `100/min`; for `leaky_bucket`.
    pub leak_rate: Option<RateText>,
    /// Requests per window, or `100/min`.
    pub limit: Option<LimitAmount>,
    /// The window: seconds, or a duration such as `90s`. For buckets it only appears in headers.
    pub window: Option<DurationText>,
    /// The most tokens that can be spent at once. For `gcra` in addition to the first, so that 0 spaces requests
    /// strictly.
    pub burst: Option<u64>,
    /// Several limits at once.
    pub limits: Option<Vec<ShortLimit>>,
    /// For `concurrency`: the time after which a request that has not ended frees its slot; 60s by default.
    pub timeout: Option<DurationText>,
}

/// Values that rules inherit.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Defaults")]
pub struct WrittenDefaults {
    /// The tier of clients that are in no other.
    pub tier: Option<String>,
    /// See the rule's.
    pub key: Option<OneOrMany<String>>,
    /// See the rule's.
    pub ipv6_prefix: Option<u64>,
    /// See the rule's.
    pub algorithm: Option<Algorithm>,
    /// See the rule's.
    pub params: Option<WrittenParams>,
    /// See the rule's.
    pub limit: Option<LimitAmount>,
    /// See the rule's.
    pub burst: Option<u64>,
    /// See the rule's.
    pub limits: Option<Vec<ShortLimit>>,
    /// See the rule's.
    pub ip_safety_net: Option<u32>,
    /// See the rule's.
    pub on_exceed: Option<OnExceed>,
    /// See the rule's.
    pub penalty: Option<WrittenPenalty>,
    /// See the rule's.
    pub soft: Option<SoftLimit>,
    /// See the rule's.
    pub on_store_failure: Option<OnStoreFailure>,
    /// See the rule's.
    pub consistency: Option<Consistency>,
    /// See the rule's.
    pub lease: Option<WrittenLease>,
}

/// A tier: its members, and their numbers under rules without numbers of their own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Tier")]
pub struct WrittenTier {
    /// Globs over the API key. If globs of several tiers match, the most specific glob decides.
    pub api_key_pattern: Option<OneOrMany<String>>,
    /// Single API keys or users. They take precedence over the patterns of all tiers.
    #[serde(default)]
    pub keys: Vec<String>,
    /// See the rule's.
    pub algorithm: Option<Algorithm>,
    /// See the rule's.
    pub params: Option<WrittenParams>,
    /// See the rule's.
    pub limit: Option<LimitAmount>,
    /// See the rule's.
    pub burst: Option<u64>,
    /// See the rule's.
    pub limits: Option<Vec<ShortLimit>>,
}

/// The failure policy: the decision while the shared store is unavailable. The embedded store is always available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnStoreFailure {
    /// Requests are admitted.
    #[default]
    Allow,
    /// Requests are refused, for example logins.
    Deny,
    /// Each node enforces its share of the limit.
    Local,
}

/// Whether nodes that share a store may lease tokens of busy keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// They may. The limit is never exceeded.
    #[default]
    Leased,
    /// Every check calls the store.
    Strict,
}

/// A list entry: the pattern alone, or with a reason and an expiry.
#[derive(Clone, Debug)]
pub struct WrittenListEntry {
    /// An exact key, a glob, an address or a network.
    pub key: String,
    /// The end of its validity, such as `2026-12-31T23:59:59Z`.
    pub expires: Option<Timestamp>,
    /// A note for operators.
    pub reason: Option<String>,
    /// The operator that added the entry at run time, through the admin API. The tests of the rules do not see such
    /// entries: whether a client can be blocked must not depend on what they expect.
    pub by: Option<String>,
}

/// A test case: requests on a virtual clock, and their expected outcomes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestCase", extend("required" = ["name", "steps"]))]
pub struct RuleTestCase {
    /// What the case shows.
    #[serde(default)]
    pub name: String,
    /// The start of the case; by default a boundary of every window up to a week.
    pub start: Option<Timestamp>,
    /// The request that the steps send.
    #[serde(default)]
    pub request: RuleTestRequest,
    /// The steps, in order.
    #[serde(default)]
    pub steps: Vec<RuleTestStep>,
}

/// The request of a test, with the field names of `POST /v1/check`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestRequest")]
pub struct RuleTestRequest {
    /// The API key.
    pub key: Option<String>,
    /// The user.
    pub user: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The client's address.
    #[schemars(with = "Option<std::net::IpAddr>")]
    pub ip: Option<AddressText>,
    /// The tier, if the caller states one.
    pub tier: Option<String>,
    /// Custom identities.
    #[serde(default)]
    pub ids: BTreeMap<String, String>,
    /// The domain: an Envoy domain, or a host.
    pub domain: Option<String>,
    /// The path.
    pub endpoint: Option<String>,
    /// The HTTP method.
    pub method: Option<String>,
    /// The cost; 1 by default.
    pub cost: Option<u64>,
}

impl RuleTestRequest {
    /// These fields, with those of `base` where one is absent.
    pub(super) fn over(&self, base: &Self) -> Self {
        let mut ids = base.ids.clone();
        ids.extend(self.ids.clone());
        Self {
            key: self.key.clone().or_else(|| base.key.clone()),
            user: self.user.clone().or_else(|| base.user.clone()),
            tenant: self.tenant.clone().or_else(|| base.tenant.clone()),
            ip: self.ip.or(base.ip),
            tier: self.tier.clone().or_else(|| base.tier.clone()),
            ids,
            domain: self.domain.clone().or_else(|| base.domain.clone()),
            endpoint: self.endpoint.as_ref().or(base.endpoint.as_ref()).map(|text| canonical(text)),
            method: self.method.clone().or_else(|| base.method.clone()),
            cost: self.cost.or(base.cost),
        }
    }

    /// As a request; `ids` are its custom identities.
    pub fn as_request<'a>(&'a self, ids: &'a [(&'a str, &'a str)]) -> Request<'a> {
        Request {
            api_key: self.key.as_deref(),
            user: self.user.as_deref(),
            tenant: self.tenant.as_deref(),
            ip: self.ip.map(|AddressText(ip)| ip),
            tier: self.tier.as_deref(),
            ids,
            domain: self.domain.as_deref(),
            endpoint: self.endpoint.as_deref().unwrap_or_default(),
            method: self.method.as_deref().map(Method::from_name),
            cost: self.cost.unwrap_or(1),
            priority: None,
            door: Door::Library,
        }
    }
}

/// The endpoint in the form that doors give it. Invalid ones were reported when the file was compiled.
fn canonical(text: &str) -> String {
    endpoint(text).map_or_else(|_| text.to_owned(), Cow::into_owned)
}

/// One step of a test case.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestStep")]
pub struct RuleTestStep {
    /// The time since the start of the case.
    pub at: Option<DurationText>,
    /// Fields that differ from the case's request.
    #[serde(default)]
    pub request: RuleTestRequest,
    /// The number of requests to send; 1 by default.
    pub send: Option<u64>,
    /// The expected outcome of each request.
    pub expect: Option<RuleTestExpectation>,
    /// Instead: the number of requests that pass.
    pub pass: Option<u64>,
    /// The exact retry time of the last request.
    pub retry_after: Option<DurationText>,
    /// The tokens left after the last request.
    pub remaining: Option<u64>,
    /// The rule that decided the last request.
    pub rule: Option<String>,
}

/// The expected outcome of a test request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Expectation")]
pub enum RuleTestExpectation {
    /// Admitted, or no limit applies.
    Pass,
    /// Over a limit.
    Limited,
    /// On the deny list.
    Denied,
    /// No limit applies: the allow list, or no rule matches.
    Unlimited,
    /// The cost exceeds the capacity of a limit.
    TooCostly,
}
