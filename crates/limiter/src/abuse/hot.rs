//! Keys above the rate at which they are reported, second by second.

use super::AbuseSettings;
use super::label::Label;
use super::samples::{SampleOutcome, SampledKey, Samples};
use tollgate_core::key::Identity;
use tollgate_core::time::UnixTime;

/// The shortest time between two looks at the samples.
const LOOK_EVERY_US: u64 = 1_000_000;
/// The most keys that are listed; of more, the hottest.
const MOST_LISTED: usize = 64;
/// "Mostly refused": this many in a hundred.
const MOSTLY_PERCENT: u8 = 90;

/// A key above the rate at which keys are reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// Its kind: `api_key`, `user`, `tenant`, `ip`, `custom` or `anonymous`.
    pub kind: &'static str,
    /// Its name. API keys, which are secrets, and long names are cut.
    pub name: String,
    /// Distinguishes keys whose names look alike. It changes when the node starts.
    pub fingerprint: String,
    /// Its estimated requests in the last second.
    pub per_second: u64,
    /// The percentage of its requests that were refused.
    pub refused_percent: u8,
    /// Since when it has been hot.
    pub since: UnixTime,
    /// The end of its denial, if it is denied.
    pub denied_until: Option<UnixTime>,
}

/// The samples of this second, and the hot keys of the last.
pub(super) struct HotKeys {
    samples: Samples,
    listed: Vec<ListedKey>,
}

#[derive(Clone, Copy)]
struct ListedKey {
    seen: SampledKey,
    since: UnixTime,
    /// Since when it has been mostly refused as well.
    abusive_since: Option<UnixTime>,
    denied_until: UnixTime,
}

/// The result of a look at the samples.
pub(super) struct HotKeyReport {
    /// The number of hot keys.
    pub(super) hot: usize,
    /// The keys to be denied.
    pub(super) denied: Vec<u64>,
    hottest: Option<SampledKey>,
}

impl HotKeys {
    pub(super) fn new(now: UnixTime) -> Self {
        Self { samples: Samples::new(now), listed: Vec::new() }
    }

    pub(super) fn add(&mut self, key: u64, identity: &Identity<'_>, outcome: SampleOutcome) {
        self.samples.add(key, identity, outcome);
    }

    pub(super) fn record_refusal(&mut self, key: u64) {
        self.samples.record_refusal(key);
    }

    /// The hot keys since the last look; none if that was less than a second ago. `held_until` is the end of
    /// the hold of a key.
    pub(super) fn look(
        &mut self,
        settings: &AbuseSettings,
        now: UnixTime,
        held_until: impl Fn(u64) -> UnixTime,
    ) -> Option<HotKeyReport> {
        let start = self.samples.since();
        // If the clock has gone back, the look is due as well.
        if (start..start + LOOK_EVERY_US).contains(&now) {
            return None;
        }
        let known = std::mem::take(&mut self.listed);
        let mut denied = Vec::new();
        self.samples.look(settings.hot_per_second.into(), now, |seen| {
            let before = known.iter().find(|hot| hot.seen.key == seen.key);
            let mut hot = ListedKey {
                seen,
                since: before.map_or(start, |before| before.since),
                abusive_since: before.and_then(|before| before.abusive_since),
                denied_until: before
                    .map_or(UnixTime::default(), |hot| hot.denied_until)
                    .max(held_until(seen.key)),
            };
            // While it is denied all of its requests are refused, so the percentage does not count.
            let abuses = seen.refused_percent >= MOSTLY_PERCENT && hot.denied_until <= start;
            hot.abusive_since = abuses.then_some(hot.abusive_since.unwrap_or(start));
            if let (Some(deny), Some(since)) = (&settings.deny, hot.abusive_since)
                && now.since(since) >= deny.after_us()
            {
                hot.abusive_since = None;
                hot.denied_until = now + deny.lasts_us();
                denied.push(seen.key);
            }
            self.listed.push(hot);
        });
        self.listed.sort_unstable_by_key(|hot| std::cmp::Reverse(hot.seen.per_second));
        let found =
            HotKeyReport { hot: self.listed.len(), denied, hottest: self.listed.first().map(|hot| hot.seen) };
        self.listed.truncate(MOST_LISTED);
        Some(found)
    }

    pub(super) fn list(&self, now: UnixTime) -> Vec<HotKey> {
        self.listed.iter().map(|hot| hot.shown(now)).collect()
    }

    pub(super) fn find(&self, key: u64, now: UnixTime) -> Option<HotKey> {
        self.listed.iter().find(|hot| hot.seen.key == key.max(1)).map(|hot| hot.shown(now))
    }

    /// Ends the denial of `key` and restarts the time after which it is denied.
    pub(super) fn pardon(&mut self, key: u64) {
        for hot in self.listed.iter_mut().filter(|hot| hot.seen.key == key.max(1)) {
            hot.abusive_since = None;
            hot.denied_until = UnixTime::default();
        }
    }
}

impl ListedKey {
    fn shown(&self, now: UnixTime) -> HotKey {
        let SampledKey { key, per_second, refused_percent, label } = &self.seen;
        HotKey {
            kind: label.kind(),
            name: label.text().to_owned(),
            fingerprint: fingerprint(*key),
            per_second: *per_second,
            refused_percent: *refused_percent,
            since: self.since,
            denied_until: Some(self.denied_until).filter(|until| *until > now),
        }
    }
}

impl HotKeyReport {
    /// Writes one log line for all of them, at most one a second.
    pub(super) fn report(&self) {
        let Some(SampledKey { key, per_second, refused_percent, label }) = &self.hottest else { return };
        let hottest = description(label, *key);
        tracing::warn!(
            keys = self.hot,
            denied = self.denied.len(),
            hottest,
            per_second,
            refused_percent,
            "hot keys"
        );
    }
}

fn description(label: &Label, key: u64) -> String {
    format!("{} {} ({})", label.kind(), label.text(), fingerprint(key))
}

/// Enough of the hash to distinguish keys. The hash is keyed, so it does not reveal the name.
pub(crate) fn fingerprint(key: u64) -> String {
    format!("{:08x}", key >> 32)
}

impl std::fmt::Debug for HotKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HotKeys").field("listed", &self.listed.len()).finish()
    }
}
