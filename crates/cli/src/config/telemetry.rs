//! The `telemetry:` section of `tollgate.yaml`: the exporters and the decision log.

mod decision_log;

use super::setting_value::{PlacedSettingError, SettingError, TextOrNumber, parse_duration};
pub use decision_log::DecisionLogConfig;
use decision_log::WrittenDecisionLog;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_telemetry::{OtlpSettings, OtlpSettingsError, StatsdSettings, StatsdSettingsError};

const INTERVALS_US: RangeInclusive<u64> = 100_000..=3_600_000_000;
/// A shutdown waits this long for a backend that does not answer.
const TIMEOUTS_US: RangeInclusive<u64> = 10_000..=60_000_000;

/// What a node exports, and where to.
#[derive(Clone, Debug, Default)]
pub struct TelemetryConfig {
    /// The OTLP exporter, if there is one.
    pub otlp: Option<OtlpSettings>,
    /// The StatsD exporter, if there is one.
    pub statsd: Option<StatsdSettings>,
    /// The decision log, if there is one.
    pub decision_log: Option<DecisionLogConfig>,
}

/// The section. It is not `Debug`: headers may be credentials.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenTelemetry {
    otlp: Option<WrittenOtlp>,
    statsd: Option<WrittenStatsd>,
    decision_log: Option<WrittenDecisionLog>,
}

impl WrittenTelemetry {
    /// Makes relative paths start from `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        if let Some(log) = &mut self.decision_log {
            log.resolve_path(folder);
        }
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenOtlp {
    /// The collector, such as `http://127.0.0.1:4317`.
    endpoint: Option<String>,
    /// The time between two exports of metrics.
    interval: Option<TextOrNumber>,
    /// The time that an export may take.
    timeout: Option<TextOrNumber>,
    /// Headers of every request.
    headers: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenStatsd {
    /// The server: `host:port` or `unix:/path`.
    address: Option<String>,
    /// The beginning of all names.
    prefix: Option<String>,
    /// The time between two flushes.
    interval: Option<TextOrNumber>,
}

/// The flags that take precedence over the file.
#[derive(Default)]
pub struct TelemetryFlags {
    /// The OTLP collector.
    pub otlp_endpoint: Option<String>,
    /// The StatsD server.
    pub statsd_address: Option<String>,
}

/// The exporters that flags and file describe.
pub fn read(
    flags: TelemetryFlags,
    file: Option<&WrittenTelemetry>,
) -> Result<TelemetryConfig, PlacedSettingError> {
    let empty = WrittenTelemetry::default();
    let file = file.unwrap_or(&empty);
    let section = DocumentPath::root().field("telemetry");
    let log_section = section.field("decision_log");
    let decision_log = file.decision_log.as_ref().map(|log| log.read(&log_section)).transpose()?;
    let otlp = otlp(flags.otlp_endpoint, file.otlp.as_ref(), &section.field("otlp"))?;
    if otlp.is_none() && file.decision_log.as_ref().is_some_and(WrittenDecisionLog::exports_with_otlp) {
        return Err(SettingError::DecisionLogWithoutOtlp.at(log_section.field("otlp")));
    }
    Ok(TelemetryConfig {
        otlp,
        decision_log,
        statsd: statsd(flags.statsd_address, file.statsd.as_ref(), &section.field("statsd"))?,
    })
}

/// Reports an error of the section. That an address is missing is none: a flag or a variable may have it.
pub fn check(document: &mut Document, file: &WrittenTelemetry) {
    if let Err(placed) = read(TelemetryFlags::default(), Some(file)) {
        let hint = match &placed.error {
            SettingError::NoEndpoint
            | SettingError::NoStatsdAddress
            | SettingError::DecisionLogWithoutOtlp => return,
            SettingError::Otlp(OtlpSettingsError::Endpoint(_)) => {
                Some("write it like http://127.0.0.1:4317".to_owned())
            }
            _ => None,
        };
        document.error(&placed.path, placed.error.to_string(), hint);
    }
}

fn otlp(
    flag: Option<String>,
    file: Option<&WrittenOtlp>,
    path: &DocumentPath,
) -> Result<Option<OtlpSettings>, PlacedSettingError> {
    if flag.is_none() && file.is_none() {
        return Ok(None);
    }
    let empty = WrittenOtlp::default();
    let file = file.unwrap_or(&empty);
    let defaults = OtlpSettings::default();
    let endpoint = flag.or_else(|| file.endpoint.clone());
    let settings = OtlpSettings {
        interval: duration(file.interval.as_ref(), defaults.interval, path, "interval", INTERVALS_US)?,
        timeout: duration(file.timeout.as_ref(), defaults.timeout, path, "timeout", TIMEOUTS_US)?,
        headers: file.headers.clone().into_iter().collect(),
        endpoint: endpoint.ok_or_else(|| SettingError::NoEndpoint.at(path.clone()))?,
        ..defaults
    };
    settings.validate().map_err(|error| {
        let field = match &error {
            OtlpSettingsError::Endpoint(_) | OtlpSettingsError::Tls(_) => path.field("endpoint"),
            OtlpSettingsError::HeaderName(name) | OtlpSettingsError::HeaderValue(name) => {
                path.field("headers").field(name)
            }
            OtlpSettingsError::Time(name) => path.field(name),
        };
        SettingError::from(error).at(field)
    })?;
    Ok(Some(settings))
}

fn statsd(
    flag: Option<String>,
    file: Option<&WrittenStatsd>,
    path: &DocumentPath,
) -> Result<Option<StatsdSettings>, PlacedSettingError> {
    if flag.is_none() && file.is_none() {
        return Ok(None);
    }
    let empty = WrittenStatsd::default();
    let file = file.unwrap_or(&empty);
    let defaults = StatsdSettings::default();
    let address = flag.or_else(|| file.address.clone());
    let settings = StatsdSettings {
        prefix: file.prefix.clone().unwrap_or_default(),
        interval: duration(file.interval.as_ref(), defaults.interval, path, "interval", INTERVALS_US)?,
        address: address.ok_or_else(|| SettingError::NoStatsdAddress.at(path.clone()))?,
        ..defaults
    };
    settings.validate().map_err(|error| {
        let field = match &error {
            StatsdSettingsError::Prefix(_) => "prefix",
            StatsdSettingsError::Interval => "interval",
            StatsdSettingsError::Address(_) | StatsdSettingsError::Thread(_) => "address",
        };
        SettingError::from(error).at(path.field(field))
    })?;
    Ok(Some(settings))
}

fn duration(
    setting: Option<&TextOrNumber>,
    default: Duration,
    path: &DocumentPath,
    field: &'static str,
    range: RangeInclusive<u64>,
) -> Result<Duration, PlacedSettingError> {
    let parsed = setting.map_or(Ok(default), |setting| parse_duration(setting, field, range));
    parsed.map_err(|error| error.at(path.field(field)))
}
