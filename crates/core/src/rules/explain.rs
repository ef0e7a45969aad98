//! Which rules meet a request, which do not and why, and what would let it pass.

use super::compile::LoadedRules;
use super::lists::ListVerdict;
use super::pattern::{Glob, network};
use super::ruleset::{Rule, RuleSet};
use super::virtual_node::VirtualNode;
use super::written::OnExceed;
use crate::decision::Outcome;
use crate::key::Identity;
use crate::rate::duration_text;
use crate::request::Request;
use std::fmt;
use std::net::IpAddr;

/// The answer to "why", for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What the lists say, if the request is on one.
    pub listed: Option<String>,
    /// The tier of the client.
    pub tier: Option<String>,
    /// The route that the path falls under.
    pub route: Option<String>,
    /// Each rule, in the order of the file.
    pub rules: Vec<RuleExplanation>,
    /// What becomes of the request if nothing was spent before.
    pub verdict: String,
}

/// One rule's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleExplanation {
    /// The rule.
    pub id: String,
    /// Why it does not apply; none if it does.
    pub fails: Option<String>,
    /// Whether it only counts.
    pub is_shadow: bool,
    /// Who shares the count with this request.
    pub key: String,
    /// The limits.
    pub limits: Vec<String>,
}

/// Explains what `loaded` makes of `request` at `now_us`.
pub fn explain(loaded: &LoadedRules, request: &Request<'_>, now_us: u64) -> Explanation {
    let rules = &loaded.rules;
    let (client, path) = (rules.match_client(request), rules.match_path(request.path()));
    let given = rules.tier_of(request).or(rules.default_tier);
    let listed = loaded.lists.reason(request, now_us).map(|(listed, entry)| {
        let list = match listed {
            ListVerdict::Allowed => "allow",
            ListVerdict::Denied => "deny",
        };
        let reason = entry.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        format!("on the {list} list by `{}`{reason}", said_pattern(&entry.pattern))
    });
    let selected: Vec<u32> = super::virtual_node::charges(rules, request)
        .iter()
        .map(|charge| rules.owner_index(charge.id))
        .collect();
    let explained = rules.rules().iter().enumerate().map(|(index, rule)| RuleExplanation {
        id: rule.id.clone(),
        fails: if selected.contains(&(index as u32)) {
            None
        } else {
            Some(why_not(rules, index, rule, request, path.meets(index), client.size(index).is_some()))
        },
        is_shadow: rule.is_shadow(),
        key: said_key(rules, rule, request, path.route()),
        limits: client.size(index).map(|size| rules.said_limits(size)).unwrap_or_default(),
    });
    // Where nothing else gives a tier, the rule's own key pattern does.
    let tier = given.or_else(|| selected.iter().find_map(|rule| rules.rules()[*rule as usize].tier));
    Explanation {
        listed,
        tier: tier.map(|tier| rules.tiers[tier as usize].name.clone()),
        route: rules.template(path.route()).map(str::to_owned),
        rules: explained.collect(),
        verdict: verdict(loaded, request, now_us),
    }
}

fn why_not(
    rules: &RuleSet,
    index: usize,
    rule: &Rule,
    request: &Request<'_>,
    path_meets: bool,
    has_size: bool,
) -> String {
    if let Some(failed) = rule.client.first_failure(request) {
        return format!("the client does not match {failed}");
    }
    if !path_meets {
        return match &rule.endpoints {
            Some(patterns) => {
                format!(
                    "`{}` does not match {}",
                    request.path(),
                    rules.written[patterns.clone()].join(" or ")
                )
            }
            None => "the path does not match".to_owned(),
        };
    }
    if let Some(failed) = rule.first_failure(request) {
        return format!("it asks for {failed}, and this request has another or none");
    }
    if !has_size {
        return match rule.tier {
            Some(tier) => format!("it is for tier `{}` only", rules.tiers[tier as usize].name),
            None => "it has no limit for this client's tier".to_owned(),
        };
    }
    debug_assert!(rules.rules()[index].fallback, "all other reasons are told above");
    "it is a fallback, and another rule names this endpoint".to_owned()
}

fn verdict(loaded: &LoadedRules, request: &Request<'_>, now_us: u64) -> String {
    match VirtualNode::default().check(loaded, request, now_us) {
        Err(invalid) => format!("refused: {invalid}"),
        Ok(Outcome::Denied) => {
            "refused: it is on the deny list; removing the entry would let it pass".to_owned()
        }
        Ok(Outcome::Unlimited) => "passes, and no limit applies".to_owned(),
        Ok(Outcome::Admitted(standing) | Outcome::Limited(standing)) => {
            let limit = loaded.rules.limit(standing.limit);
            let again = match limit.longest_in_flight_us() {
                Some(_) => "when it has ended".to_owned(),
                None => format!("after {}", duration_text(standing.reset_after_us)),
            };
            format!(
                "passes if nothing was spent before; `{}` then has {} of {} left, and all of it again {again}",
                limit.policy, standing.remaining, limit.quota,
            )
        }
    }
}

fn said_key(rules: &RuleSet, rule: &Rule, request: &Request<'_>, route: u64) -> String {
    let identities = rule.identities(request, route);
    let said = identities.iter().map(|identity| match identity {
        Identity::ApiKey(key) => format!("api_key {}", masked(key)),
        Identity::User(user) => format!("user {user}"),
        Identity::Tenant(tenant) => format!("tenant {tenant}"),
        Identity::Ip(bits) => {
            let ip = IpAddr::from(bits.to_be_bytes()).to_canonical();
            if ip.is_ipv6() { format!("ip {ip}/{}", rule.ipv6_prefix.bits()) } else { format!("ip {ip}") }
        }
        Identity::Route(route) => format!("route {}", rules.template(*route).unwrap_or("none")),
        Identity::Custom(name, value) => format!("{name} {value}"),
        Identity::Anonymous => "nobody in particular".to_owned(),
    });
    said.collect::<Vec<_>>().join(" + ")
}

/// A pattern as written; a single key only in part.
pub(super) fn said_pattern(pattern: &str) -> String {
    let is_key = Glob::new(pattern).is_exact() && network(pattern).is_none();
    if is_key { masked(pattern) } else { pattern.to_owned() }
}

/// Enough of a key to recognise it, not enough to use it.
fn masked(key: &str) -> String {
    let shown = (key.chars().count() / 2).min(8);
    key.chars().take(shown).chain(['…']).collect()
}

impl RuleSet {
    fn template(&self, route: u64) -> Option<&str> {
        self.routes.iter().find(|known| known.hash == route).map(|known| known.template.as_str())
    }

    fn said_limits(&self, size: u32) -> Vec<String> {
        let limits = self.sizes[size as usize].clone();
        limits
            .map(|limit| {
                let limit = &self.limits[limit as usize];
                if limit.longest_in_flight_us().is_some() {
                    return format!("{} in flight, {}", limit.quota, limit.algorithm().name());
                }
                let window = duration_text(u64::from(limit.window_seconds) * 1_000_000);
                format!("{} per {window}, {}", limit.shown_quota, limit.algorithm().name())
            })
            .collect()
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
            match &rule.fails {
                None => {
                    let how = if rule.is_shadow { "only counted, for" } else { "counted for" };
                    writeln!(f, "  ✓ {}  {how} {}", rule.id, rule.key)?;
                    for limit in &rule.limits {
                        writeln!(f, "      {limit}")?;
                    }
                }
                Some(why) => writeln!(f, "  · {}  {why}", rule.id)?,
            }
        }
        write!(f, "{}", self.verdict)
    }
}

impl Rule {
    /// Whether it only counts.
    pub fn is_shadow(&self) -> bool {
        self.on_exceed == OnExceed::Shadow
    }
}
