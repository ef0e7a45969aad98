//! `tollgate rules publish|pull|diff|history|rollback`: the rules of a control plane.

use crate::command_error::CommandError;
use crate::control_plane::{
    ControlPlaneAnswer, ControlPlaneArgs, ControlPlaneCall, ControlPlaneSession, RefusedCall,
};
use crate::output;
use clap::Args;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tollgate_core::diagnostic::sanitized;
use tollgate_core::rules::{RuleDiff, diff};
use tollgate_limiter::file;

/// The exit code if another revision is in force than the command expects.
const STALE: u8 = 3;
/// The exit code if the control plane refuses the rules.
const REFUSED: u8 = 4;
/// The exit code of `diff --exit-code` if there is a difference.
const DIFFERENT: u8 = 5;

#[derive(Args)]
pub struct PublishArgs {
    /// Rule file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What the change is for
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    message: String,
    /// Publish only if this is the newest revision; by default, whichever is the newest now
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

#[derive(Args)]
pub struct PullArgs {
    /// Revision to get; by default the newest
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
    /// File to write instead of standard output
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

#[derive(Args)]
pub struct DiffArgs {
    /// Rule file to compare with the control plane
    #[arg(value_name = "FILE", required_unless_present = "revision")]
    file: Option<PathBuf>,
    /// Revision to compare with FILE, or else with the newest revision; by default the newest
    #[arg(long, value_name = "N")]
    revision: Option<u64>,
    /// Exit with 5 if there is a difference
    #[arg(long)]
    exit_code: bool,
    /// Print the differences as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

#[derive(Args)]
pub struct HistoryArgs {
    /// Number of revisions
    #[arg(long, value_name = "N", default_value_t = 20)]
    count: u32,
    /// Only revisions before this one
    #[arg(long, value_name = "N")]
    before: Option<u64>,
    /// Print the revisions as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

#[derive(Args)]
pub struct RollbackArgs {
    /// Revision whose rules are published again, as a new revision
    #[arg(value_name = "N")]
    revision: u64,
    /// What the change is for
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Roll back only if this is the newest revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
}

/// A revision as the control plane lists it.
#[derive(Debug, Deserialize, Serialize)]
struct ListedRevision {
    revision: u64,
    digest: String,
    author: String,
    time: String,
    message: String,
    origin: String,
}

#[derive(Debug, Deserialize)]
struct RevisionPage {
    revisions: Vec<ListedRevision>,
}

#[derive(Debug, Deserialize)]
struct RevisionYaml {
    #[serde(flatten)]
    listed: ListedRevision,
    yaml: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct NewRevision {
    revision: u64,
}

pub fn publish(args: &PublishArgs) -> Result<ExitCode, CommandError> {
    let text = read(&args.file)?;
    let session = args.control_plane.open()?;
    let newest = newest(&session)?;
    let expected = args.if_revision.unwrap_or(newest.listed.revision);
    let call = ControlPlaneCall::new(Method::PUT, "/v1/rules")
        .with_yaml(text)
        .if_revision(expected)
        .with_message(&args.message);
    let published = match session.try_json::<NewRevision>(call)? {
        ControlPlaneAnswer::Done(published) => published,
        ControlPlaneAnswer::Refused(refused) => {
            return refused_publish(&session, &args.file, expected, &refused);
        }
    };
    let is_new = published.revision != newest.listed.revision;
    let text = match (args.json, is_new) {
        (true, _) => json!({ "revision": published.revision, "published": is_new }).to_string(),
        (false, true) => format!("published revision {}", published.revision),
        (false, false) => format!("revision {} has these rules already", published.revision),
    };
    output::print(format_args!("{text}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows why rules were not published.
fn refused_publish(
    session: &ControlPlaneSession,
    file: &Path,
    expected: u64,
    refused: &RefusedCall,
) -> Result<ExitCode, CommandError> {
    match refused.code.as_str() {
        "PRECONDITION_FAILED" => stale(session, expected, refused),
        "INVALID" => {
            let name = file.display();
            for found in &refused.errors {
                let hint = found.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
                let text = format!("error: {}{hint}", found.message);
                output::print_error(sanitized(&format!("{name}:{}:{}: {text}", found.line, found.column)));
            }
            output::print_error(sanitized(&format!("error: not published: {}", refused.detail)));
            Ok(REFUSED.into())
        }
        _ => Err(session.refusal(refused)),
    }
}

/// Shows which revision is the newest, and what changed since the expected one.
fn stale(
    session: &ControlPlaneSession,
    expected: u64,
    refused: &RefusedCall,
) -> Result<ExitCode, CommandError> {
    let Some(current) = refused.current else { return Err(session.refusal(refused)) };
    let newest = revision(session, current)?;
    let ListedRevision { author, time, message, .. } = &newest.listed;
    let shown = if message.is_empty() { String::new() } else { format!(": {message}") };
    let text = format!(
        "error: revision {expected} is not the newest; revision {current} is, by {author} at {time}{shown}"
    );
    output::print_error(sanitized(&text));
    // An old revision may be gone.
    if let Ok(old) = revision(session, expected) {
        for change in diff(&old.yaml, &newest.yaml).summary {
            output::print_error(sanitized(&format!("  {change}")));
        }
    }
    output::print_error("  hint: `tollgate rules pull` gets the newest; change that and publish again");
    Ok(STALE.into())
}

pub fn pull(args: &PullArgs) -> Result<ExitCode, CommandError> {
    let session = args.control_plane.open()?;
    let (text, number) = match args.revision {
        Some(number) => (revision(&session, number)?.yaml, number.to_string()),
        None => {
            let (text, tag) = session.text(ControlPlaneCall::new(Method::GET, "/v1/rules").for_yaml())?;
            (text, tag.unwrap_or_default())
        }
    };
    let Some(path) = &args.out else {
        output::print(&text)?;
        return Ok(ExitCode::SUCCESS);
    };
    let written = write_whole(path, &text);
    let name = path.display();
    written.map_err(|error| CommandError::Write { path: name.to_string(), error })?;
    output::print(format_args!("{name}: revision {number}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes beside the file and renames, so that a node that watches it never sees half of it.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // It may not even exist.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

pub fn show_diff(args: &DiffArgs) -> Result<ExitCode, CommandError> {
    let file =
        args.file.as_ref().map(|file| Ok::<_, CommandError>((file.display().to_string(), read(file)?)));
    let file = file.transpose()?;
    let session = args.control_plane.open()?;
    let named = |found: RevisionYaml| (format!("revision {}", found.listed.revision), found.yaml);
    let from = named(match args.revision {
        Some(number) => revision(&session, number)?,
        None => newest(&session)?,
    });
    let to = match file {
        Some(file) => file,
        None => named(newest(&session)?),
    };
    let found = diff(&from.1, &to.1);
    let is_different = from.1 != to.1;
    let text = if args.json {
        format!("{}\n", serde_json::to_string(&found)?)
    } else if is_different {
        diff_text(&from.0, &to.0, &found)
    } else {
        String::new()
    };
    output::print(text)?;
    Ok(if is_different && args.exit_code { DIFFERENT.into() } else { ExitCode::SUCCESS })
}

fn diff_text(from: &str, to: &str, found: &RuleDiff) -> String {
    let mut text = format!("--- {from}\n+++ {to}\n{}", found.unified);
    if !found.summary.is_empty() {
        text.push('\n');
    }
    for change in &found.summary {
        text += &format!("{change}\n");
    }
    text
}

pub fn history(args: &HistoryArgs) -> Result<ExitCode, CommandError> {
    let session = args.control_plane.open()?;
    let before = args.before.map(|before| format!("&before={before}")).unwrap_or_default();
    let path = format!("/v1/revisions?count={}{before}", args.count);
    let page: RevisionPage = session.json(ControlPlaneCall::new(Method::GET, path))?;
    if args.json {
        let text = serde_json::to_string(&page.revisions)?;
        output::print(format_args!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = |of: fn(&ListedRevision) -> &str| {
        page.revisions.iter().map(|listed| of(listed).chars().count()).max().unwrap_or(0)
    };
    let (author, origin) = (width(|listed| &listed.author), width(|listed| &listed.origin));
    let mut text = String::new();
    for listed in &page.revisions {
        let ListedRevision { revision, time, author: by, origin: from, message, .. } = listed;
        let line = format!("{revision:>6}  {time}  {by:author$}  {from:origin$}  {message}");
        text += &format!("{}\n", sanitized(line.trim_end()));
    }
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}

pub fn rollback(args: &RollbackArgs) -> Result<ExitCode, CommandError> {
    let session = args.control_plane.open()?;
    let path = format!("/v1/revisions/{}/rollback", args.revision);
    let body = args.message.as_ref().map_or_else(|| json!({}), |message| json!({ "message": message }));
    let mut call = ControlPlaneCall::new(Method::POST, path).with_json(&body);
    if let Some(expected) = args.if_revision {
        call = call.if_revision(expected);
    }
    let published: NewRevision = match session.try_json(call)? {
        ControlPlaneAnswer::Done(published) => published,
        ControlPlaneAnswer::Refused(refused) => {
            let name = PathBuf::from(format!("revision {}", args.revision));
            return refused_publish(&session, &name, args.if_revision.unwrap_or_default(), &refused);
        }
    };
    if args.json {
        output::print(format_args!("{}\n", json!(published)))?;
    } else {
        let number = published.revision;
        output::print(format_args!(
            "published revision {number}, with the rules of revision {}\n",
            args.revision
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn newest(session: &ControlPlaneSession) -> Result<RevisionYaml, CommandError> {
    session.json(ControlPlaneCall::new(Method::GET, "/v1/rules"))
}

fn revision(session: &ControlPlaneSession, number: u64) -> Result<RevisionYaml, CommandError> {
    session.json(ControlPlaneCall::new(Method::GET, format!("/v1/revisions/{number}")))
}

/// Reads a rule file, or a pipe.
fn read(path: &Path) -> Result<String, CommandError> {
    let text = File::open(path).and_then(|source| file::read_stream(source, file::MOST_BYTES));
    let text = text.and_then(file::text);
    text.map_err(|error| CommandError::Read { path: path.display().to_string(), error })
}
