//! The timing of leases: how far ahead nodes lease tokens, and how often they report spent ones.

use super::ruleset::{Rule, RuleSet};
use super::short_forms::DurationText;
use super::written::Consistency;
use crate::limit::Limit;
use crate::rate::duration_text;
use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;
use std::num::NonZeroU32;

const SHORTEST_US: u32 = 1_000;
const LONGEST_US: u32 = 10_000_000;

/// `lease:` as written. An absent field is the setting of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Lease")]
pub struct WrittenLease {
    /// How often spent tokens are reported and idle ones returned, `1ms` to `10s`.
    pub interval: Option<DurationText>,
    /// For how long a busy key leases tokens ahead, `1ms` to `10s`.
    pub horizon: Option<DurationText>,
}

/// The lease timing of a rule. `None` is the setting of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTiming {
    /// How often spent tokens are reported and idle ones returned, in microseconds.
    pub interval_us: Option<NonZeroU32>,
    /// For how long a busy key leases tokens ahead, in microseconds.
    pub horizon_us: Option<NonZeroU32>,
}

/// A lease interval or horizon that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimingError {
    us: u64,
}

impl fmt::Display for LeaseTimingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is out of range; use 1ms to 10s", duration_text(self.us))
    }
}

impl std::error::Error for LeaseTimingError {}

/// A lease interval or horizon in microseconds.
pub fn lease_us(written: DurationText) -> Result<NonZeroU32, LeaseTimingError> {
    let us = u32::try_from(written.us).ok().filter(|us| (SHORTEST_US..=LONGEST_US).contains(us));
    us.and_then(NonZeroU32::new).ok_or(LeaseTimingError { us: written.us })
}

impl RuleSet {
    /// The shortest interval of a rule whose tokens are leased.
    pub fn shortest_interval_us(&self) -> Option<NonZeroU32> {
        let lent = self.limits().filter(|(rule, limit)| rule.lends(limit));
        lent.filter_map(|(rule, _)| rule.leasing.interval_us).min()
    }
}

impl Rule {
    /// Whether nodes may lease tokens of `limit`, a limit of this rule.
    pub fn lends(&self, limit: &Limit) -> bool {
        self.consistency == Consistency::Leased
            && self.on_exceed.allows_leases()
            && limit.algorithm().is_leased()
    }
}
