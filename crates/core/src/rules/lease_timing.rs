//! How far ahead nodes take tokens of a rule, and how often they tell what became of them.

use super::ruleset::{Rule, RuleSet};
use super::short_forms::DurationText;
use super::written::{Consistency, OnExceed};
use crate::limit::Limit;
use crate::rate::duration_text;
use schemars::JsonSchema;
use serde::Deserialize;
use std::num::NonZeroU32;

const SHORTEST_US: u32 = 1_000;
const LONGEST_US: u32 = 10_000_000;

/// How tokens are leased, as it is written. What is left out is the node's own setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Lease")]
pub struct WrittenLease {
    /// How often what was spent is reported and what is idle brought back, `1ms` to `10s`.
    pub interval: Option<DurationText>,
    /// For how long a busy key takes tokens ahead, `1ms` to `10s`.
    pub horizon: Option<DurationText>,
}

/// How the tokens of a rule are leased. Where it says nothing, the node's settings hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTiming {
    /// How often what was spent is reported and what is idle brought back, in microseconds.
    pub interval_us: Option<NonZeroU32>,
    /// For how long a busy key takes tokens ahead, in microseconds.
    pub horizon_us: Option<NonZeroU32>,
}

/// An interval or a horizon in microseconds, if it is one that makes sense.
pub fn lease_us(written: DurationText) -> Result<NonZeroU32, String> {
    let us = u32::try_from(written.us).ok().filter(|us| (SHORTEST_US..=LONGEST_US).contains(us));
    us.and_then(NonZeroU32::new)
        .ok_or_else(|| format!("{} is out of range here; use 1ms to 10s", duration_text(written.us)))
}

impl RuleSet {
    /// The shortest interval that a rule states whose tokens are leased.
    pub fn shortest_interval_us(&self) -> Option<NonZeroU32> {
        let lent = self.limits().filter(|(rule, limit)| rule.lends(limit));
        lent.filter_map(|(rule, _)| rule.leasing.interval_us).min()
    }
}

impl Rule {
    /// Whether nodes may take tokens of `limit`, which is one of this rule's, ahead.
    pub fn lends(&self, limit: &Limit) -> bool {
        // Those who queue go at the store's pace: nothing is taken ahead of them.
        let queues = matches!(self.on_exceed, OnExceed::Queue(_));
        self.consistency == Consistency::Leased && !queues && limit.algorithm().is_leased()
    }
}
