//! What a node takes up again while it runs: rules, certificates, keys and logs.
//!
//! Rules, certificates and keys are watched; a signal only has them looked at again. Each is watched by a thread of its
//! own, so that one that hangs keeps none of the others from being taken up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_control::{Cause, FileWatch};
use tollgate_gateway::AccessLog;
use tollgate_http::IdentityExtractor;
use tollgate_listen::ServerCertificate;

/// What there is of it.
#[derive(Debug, Default)]
pub struct Reloads {
    /// The rule file.
    pub rules: Option<FileWatch>,
    /// The certificate and its key.
    pub certificate: Option<FileWatch>,
    /// The keys that tokens are verified by.
    pub keys: Option<FileWatch>,
    /// The access log.
    pub access_log: Option<AccessLog>,
}

impl Reloads {
    /// Takes everything up again. Waits for nothing.
    pub fn reload(&self) {
        tracing::info!(
            "reloading rules, certificates and keys, opening logs again; the settings file is not read again"
        );
        for watch in [&self.rules, &self.certificate, &self.keys].into_iter().flatten() {
            watch.reload();
        }
        self.reopen_logs();
    }

    /// Says which files could not be looked at since this was last called, for their disk hangs.
    pub fn report_stuck(&self) {
        let files = [("rules", &self.rules), ("certificate", &self.certificate), ("keys", &self.keys)];
        for (files, watch) in files {
            if watch.as_ref().is_some_and(|watch| !watch.has_looked()) {
                tracing::error!(
                    files,
                    "a watched file cannot be read for seconds: its disk hangs; changes are not seen"
                );
            }
        }
    }

    /// Opens the logs again. Waits for nothing.
    pub fn reopen_logs(&self) {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
    }
}

/// Uses the certificate and the key as their files change.
pub fn watch_certificate(certificate: Arc<ServerCertificate>) -> io::Result<FileWatch> {
    let files = certificate.files().map(Path::to_owned).to_vec();
    FileWatch::start("certificate", files, move |mut contents, cause| {
        let (Some(key), Some(chain)) = (contents.pop(), contents.pop()) else { return };
        let file = certificate.files()[0].display().to_string();
        match certificate.replace(chain, key) {
            Ok(()) => tracing::info!(file, unchanged = cause == Cause::Asked, "certificate in force"),
            Err(error) => {
                tracing::error!(%error, "the new certificate is not used, the old one stays in force")
            }
        }
    })
}

/// Uses the keys that tokens are verified by as their file changes.
pub fn watch_keys(identities: Arc<IdentityExtractor>, file: PathBuf) -> io::Result<FileWatch> {
    FileWatch::start("jwt-keys", vec![file.clone()], move |mut contents, cause| {
        let (Some(content), file) = (contents.pop(), file.display()) else { return };
        match identities.replace_keys(content) {
            Ok(()) => tracing::info!(%file, unchanged = cause == Cause::Asked, "keys of tokens in force"),
            Err(error) => {
                tracing::error!(%error, "the new keys of tokens are not used, the old ones stay in force")
            }
        }
    })
}
