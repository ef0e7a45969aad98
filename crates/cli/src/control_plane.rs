//! The connection of a command to a control plane.

use crate::command_error::CommandError;
use clap::Args;
use http::header::{ACCEPT, CONTENT_TYPE, IF_MATCH};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use tollgate_control::{HttpCall, HttpClient, HttpReply};
use tollgate_core::rules::ReportedProblem;
use tollgate_limiter::file;

/// The environment variable with the token.
const TOKEN_VARIABLE: &str = "TOLLGATE_TOKEN";
const X_MESSAGE: HeaderName = HeaderName::from_static("x-message");

/// Which control plane a command uses.
#[derive(Args)]
#[command(after_help = "Environment:\n  TOLLGATE_TOKEN  Access token for the control plane")]
pub struct ControlPlaneArgs {
    /// Control plane: the admin listener of a node
    #[arg(long = "to", value_name = "URL", default_value = "http://127.0.0.1:9090")]
    url: String,
    /// File with the access token, instead of TOLLGATE_TOKEN
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificates to trust, in PEM, instead of those of the system
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// A control plane, and a runtime to talk to it.
pub struct ControlPlaneSession {
    client: HttpClient,
    runtime: tokio::runtime::Runtime,
}

/// A request to the control plane, built step by step.
pub struct ControlPlaneCall(HttpCall);

/// What the control plane refused.
#[derive(Debug, Deserialize)]
pub struct RefusedCall {
    #[serde(skip)]
    pub status: StatusCode,
    /// Why, for programs.
    #[serde(default)]
    pub code: String,
    /// Why, in words.
    #[serde(default)]
    pub detail: String,
    /// The errors of the rules.
    #[serde(default)]
    pub errors: Vec<ReportedProblem>,
    /// The newest revision, if another was expected.
    #[serde(default)]
    pub current: Option<u64>,
}

/// The reply to a call.
pub enum ControlPlaneAnswer<T> {
    Done(T),
    Refused(RefusedCall),
}

impl ControlPlaneArgs {
    /// The address as it was given.
    pub fn address(&self) -> &str {
        &self.url
    }

    /// A client with the token, which is read here.
    pub fn client(&self) -> Result<HttpClient, CommandError> {
        let token = self.token()?;
        let client = HttpClient::new(&self.url, token.as_deref(), self.ca_file.as_deref());
        client.map_err(CommandError::ControlPlane)
    }

    /// Prepares a connection.
    pub fn open(&self) -> Result<ControlPlaneSession, CommandError> {
        let client = self.client()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(ControlPlaneSession { client, runtime: runtime.map_err(CommandError::Thread)? })
    }

    fn token(&self) -> Result<Option<String>, CommandError> {
        let token = match &self.token_file {
            Some(path) => {
                let read = file::read(path).and_then(file::text);
                let path = path.display().to_string();
                Some(read.map_err(|error| CommandError::Read { path, error })?)
            }
            None => std::env::var(TOKEN_VARIABLE).ok(),
        };
        Ok(token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()))
    }
}

impl ControlPlaneCall {
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self(HttpCall::new(method, path))
    }

    /// Asks for YAML.
    #[must_use]
    pub fn for_yaml(self) -> Self {
        Self(self.0.with_header(ACCEPT, HeaderValue::from_static("application/yaml")))
    }

    /// Sends YAML.
    #[must_use]
    pub fn with_yaml(self, text: String) -> Self {
        let call = self.0.with_header(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        Self(call.with_body(text))
    }

    /// Sends JSON.
    #[must_use]
    pub fn with_json(self, body: &serde_json::Value) -> Self {
        let call = self.0.with_header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self(call.with_body(body.to_string()))
    }

    /// Only if this is the newest revision.
    #[must_use]
    pub fn if_revision(self, revision: u64) -> Self {
        // A number in quotes is a valid value.
        let tag =
            HeaderValue::from_str(&format!("\"{revision}\"")).unwrap_or(HeaderValue::from_static("\"0\""));
        Self(self.0.with_header(IF_MATCH, tag))
    }

    /// Says what the change is for, in one line.
    #[must_use]
    pub fn with_message(self, message: &str) -> Self {
        let line: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match HeaderValue::from_bytes(line.trim().as_bytes()) {
            Ok(value) => Self(self.0.with_header(X_MESSAGE, value)),
            Err(_) => self,
        }
    }
}

impl ControlPlaneSession {
    /// The URL of the control plane.
    pub fn url(&self) -> String {
        self.client.url()
    }

    /// Sends a call whose refusal is an error of the command, and reads the reply as JSON.
    pub fn json<T: DeserializeOwned>(&self, call: ControlPlaneCall) -> Result<T, CommandError> {
        match self.try_json(call)? {
            ControlPlaneAnswer::Done(reply) => Ok(reply),
            ControlPlaneAnswer::Refused(refused) => Err(self.refusal(&refused)),
        }
    }

    /// Sends a call, and reads the reply as JSON.
    pub fn try_json<T: DeserializeOwned>(
        &self,
        call: ControlPlaneCall,
    ) -> Result<ControlPlaneAnswer<T>, CommandError> {
        let reply = self.send(call)?;
        if !reply.status.is_success() {
            return Ok(ControlPlaneAnswer::Refused(RefusedCall::of(&reply)));
        }
        let parsed = serde_json::from_slice(&reply.body);
        parsed.map(ControlPlaneAnswer::Done).map_err(|error| CommandError::ControlPlaneReply {
            url: self.url(),
            problem: format!("it is not what this version of tollgate expects: {error}"),
        })
    }

    /// Sends a call, and reads the reply as text.
    pub fn text(&self, call: ControlPlaneCall) -> Result<(String, Option<String>), CommandError> {
        let reply = self.send(call)?;
        if !reply.status.is_success() {
            return Err(self.refusal(&RefusedCall::of(&reply)));
        }
        let tag = reply.headers.get(http::header::ETAG).and_then(|tag| tag.to_str().ok());
        let tag = tag.map(|tag| tag.trim_matches('"').to_owned());
        let text = String::from_utf8(reply.body.to_vec());
        text.map(|text| (text, tag)).map_err(|_| CommandError::ControlPlaneReply {
            url: self.url(),
            problem: "it is not UTF-8 text".to_owned(),
        })
    }

    /// The error of a command whose call was refused.
    pub fn refusal(&self, refused: &RefusedCall) -> CommandError {
        let hint = match refused.code.as_str() {
            "UNAUTHORIZED" => {
                "\n  hint: give a token with TOLLGATE_TOKEN or --token-file; the first one is in operate.token in \
                 the data folder of the node"
            }
            "FORBIDDEN" => "\n  hint: use a token with the role operate",
            _ => "",
        };
        let detail = if refused.detail.is_empty() { "no reason given" } else { &refused.detail };
        CommandError::ControlPlaneReply {
            url: self.url(),
            problem: format!("{}: {detail}{hint}", refused.status),
        }
    }

    fn send(&self, call: ControlPlaneCall) -> Result<HttpReply, CommandError> {
        self.runtime.block_on(self.client.send(call.0)).map_err(CommandError::ControlPlane)
    }
}

impl RefusedCall {
    fn of(reply: &HttpReply) -> Self {
        let parsed = serde_json::from_slice::<Self>(&reply.body);
        let empty = Self {
            status: reply.status,
            code: String::new(),
            detail: String::new(),
            errors: Vec::new(),
            current: None,
        };
        Self { status: reply.status, ..parsed.unwrap_or(empty) }
    }
}
