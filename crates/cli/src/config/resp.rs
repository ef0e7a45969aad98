//! The RESP door: its flags, and the `resp:` section of `tollgate.yaml`.

use super::gateway::WrittenTls;
use super::setting_value::{SettingError, TextOrNumber, parse_address};
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tollgate_core::document::{Document, DocumentPath};
use tollgate_limiter::file;

/// The variable with the password. It is no flag: other users see the flags of a process.
const PASSWORD_VARIABLE: &str = "TOLLGATE_RESP_PASSWORD";

/// The settings of the RESP door.
#[derive(Clone)]
pub struct RespConfig {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// What clients have to give with `AUTH`.
    pub password: Option<String>,
    /// The files of the certificate and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

impl fmt::Debug for RespConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "***");
        let Self { listen, tls, .. } = self;
        let mut shown = f.debug_struct("RespConfig");
        shown.field("listen", listen).field("password", &password).field("tls", tls).finish()
    }
}

/// The `resp:` section of `tollgate.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenResp {
    tls: Option<WrittenTls>,
}

impl WrittenResp {
    /// Makes relative paths start from `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        if let Some(tls) = &mut self.tls {
            tls.resolve_paths(folder);
        }
    }
}

/// Reports the errors of the settings file.
pub fn check(document: &mut Document, listen: Option<&TextOrNumber>) {
    if let Some(error) = listen.and_then(|listen| parse_address(listen).err()) {
        document.error(&DocumentPath::root().field("resp_listen"), error.to_string(), None);
    }
}

/// The settings; none if the door is closed.
pub fn read(
    listen: Option<&TextOrNumber>,
    password_file: Option<&Path>,
    section: Option<&WrittenResp>,
) -> Result<Option<RespConfig>, SettingError> {
    let Some(listen) = listen.map(parse_address).transpose()? else { return Ok(None) };
    let variable = std::env::var(PASSWORD_VARIABLE).ok().filter(|password| !password.is_empty());
    let password = match password_file {
        Some(path) => Some(read_password(path)?),
        None => variable,
    };
    let tls = section.cloned().unwrap_or_default().tls.map(WrittenTls::into_files);
    Ok(Some(RespConfig { listen, password, tls }))
}

fn read_password(path: &Path) -> Result<String, SettingError> {
    let shown = path.display().to_string();
    let text = file::read_text(path)
        .map_err(|error| SettingError::RespPasswordFile { path: shown.clone(), error })?;
    let password = text.trim_end_matches(['\r', '\n']).to_owned();
    // An empty file is a mistake, and must not open the door to everyone.
    if password.is_empty() { Err(SettingError::EmptyRespPassword(shown)) } else { Ok(password) }
}
