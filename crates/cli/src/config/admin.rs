//! The admin listener: its flags, and the `admin:` section of `tollgate.yaml`.

use super::gateway::WrittenTls;
use super::setting_value::{SettingError, TextOrNumber, WrittenSwitch, parse_address};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use tollgate_core::document::{Document, DocumentPath};
use tollgate_http::host;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// The settings of the admin listener.
#[derive(Clone, Debug)]
pub struct AdminConfig {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// The names by which it may be addressed, in their canonical form.
    pub hosts: Vec<String>,
    /// The files of the certificate and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// The `admin:` section of `tollgate.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenAdmin {
    tls: Option<WrittenTls>,
    hosts: Vec<String>,
}

impl WrittenAdmin {
    /// Makes relative paths start from `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        if let Some(tls) = &mut self.tls {
            tls.resolve_paths(folder);
        }
    }
}

/// Reports the errors of the section.
pub fn check(document: &mut Document, listen: Option<&TextOrNumber>, section: Option<&WrittenAdmin>) {
    let root = DocumentPath::root();
    if let Some(error) = listen.and_then(|listen| parse_listen(listen).err()) {
        document.error(&root.field("admin_listen"), error.to_string(), None);
    }
    for (index, name) in section.map_or(&[][..], |section| &section.hosts).iter().enumerate() {
        if let Err(error) = parse_host(name) {
            let path = root.field("admin").field("hosts").index(index);
            document.error(&path, error.to_string(), None);
        }
    }
}

/// The settings; none if the listener is closed.
pub fn read(
    listen: Option<&TextOrNumber>,
    insecure: Option<WrittenSwitch>,
    section: Option<&WrittenAdmin>,
) -> Result<Option<AdminConfig>, SettingError> {
    let Some(listen) = listen.map_or(Ok(Some(DEFAULT_LISTEN)), parse_listen)? else { return Ok(None) };
    let section = section.cloned().unwrap_or_default();
    let tls = section.tls.map(WrittenTls::into_files);
    // Tokens must not travel in clear text, unless a setting says so.
    if !listen.ip().is_loopback() && tls.is_none() && !insecure.is_some_and(WrittenSwitch::is_on) {
        return Err(SettingError::OpenAdminAddress(listen));
    }
    let hosts = section.hosts.iter().map(|name| parse_host(name)).collect::<Result<_, _>>()?;
    Ok(Some(AdminConfig { listen, hosts, tls }))
}

/// An address, or `off`.
fn parse_listen(setting: &TextOrNumber) -> Result<Option<SocketAddr>, SettingError> {
    if setting.to_string() == "off" { Ok(None) } else { parse_address(setting).map(Some) }
}

fn parse_host(name: &str) -> Result<String, SettingError> {
    let canonical = host::canonical(name).filter(|canonical| !canonical.is_empty());
    canonical.map(String::from).ok_or_else(|| SettingError::AdminHost(name.to_owned()))
}
