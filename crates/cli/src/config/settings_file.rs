//! `tollgate.yaml`: reading it, and reporting all of its errors with their places.

use super::WrittenSettings;
use crate::command_error::CommandError;
use std::path::Path;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_http::IdentityExtractor;
use tollgate_limiter::file;

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

fn open_identities(settings: &WrittenSettings, folder: &Path, document: &mut Document) -> IdentityExtractor {
    let identity = settings.identity.clone().unwrap_or_default();
    IdentityExtractor::open(&identity, folder).unwrap_or_else(|error| {
        let section = DocumentPath::root().field("identity");
        let field = error.field.split('.').fold(section, |path, name| path.field(name));
        document.error(&field, error.problem.to_string(), None);
        IdentityExtractor::default()
    })
}
