//! What a node takes up again while it runs: rules, certificates, keys and logs.
//!
//! Rules, certificates and keys are watched; a signal only has them looked at again. Each is watched by a thread of its
//! own, so that one that hangs keeps none of the others from being taken up.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_control::{FileWatcher, ReadCause};
use tollgate_gateway::AccessLog;
use tollgate_http::IdentityExtractor;
use tollgate_listen::ServerCertificate;

/// What there is of it.
#[derive(Debug, Default)]
pub struct Reloads {
    /// The rule file.
    pub rules: Option<FileWatcher>,
    /// The certificate and its key.
    pub certificate: Option<FileWatcher>,
    /// The keys that tokens are verified by.
    pub keys: Option<FileWatcher>,
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
            if watch.as_ref().is_some_and(|watch| !watch.take_has_read()) {
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
pub fn watch_certificate(certificate: Arc<ServerCertificate>) -> io::Result<FileWatcher> {
    let files = certificate.files().map(Path::to_owned).to_vec();
    FileWatcher::start("certificate", files, move |mut contents, cause| {
        let (Some(key), Some(chain)) = (contents.pop(), contents.pop()) else { return };
        let file = certificate.files()[0].display().to_string();
        match certificate.replace(chain, key) {
            Ok(()) => tracing::info!(file, unchanged = cause == ReadCause::Requested, "certificate in force"),
            Err(error) => {
                tracing::error!(%error, "certificate reload failed; the previous certificate stays in force")
            }
        }
    })
}

/// Uses the keys that tokens are verified by as their file changes.
pub fn watch_keys(identities: Arc<IdentityExtractor>, file: PathBuf) -> io::Result<FileWatcher> {
    FileWatcher::start("jwt-keys", vec![file.clone()], move |mut contents, cause| {
        let (Some(content), file) = (contents.pop(), file.display()) else { return };
        match identities.replace_keys(content) {
            Ok(()) => tracing::info!(%file, unchanged = cause == ReadCause::Requested, "JWT keys in force"),
            Err(error) => {
                tracing::error!(%error, "JWT key reload failed; the previous keys stay in force")
            }
        }
    })
}
