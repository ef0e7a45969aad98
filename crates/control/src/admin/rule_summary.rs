//! Rules in short, as they are compiled.

use super::rule_check::SOURCE;
use serde::Serialize;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_core::key::Dimension;
use tollgate_core::rules;
use utoipa::ToSchema;

/// A rule in short.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct RuleSummary {
    /// Its id.
    id: String,
    /// The tier that it is for; none for all.
    tier: Option<String>,
    /// The identities that it counts by.
    key: Vec<String>,
    /// Its algorithm.
    algorithm: &'static str,
    /// Its limits, of each tier that has its own.
    limits: Vec<LimitSummary>,
    /// What happens over the limit.
    on_exceed: &'static str,
    /// Whether it only counts and reports.
    shadow: bool,
    /// The line of the YAML on which it starts.
    line: usize,
}

/// A limit in short.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct LimitSummary {
    /// The tier that it is for; none for clients without a tier of their own.
    tier: Option<String>,
    /// How many requests.
    limit: u32,
    /// In how many seconds; 0 for requests in flight.
    window_seconds: u32,
    /// How many at once.
    burst: u32,
}

/// The rules of a text. Rules that do not compile are an empty list: what a node cannot use it did not publish.
pub(super) fn summarize(text: &str) -> Vec<RuleSummary> {
    let (Ok(loaded), Ok(document)) = (rules::load(SOURCE, text), Document::parse(SOURCE, text)) else {
        return Vec::new();
    };
    let rules = &loaded.rules;
    let list = DocumentPath::root().field("rules");
    let summaries = rules.rules().iter().enumerate().map(|(index, rule)| {
        let limits = rules.limits_by_tier(rule).map(|(tier, limit)| LimitSummary {
            tier: tier.map(str::to_owned),
            limit: limit.shown_quota,
            window_seconds: limit.window_seconds,
            burst: limit.quota,
        });
        RuleSummary {
            id: rule.id.clone(),
            tier: rules.tier_of_rule(rule).map(str::to_owned),
            key: rule.key.iter().map(Dimension::name).map(str::to_owned).collect(),
            algorithm: rules.limits_by_tier(rule).next().map_or("", |(_, limit)| limit.algorithm().name()),
            limits: limits.collect(),
            on_exceed: rule.on_exceed.name(),
            shadow: rule.is_shadow(),
            line: document.line(&list.index(index)),
        }
    });
    summaries.collect()
}
