//! The store: its URL, and the `redis:` section of `tollgate.yaml`.

use super::setting_value::{SettingError, TextOrNumber, parse_duration};
use serde::Deserialize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_core::rules::lease_timing::lease_us;
use tollgate_core::rules::short_forms::DurationText;
use tollgate_limiter::{Emergency, FailureSettings};
use tollgate_redis::{RedisSettings, StoreUrl};

/// The limits of one address in an emergency, in requests per second.
const EMERGENCY_RANGE: RangeInclusive<u32> = 1..=1_000_000;

/// Where states are kept.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// In this process.
    Memory,
    /// In Redis.
    Redis(Box<RedisConfig>),
}

/// A shared store.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// Its URL.
    pub url: StoreUrl,
    /// How it is used.
    pub settings: RedisSettings,
    /// What happens while it is unavailable.
    pub failure: FailureSettings,
}

/// The `redis:` section of `tollgate.yaml`.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRedis {
    /// The longest that a decision waits for the store.
    timeout: Option<TextOrNumber>,
    /// The prefix of all keys.
    prefix: Option<String>,
    /// 32 hexadecimal digits, the same at all nodes.
    secret: Option<String>,
    /// The number of nodes, instead of counting them.
    expected_nodes: Option<u32>,
    /// The factor on the share of each node under `on_store_failure: local`.
    local_factor: Option<f64>,
    /// When each client address is limited, if `emergency` beside this section does not say it.
    emergency: Option<WrittenEmergency>,
    /// The limit of one address then, if `emergency_per_second` beside this section does not say it.
    emergency_per_second: Option<TextOrNumber>,
    lease: Option<WrittenRedisLease>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRedisLease {
    interval: Option<DurationText>,
    horizon: Option<DurationText>,
    most: Option<usize>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenEmergency {
    Off,
    OnOutage,
    On,
}

/// What the section does not say.
#[derive(Default)]
pub struct StoreFlags {
    /// The URL of the store.
    pub url: Option<String>,
    /// The data folder of the node.
    pub data: Option<PathBuf>,
    /// When each client address is limited.
    pub emergency: Emergency,
    /// The limit of one address then.
    pub emergency_per_second: u32,
}

/// The store that `flags` name, with its settings.
pub fn read(flags: StoreFlags, file: Option<&WrittenRedis>) -> Result<StoreConfig, SettingError> {
    let default = WrittenRedis::default();
    let file = file.unwrap_or(&default);
    let Some(text) = flags.url.filter(|text| !matches!(text.as_str(), "memory" | "memory:" | "memory://"))
    else {
        return Ok(StoreConfig::Memory);
    };
    let url: StoreUrl = text.parse()?;
    let mut settings = RedisSettings::default();
    settings.timeout = timeout(file.timeout.as_ref())?.unwrap_or(settings.timeout);
    if let Some(prefix) = &file.prefix {
        check_prefix(prefix)?;
        settings.prefix.clone_from(prefix);
    }
    settings.secret = file.secret.as_deref().map(parse_secret).transpose()?;
    settings.expected_nodes = file.expected_nodes;
    settings.data = flags.data;
    if let Some(lease) = &file.lease {
        settings.lease_interval = lease_time(lease.interval)?.unwrap_or(settings.lease_interval);
        settings.lease_horizon = lease_time(lease.horizon)?.unwrap_or(settings.lease_horizon);
        settings.most_leases = lease.most.unwrap_or(settings.most_leases);
    }
    let mut failure = FailureSettings::default();
    if let Some(factor) = file.local_factor {
        failure.local_factor_permille = permille(factor)?;
    }
    failure.emergency = flags.emergency;
    failure.emergency_per_second = flags.emergency_per_second;
    Ok(StoreConfig::Redis(Box::new(RedisConfig { url, settings, failure })))
}

/// Reports an error in the URL of the file.
pub fn check_url(document: &mut Document, store: Option<&str>) {
    let flags = StoreFlags { url: store.map(str::to_owned), ..StoreFlags::default() };
    if let Err(error) = read(flags, None) {
        document.error(&DocumentPath::root().field("store"), error.to_string(), None);
    }
}

/// Reports the errors of the section.
pub fn check(document: &mut Document, file: &WrittenRedis) {
    let section = DocumentPath::root().field("redis");
    let mut report = |path: DocumentPath, error: Option<SettingError>| {
        if let Some(error) = error {
            document.error(&path, error.to_string(), None);
        }
    };
    report(section.field("timeout"), timeout(file.timeout.as_ref()).err());
    report(section.field("emergency_per_second"), emergency_per_second(None, Some(file)).err());
    report(section.field("prefix"), file.prefix.as_deref().and_then(|prefix| check_prefix(prefix).err()));
    report(section.field("secret"), file.secret.as_deref().and_then(|text| parse_secret(text).err()));
    report(section.field("local_factor"), file.local_factor.and_then(|factor| permille(factor).err()));
    if let Some(lease) = &file.lease {
        let path = section.field("lease");
        report(path.field("interval"), lease_time(lease.interval).err());
        report(path.field("horizon"), lease_time(lease.horizon).err());
    }
}

/// When each client address is limited.
pub fn emergency(flag: Option<&str>, file: Option<&WrittenRedis>) -> Result<Emergency, SettingError> {
    let written = flag.map(parse_emergency).transpose()?.or(file.and_then(|file| file.emergency));
    Ok(match written {
        None | Some(WrittenEmergency::Off) => Emergency::Off,
        Some(WrittenEmergency::OnOutage) => Emergency::OnOutage,
        Some(WrittenEmergency::On) => Emergency::On,
    })
}

/// The limit of one address in an emergency, in requests per second.
pub fn emergency_per_second(
    flag: Option<&TextOrNumber>,
    file: Option<&WrittenRedis>,
) -> Result<u32, SettingError> {
    let written = flag.or(file.and_then(|file| file.emergency_per_second.as_ref()));
    let Some(written) = written else { return Ok(FailureSettings::default().emergency_per_second) };
    let number = written.to_string().parse().ok().filter(|number| EMERGENCY_RANGE.contains(number));
    number.ok_or_else(|| SettingError::OutOfRange {
        value: written.to_string(),
        field: "emergency_per_second",
        least: EMERGENCY_RANGE.start().to_string(),
        most: EMERGENCY_RANGE.end().to_string(),
    })
}

fn parse_emergency(text: &str) -> Result<WrittenEmergency, SettingError> {
    match text {
        "off" => Ok(WrittenEmergency::Off),
        "on_outage" | "on-outage" => Ok(WrittenEmergency::OnOutage),
        "on" => Ok(WrittenEmergency::On),
        _ => Err(SettingError::Emergency(text.to_owned())),
    }
}

fn timeout(setting: Option<&TextOrNumber>) -> Result<Option<Duration>, SettingError> {
    setting.map(|setting| parse_duration(setting, "timeout", 1_000..=10_000_000)).transpose()
}

/// A lease time for all rules that set none themselves.
fn lease_time(written: Option<DurationText>) -> Result<Option<Duration>, SettingError> {
    let us = written.map(lease_us).transpose()?;
    Ok(us.map(|us| Duration::from_micros(us.get().into())))
}

/// A secret of 32 hexadecimal digits.
pub(super) fn parse_secret(text: &str) -> Result<[u8; 16], SettingError> {
    if text.len() != 32 || !text.is_ascii() {
        return Err(SettingError::StoreSecret);
    }
    let mut secret = [0; 16];
    for (index, byte) in secret.iter_mut().enumerate() {
        *byte =
            u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| SettingError::StoreSecret)?;
    }
    Ok(secret)
}

fn check_prefix(prefix: &str) -> Result<(), SettingError> {
    if prefix.contains(['{', '}']) { Err(SettingError::StorePrefix) } else { Ok(()) }
}

fn permille(factor: f64) -> Result<u32, SettingError> {
    if !(0.001..=1_000.0).contains(&factor) {
        let (least, most) = ("0.001".to_owned(), "1000".to_owned());
        return Err(SettingError::OutOfRange {
            value: factor.to_string(),
            field: "local_factor",
            least,
            most,
        });
    }
    Ok((factor * 1_000.0).round() as u32)
}
