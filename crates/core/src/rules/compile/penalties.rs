//! What a rule does about clients that ignore `Retry-After`.

use super::RuleCompiler;
use crate::document::DocumentPath;
use crate::penalty::Penalty;
use crate::rate::{SECOND_US, duration_text};
use crate::rules::short_forms::DurationText;
use crate::rules::written::{OnExceed, WrittenRule};
use siphasher::sip::SipHasher13;

const AFTER: u32 = 5;
const MOST_AFTER: u64 = 1_000;
const FIRST_US: u64 = 10 * SECOND_US;
const LONGEST_US: u64 = 600 * SECOND_US;
const FORGET_US: u64 = 3_600 * SECOND_US;
/// A penalty is not a way to lock somebody out: that is what the deny list is for.
const MOST_COOLDOWN_US: u64 = 86_400 * SECOND_US;
const MOST_FORGET_US: u64 = 30 * 86_400 * SECOND_US;

impl RuleCompiler<'_> {
    /// The rule's penalty, or the one that it inherits.
    pub(super) fn penalty(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<Penalty> {
        let own = rule.penalty.map(|written| (written, path.field("penalty")));
        let inherited = self.file.defaults.penalty;
        let inherited =
            inherited.map(|written| (written, DocumentPath::root().field("defaults").field("penalty")));
        let (written, path) = own.or(inherited)?;
        if written.is_off {
            return None;
        }
        let on_exceed = rule.on_exceed.as_ref().or(self.file.defaults.on_exceed.as_ref());
        // The others let requests pass, or wait on behalf of the client.
        if let Some(on_exceed) =
            on_exceed.filter(|said| !matches!(said, OnExceed::Reject | OnExceed::Tarpit(_)))
        {
            if rule.penalty.is_some() {
                let message = match on_exceed {
                    OnExceed::Shadow => "this rule only counts, so nobody is ever penalised",
                    _ => "only `reject` and `tarpit` have penalties",
                };
                self.document.warning(&path, message, "remove the penalty, or change `on_exceed`");
            }
            return None;
        }
        let after = written.after.unwrap_or(AFTER.into());
        if after == 0 || after > MOST_AFTER {
            let message = format!("a penalty cannot come after {after} requests");
            self.document.error(&path.field("after"), message, "use 1 to 1000; 5 is a good start");
        }
        let first = self.span(written.first, &path.field("first"), MOST_COOLDOWN_US);
        let longest = self.span(written.longest, &path.field("longest"), MOST_COOLDOWN_US);
        let forget = self.span(written.forget, &path.field("forget"), MOST_FORGET_US);
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
        // What is not stated follows what is.
        let first_us = first.unwrap_or(FIRST_US.min(longest.unwrap_or(FIRST_US)));
        Some(Penalty {
            after: after as u32,
            first_us,
            longest_us: longest.unwrap_or(LONGEST_US.max(first_us)),
            forget_us: forget.unwrap_or(FORGET_US),
            identity: SipHasher13::new().hash(format!("penalty {}", rule.id).as_bytes()),
        })
    }

    /// The length of a time that is stated and makes sense.
    fn span(&mut self, stated: Option<DurationText>, path: &DocumentPath, most_us: u64) -> Option<u64> {
        let us = stated?.us;
        if (SECOND_US..=most_us).contains(&us) {
            return Some(us);
        }
        let message = format!("{} is out of range here", duration_text(us));
        self.document.error(path, message, format!("use 1s to {}", duration_text(most_us)));
        None
    }
}
