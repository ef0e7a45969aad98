//! Compiles `lease:`.

use super::RuleCompiler;
use crate::document::DocumentPath;
use crate::rules::lease_timing::{LeaseTiming, WrittenLease, lease_us};
use crate::rules::ruleset::Rule;
use crate::rules::short_forms::DurationText;
use crate::rules::written::{Consistency, OnExceed, WrittenRule};
use std::num::NonZeroU32;

impl RuleCompiler<'_> {
    /// The timing of the rule, else that of the defaults, field by field.
    pub(super) fn lease_timing(&mut self, rule: &WrittenRule, path: &DocumentPath) -> LeaseTiming {
        let inherited = self.file.defaults.lease.unwrap_or_default();
        let inherited = self.lease(inherited, &DocumentPath::root().field("defaults"));
        let own = self.lease(rule.lease.unwrap_or_default(), path);
        LeaseTiming {
            interval_us: own.interval_us.or(inherited.interval_us),
            horizon_us: own.horizon_us.or(inherited.horizon_us),
        }
    }

    fn lease(&mut self, written: WrittenLease, path: &DocumentPath) -> LeaseTiming {
        let path = path.field("lease");
        LeaseTiming {
            interval_us: self.lease_us(written.interval, &path.field("interval"), "100ms is the default"),
            horizon_us: self.lease_us(written.horizon, &path.field("horizon"), "2s is the default"),
        }
    }

    fn lease_us(
        &mut self,
        written: Option<DurationText>,
        path: &DocumentPath,
        hint: &str,
    ) -> Option<NonZeroU32> {
        let us = lease_us(written?);
        us.map_err(|error| self.document.error(path, error.to_string(), hint)).ok()
    }

    /// Warns if a rule has `lease:` and its tokens are never leased.
    pub(super) fn warn_of_unused_lease(&mut self, written: &WrittenRule, rule: &Rule, path: &DocumentPath) {
        let limits = rule.sizes.all().flat_map(|size| self.parts.sizes[size as usize].clone());
        let mut limits = limits.map(|limit| &self.parts.limits[limit as usize]).peekable();
        if written.lease.is_none() || limits.peek().is_none() || limits.any(|limit| rule.lends(limit)) {
            return;
        }
        let why = match (&rule.consistency, &rule.on_exceed) {
            (Consistency::Strict, _) => "it is `strict`",
            (_, OnExceed::Queue(_)) => "queued requests are admitted by the store",
            _ => "its algorithm cannot lease tokens",
        };
        let message = format!("no tokens of rule `{}` are leased: {why}", written.id);
        self.document.warning(&path.field("lease"), message, "remove `lease`");
    }
}
