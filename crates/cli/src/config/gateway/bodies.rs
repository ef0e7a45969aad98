//! How slow bodies may be: `bodies:` of the gateway, and of a route.

use super::super::Setting;
use super::{Wrong, duration};
use serde::Deserialize;
use tollgate_core::document::DocumentPath;
use tollgate_gateway::settings::BodyLimits;
use tollgate_listen::MinRate;

/// More than this would cut off clients on links that are in use.
const HIGHEST_MIN_RATE: u32 = 1_000_000;

/// A `bodies:` section.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BodiesFile {
    min_rate: Option<u32>,
    grace: Option<Setting>,
    total_timeout: Option<Setting>,
}

impl BodiesFile {
    /// What it says, and `defaults` for what it does not say.
    pub(super) fn read(&self, defaults: BodyLimits, path: &DocumentPath) -> Result<BodyLimits, Wrong> {
        let usual = defaults.min_rate.unwrap_or_default();
        let rate = self.min_rate.unwrap_or(defaults.min_rate.map_or(0, |least| least.bytes_per_second));
        if rate > HIGHEST_MIN_RATE {
            let error = format!(
                "`{rate}` is out of range: `min_rate` is in bytes per second, at most {HIGHEST_MIN_RATE}; 0 for none"
            );
            return Err((path.field("min_rate"), error));
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

    fn file(min_rate: Option<u32>, grace: Option<&str>, total_timeout: Option<&str>) -> BodiesFile {
        let setting = |text: Option<&str>| text.map(|text| Setting::Text(text.to_owned()));
        BodiesFile { min_rate, grace: setting(grace), total_timeout: setting(total_timeout) }
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
