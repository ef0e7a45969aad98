//! How tokens of a rule are taken ahead.

use super::Compiler;
use crate::document::Path;
use crate::rules::leasing::{Lease, Leasing, lease_us};
use crate::rules::ruleset::Rule;
use crate::rules::spelling::DurationText;
use crate::rules::written::{self, Consistency, OnExceed};
use std::num::NonZeroU32;

impl Compiler<'_> {
    /// The rule's own word, else that of the defaults, field by field.
    pub(super) fn leasing(&mut self, rule: &written::Rule, path: &Path) -> Leasing {
        let inherited = self.file.defaults.lease.unwrap_or_default();
        let inherited = self.lease(inherited, &Path::root().field("defaults"));
        let own = self.lease(rule.lease.unwrap_or_default(), path);
        Leasing {
            interval_us: own.interval_us.or(inherited.interval_us),
            horizon_us: own.horizon_us.or(inherited.horizon_us),
        }
    }

    fn lease(&mut self, said: Lease, path: &Path) -> Leasing {
        let path = path.field("lease");
        Leasing {
            interval_us: self.lease_us(said.interval, &path.field("interval"), "100ms is the default"),
            horizon_us: self.lease_us(said.horizon, &path.field("horizon"), "2s is the default"),
        }
    }

    fn lease_us(&mut self, said: Option<DurationText>, path: &Path, hint: &str) -> Option<NonZeroU32> {
        let us = lease_us(said?);
        us.map_err(|message| self.document.error(path, message, hint)).ok()
    }

    /// Says so if a rule states how its tokens are taken ahead, and none ever are.
    pub(super) fn warn_of_idle_lease(&mut self, written: &written::Rule, rule: &Rule, path: &Path) {
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
