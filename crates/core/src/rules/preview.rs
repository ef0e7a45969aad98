//! What other rules would have done to recent traffic: replays a sample of it under two rule sets on a virtual clock.
//!
//! A sample of weight `w` stands for `w` requests. Those of a client that was sampled several times are spread over the
//! time since its sample before. A client that was sampled once stands for `w` clients with one request each: it is
//! replayed once and counted `w` times. Both are exact if all weights are 1.
//!
//! Not replayed are what the sample does not tell: how long requests take (`concurrency` limits admit everything), how
//! clients react to a refusal, and states from before the first sample.

mod replay;

use super::compile::LoadedRules;
use super::explain::masked;
use super::written::RuleTestRequest;
use crate::key::{Dimension, Identity, Ipv6Prefix, identity};
use crate::request::NamedIdentity;
use crate::time::UnixTime;
use replay::{ClientCounts, Replay, SliceEnd};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// The most keys in a preview.
const MOST_KEYS: usize = 20;
/// Both rule sets are replayed by turns of this length, so that they end at the same time if the work is cut short.
const SLICE_US: u64 = 250_000;

/// A request of the sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledRequest {
    /// When it was decided.
    pub at: UnixTime,
    /// The number of requests that it stands for; at least 1.
    pub weight: u32,
    /// Its fields, the path in canonical form.
    pub fields: RuleTestRequest,
}

/// What rules did to a sample of requests, and what others would have done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulePreview {
    /// The time from the first replayed request to the last.
    pub window_seconds: f64,
    /// The number of requests that the sample stands for.
    pub requests: u64,
    /// The number of replayed samples.
    pub samples: usize,
    /// Whether every request of the window is in the sample.
    pub exact: bool,
    /// Whether the replay ended before the end of the sample, to keep its work bounded.
    pub partial: bool,
    /// The outcomes under the rules in force.
    pub before: PreviewTotals,
    /// The outcomes under the other rules.
    pub after: PreviewTotals,
    /// The rules that decided a request under one of the rule sets.
    pub rules: Vec<PreviewRule>,
    /// The clients with the largest difference, the largest first.
    pub keys: Vec<PreviewKey>,
    /// The rules with limits of requests in flight, which are not replayed.
    pub ignored: Vec<String>,
}

/// The number of requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewTotals {
    /// Within all limits.
    pub admitted: u64,
    /// Over a limit.
    pub limited: u64,
    /// On the deny list.
    pub denied: u64,
    /// On the allow list, or matched by no rule.
    pub unlimited: u64,
    /// With a cost above a limit, or without an identity.
    pub invalid: u64,
}

/// The requests that one rule decided: the rule that refused, or the one with the least left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewRule {
    /// The id of the rule.
    pub id: String,
    /// Under the rules in force.
    pub before: PreviewCounts,
    /// Under the other rules.
    pub after: PreviewCounts,
}

/// The requests that a rule admitted and refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewCounts {
    /// Admitted.
    pub admitted: u64,
    /// Refused.
    pub limited: u64,
}

/// The requests of one client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewKey {
    /// The kind of its identity, such as `api_key`.
    pub kind: String,
    /// The identity; an API key is abbreviated.
    pub key: String,
    /// Distinguishes abbreviated keys.
    pub fingerprint: String,
    /// Its requests.
    pub requests: u64,
    /// Those refused by the rules in force.
    pub refused_before: u64,
    /// Those refused by the other rules.
    pub refused_after: u64,
}

/// Replays `samples`, in the order of their times, under the rules `before` and `after`. `fingerprint` distinguishes the
/// clients that are listed. The replay ends early when `may_continue` returns false; it is called regularly.
pub fn preview(
    samples: &[SampledRequest],
    before: &LoadedRules,
    after: &LoadedRules,
    fingerprint: impl Fn(&Identity<'_>) -> String,
    mut may_continue: impl FnMut() -> bool,
) -> RulePreview {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return RulePreview {
            exact: true,
            ignored: in_flight_rules(before, after),
            ..RulePreview::default()
        };
    };
    let mut known = HashMap::new();
    let clients: Vec<usize> = samples
        .iter()
        .map(|sample| {
            let next = known.len();
            *known.entry(client_of(&sample.fields)).or_insert(next)
        })
        .collect();
    let mut old = Replay::new(before, samples, &clients, known.len());
    let mut new = Replay::new(after, samples, &clients, known.len());
    let mut until = first.at;
    let mut is_partial = false;
    while until <= last.at {
        let end = until + SLICE_US;
        let ends = [old.run_until(end, &mut may_continue), new.run_until(end, &mut may_continue)];
        if ends.contains(&SliceEnd::Interrupted) {
            is_partial = true;
            break;
        }
        old.commit();
        new.commit();
        // Idle times are skipped.
        until = old.next_time().into_iter().chain(new.next_time()).min().unwrap_or(end).max(end);
    }
    let covered = if is_partial { until } else { last.at };
    let (before_totals, after_totals) = (old.totals(), new.totals());
    RulePreview {
        window_seconds: covered.since(first.at) as f64 / 1e6,
        requests: before_totals.sum(),
        samples: samples.iter().take_while(|sample| sample.at <= covered).count(),
        exact: samples.iter().all(|sample| sample.weight <= 1),
        partial: is_partial,
        before: before_totals,
        after: after_totals,
        rules: rules(before, after, old.rules(), new.rules()),
        keys: keys(samples, &clients, old.clients(), new.clients(), fingerprint),
        ignored: in_flight_rules(before, after),
    }
}

impl PreviewTotals {
    fn sum(&self) -> u64 {
        self.admitted + self.limited + self.denied + self.unlimited + self.invalid
    }
}

/// What distinguishes one client from another.
type ClientFields<'s> = ([Option<&'s str>; 3], Option<IpAddr>, &'s BTreeMap<String, String>);

fn client_of(fields: &RuleTestRequest) -> ClientFields<'_> {
    let named = [&fields.key, &fields.user, &fields.tenant].map(Option::as_deref);
    (named, fields.ip.map(|address| address.0), &fields.ids)
}

fn rules(
    before: &LoadedRules,
    after: &LoadedRules,
    old: &[PreviewCounts],
    new: &[PreviewCounts],
) -> Vec<PreviewRule> {
    let mut found: Vec<PreviewRule> = Vec::new();
    let mut positions: HashMap<String, usize> = HashMap::new();
    for (rules, counted, is_after) in [(before, old, false), (after, new, true)] {
        for (rule, counts) in rules.rules.rules().iter().zip(counted) {
            if *counts == PreviewCounts::default() {
                continue;
            }
            let position = *positions.entry(rule.id.clone()).or_insert_with(|| {
                found.push(PreviewRule { id: rule.id.clone(), ..PreviewRule::default() });
                found.len() - 1
            });
            let to = if is_after { &mut found[position].after } else { &mut found[position].before };
            *to = *counts;
        }
    }
    found
}

fn keys(
    samples: &[SampledRequest],
    clients: &[usize],
    old: &[ClientCounts],
    new: &[ClientCounts],
    fingerprint: impl Fn(&Identity<'_>) -> String,
) -> Vec<PreviewKey> {
    let difference = |client: &usize| old[*client].refused.abs_diff(new[*client].refused);
    let mut changed: Vec<usize> = (0..old.len()).filter(|client| difference(client) > 0).collect();
    changed.sort_by_key(|client| (std::cmp::Reverse(difference(client)), *client));
    changed.truncate(MOST_KEYS);
    let key = |client: usize| {
        let sample = samples.iter().zip(clients).find(|(_, of)| **of == client).map(|(sample, _)| sample)?;
        let ids: Vec<(&str, &str)> =
            sample.fields.ids.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let request = sample.fields.as_request(&ids);
        let identity = identity(&Dimension::Named(NamedIdentity::ApiKey), Ipv6Prefix::default(), &request, 0);
        let (kind, key) = label(&identity);
        Some(PreviewKey {
            kind,
            key,
            fingerprint: fingerprint(&identity),
            requests: old[client].requests,
            refused_before: old[client].refused,
            refused_after: new[client].refused,
        })
    };
    changed.into_iter().filter_map(key).collect()
}

/// The client by its API key, else by what else it has; without secrets.
fn label(identity: &Identity<'_>) -> (String, String) {
    let (kind, text) = match *identity {
        Identity::Named(kind, value) if kind.is_credential() => (kind.name(), masked(value)),
        Identity::Named(kind, value) => (kind.name(), value.to_owned()),
        Identity::Ip(bits) => ("ip", IpAddr::from(bits.to_be_bytes()).to_canonical().to_string()),
        Identity::Custom(name, value) => ("custom", format!("{name}={value}")),
        Identity::Route(_) | Identity::Anonymous => ("anonymous", String::new()),
    };
    (kind.to_owned(), text)
}

fn in_flight_rules(before: &LoadedRules, after: &LoadedRules) -> Vec<String> {
    let mut ids: Vec<String> = [before, after]
        .into_iter()
        .flat_map(|loaded| loaded.rules.limits())
        .filter(|(_, limit)| limit.longest_in_flight_us().is_some())
        .map(|(rule, _)| rule.id.clone())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
