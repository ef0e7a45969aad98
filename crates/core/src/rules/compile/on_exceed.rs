//! Compiles `on_exceed:` and `soft:`.

use super::{RuleCompiler, inherited};
use crate::document::DocumentPath;
use crate::rules::on_exceed::{LONGEST_DELAY_US, LONGEST_WAIT_US, MOST_WAITING};
use crate::rules::written::{FlagSettings, OnExceed, SoftLimit, WrittenRule};
use std::ops::RangeInclusive;

/// Headers whose values upstreams need unchanged.
const NOT_FOR_FLAGS: [&str; 9] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
];

impl RuleCompiler<'_> {
    /// The action over the limit: that of the rule, else that of the defaults.
    pub(super) fn on_exceed(&mut self, rule: &WrittenRule, path: &DocumentPath) -> OnExceed {
        let (own, default) = (rule.on_exceed.as_ref(), self.file.defaults.on_exceed.as_ref());
        let Some((action, path)) = inherited(own, default, "on_exceed", path) else {
            return OnExceed::default();
        };
        self.check_action(action, &path);
        with_lowercase_header(action.clone())
    }

    /// The action near the limit.
    pub(super) fn soft(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<SoftLimit> {
        let (own, default) = (rule.soft.as_ref(), self.file.defaults.soft.as_ref());
        let (SoftLimit { at, then }, path) = inherited(own, default, "soft", path)?;
        if !(1..=99).contains(&at.0) {
            let message = "a soft limit must be between 1% and 99% of the limit";
            self.document.error(&path, message, "80% is a good start");
        }
        let then_path = path.field("then");
        if !then.is_soft_action() {
            let message = format!("`{}` cannot be the action of a soft limit", then.name());
            self.document.error(&then_path, message, "use flag or tarpit");
        }
        self.check_action(then, &then_path);
        Some(SoftLimit { at: *at, then: with_lowercase_header(then.clone()) })
    }

    fn check_action(&mut self, action: &OnExceed, path: &DocumentPath) {
        let path = path.field(action.name());
        match action {
            OnExceed::Reject | OnExceed::Shadow => {}
            OnExceed::Queue(queue) => {
                let message = "the wait must be between 1ms and 10min";
                let (range, at) = (1_000..=LONGEST_WAIT_US, path.field("max_wait"));
                self.check_range(queue.max_wait.us, range, &at, message, "5s is a good start");
                let message = "the length of a queue must be between 1 and 100000";
                let (range, at) = (1..=MOST_WAITING, path.field("length"));
                self.check_range(queue.length, range, &at, message, "to refuse at once, use reject");
            }
            OnExceed::Shed(shed) => {
                let message = "at least 1 request must be able to be in flight";
                let hint = "write how many requests one node can serve at once";
                let (range, at) = (1..=u64::from(u32::MAX), path.field("in_flight"));
                self.check_range(shed.in_flight, range, &at, message, hint);
                if u32::from(shed.from.0) + u32::from(shed.reserve.0) > 100 {
                    let message = "`from` and `reserve` together exceed 100%";
                    let hint = "shedding starts at `from`; only critical requests use the reserve";
                    self.document.error(&path.field("reserve"), message, hint);
                }
            }
            OnExceed::Tarpit(tarpit) => {
                let message = "the delay must be between 1ms and 1min";
                let (range, at) = (1_000..=LONGEST_DELAY_US, path.field("delay"));
                self.check_range(tarpit.delay.us, range, &at, message, "2s is a good start");
                let message = "the number of delayed requests must be between 1 and 100000";
                let (range, at) = (1..=MOST_WAITING, path.field("most"));
                self.check_range(tarpit.most, range, &at, message, "1000 is a good start");
            }
            OnExceed::Flag(FlagSettings { header }) => {
                let name = header.to_ascii_lowercase();
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
                let is_plain = !name.is_empty() && name.len() <= 64 && name.chars().all(plain);
                if !is_plain || NOT_FOR_FLAGS.contains(&name.as_str()) {
                    let message = format!("`{header}` cannot be the header of a flag");
                    self.document.error(&path.field("header"), message, "use one such as X-RateLimit-Flag");
                }
            }
        }
    }

    fn check_range(
        &mut self,
        number: u64,
        range: RangeInclusive<u64>,
        path: &DocumentPath,
        message: &str,
        hint: &str,
    ) {
        if !range.contains(&number) {
            self.document.error(path, message, hint);
        }
    }
}

/// Header names are compared in lower case.
fn with_lowercase_header(action: OnExceed) -> OnExceed {
    match action {
        OnExceed::Flag(FlagSettings { header }) => {
            OnExceed::Flag(FlagSettings { header: header.to_ascii_lowercase() })
        }
        other => other,
    }
}
