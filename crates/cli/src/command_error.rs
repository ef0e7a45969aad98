//! The errors that end a command.

use crate::config::SettingError;
use crate::top::FeedError;
use std::io;
use std::net::SocketAddr;
use tollgate_control::{HttpClientError, RepositoryError, RuleSourceError};
use tollgate_core::diagnostic::{DiagnosticReport, sanitized};
use tollgate_core::import::ImportErrors;
use tollgate_core::path::PathError;
use tollgate_core::rate::LimitShorthandError;
use tollgate_gateway::GatewayError;
use tollgate_listen::TlsError;
use tollgate_redis::OpenError;

/// Why a command ends without success.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The problems of a file, each with its position.
    #[error("{0}")]
    Report(#[from] DiagnosticReport),
    /// The problems of configurations that cannot be imported.
    #[error("{0}")]
    Import(#[from] ImportErrors),
    /// The rules cannot be used.
    #[error("{0}")]
    Rules(#[from] RuleSourceError),
    /// The rule repository cannot be used.
    #[error("{0}")]
    Repository(#[from] RepositoryError),
    /// A flag or an environment variable has a value that cannot be used.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// A flag has no effect with the other settings.
    #[error("--{flag} has no effect: {reason}")]
    IneffectiveFlag {
        /// The name of the flag.
        flag: String,
        /// Why it has no effect.
        reason: &'static str,
    },
    /// The path of a request cannot be used.
    #[error("{0}")]
    Endpoint(#[from] PathError),
    /// A simulation of too many checks.
    #[error("that is more than {0} checks; lower --rate or --seconds")]
    TooManyChecks(String),
    /// A simulation of a path without a slash.
    #[error("--endpoint is a path and begins with `/`, unlike `{0}`")]
    NotAPath(String),
    /// A simulated limit cannot be parsed.
    #[error("{0}")]
    Limit(#[from] LimitShorthandError),
    /// A file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        error: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {error}")]
    Write {
        /// The file.
        path: String,
        /// The cause.
        error: io::Error,
    },
    /// A control plane cannot be reached.
    #[error("{0}")]
    ControlPlane(#[from] HttpClientError),
    /// A control plane refuses a request, or its reply cannot be used.
    #[error("{url}: {problem}")]
    ControlPlaneReply {
        /// The control plane.
        url: String,
        /// Its reply.
        problem: String,
    },
    /// The filter of the log cannot be parsed.
    #[error("TOLLGATE_LOG is `{value}`: {error}\n  hint: use error, warn, info, debug or trace")]
    LogFilter {
        /// The value of the variable.
        value: String,
        /// The cause.
        error: tracing_subscriber::filter::ParseError,
    },
    /// A thread or the runtime cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The start was aborted by a panic.
    #[error("cannot start: {0}")]
    Start(tokio::task::JoinError),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    /// The operate token can neither be read nor written.
    #[error("the file with the operate token, `operate.token` in the data folder, cannot be used: {0}")]
    OperateToken(io::Error),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}\n  hint: choose another address with --{flag}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// The cause.
        error: io::Error,
    },
    /// The shared store refuses this node.
    #[error("{0}")]
    Store(#[from] OpenError),
    /// The certificate of the gateway cannot be used.
    #[error("{0}\n  hint: both are PEM files, named under `gateway: tls:`")]
    Tls(#[from] TlsError),
    /// The gateway cannot be started.
    #[error("{0}")]
    Gateway(GatewayError),
    /// The access log cannot be opened.
    #[error("cannot write the access log {path}: {error}")]
    AccessLog {
        /// The file, or `stdout`.
        path: String,
        /// The cause.
        error: io::Error,
    },
    /// The decision log cannot be opened.
    #[error("cannot write the decision log {path}: {error}")]
    DecisionLog {
        /// The file, or `stdout`.
        path: String,
        /// The cause.
        error: io::Error,
    },
    /// The schema of rule files cannot be written.
    #[error("{0}")]
    Schema(#[from] serde_json::Error),
    /// There are no live figures.
    #[error("no live figures: {0}")]
    LiveFigures(FeedError),
    /// Standard output is no terminal.
    #[error("standard output is not a terminal\n  hint: --once prints the figures as text")]
    NoTerminal,
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {0}")]
    Terminal(io::Error),
    /// The time of the demo cannot be used.
    #[error("--for cannot be used: {0}")]
    DemoDuration(String),
    /// A temporary folder cannot be written.
    #[error("cannot write to a temporary folder: {0}")]
    Folder(io::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl CommandError {
    /// The error as it is shown to the user: without secrets and control characters.
    pub fn message(&self) -> String {
        match self {
            // Reports hide the secrets of their files and begin with a position.
            Self::Report(_) | Self::Rules(_) | Self::Import(_) => self.to_string(),
            other => format!("error: {}", sanitized(&other.to_string())),
        }
    }
}

impl From<GatewayError> for CommandError {
    fn from(error: GatewayError) -> Self {
        match error {
            GatewayError::Listen { address, error } => {
                Self::Listen { address, flag: "gateway-listen", error }
            }
            other => Self::Gateway(other),
        }
    }
}
