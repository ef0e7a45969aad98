//! How tokens of a rule are taken ahead.

use super::RuleCompiler;
use crate::document::DocumentPath;
use crate::rules::lease_timing::{LeaseTiming, WrittenLease, lease_us};
use crate::rules::ruleset::Rule;
use crate::rules::short_forms::DurationText;
use crate::rules::written::{Consistency, OnExceed, WrittenRule};
use std::num::NonZeroU32;

impl RuleCompiler<'_> {
    /// The rule's own word, else that of the defaults, field by field.
    pub(super) fn leasing(&mut self, rule: &WrittenRule, path: &DocumentPath) -> LeaseTiming {
        let inherited = self.file.defaults.lease.unwrap_or_default();
        let inherited = self.lease(inherited, &DocumentPath::root().field("defaults"));
        let own = self.lease(rule.lease.unwrap_or_default(), path);
        LeaseTiming {
            interval_us: own.interval_us.or(inherited.interval_us),
            horizon_us: own.horizon_us.or(inherited.horizon_us),
        }
    }

    fn lease(&mut self, said: WrittenLease, path: &DocumentPath) -> LeaseTiming {
        let path = path.field("lease");
        LeaseTiming {
            interval_us: self.lease_us(said.interval, &path.field("interval"), "100ms is the default"),
            horizon_us: self.lease_us(said.horizon, &path.field("horizon"), "2s is the default"),
        }
    }

    fn lease_us(
        &mut self,
        said: Option<DurationText>,
        path: &DocumentPath,
        hint: &str,
    ) -> Option<NonZeroU32> {
        let us = lease_us(said?);
        us.map_err(|message| self.document.error(path, message, hint)).ok()
    }

    /// Says so if a rule states how its tokens are taken ahead, and none ever are.
    pub(super) fn warn_of_idle_lease(&mut self, written: &WrittenRule, rule: &Rule, path: &DocumentPath) {
        let limits = rule.sizes.all().flat_map(|size| self.parts.sizes[size as usize].clone());
        let mut limits = limits.map(|limit| &self.parts.limits[limit as usize]).peekable();
        if written.lease.is_none() || limits.peek().is_none() || limits.any(|limit| rule.lends(limit)) {
            return;
        }
        let why = match (&rule.consistency, &rule.on_exceed) {
            (Consistency::Strict, _) => "it is `strict`",
            (_, OnExceed::Queue(_)) => "those who queue go at the store's pace",
            _ => "its algorithm cannot lend",
        };
        let message = format!("nothing is taken ahead under rule `{}`: {why}", written.id);
        self.document.warning(&path.field("lease"), message, "remove `lease`");
    }
}
