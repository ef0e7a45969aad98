//! What a node reloads while it runs: rules, certificates, keys and logs.
//!
//! Rules, certificates and keys are watched; a signal only has them read again. Each has a thread of its own, so that
//! one disk that hangs does not block the others.

use super::gateway::StartedGateway;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_control::{FileWatcher, ReadCause, WatchedRuleFile};
use tollgate_gateway::AccessLog;
use tollgate_http::IdentityExtractor;
use tollgate_listen::ServerCertificate;

/// The files and logs that a node reloads.
#[derive(Debug)]
pub struct ReloadTargets {
    /// The rule file.
    rules: Option<FileWatcher>,
    /// The certificate and its key.
    certificate: Option<FileWatcher>,
    /// The keys for JWTs.
    keys: Option<FileWatcher>,
    /// The access log.
    access_log: Option<AccessLog>,
}

impl ReloadTargets {
    /// Starts to watch the rule file, and the files of the gateway.
    pub fn watch(
        identities: &Arc<IdentityExtractor>,
        rules: Option<WatchedRuleFile>,
        gateway: Option<&StartedGateway>,
    ) -> io::Result<Self> {
        let rules = rules.map(WatchedRuleFile::follow).transpose()?;
        // Without a gateway, no identities are extracted.
        let key_file = gateway.and_then(|_| identities.key_file()).map(Path::to_owned);
        let keys = key_file.map(|file| watch_keys(Arc::clone(identities), file)).transpose()?;
        let certificate = gateway.and_then(|gateway| gateway.certificate.clone());
        let certificate = certificate.map(watch_certificate).transpose()?;
        let access_log = gateway.and_then(|gateway| gateway.access_log.clone());
        Ok(Self { rules, certificate, keys, access_log })
    }

    /// Starts a reload of everything. Does not wait for it.
    pub fn reload(&self) {
        tracing::info!(
            "reloading rules, certificates and keys, reopening logs; the settings file is read only at the start"
        );
        for watcher in [&self.rules, &self.certificate, &self.keys].into_iter().flatten() {
            watcher.reload();
        }
        self.reopen_logs();
    }

    /// Logs which files could not be read since the last call, because their disk hangs.
    pub fn report_read_timeouts(&self) {
        let files = [("rules", &self.rules), ("certificate", &self.certificate), ("keys", &self.keys)];
        for (files, watcher) in files {
            if watcher.as_ref().is_some_and(|watcher| !watcher.take_has_read()) {
                tracing::error!(
                    files,
                    "reading a watched file takes longer than 10 s: its disk hangs; changes are not noticed"
                );
            }
        }
    }

    /// Starts to reopen the logs. Does not wait for it.
    pub fn reopen_logs(&self) {
        if let Some(log) = &self.access_log {
            log.lines().reopen();
        }
    }
}

/// Replaces the certificate and its key when their files change.
fn watch_certificate(certificate: Arc<ServerCertificate>) -> io::Result<FileWatcher> {
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

/// Replaces the keys for JWTs when their file changes.
fn watch_keys(identities: Arc<IdentityExtractor>, file: PathBuf) -> io::Result<FileWatcher> {
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
