//! The record of a decision.

use super::FinalDecision;
use crate::decision::Decision;
use crate::key_text;
use crate::metrics::DecisionRecord;
use crate::metrics::decision_counters::DecidedBy;
use tollgate_core::decision::{LimitStatus, Outcome};
use tollgate_core::request::Request;

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
        key: key_text::key_parts(found.rule(), request),
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
