//! The record of a decision.

use super::{FinalDecision, identities};
use crate::decision::Decision;
use crate::metrics::decision_counters::DecidedBy;
use crate::metrics::{DecisionRecord, KeyPart};
use smallvec::SmallVec;
use std::net::IpAddr;
use tollgate_core::decision::{LimitStatus, Outcome};
use tollgate_core::key::{Dimension, Identity, Ipv6Prefix, identity};
use tollgate_core::request::{NamedIdentity, Request};

/// The record of a decision on `request`.
pub(super) fn of(found: &FinalDecision<'_>, request: &Request<'_>) -> DecisionRecord {
    let FinalDecision { rules, labels, decision, outcome } = *found;
    let decided_by = DecidedBy::of(decision, outcome);
    let limit = found.limit();
    let status = status_of(decision);
    let (quota, remaining) = match (limit, status) {
        // A limit in shadow mode, beside the one that is in the headers.
        (Some(limit), status) if status.is_none_or(|status| status.limit != limit) => {
            (Some(rules.terms(limit).quota), Some(decision.noted.remaining))
        }
        (_, Some(status)) => (decision.terms.map(|terms| terms.quota), Some(status.remaining)),
        (_, None) => (None, None),
    };
    DecisionRecord {
        time: decision.now,
        door: labels.door,
        outcome,
        rule: decided_by.rule(&rules.set).to_owned(),
        algorithm: limit.map_or("", |limit| rules.set.limit(limit).algorithm().name()),
        tier: limit.and_then(|limit| rules.set.tier_name(limit, labels.tier)).unwrap_or_default().to_owned(),
        route: labels.route.map_or("", |route| rules.set.route_template(route)).to_owned(),
        key: key_parts(found, request),
        cost: request.cost,
        limit: quota,
        remaining,
        retry_after_us: status.and_then(|status| status.wait_us()),
        degraded: decision.degraded,
        shadowed_by: decision.shadowed_by.map(|names| names.rule.clone()),
    }
}

fn status_of(decision: &Decision) -> Option<LimitStatus> {
    match decision.outcome {
        Outcome::Admitted(status) | Outcome::Limited(status) => Some(status),
        Outcome::Unlimited | Outcome::Denied => None,
    }
}

/// The key by which the rule counts, without the route; without a rule, the client.
fn key_parts(found: &FinalDecision<'_>, request: &Request<'_>) -> Vec<KeyPart> {
    let client = || {
        let user = Dimension::Named(NamedIdentity::User);
        SmallVec::from_iter([identity(&user, Ipv6Prefix::default(), request, 0)])
    };
    let identities = found.rule().map_or_else(client, |rule| identities(rule, request));
    identities.iter().filter_map(key_part).collect()
}

fn key_part(identity: &Identity<'_>) -> Option<KeyPart> {
    let (kind, value, is_credential) = match *identity {
        Identity::Named(kind, value) => (kind.name(), value.to_owned(), kind.is_credential()),
        Identity::Ip(bits) => ("ip", IpAddr::from(bits.to_be_bytes()).to_canonical().to_string(), false),
        Identity::Custom(name, value) => (name, value.to_owned(), false),
        Identity::Route(_) | Identity::Anonymous => return None,
    };
    Some(KeyPart { kind: kind.to_owned(), value, is_credential })
}
