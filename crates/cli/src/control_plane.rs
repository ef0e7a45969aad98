//! The control plane that a command talks to: `--to`, and the token.

use crate::command_error::CommandError;
use clap::Args;
use std::path::PathBuf;
use tollgate_control::HttpClient;
use tollgate_limiter::file;

const DEFAULT_URL: &str = "http://127.0.0.1:9090";

/// Where the control plane is, and what a command may do there.
#[derive(Args, Clone)]
pub struct ControlPlaneArgs {
    /// Admin address of a node
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    to: String,
    /// File with a token; else the variable TOLLGATE_TOKEN has it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the certificates to trust, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl ControlPlaneArgs {
    /// The address as it was given.
    pub fn address(&self) -> String {
        self.to.clone()
    }

    /// A client with the token.
    pub fn client(&self) -> Result<HttpClient, CommandError> {
        let token = match &self.token_file {
            Some(path) => {
                let read = file::read_text(path);
                let error = |error| CommandError::Read { path: path.display().to_string(), error };
                Some(read.map_err(error)?)
            }
            None => std::env::var("TOLLGATE_TOKEN").ok(),
        };
        let token = token.as_deref().map(str::trim).filter(|token| !token.is_empty());
        Ok(HttpClient::new(&self.to, token, self.ca.as_deref())?)
    }
}
