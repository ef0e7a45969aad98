//! The `decision_log:` section of `telemetry:`.

use super::super::log_file::{LogFileSettings, WrittenKeyDisplay, log_file};
use super::super::setting_value::{PlacedSettingError, SettingError, TextOrNumber};
use super::super::store::parse_secret;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use tollgate_core::document::DocumentPath;
use tollgate_limiter::{DecisionLogSettings, KeyDisplay, KeySecret, KeyText, ObservationSettings};

const MOST_LINES_PER_SECOND: u32 = 100_000;

/// Which decisions are recorded, and where.
#[derive(Clone, Debug)]
pub struct DecisionLogConfig {
    /// The log of lines, if there is one.
    pub lines: Option<DecisionLogSettings>,
    /// How the records for the OTLP exporter show keys; none if they are not exported.
    pub otlp: Option<KeyText>,
    /// Which decisions are recorded.
    pub observation: ObservationSettings,
}

/// The section.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WrittenDecisionLog {
    /// `stdout`, or a file.
    path: Option<PathBuf>,
    keys: WrittenKeyDisplay,
    /// 32 hexadecimal digits.
    key_secret: Option<String>,
    /// The share of the admitted decisions.
    sample: Option<String>,
    /// The most records in each second.
    rate: Option<u32>,
    rotate: Option<TextOrNumber>,
    keep: Option<u32>,
    /// Whether records are exported with OTLP.
    otlp: bool,
}

impl WrittenDecisionLog {
    /// Makes a relative path start from `folder`.
    pub(super) fn resolve_path(&mut self, folder: &Path) {
        if let Some(path) = self.path.as_mut().filter(|path| path.as_os_str() != "stdout") {
            *path = folder.join(&*path);
        }
    }

    pub(super) fn exports_with_otlp(&self) -> bool {
        self.otlp
    }

    pub(super) fn read(&self, section: &DocumentPath) -> Result<DecisionLogConfig, PlacedSettingError> {
        if self.path.is_none() && !self.otlp {
            return Err(SettingError::NoDecisionLogTarget.at(section.clone()));
        }
        let mut observation = ObservationSettings::default();
        if let Some(sample) = &self.sample {
            let error = || SettingError::Share(sample.clone()).at(section.field("sample"));
            observation.admitted_share = parse_share(sample).ok_or_else(error)?;
        }
        let rate = self.rate.unwrap_or(observation.refusals_per_second);
        if !(1..=MOST_LINES_PER_SECOND).contains(&rate) {
            let (value, least) = (rate.to_string(), "1".to_owned());
            let most = MOST_LINES_PER_SECOND.to_string();
            let error = SettingError::OutOfRange { value, field: "rate", least, most };
            return Err(error.at(section.field("rate")));
        }
        observation.refusals_per_second = rate;
        let secret = self.key_secret.as_deref().map(parse_secret).transpose();
        let key_secret = secret.map_err(|error| error.at(section.field("key_secret")))?.map(KeySecret);
        let keys: KeyDisplay = self.keys.into();
        let file = self.path.as_deref().map(|path| log_file(path, self.rotate.as_ref(), self.keep, section));
        let lines = file.transpose()?.map(|LogFileSettings { destination, rotation }| DecisionLogSettings {
            rotation,
            keys,
            key_secret,
            lines_per_second: rate,
            ..DecisionLogSettings::new(destination)
        });
        let otlp = self.otlp.then(|| KeyText::new(keys, key_secret));
        Ok(DecisionLogConfig { lines, otlp, observation })
    }
}

/// A share such as `1%` or `0.1%`, from 0 to 1.
fn parse_share(text: &str) -> Option<f64> {
    let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, share) in
            [("1%", Some(0.01)), ("0.5 %", Some(0.005)), ("0%", Some(0.0)), ("100%", Some(1.0))]
        {
            assert_eq!(parse_share(text), share, "{text}");
        }
        for text in ["", "1", "%", "-1%", "101%", "NaN%", "a%"] {
            assert_eq!(parse_share(text), None, "{text}");
        }
    }
}
