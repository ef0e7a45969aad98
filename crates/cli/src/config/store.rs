//! Which store, and how it is used.

use super::Setting;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_core::rate::parse_duration_us;
use tollgate_core::rules::lease_timing::lease_us;
use tollgate_core::rules::short_forms::DurationText;
use tollgate_limiter::{Emergency, FailureSettings};
use tollgate_redis::{RedisSettings, StoreUrl};

/// Where states are kept.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process.
    Memory,
    /// In Redis.
    Redis(Box<SharedStore>),
}

/// A store that nodes share.
#[derive(Clone, Debug)]
pub struct SharedStore {
    /// Where it is.
    pub url: StoreUrl,
    /// How it is used.
    pub settings: RedisSettings,
    /// What is done without it.
    pub failure: FailureSettings,
}

/// The `redis:` section of `tollgate.yaml`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisFile {
    /// The longest that a decision waits for the store.
    timeout: Option<Setting>,
    /// How keys begin.
    prefix: Option<String>,
    /// 32 hexadecimal digits that all nodes share.
    secret: Option<String>,
    /// How many nodes there are, if they are not to be counted.
    expected_nodes: Option<u32>,
    /// What each node admits of its share under `on_store_failure: local`.
    local_factor: Option<f64>,
    /// When each address is limited by itself.
    emergency: Option<EmergencyName>,
    /// What one address may do then.
    emergency_per_second: Option<u32>,
    lease: Option<LeaseFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseFile {
    interval: Option<DurationText>,
    horizon: Option<DurationText>,
    most: Option<usize>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EmergencyName {
    Off,
    OnOutage,
    On,
}

/// What a flag says about the store, over what the file does.
#[derive(Default)]
pub struct StoreFlags {
    /// Where it is.
    pub url: Option<String>,
    /// The node's folder.
    pub data: Option<PathBuf>,
    /// When each address is limited by itself.
    pub emergency: Option<String>,
}

/// The store that `flags` name, with its settings.
pub fn read(flags: StoreFlags, file: &RedisFile) -> Result<Store, String> {
    let emergency = flags.emergency.as_deref().map(emergency_name).transpose()?.or(file.emergency);
    let Some(text) = flags.url.filter(|text| !matches!(text.as_str(), "memory" | "memory:" | "memory://"))
    else {
        return Ok(Store::Memory);
    };
    let url: StoreUrl = text.parse().map_err(|error: tollgate_redis::StoreUrlError| error.to_string())?;
    let mut settings = RedisSettings::default();
    settings.timeout = timeout(file.timeout.as_ref())?.unwrap_or(settings.timeout);
    if let Some(prefix) = &file.prefix {
        settings.prefix.clone_from(prefix);
    }
    settings.secret = file.secret.as_deref().map(secret).transpose()?;
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
    if let Some(emergency) = emergency {
        failure.emergency = match emergency {
            EmergencyName::Off => Emergency::Off,
            EmergencyName::OnOutage => Emergency::OnOutage,
            EmergencyName::On => Emergency::On,
        };
    }
    failure.emergency_per_second = file.emergency_per_second.unwrap_or(failure.emergency_per_second).max(1);
    Ok(Store::Redis(Box::new(SharedStore { url, settings, failure })))
}

/// Reports what is wrong with the address in the file.
pub fn check_url(document: &mut Document, store: Option<&str>) {
    let flags = StoreFlags { url: store.map(str::to_owned), ..StoreFlags::default() };
    if let Err(error) = read(flags, &RedisFile::default()) {
        document.error(&DocumentPath::root().field("store"), error, None);
    }
}

/// Reports what is wrong in the section where it stands.
pub fn check(document: &mut Document, file: &RedisFile) {
    let section = DocumentPath::root().field("redis");
    let mut wrong = |path: DocumentPath, error: Option<String>| {
        if let Some(error) = error {
            document.error(&path, error, None);
        }
    };
    wrong(section.field("timeout"), timeout(file.timeout.as_ref()).err());
    wrong(section.field("secret"), file.secret.as_deref().and_then(|text| secret(text).err()));
    wrong(section.field("local_factor"), file.local_factor.and_then(|factor| permille(factor).err()));
    if let Some(lease) = &file.lease {
        let path = section.field("lease");
        wrong(path.field("interval"), lease_time(lease.interval).err());
        wrong(path.field("horizon"), lease_time(lease.horizon).err());
    }
}

fn emergency_name(text: &str) -> Result<EmergencyName, String> {
    match text {
        "off" => Ok(EmergencyName::Off),
        "on_outage" | "on-outage" => Ok(EmergencyName::OnOutage),
        "on" => Ok(EmergencyName::On),
        _ => Err(format!("`{text}` is no state of an emergency; it is one of off, on_outage and on")),
    }
}

fn timeout(setting: Option<&Setting>) -> Result<Option<Duration>, String> {
    let Some(setting) = setting else { return Ok(None) };
    let us = parse_duration_us(&setting.to_string())?;
    if !(1_000..=10_000_000).contains(&us) {
        return Err(format!("`{setting}` is out of range: `timeout` lies between 1ms and 10s"));
    }
    Ok(Some(Duration::from_micros(us)))
}

/// What a rule may say of itself, the node says for all others.
fn lease_time(written: Option<DurationText>) -> Result<Option<Duration>, String> {
    let us = written.map(lease_us).transpose().map_err(|error| error.to_string())?;
    Ok(us.map(|us| Duration::from_micros(us.get().into())))
}

fn secret(text: &str) -> Result<[u8; 16], String> {
    let bad = || "a secret is 32 hexadecimal digits, such as `openssl rand -hex 16` prints".to_owned();
    if text.len() != 32 || !text.is_ascii() {
        return Err(bad());
    }
    let mut secret = [0; 16];
    for (index, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| bad())?;
    }
    Ok(secret)
}

fn permille(factor: f64) -> Result<u32, String> {
    if !(0.001..=1_000.0).contains(&factor) {
        return Err(format!("`{factor}` is out of range: `local_factor` lies between 0.001 and 1000"));
    }
    Ok((factor * 1_000.0).round() as u32)
}
