//! What a node reloads while it runs: rules, certificates, keys and logs.
//!
//! Rules, certificates and keys are watched; a signal only has them read again. Each has a thread of its own, so that
//! one disk that hangs does not block the others.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_control::{FileWatcher, FollowedRules, ReadCause};
use tollgate_http::IdentityExtractor;
use tollgate_limiter::line_log::LineLog;
use tollgate_listen::ServerCertificate;

/// Something that is reloaded while the node runs.
#[derive(Debug)]
pub enum ReloadTarget {
    /// Watched files, by what they contain.
    Files(&'static str, FileWatcher),
    /// A rule source that is read again.
    Rules(FollowedRules),
    /// A log that is reopened.
    Log(LineLog),
}

/// Everything that a node reloads.
#[derive(Debug)]
pub struct ReloadTargets(pub Vec<ReloadTarget>);

impl ReloadTargets {
    /// Starts a reload of everything. Does not wait for it.
    pub fn reload(&self) {
        tracing::info!(
            "reloading rules, certificates and keys, reopening logs; the settings file is read only at the start"
        );
        for target in &self.0 {
            match target {
                ReloadTarget::Files(_, watcher) => watcher.reload(),
                ReloadTarget::Rules(rules) => rules.reload(),
                ReloadTarget::Log(log) => log.reopen(),
            }
        }
    }

    /// Logs which files could not be read since the last call, because their disk hangs.
    pub fn report_read_timeouts(&self) {
        for target in &self.0 {
            if let ReloadTarget::Files(files, watcher) = target
                && !watcher.take_has_read()
            {
                tracing::error!(
                    files,
                    "reading a watched file takes longer than 10 s: its disk hangs; changes are not noticed"
                );
            }
        }
    }

    /// Starts to reopen the logs. Does not wait for it.
    pub fn reopen_logs(&self) {
        for target in &self.0 {
            if let ReloadTarget::Log(log) = target {
                log.reopen();
            }
        }
    }
}

/// Replaces the certificate and its key when their files change.
pub fn watch_certificate(certificate: Arc<ServerCertificate>) -> io::Result<ReloadTarget> {
    let files = certificate.files().map(Path::to_owned).to_vec();
    let watcher = FileWatcher::start("certificate", files, move |mut contents, cause| {
        let (Some(key), Some(chain)) = (contents.pop(), contents.pop()) else { return };
        let file = certificate.files()[0].display().to_string();
        match certificate.replace(chain, key) {
            Ok(()) => tracing::info!(file, unchanged = cause == ReadCause::Requested, "certificate in force"),
            Err(error) => {
                tracing::error!(%error, "certificate reload failed; the previous certificate stays in force")
            }
        }
    });
    Ok(ReloadTarget::Files("certificate", watcher?))
}

/// Replaces the keys for JWTs when their file changes.
pub fn watch_keys(identities: Arc<IdentityExtractor>, file: PathBuf) -> io::Result<ReloadTarget> {
    let watcher = FileWatcher::start("jwt-keys", vec![file.clone()], move |mut contents, cause| {
        let (Some(content), file) = (contents.pop(), file.display()) else { return };
        match identities.replace_keys(content) {
            Ok(()) => tracing::info!(%file, unchanged = cause == ReadCause::Requested, "JWT keys in force"),
            Err(error) => {
                tracing::error!(%error, "JWT key reload failed; the previous keys stay in force")
            }
        }
    });
    Ok(ReloadTarget::Files("keys", watcher?))
}
