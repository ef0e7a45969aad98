//! `tollgate token …`: the access tokens of a control plane.

use crate::command_error::CommandError;
use crate::control_plane::{ControlPlaneArgs, ControlPlaneCall};
use crate::output;
use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::process::ExitCode;
use tollgate_core::diagnostic::sanitized;
use tollgate_core::rate::{parse_duration_us, rfc3339};
use tollgate_limiter::Clock;

#[derive(Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print it. It is not shown again
    Create(CreateTokenArgs),
    /// List the tokens, without their secrets
    List(ListTokensArgs),
    /// Revoke a token
    Revoke(RevokeTokenArgs),
}

#[derive(Args)]
pub struct CreateTokenArgs {
    /// Name in the audit log, such as ci
    #[arg(value_name = "NAME")]
    name: String,
    /// What it may do: read, follow (a node with --control-plane), or operate: change rules, lists and keys
    #[arg(long, value_enum, default_value_t = RoleArgument::Read)]
    role: RoleArgument,
    /// How long it is valid, such as 90d; by default until it is revoked
    #[arg(long = "for", value_name = "DURATION", value_parser = duration_us)]
    valid_us: Option<u64>,
    /// Print the id and the token as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

#[derive(Args)]
pub struct ListTokensArgs {
    /// Print the tokens as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

#[derive(Args)]
pub struct RevokeTokenArgs {
    /// Id of the token, as `token list` shows it
    #[arg(value_name = "ID", value_parser = token_id)]
    id: String,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum RoleArgument {
    Read,
    Follow,
    Operate,
}

#[derive(Deserialize, Serialize)]
struct IssuedToken {
    id: String,
    token: String,
}

#[derive(Deserialize)]
struct TokenPage {
    tokens: Vec<ListedToken>,
}

#[derive(Deserialize, Serialize)]
struct ListedToken {
    id: String,
    name: String,
    role: String,
    created: Option<String>,
    expires: Option<String>,
}

fn duration_us(text: &str) -> Result<u64, String> {
    match parse_duration_us(text) {
        Ok(0) => Err("it would never be valid".to_owned()),
        Ok(us) => Ok(us),
        Err(error) => Err(error.to_string()),
    }
}

/// An id is part of a path.
fn token_id(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("an id has letters, digits and - _ . only".to_owned())
    }
}

/// Runs one of the commands.
pub fn run(command: &TokenCommand) -> Result<ExitCode, CommandError> {
    match command {
        TokenCommand::Create(args) => create(args),
        TokenCommand::List(args) => list(args),
        TokenCommand::Revoke(args) => revoke(args),
    }
}

fn create(args: &CreateTokenArgs) -> Result<ExitCode, CommandError> {
    let session = args.control_plane.open()?;
    let role = match args.role {
        RoleArgument::Read => "read",
        RoleArgument::Follow => "follow",
        RoleArgument::Operate => "operate",
    };
    let mut body = json!({ "name": args.name, "role": role });
    if let Some(valid_us) = args.valid_us {
        body["expires"] = rfc3339(Clock::system().now() + valid_us).into();
    }
    let issued: IssuedToken =
        session.json(ControlPlaneCall::new(Method::POST, "/v1/tokens").with_json(&body))?;
    if args.json {
        output::print(format_args!("{}\n", json!(issued)))?;
    } else {
        // Only the token, so that it can be piped to a file or a secret store.
        let token: String = issued.token.chars().filter(char::is_ascii_graphic).collect();
        output::print(format_args!("{token}\n"))?;
        output::print_error(sanitized(&format!(
            "created token {} with the role {role}; it is not shown again",
            issued.id
        )));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListTokensArgs) -> Result<ExitCode, CommandError> {
    let session = args.control_plane.open()?;
    let page: TokenPage = session.json(ControlPlaneCall::new(Method::GET, "/v1/tokens"))?;
    if args.json {
        output::print(format_args!("{}\n", json!(page.tokens)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = |of: fn(&ListedToken) -> &str| {
        page.tokens.iter().map(|token| of(token).chars().count()).max().unwrap_or(0)
    };
    let (ids, names) = (width(|token| &token.id), width(|token| &token.name));
    let mut text = String::new();
    for ListedToken { id, name, role, created, expires } in &page.tokens {
        let created = created.as_ref().map(|time| format!("  created {time}")).unwrap_or_default();
        let expires = expires.as_ref().map(|time| format!("  expires {time}")).unwrap_or_default();
        let line = format!("{id:ids$}  {name:names$}  {role:7}{created}{expires}");
        text += &format!("{}\n", sanitized(line.trim_end()));
    }
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}

fn revoke(args: &RevokeTokenArgs) -> Result<ExitCode, CommandError> {
    let session = args.control_plane.open()?;
    let path = format!("/v1/tokens/{}", args.id);
    let _: Value = session.json(ControlPlaneCall::new(Method::DELETE, path))?;
    output::print(format_args!("revoked token {}\n", args.id))?;
    Ok(ExitCode::SUCCESS)
}
