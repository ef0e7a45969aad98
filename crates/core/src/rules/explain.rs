//! Explains a decision: which rules match a request, which do not and why, and what would admit it.

use super::compile::LoadedRules;
use super::lists::ListVerdict;
use super::pattern::{Glob, network};
use super::ruleset::{Rule, RuleSet};
use super::selection::{ClientMatch, PathMatch};
use super::virtual_node::VirtualNode;
use super::written::OnExceed;
use crate::decision::Outcome;
use crate::key::Identity;
use crate::rate::duration_text;
use crate::request::Request;
use crate::time::UnixTime;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;

/// The explanation of a decision. `Display` is the text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The list that the client is on.
    pub listed: Option<ExplainedListing>,
    /// The tier of the client.
    pub tier: Option<String>,
    /// The route template that matches the path.
    pub route: Option<String>,
    /// Each rule, in the order of the file.
    pub rules: Vec<RuleExplanation>,
    /// The outcome if no tokens were spent before.
    pub verdict: ExplainedVerdict,
}

/// The list entry that decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedListing {
    /// `allow` or `deny`.
    pub list: String,
    /// The entry; a single key is abbreviated.
    pub pattern: String,
    /// The note for operators.
    pub reason: Option<String>,
}

/// The part of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleExplanation {
    /// The id of the rule.
    pub id: String,
    /// Why it does not apply; `None` if it does.
    pub mismatch: Option<String>,
    /// Whether it only counts and reports.
    pub is_shadow: bool,
    /// The key of the request; API keys are abbreviated.
    pub key: String,
    /// The limits.
    pub limits: Vec<ExplainedLimit>,
}

/// A limit of a rule for this client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedLimit {
    /// Its name in headers.
    pub name: String,
    /// The count per window, as in headers.
    pub quota: u64,
    /// The window; none for requests in flight.
    pub window_seconds: Option<u64>,
    /// The most requests at once.
    pub capacity: u64,
    /// The name of its algorithm.
    pub algorithm: String,
}

/// The outcome if no tokens were spent before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedVerdict {
    /// What happens to the request.
    pub outcome: ExplainedOutcome,
    /// In words, with what would admit a refused request.
    pub text: String,
    /// The name of the limit with the least left.
    pub limit: Option<String>,
    /// What is left of it after this request.
    pub remaining: Option<u64>,
}

/// What happens to an explained request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExplainedOutcome {
    /// It is within all limits.
    Admitted,
    /// No limit applies.
    Unlimited,
    /// The client is on the deny list.
    Denied,
    /// It can never pass.
    Invalid,
}

/// Explains the decision on `request` at `now`.
pub fn explain(loaded: &LoadedRules, request: &Request<'_>, now: UnixTime) -> Explanation {
    let rules = &loaded.rules;
    let (client, path) = (rules.match_client(request), rules.match_path(request.path()));
    let client_tier = rules.tier_of(request).or(rules.default_tier);
    let listed = loaded.lists.find_entry(request, now).map(|(verdict, entry)| {
        let list = match verdict {
            ListVerdict::Allowed => "allow",
            ListVerdict::Denied => "deny",
        };
        ExplainedListing {
            list: list.to_owned(),
            pattern: pattern_text(&entry.pattern),
            reason: entry.reason.clone(),
        }
    });
    let charges = super::virtual_node::charges(rules, request);
    let selected: Vec<u32> = charges.iter().map(|charge| rules.owner_index(charge.id)).collect();
    let explained = rules.rules().iter().enumerate().map(|(index, rule)| RuleExplanation {
        id: rule.id.clone(),
        mismatch: if selected.contains(&(index as u32)) {
            None
        } else {
            let replaced_by = rules.replacing_rule(index as u32, &charges);
            Some(mismatch(rules, index, request, (&path, &client), replaced_by))
        },
        is_shadow: rule.is_shadow(),
        key: key_text(rules, rule, request, path.route()),
        limits: client.size(index).map(|size| rules.explained_limits(size)).unwrap_or_default(),
    });
    // A client without a tier is in the tier of a rule whose key pattern it matches.
    let tier = client_tier.or_else(|| selected.iter().find_map(|rule| rules.rules()[*rule as usize].tier));
    Explanation {
        listed,
        tier: tier.map(|tier| rules.tiers[tier as usize].name.clone()),
        route: rules.template(path.route()).map(str::to_owned),
        rules: explained.collect(),
        verdict: verdict(loaded, request, now),
    }
}

fn mismatch(
    rules: &RuleSet,
    index: usize,
    request: &Request<'_>,
    (path, client): (&PathMatch, &ClientMatch),
    replaced_by: Option<&str>,
) -> String {
    let rule = &rules.rules()[index];
    if let Some(excepted) = rule.except.client.first_match(request) {
        return format!("the client matches the exception {excepted}");
    }
    if let Some(failed) = rule.client.first_failure(request) {
        return format!("the client does not match {failed}");
    }
    if !path.matches(index) {
        let texts = |patterns: &Range<usize>| rules.written[patterns.clone()].join(" or ");
        // The range of the rule's own endpoints is asked first: an exception takes paths out of it.
        return match (&rule.endpoints, &rule.except.endpoints) {
            (Some(patterns), _) if !rules.matches_any_pattern(patterns, request.path()) => {
                format!("`{}` does not match {}", request.path(), texts(patterns))
            }
            (_, Some(patterns)) => format!("`{}` matches the exception {}", request.path(), texts(patterns)),
            (_, None) => "the path does not match".to_owned(),
        };
    }
    if let Some(failed) = rule.first_failure(request) {
        return format!("the rule requires {failed}, and the request has another or none");
    }
    if client.size(index).is_none() {
        return match rule.tier {
            Some(tier) => format!("the rule is for tier `{}` only", rules.tiers[tier as usize].name),
            None => "the rule has no limit for the client's tier".to_owned(),
        };
    }
    if let Some(other) = replaced_by {
        return format!("rule `{other}` replaces it");
    }
    debug_assert!(rule.fallback, "all other reasons are checked above");
    "the rule is a fallback, and another rule names this endpoint".to_owned()
}

fn verdict(loaded: &LoadedRules, request: &Request<'_>, now: UnixTime) -> ExplainedVerdict {
    let without_limit =
        |outcome, text: String| ExplainedVerdict { outcome, text, limit: None, remaining: None };
    match VirtualNode::default().check(loaded, request, now) {
        Err(invalid) => without_limit(ExplainedOutcome::Invalid, format!("refused: {invalid}")),
        Ok(Outcome::Denied) => {
            let text = "refused: the client is on the deny list; removing the entry would admit the request";
            without_limit(ExplainedOutcome::Denied, text.to_owned())
        }
        Ok(Outcome::Unlimited) => {
            without_limit(ExplainedOutcome::Unlimited, "admitted: no limit applies".to_owned())
        }
        Ok(Outcome::Admitted(status) | Outcome::Limited(status)) => {
            let limit = loaded.rules.limit(status.limit);
            let again = match limit.longest_in_flight_us() {
                Some(_) => "when the request has ended".to_owned(),
                None => format!("after {}", duration_text(status.reset_after_us)),
            };
            let text = format!(
                "admitted if no tokens were spent before; `{}` then has {} of {} left, and is full again {again}",
                limit.policy, status.remaining, limit.quota,
            );
            ExplainedVerdict {
                outcome: ExplainedOutcome::Admitted,
                text,
                limit: Some(limit.policy.clone()),
                remaining: Some(status.remaining.into()),
            }
        }
    }
}

fn key_text(rules: &RuleSet, rule: &Rule, request: &Request<'_>, route: u64) -> String {
    let identities = rule.identities(request, route);
    let texts = identities.iter().map(|identity| match identity {
        Identity::Named(kind, value) if kind.is_credential() => format!("{} {}", kind.name(), masked(value)),
        Identity::Named(kind, value) => format!("{} {value}", kind.name()),
        Identity::Ip(bits) => {
            let ip = IpAddr::from(bits.to_be_bytes()).to_canonical();
            if ip.is_ipv6() { format!("ip {ip}/{}", rule.ipv6_prefix.bits()) } else { format!("ip {ip}") }
        }
        Identity::Route(route) => format!("route {}", rules.template(*route).unwrap_or("none")),
        Identity::Custom(name, value) => format!("{name} {value}"),
        Identity::Anonymous => "all requests without an identity".to_owned(),
    });
    texts.collect::<Vec<_>>().join(" + ")
}

/// A pattern as written; a single key abbreviated.
pub(super) fn pattern_text(pattern: &str) -> String {
    let is_key = Glob::new(pattern).is_exact() && network(pattern).is_none();
    if is_key { masked(pattern) } else { pattern.to_owned() }
}

/// The start of a key: enough to recognise it, not enough to use it.
pub(super) fn masked(key: &str) -> String {
    let shown = (key.chars().count() / 2).min(8);
    key.chars().take(shown).chain(['…']).collect()
}

impl RuleSet {
    fn template(&self, route: u64) -> Option<&str> {
        self.routes.iter().find(|known| known.hash == route).map(|known| known.template.as_str())
    }

    fn explained_limits(&self, size: u32) -> Vec<ExplainedLimit> {
        let limits = self.sizes[size as usize].clone();
        limits
            .map(|limit| {
                let limit = &self.limits[limit as usize];
                let is_in_flight = limit.longest_in_flight_us().is_some();
                ExplainedLimit {
                    name: limit.policy.clone(),
                    quota: if is_in_flight { limit.quota.into() } else { limit.shown_quota.into() },
                    window_seconds: (!is_in_flight).then_some(limit.window_seconds.into()),
                    capacity: limit.quota.into(),
                    algorithm: limit.algorithm().name().to_owned(),
                }
            })
            .collect()
    }
}

impl fmt::Display for ExplainedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, window_seconds, algorithm, .. } = self;
        match window_seconds {
            Some(seconds) => write!(f, "{quota} per {}, {algorithm}", duration_text(seconds * 1_000_000)),
            None => write!(f, "{quota} in flight, {algorithm}"),
        }
    }
}

impl fmt::Display for ExplainedListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on the {} list by `{}`", self.list, self.pattern)?;
        match &self.reason {
            Some(reason) => write!(f, " ({reason})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(listed) = &self.listed {
            writeln!(f, "lists   {listed}")?;
        }
        writeln!(f, "tier    {}", self.tier.as_deref().unwrap_or("none"))?;
        writeln!(f, "route   {}", self.route.as_deref().unwrap_or("none"))?;
        for rule in &self.rules {
            match &rule.mismatch {
                None => {
                    let how = if rule.is_shadow { "counted only, for" } else { "counted for" };
                    writeln!(f, "  ✓ {}  {how} {}", rule.id, rule.key)?;
                    for limit in &rule.limits {
                        writeln!(f, "      {limit}")?;
                    }
                }
                Some(why) => writeln!(f, "  · {}  {why}", rule.id)?,
            }
        }
        f.write_str(&self.verdict.text)
    }
}

impl Rule {
    /// Whether it only counts and reports.
    pub fn is_shadow(&self) -> bool {
        self.on_exceed == OnExceed::Shadow
    }
}
