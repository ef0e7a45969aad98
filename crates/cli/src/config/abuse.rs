//! The `abuse:` section of `tollgate.yaml`: what is done about keys with far too many requests.

use serde::Deserialize;
use std::time::Duration;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_core::rate::SECOND_US;
use tollgate_core::rules::short_forms::DurationText;
use tollgate_limiter::{AbuseSettings, TemporaryDeny};

const DAY_US: u64 = 86_400 * SECOND_US;

/// The section.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenAbuse {
    /// A key with more requests in a second is reported.
    hot_per_second: Option<u32>,
    /// Whether, when and for how long such a key is denied.
    deny: Option<WrittenTemporaryDeny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTemporaryDeny {
    after: Option<DurationText>,
    lasts: Option<DurationText>,
}

/// Reports the errors of the section.
pub fn check(document: &mut Document, file: &WrittenAbuse) {
    let section = DocumentPath::root().field("abuse");
    if file.hot_per_second == Some(0) {
        let hint = "10000 is the default";
        document.error(&section.field("hot_per_second"), "every key would be reported", hint);
    }
    let deny = file.deny.as_ref();
    for (name, stated) in
        [("after", deny.and_then(|deny| deny.after)), ("lasts", deny.and_then(|deny| deny.lasts))]
    {
        if stated.is_some_and(|stated| !(SECOND_US..=DAY_US).contains(&stated.us)) {
            let hint = "use 1s to 1day; for longer, use the deny list";
            document.error(&section.field("deny").field(name), "this is out of range", hint);
        }
    }
}

impl WrittenAbuse {
    /// The settings for the limiter.
    pub fn settings(&self) -> AbuseSettings {
        let defaults = AbuseSettings::default();
        let deny = self.deny.as_ref().map(|deny| {
            let usual = TemporaryDeny::default();
            let span = |stated: Option<DurationText>| stated.map(|stated| Duration::from_micros(stated.us));
            TemporaryDeny {
                after: span(deny.after).unwrap_or(usual.after),
                lasts: span(deny.lasts).unwrap_or(usual.lasts),
            }
        });
        AbuseSettings { hot_per_second: self.hot_per_second.unwrap_or(defaults.hot_per_second), deny }
    }
}
