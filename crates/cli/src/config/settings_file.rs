//! `tollgate.yaml`: reading it, and reporting all of its errors with their places.

use super::abuse::{self, WrittenAbuse};
use super::gateway::{self, WrittenGateway};
use super::setting_value::{SettingError, TextOrNumber, parse_address, parse_size};
use super::store::{self, WrittenRedis};
use crate::command_error::CommandError;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use tollgate_core::document::{Document, DocumentPath};
use tollgate_http::{HeaderOptions, IdentityExtractor, IdentityOptions};
use tollgate_limiter::file;

/// The fields of the file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenSettings {
    pub rules: Option<PathBuf>,
    pub store: Option<String>,
    pub data: Option<PathBuf>,
    pub store_memory: Option<TextOrNumber>,
    pub redis: Option<WrittenRedis>,
    pub listen: Option<TextOrNumber>,
    pub gateway_listen: Option<TextOrNumber>,
    pub upstream: Option<String>,
    pub gateway: Option<WrittenGateway>,
    pub identity: Option<IdentityOptions>,
    #[serde(default)]
    pub headers: HeaderOptions,
    #[serde(default)]
    pub abuse: WrittenAbuse,
    pub on_failed_rule_tests: Option<WrittenFailedTestPolicy>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WrittenFailedTestPolicy {
    Refuse,
    Warn,
}

/// A settings file that was read; empty if there is none.
#[derive(Default)]
pub struct SettingsFile {
    /// The path, as it was given.
    pub name: String,
    /// The content.
    pub text: String,
    /// The fields. Paths are relative to the folder of the file.
    pub settings: WrittenSettings,
    /// The identities that the file describes, with their keys.
    pub identities: IdentityExtractor,
}

impl SettingsFile {
    /// Reads and checks the file.
    pub fn read(path: &Path) -> Result<Self, CommandError> {
        let name = path.display().to_string();
        let text = file::read_text(path).map_err(|error| CommandError::Read { path: name.clone(), error })?;
        let mut document = Document::parse(&name, &text)?;
        let mut settings: WrittenSettings = document.decode().unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new(""));
        settings.check(&mut document);
        let identities = open_identities(&settings, folder, &mut document);
        let report = document.into_report();
        if report.errors() > 0 {
            return Err(report.into());
        }
        settings.resolve_paths(folder);
        Ok(Self { name, text, settings, identities })
    }
}

impl WrittenSettings {
    fn check(&self, document: &mut Document) {
        let root = DocumentPath::root();
        let mut report = |field: &str, error: Option<SettingError>| {
            if let Some(error) = error {
                document.error(&root.field(field), error.to_string(), None);
            }
        };
        let listen = self.listen.as_ref().map(ToString::to_string);
        report("listen", listen.and_then(|text| parse_address(&text).err()));
        let memory = self.store_memory.as_ref().map(ToString::to_string);
        report("store_memory", memory.and_then(|text| parse_size(&text).err()));
        abuse::check(document, &self.abuse);
        if let Some(redis) = &self.redis {
            store::check(document, redis);
        }
        store::check_url(document, self.store.as_deref());
        let gateway_listen = self.gateway_listen.as_ref().map(ToString::to_string);
        gateway::check(document, gateway_listen.as_deref(), self.upstream.as_deref(), self.gateway.as_ref());
    }

    /// Makes relative paths start from `folder`.
    fn resolve_paths(&mut self, folder: &Path) {
        self.data = self.data.take().filter(|folder| !folder.as_os_str().is_empty());
        for path in [&mut self.rules, &mut self.data].into_iter().flatten() {
            *path = folder.join(&*path);
        }
        if let Some(gateway) = &mut self.gateway {
            gateway.resolve_paths(folder);
        }
    }
}

fn open_identities(settings: &WrittenSettings, folder: &Path, document: &mut Document) -> IdentityExtractor {
    let identity = settings.identity.clone().unwrap_or_default();
    IdentityExtractor::open(&identity, folder).unwrap_or_else(|error| {
        let section = DocumentPath::root().field("identity");
        let field = error.field.split('.').fold(section, |path, name| path.field(name));
        document.error(&field, error.problem.to_string(), None);
        IdentityExtractor::default()
    })
}
