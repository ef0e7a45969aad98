//! The RLS door: its flag, and the `grpc:` section of `tollgate.yaml`.

use super::gateway::WrittenTls;
use super::setting_value::{SettingError, TextOrNumber, parse_address};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tollgate_core::document::{Document, DocumentPath};
use tollgate_http::HeaderOptions;
use tollgate_server::rls_door::DescriptorCharging;

/// The settings of the RLS door.
#[derive(Clone, Debug)]
pub struct GrpcConfig {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// How several descriptors of one request are charged.
    pub descriptors: DescriptorCharging,
    /// Which headers it sends, if not those of the node.
    pub headers: Option<HeaderOptions>,
    /// The files of the certificate and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// The `grpc:` section of `tollgate.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenGrpc {
    descriptors: DescriptorCharging,
    headers: Option<HeaderOptions>,
    tls: Option<WrittenTls>,
}

impl WrittenGrpc {
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
        document.error(&DocumentPath::root().field("grpc_listen"), error.to_string(), None);
    }
}

/// The settings; none if the door is closed.
pub fn read(
    listen: Option<&TextOrNumber>,
    section: Option<&WrittenGrpc>,
) -> Result<Option<GrpcConfig>, SettingError> {
    let Some(listen) = listen.map(parse_address).transpose()? else { return Ok(None) };
    let WrittenGrpc { descriptors, headers, tls } = section.cloned().unwrap_or_default();
    Ok(Some(GrpcConfig { listen, descriptors, headers, tls: tls.map(WrittenTls::into_files) }))
}
