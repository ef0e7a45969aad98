//! The values of settings, and the errors in them.

use serde::Deserialize;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use tollgate_control::HttpClientError;
use tollgate_core::document::DocumentPath;
use tollgate_core::path::PathError;
use tollgate_core::rate::{DurationTextError, duration_text, parse_duration_us};
use tollgate_core::rules::lease_timing::LeaseTimingError;
use tollgate_gateway::settings::UpstreamAddressError;
use tollgate_redis::StoreUrlError;
use tollgate_telemetry::{OtlpSettingsError, StatsdSettingsError};

const SMALLEST_SIZE: usize = 1 << 20;
/// The longest name of a node.
pub const MOST_NAME_CHARACTERS: usize = 100;

/// A text, or a number that means the same without quotes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum TextOrNumber {
    Text(String),
    Number(u64),
}

impl TextOrNumber {
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }
}

/// For the command line, where everything is text.
impl From<String> for TextOrNumber {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl fmt::Display for TextOrNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// `true` or `false`. An empty variable is neither.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub struct WrittenSwitch(Option<bool>);

impl WrittenSwitch {
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn is_on(self) -> bool {
        self.0 == Some(true)
    }
}

/// For the command line.
impl FromStr for WrittenSwitch {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "" => Ok(Self(None)),
            "true" => Ok(Self(Some(true))),
            "false" => Ok(Self(Some(false))),
            _ => Err(SettingError::Switch(text.to_owned())),
        }
    }
}

/// Why the value of a setting cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    #[error("`{0}` is not an address to listen on; write it like 127.0.0.1:8080")]
    ListenAddress(String),
    #[error("`{0}` is neither true nor false")]
    Switch(String),
    #[error(
        "the admin listener must not be reachable at {0} without TLS: tokens would be sent in clear text\n  \
         hint: set `admin: {{ tls: {{ certificate: …, key: … }} }}`, use a loopback address such as 127.0.0.1:9090, \
         or allow it with --admin-insecure (`admin_insecure: true`)"
    )]
    OpenAdminAddress(SocketAddr),
    #[error("`{0}` is not a host; write it like admin.example")]
    AdminHost(String),
    #[error("`{0}` is not a size of at least 1MB; write it like 64MB or 2GB")]
    Size(String),
    #[error("{0}")]
    Duration(#[from] DurationTextError),
    #[error("{0}")]
    LeaseTiming(#[from] LeaseTimingError),
    #[error("`{value}` is out of range: `{field}` must be between {least} and {most}")]
    OutOfRange { value: String, field: &'static str, least: String, most: String },
    #[error("`{rate}` is out of range: `min_rate` is in bytes per second, at most {most}; 0 for none")]
    MinRate { rate: u32, most: u32 },
    #[error("{0}")]
    StoreUrl(#[from] StoreUrlError),
    #[error("`{0}` is not a value of `emergency`; use off, on_outage or on")]
    Emergency(String),
    #[error("`{0}` is not a value of `repository`; use on or off")]
    Repository(String),
    #[error("{0}")]
    ControlPlane(HttpClientError),
    #[error("the file of the control plane's token, {path}, cannot be read: {error}")]
    ControlTokenFile { path: String, error: io::Error },
    #[error("the file of the RESP door's password, {path}, cannot be read: {error}")]
    RespPasswordFile { path: String, error: io::Error },
    #[error("the file of the RESP door's password, {0}, is empty")]
    EmptyRespPassword(String),
    #[error("`{0}` is not a log format; use text or json")]
    LogFormat(String),
    #[error(
        "the name of a node has at most {MOST_NAME_CHARACTERS} characters, none of them a control character"
    )]
    NodeName,
    #[error("a secret is 32 hexadecimal digits, such as `openssl rand -hex 16` prints")]
    StoreSecret,
    #[error("a prefix has no braces: in a Cluster they would put all keys into one slot")]
    StorePrefix,
    #[error("a gateway needs an upstream: --upstream http://127.0.0.1:3000")]
    NoUpstream,
    #[error("there is no upstream `{name}`; there are: {known}")]
    UnknownUpstream { name: String, known: String },
    #[error("an upstream needs `addresses`, such as [http://10.0.0.5:3000]")]
    NoAddresses,
    #[error("{0}")]
    UpstreamAddress(#[from] UpstreamAddressError),
    #[error("`{0}` is not a path; it begins with a slash")]
    NotAPath(String),
    #[error("`{path}` matches nothing: {error}")]
    UnmatchablePath { path: String, error: PathError },
    #[error("`{0}` is not a host; write it like shop.example or *.example")]
    Host(String),
    #[error("`telemetry.otlp` needs an `endpoint`, such as http://127.0.0.1:4317")]
    NoEndpoint,
    #[error("`telemetry.statsd` needs an `address`, such as 127.0.0.1:8125")]
    NoStatsdAddress,
    #[error("a decision log needs a `path`, such as stdout, or `otlp: true`")]
    NoDecisionLogTarget,
    #[error("`otlp: true` has no effect: `telemetry.otlp` has no `endpoint`")]
    DecisionLogWithoutOtlp,
    #[error("`{0}` is not a share; write it like 1% or 0.1%")]
    Share(String),
    #[error("{0}")]
    Otlp(#[from] OtlpSettingsError),
    #[error("{0}")]
    Statsd(#[from] StatsdSettingsError),
}

/// An error in the settings file, with its place.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct PlacedSettingError {
    pub path: DocumentPath,
    pub error: SettingError,
}

impl SettingError {
    pub fn at(self, path: DocumentPath) -> PlacedSettingError {
        PlacedSettingError { path, error: self }
    }
}

/// An address to listen on. `:8080` and `8080` mean the loopback address.
pub fn parse_address(setting: &TextOrNumber) -> Result<SocketAddr, SettingError> {
    let text = setting.to_string();
    let port = text.strip_prefix(':').unwrap_or(&text).parse::<u16>();
    if let Ok(port) = port {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let named = text.replacen("localhost:", "127.0.0.1:", 1);
    named.parse().map_err(|_| SettingError::ListenAddress(text))
}

/// A number of bytes, at least 1 MB.
pub fn parse_size(setting: &TextOrNumber) -> Result<usize, SettingError> {
    let text = setting.to_string();
    let error = || SettingError::Size(text.clone());
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "mb" | "mib" | "m" => 20,
        "gb" | "gib" | "g" => 30,
        "kb" | "kib" | "k" => 10,
        "" => 0,
        _ => return Err(error()),
    };
    let number: usize = digits.parse().map_err(|_| error())?;
    let bytes = number.checked_mul(1 << unit).ok_or_else(error)?;
    if bytes < SMALLEST_SIZE { Err(error()) } else { Ok(bytes) }
}

/// The duration of `field`, within `range` of microseconds.
pub fn parse_duration(
    setting: &TextOrNumber,
    field: &'static str,
    range: RangeInclusive<u64>,
) -> Result<Duration, SettingError> {
    let us = parse_duration_us(&setting.to_string())?;
    if !range.contains(&us) {
        let (least, most) = (duration_text(*range.start()), duration_text(*range.end()));
        return Err(SettingError::OutOfRange { value: setting.to_string(), field, least, most });
    }
    Ok(Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> TextOrNumber {
        TextOrNumber::Text(text.to_owned())
    }

    #[test]
    fn addresses_have_short_forms() {
        for (text, expected) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            (":9000", "127.0.0.1:9000"),
            ("9000", "127.0.0.1:9000"),
            ("localhost:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(parse_address(&written(text)).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", "here", "127.0.0.1", "1.2.3.4:99999"] {
            assert!(parse_address(&written(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, expected) in
            [("64MB", 64 << 20), ("2 GB", 2 << 30), ("1048576", 1 << 20), ("1024kb", 1 << 20)]
        {
            assert_eq!(parse_size(&written(text)).unwrap(), expected, "{text}");
        }
        for text in ["", "MB", "-1MB", "1", "64 pounds", "99999999999999GB"] {
            assert!(parse_size(&written(text)).is_err(), "{text}");
        }
    }
}
