//! What the settings of all log files have in common.

use super::setting_value::{PlacedSettingError, SettingError, TextOrNumber, parse_size};
use serde::Deserialize;
use std::path::Path;
use tollgate_core::document::DocumentPath;
use tollgate_limiter::KeyDisplay;
use tollgate_limiter::line_log::{LogDestination, LogRotation};

/// The number of old files that are kept unless `keep` is set.
const DEFAULT_KEEP: u32 = 5;
const MOST_KEPT: u32 = 1_000;

/// What logs show of keys, as it is written.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WrittenKeyDisplay {
    #[default]
    Hashed,
    Shown,
}

impl From<WrittenKeyDisplay> for KeyDisplay {
    fn from(written: WrittenKeyDisplay) -> Self {
        match written {
            WrittenKeyDisplay::Hashed => Self::Hashed,
            WrittenKeyDisplay::Shown => Self::Shown,
        }
    }
}

/// Where a log is written, and when it is rotated.
pub struct LogFileSettings {
    pub destination: LogDestination,
    pub rotation: Option<LogRotation>,
}

/// The log at `path`, which may be `stdout`. `section` is the place of the settings.
pub fn log_file(
    path: &Path,
    rotate: Option<&TextOrNumber>,
    keep: Option<u32>,
    section: &DocumentPath,
) -> Result<LogFileSettings, PlacedSettingError> {
    let rotate = rotate.map(parse_size).transpose();
    let rotate = rotate.map_err(|error| error.at(section.field("rotate")))?;
    let keep = keep.unwrap_or(DEFAULT_KEEP);
    if !(1..=MOST_KEPT).contains(&keep) {
        let (value, least, most) = (keep.to_string(), "1".to_owned(), MOST_KEPT.to_string());
        let error = SettingError::OutOfRange { value, field: "keep", least, most };
        return Err(error.at(section.field("keep")));
    }
    Ok(LogFileSettings {
        destination: match path.as_os_str() == "stdout" {
            true => LogDestination::Stdout,
            false => LogDestination::File(path.to_owned()),
        },
        rotation: rotate.map(|bytes| LogRotation { rotate_bytes: bytes as u64, keep }),
    })
}
