//! What a rule does with requests over its limit, and with those in the last part of it.

use super::RuleCompiler;
use crate::document::DocumentPath;
use crate::rules::on_exceed::{LONGEST_DELAY_US, LONGEST_WAIT_US, MOST_WAITING};
use crate::rules::written::{FlagSettings, OnExceed, SoftLimit, WrittenRule};

/// Headers that an upstream needs as the client, or the proxy, wrote them.
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
    /// What happens over the limit of `rule`: its own word, else that of the defaults.
    pub(super) fn on_exceed(&mut self, rule: &WrittenRule, path: &DocumentPath) -> OnExceed {
        let defaults = DocumentPath::root().field("defaults").field("on_exceed");
        let (said, path) = match (&rule.on_exceed, &self.file.defaults.on_exceed) {
            (Some(own), _) => (own.clone(), path.field("on_exceed")),
            (None, Some(inherited)) => (inherited.clone(), defaults),
            (None, None) => return OnExceed::Reject,
        };
        self.check_action(&said, &path);
        with_plain_header(said)
    }

    /// What happens in the last part of the limit.
    pub(super) fn soft(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<SoftLimit> {
        let defaults = DocumentPath::root().field("defaults").field("soft");
        let (said, path) = match (&rule.soft, &self.file.defaults.soft) {
            (Some(own), _) => (own.clone(), path.field("soft")),
            (None, Some(inherited)) => (inherited.clone(), defaults),
            (None, None) => return None,
        };
        if !(1..=99).contains(&said.at.0) {
            let message = "a soft limit begins between 1% and 99% of the limit";
            self.document.error(&path, message, "80% is a good start");
        }
        let then = path.field("then");
        if !matches!(said.then, OnExceed::Flag(_) | OnExceed::Tarpit(_)) {
            let message = format!("`{}` is nothing that can be done below the limit", said.then.name());
            self.document.error(&then, message, "use flag or tarpit");
        }
        self.check_action(&said.then, &then);
        Some(SoftLimit { at: said.at, then: with_plain_header(said.then) })
    }

    fn check_action(&mut self, said: &OnExceed, path: &DocumentPath) {
        let path = path.field(said.name());
        match said {
            OnExceed::Reject | OnExceed::Shadow => {}
            OnExceed::Queue(queue) => {
                let range = (1_000, LONGEST_WAIT_US, "the wait must be between 1ms and 10min");
                self.check_number(queue.max_wait.us, range, "5s is a good start", &path.field("max_wait"));
                let range = (1, MOST_WAITING, "a queue has between 1 and 100000 places");
                self.check_number(
                    queue.length,
                    range,
                    "to refuse at once, use reject",
                    &path.field("length"),
                );
            }
            OnExceed::Shed(shed) => {
                let range = (1, u64::from(u32::MAX), "at least 1 must be able to be in flight");
                let hint = "say how many one node can serve at once";
                self.check_number(shed.in_flight, range, hint, &path.field("in_flight"));
                if u32::from(shed.from.0) + u32::from(shed.reserve.0) > 100 {
                    let message = "`from` and `reserve` are more than the whole together";
                    let hint = "at `from` the first are refused, in the reserve all but the critical";
                    self.document.error(&path.field("reserve"), message, hint);
                }
            }
            OnExceed::Tarpit(tarpit) => {
                let range = (1_000, LONGEST_DELAY_US, "the delay must be between 1ms and 1min");
                self.check_number(tarpit.delay.us, range, "2s is a good start", &path.field("delay"));
                let range = (1, MOST_WAITING, "between 1 and 100000 can be delayed at once");
                self.check_number(tarpit.most, range, "1000 is a good start", &path.field("most"));
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

    fn check_number(&mut self, number: u64, range: (u64, u64, &str), hint: &str, path: &DocumentPath) {
        let (least, most, message) = range;
        if !(least..=most).contains(&number) {
            self.document.error(path, message, hint);
        }
    }
}

/// Header names are compared in lower case.
fn with_plain_header(said: OnExceed) -> OnExceed {
    match said {
        OnExceed::Flag(FlagSettings { header }) => {
            OnExceed::Flag(FlagSettings { header: header.to_ascii_lowercase() })
        }
        other => other,
    }
}
