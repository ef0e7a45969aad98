//! Compiles `penalty:`.

use super::{RuleCompiler, inherited};
use crate::document::DocumentPath;
use crate::penalty::Penalty;
use crate::rate::{SECOND_US, duration_text};
use crate::rules::short_forms::DurationText;
use crate::rules::written::{OnExceed, WrittenRule};
use siphasher::sip::SipHasher13;

const DEFAULT_AFTER: u32 = 5;
const MOST_AFTER: u64 = 1_000;
const DEFAULT_FIRST_US: u64 = 10 * SECOND_US;
const DEFAULT_LONGEST_US: u64 = 600 * SECOND_US;
const DEFAULT_FORGET_US: u64 = 3_600 * SECOND_US;
/// A penalty does not lock a client out for good: that is the purpose of the deny list.
const MOST_COOLDOWN_US: u64 = 86_400 * SECOND_US;
const MOST_FORGET_US: u64 = 30 * 86_400 * SECOND_US;

impl RuleCompiler<'_> {
    /// The penalty of the rule, or the one that it inherits.
    pub(super) fn penalty(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<Penalty> {
        let defaults = &self.file.defaults;
        let (written, path) = inherited(rule.penalty.as_ref(), defaults.penalty.as_ref(), "penalty", path)?;
        if written.is_off {
            return None;
        }
        let on_exceed = rule.on_exceed.as_ref().or(defaults.on_exceed.as_ref());
        if let Some(on_exceed) = on_exceed.filter(|on_exceed| !on_exceed.allows_penalty()) {
            if rule.penalty.is_some() {
                let message = match on_exceed {
                    OnExceed::Shadow => "a shadow rule refuses no request, so the penalty never applies",
                    _ => "a penalty applies only with `reject` and `tarpit`",
                };
                self.document.warning(&path, message, "remove the penalty, or change `on_exceed`");
            }
            return None;
        }
        let after = written.after.unwrap_or(DEFAULT_AFTER.into());
        if after == 0 || after > MOST_AFTER {
            let message = format!("a penalty cannot start after {after} requests");
            self.document.error(&path.field("after"), message, "use 1 to 1000; 5 is a good start");
        }
        let first = self.duration(written.first, &path.field("first"), MOST_COOLDOWN_US);
        let longest = self.duration(written.longest, &path.field("longest"), MOST_COOLDOWN_US);
        let forget = self.duration(written.forget, &path.field("forget"), MOST_FORGET_US);
        if let (Some(first), Some(longest)) = (first, longest)
            && longest < first
        {
            let message = format!("the longest cooldown is shorter than the first, {}", duration_text(first));
            self.document.error(
                &path.field("longest"),
                message,
                "each cooldown is twice as long as the one before",
            );
        }
        // Defaults adapt to the stated values.
        let first_us = first.unwrap_or(DEFAULT_FIRST_US.min(longest.unwrap_or(DEFAULT_FIRST_US)));
        Some(Penalty {
            after: after as u32,
            first_us,
            longest_us: longest.unwrap_or(DEFAULT_LONGEST_US.max(first_us)),
            forget_us: forget.unwrap_or(DEFAULT_FORGET_US),
            record_id: SipHasher13::new().hash(format!("penalty {}", rule.id).as_bytes()),
        })
    }

    /// A stated duration, if it is in range.
    fn duration(&mut self, stated: Option<DurationText>, path: &DocumentPath, most_us: u64) -> Option<u64> {
        let us = stated?.us;
        if (SECOND_US..=most_us).contains(&us) {
            return Some(us);
        }
        let message = format!("{} is out of range", duration_text(us));
        self.document.error(path, message, format!("use 1s to {}", duration_text(most_us)));
        None
    }
}
