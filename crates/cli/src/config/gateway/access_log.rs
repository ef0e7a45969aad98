//! The `access_log:` setting of the gateway: a path, or a section.

use super::super::log_file::{WrittenKeyDisplay, log_file};
use super::super::setting_value::{PlacedSettingError, TextOrNumber};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::{Path, PathBuf};
use tollgate_core::document::DocumentPath;
use tollgate_gateway::settings::{AccessLogFormat, AccessLogSettings};
use tollgate_limiter::KeySecret;

/// The setting, as it is written.
#[derive(Clone, Debug)]
pub(super) struct WrittenAccessLog(WrittenLogSection);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLogSection {
    path: PathBuf,
    #[serde(default)]
    format: WrittenLogFormat,
    #[serde(default)]
    keys: WrittenKeyDisplay,
    rotate: Option<TextOrNumber>,
    keep: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenLogFormat {
    #[default]
    Json,
    Combined,
}

impl<'de> Deserialize<'de> for WrittenAccessLog {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathOrSection;

        impl<'de> Visitor<'de> for PathOrSection {
            type Value = WrittenAccessLog;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`stdout`, the path of a file, or a section with `path`")
            }

            fn visit_str<E>(self, path: &str) -> Result<WrittenAccessLog, E> {
                let (format, keys) = Default::default();
                let path = path.into();
                Ok(WrittenAccessLog(WrittenLogSection { path, format, keys, rotate: None, keep: None }))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<WrittenAccessLog, M::Error> {
                WrittenLogSection::deserialize(MapAccessDeserializer::new(map)).map(WrittenAccessLog)
            }
        }

        deserializer.deserialize_any(PathOrSection)
    }
}

impl WrittenAccessLog {
    fn is_stdout(&self) -> bool {
        self.0.path.as_os_str() == "stdout"
    }

    /// Makes a relative path start from `folder`.
    pub(super) fn resolve_path(&mut self, folder: &Path) {
        if !self.is_stdout() {
            self.0.path = folder.join(&self.0.path);
        }
    }

    pub(super) fn read(
        &self,
        key_secret: Option<KeySecret>,
        path: &DocumentPath,
    ) -> Result<AccessLogSettings, PlacedSettingError> {
        let section = &self.0;
        let file = log_file(&section.path, section.rotate.as_ref(), section.keep, path)?;
        Ok(AccessLogSettings {
            destination: file.destination,
            rotation: file.rotation,
            format: match section.format {
                WrittenLogFormat::Json => AccessLogFormat::Json,
                WrittenLogFormat::Combined => AccessLogFormat::Combined,
            },
            keys: section.keys.into(),
            key_secret,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::WrittenGateway;
    use super::*;
    use tollgate_core::document::Document;
    use tollgate_limiter::KeyDisplay;
    use tollgate_limiter::line_log::{LogDestination, LogRotation};

    fn read(yaml: &str) -> Result<AccessLogSettings, String> {
        let text = format!("access_log: {yaml}");
        let mut document = Document::parse("gateway.yaml", &text).map_err(|_| "not YAML")?;
        // What cannot be decoded is reported, and the rest is decoded.
        let gateway: Option<WrittenGateway> = document.decode();
        let report = document.into_report();
        let gateway = gateway.filter(|_| report.errors() == 0).ok_or_else(|| report.to_string())?;
        let mut written = gateway.access_log.ok_or("no log")?;
        written.resolve_path(Path::new("/folder"));
        written.read(None, &DocumentPath::root()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_log_is_a_path_or_a_section() {
        let file = AccessLogSettings::new(LogDestination::File("/folder/a.log".into()));
        let rotation = |keep| Some(LogRotation { rotate_bytes: 100 << 20, keep });
        for (yaml, expected) in [
            ("stdout", AccessLogSettings::new(LogDestination::Stdout)),
            ("{ path: stdout }", AccessLogSettings::new(LogDestination::Stdout)),
            ("a.log", file.clone()),
            ("{ path: a.log, format: json, keys: hashed, keep: 3 }", file.clone()),
            ("{ path: a.log, rotate: 100MB }", AccessLogSettings { rotation: rotation(5), ..file.clone() }),
            (
                "{ path: /folder/a.log, format: combined, keys: shown, rotate: 100MB, keep: 7 }",
                AccessLogSettings {
                    rotation: rotation(7),
                    format: AccessLogFormat::Combined,
                    keys: KeyDisplay::Shown,
                    ..file.clone()
                },
            ),
        ] {
            assert_eq!(read(yaml).unwrap(), expected, "{yaml}");
        }
        for yaml in [
            "[]",
            "7",
            "{}",
            "{ path: a, format: xml }",
            "{ path: a, rotate: 10kb }",
            "{ path: a, keep: 0 }",
            "{ path: a, keys: plain }",
            "{ path: a, size: 1MB }",
        ] {
            assert!(read(yaml).is_err(), "{yaml}");
        }
    }
}
