//! The `bodies:` section of the gateway and of a route: how slow a body may be.

use super::super::setting_value::{PlacedSettingError, SettingError, TextOrNumber};
use super::duration;
use serde::Deserialize;
use tollgate_core::document::DocumentPath;
use tollgate_gateway::settings::BodyLimits;
use tollgate_listen::MinRate;

/// A higher rate would disconnect clients on links that are in use.
const MAX_MIN_RATE: u32 = 1_000_000;

/// A `bodies:` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenBodyLimits {
    min_rate: Option<u32>,
    grace: Option<TextOrNumber>,
    total_timeout: Option<TextOrNumber>,
}

impl WrittenBodyLimits {
    /// The limits, with `defaults` for absent ones.
    pub(super) fn read(
        &self,
        defaults: BodyLimits,
        path: &DocumentPath,
    ) -> Result<BodyLimits, PlacedSettingError> {
        let usual = defaults.min_rate.unwrap_or_default();
        let rate = self.min_rate.unwrap_or(defaults.min_rate.map_or(0, |least| least.bytes_per_second));
        if rate > MAX_MIN_RATE {
            let error = SettingError::MinRate { rate, most: MAX_MIN_RATE };
            return Err(error.at(path.field("min_rate")));
        }
        let grace = duration(self.grace.as_ref(), usual.grace, path, "grace")?;
        let total_time = match &self.total_timeout {
            None => defaults.total_time,
            Some(_) => Some(duration(self.total_timeout.as_ref(), usual.grace, path, "total_timeout")?),
        };
        let min_rate = (rate > 0).then_some(MinRate { bytes_per_second: rate, grace });
        Ok(BodyLimits { min_rate, total_time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn file(min_rate: Option<u32>, grace: Option<&str>, total_timeout: Option<&str>) -> WrittenBodyLimits {
        let setting = |text: Option<&str>| text.map(|text| TextOrNumber::Text(text.to_owned()));
        WrittenBodyLimits { min_rate, grace: setting(grace), total_timeout: setting(total_timeout) }
    }

    #[test]
    fn a_route_overrides_what_it_names() {
        let seconds = Duration::from_secs;
        let least = |bytes_per_second, grace| Some(MinRate { bytes_per_second, grace });
        let gateway = BodyLimits { min_rate: least(100, seconds(5)), total_time: Some(seconds(60)) };
        for (route, min_rate, total_time) in [
            (file(None, None, None), least(100, seconds(5)), Some(seconds(60))),
            (file(Some(7), None, None), least(7, seconds(5)), Some(seconds(60))),
            (file(Some(0), None, Some("2m")), None, Some(seconds(120))),
            (file(None, Some("1s"), None), least(100, seconds(1)), Some(seconds(60))),
        ] {
            let read = route.read(gateway, &DocumentPath::root()).unwrap();
            assert_eq!(read, BodyLimits { min_rate, total_time }, "{route:?}");
        }
        let none = BodyLimits { min_rate: None, total_time: None };
        assert_eq!(file(None, Some("1s"), None).read(none, &DocumentPath::root()).unwrap(), none);
    }
}
