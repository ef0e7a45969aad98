//! Rules as people write them. These types are the file format: what they say, the JSON Schema says too.

pub use super::lease_timing::WrittenLease;
pub use super::on_exceed::{
    FlagSettings, OnExceed, Percent, QueueSettings, ShedSettings, SoftLimit, TarpitSettings,
};
use super::short_forms::{
    AddressText, DurationText, LimitAmount, OneOrMany, RateText, ShortLimit, Timestamp, WrittenPenalty,
};
use crate::algorithm::Algorithm;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A rule file: the rules, and what they share.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// The rules. Every rule that matches a request limits it, all or nothing.
    #[serde(default)]
    pub rules: Vec<WrittenRule>,
    /// What every rule inherits unless it, or its tier, says otherwise.
    #[serde(default)]
    pub defaults: WrittenDefaults,
    /// The tiers by name: who belongs to each, and what its members may do.
    #[serde(default)]
    pub tiers: BTreeMap<String, WrittenTier>,
    /// Route templates beyond those that rules name, for `key: [route]`.
    #[serde(default)]
    pub routes: Vec<String>,
    /// Who passes without any limit: exact keys, globs (`sk_internal_*`), addresses and networks.
    #[serde(default)]
    pub whitelist: Vec<WrittenListEntry>,
    /// The same as `whitelist`.
    #[serde(default)]
    pub allow: Vec<WrittenListEntry>,
    /// Who is refused with 403.
    #[serde(default)]
    pub blacklist: Vec<WrittenListEntry>,
    /// The same as `blacklist`.
    #[serde(default)]
    pub deny: Vec<WrittenListEntry>,
    /// Cases with a virtual clock, run by `tollgate rules test`, and before a server uses the file.
    #[serde(default)]
    pub tests: Vec<RuleTestCase>,
    /// Whether the file may have no rule, so that nothing is limited.
    #[serde(default)]
    pub allow_empty: bool,
}

/// One rule: whom it is about, and how much they may do.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Rule", extend("required" = ["id"]))]
pub struct WrittenRule {
    /// Its name: in answers, metrics and logs, and the name of its states. Keep it, and the states are kept.
    // Absent and empty are found by the compiler, together with whatever else is wrong with the rule.
    #[serde(default)]
    pub id: String,
    /// For people: counts the changes of this rule.
    pub version: Option<u64>,
    /// Only for members of this tier.
    pub tier: Option<String>,
    /// Only for requests of this domain, in any case. At the gateway and the tower layer it is the host, without
    /// its port; in the check API, what the caller says.
    pub domain: Option<String>,
    /// Which requests it is about; everything if absent.
    #[serde(rename = "match")]
    pub matches: Option<WrittenMatch>,
    /// Short for `match: { endpoint: … }`.
    pub endpoint: Option<OneOrMany<String>>,
    /// Short for `match: { methods: … }`.
    pub methods: Option<OneOrMany<String>>,
    /// Only for endpoints that no other rule names. A rule that only counts (`shadow`) names none.
    #[serde(default)]
    pub fallback: bool,
    /// Who shares a count: `api_key`, `ip`, `user`, `tenant`, `route` or the name of a custom identity, or
    /// several of them together. By default the API key, else the address.
    pub key: Option<OneOrMany<String>>,
    /// By networks of how many bits IPv6 addresses count; 64 by default.
    pub ipv6_prefix: Option<u64>,
    /// How it is counted; `token_bucket` by default.
    pub algorithm: Option<Algorithm>,
    /// The numbers, in full.
    pub params: Option<WrittenParams>,
    /// The numbers, in short: `100/min`.
    pub limit: Option<LimitAmount>,
    /// With `limit`: how many may come at once.
    pub burst: Option<u64>,
    /// Several limits at once: `[10/s, 250/day]`.
    pub limits: Option<Vec<ShortLimit>>,
    /// Other numbers for single keys.
    #[serde(rename = "override", default)]
    pub overrides: BTreeMap<String, WrittenParams>,
    /// A second limit per address, this many times as wide: a safety net that users behind one shared
    /// address do not hit first.
    pub ip_safety_net: Option<u32>,
    /// What happens to a request over the limit.
    pub on_exceed: Option<OnExceed>,
    /// What happens to clients that ignore `Retry-After`: nothing by default.
    pub penalty: Option<WrittenPenalty>,
    /// From which share of the limit on requests are flagged or delayed: `80%`.
    pub soft: Option<SoftLimit>,
    /// What happens when the shared store cannot be reached.
    pub on_store_failure: Option<OnStoreFailure>,
    /// Whether nodes may take tokens ahead.
    pub consistency: Option<Consistency>,
    /// How far ahead nodes take tokens, and how often they tell what became of them.
    pub lease: Option<WrittenLease>,
    /// For people.
    pub description: Option<String>,
}

/// Which requests a rule is about. Everything that is given must hold.
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
    /// Templates such as `/v1/users/{id}`; `{*rest}` at the end stands for any rest.
    pub endpoint: Option<OneOrMany<String>>,
    /// Whether `;parameters`, and to templates the case and a trailing slash, tell endpoints apart. By default they
    /// do not.
    #[serde(default)]
    pub exact: bool,
    /// Regular expressions over the path in its canonical form, decoded, with and without `;parameters`; unanchored
    /// unless they say otherwise.
    pub endpoint_regex: Option<OneOrMany<String>>,
    /// HTTP methods.
    pub methods: Option<OneOrMany<String>>,
}

/// The numbers of a limit. Which of them an algorithm takes: buckets a capacity and a rate, windows a
/// limit and a window.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Params")]
pub struct WrittenParams {
    /// Tokens that fit; the burst.
    pub capacity: Option<u64>,
    /// Tokens per second, or `100/min`.
    pub refill_rate: Option<RateText>,
    /// What leaks per second, or `100/min`; for `leaky_bucket`.
    pub leak_rate: Option<RateText>,
    /// Requests per window, or `100/min`.
    pub limit: Option<LimitAmount>,
    /// The window: seconds, or a duration such as `90s`. For buckets it is only shown in headers.
    pub window: Option<DurationText>,
    /// How many may come at once. For `gcra`: beyond the first, so that 0 spaces strictly.
    pub burst: Option<u64>,
    /// Several limits at once.
    pub limits: Option<Vec<ShortLimit>>,
    /// For `concurrency`: after how long a request that has not ended gives up its place; 60s by default.
    pub timeout: Option<DurationText>,
}

/// What rules inherit.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Defaults")]
pub struct WrittenDefaults {
    /// The tier of those who belong to none.
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

/// A tier: who belongs to it, and the numbers its members get from rules that give none.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Tier")]
pub struct WrittenTier {
    /// Globs over the API key. Of several tiers whose globs match, the most exact glob decides.
    pub api_key_pattern: Option<OneOrMany<String>>,
    /// Single API keys or users. They come before the patterns of any tier.
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

/// What happens when the shared store cannot be reached. The embedded store always can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnStoreFailure {
    /// Requests pass.
    #[default]
    Allow,
    /// Requests are refused: for logins and the like.
    Deny,
    /// Each node limits by itself, to its share.
    Local,
}

/// Whether nodes that share a store may take tokens ahead for busy keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// They may, and still never admit more than the limit.
    #[default]
    Leased,
    /// Every check asks the store.
    Strict,
}

/// A list entry: the pattern alone, or with a reason and an expiry.
#[derive(Clone, Debug)]
pub struct WrittenListEntry {
    /// An exact key, a glob, an address or a network.
    pub key: String,
    /// Until when it holds, as in `2026-12-31T23:59:59Z`.
    pub expires: Option<Timestamp>,
    /// For people.
    pub reason: Option<String>,
}

/// A case of a rule test: requests on a virtual clock, and what must become of them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestCase", extend("required" = ["name", "steps"]))]
pub struct RuleTestCase {
    /// What it shows.
    #[serde(default)]
    pub name: String,
    /// The instant at which the case begins; by default one on a boundary of every window up to a day.
    pub start: Option<Timestamp>,
    /// The request that the steps send.
    #[serde(default)]
    pub request: RuleTestRequest,
    /// What happens, in order.
    #[serde(default)]
    pub steps: Vec<RuleTestStep>,
}

/// The fields of a test's request, named as in `POST /v1/check`.
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
    /// The tier, if the caller knows it.
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
    /// What the request costs; 1 by default.
    pub cost: Option<u64>,
}

/// One step of a test case.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TestStep")]
pub struct RuleTestStep {
    /// When, since the start of the case.
    pub at: Option<DurationText>,
    /// Fields that differ from the case's request.
    #[serde(default)]
    pub request: RuleTestRequest,
    /// How many requests to send; 1 by default.
    pub send: Option<u64>,
    /// What must become of each of them.
    pub expect: Option<RuleTestExpectation>,
    /// Instead: how many of them pass.
    pub pass: Option<u64>,
    /// What the last one must be told to wait, exactly.
    pub retry_after: Option<DurationText>,
    /// What must be left after the last one.
    pub remaining: Option<u64>,
    /// Which rule must have decided the last one.
    pub rule: Option<String>,
}

/// What must become of a test's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Expectation")]
pub enum RuleTestExpectation {
    /// It passes, within a limit or without one.
    Pass,
    /// It is over a limit.
    Limited,
    /// It is on the deny list.
    Denied,
    /// It passes and no limit applies: the allow list, or no rule matches.
    Unlimited,
    /// It costs more than the limit can ever hold.
    TooCostly,
}
