//! `tollgate rules import …`: the limits of other rate limiters as a rule file.

use super::read;
use crate::command_error::CommandError;
use crate::output;
use clap::Subcommand;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use tollgate_core::import::{ImportedRules, envoy_ratelimit, nginx};
use tollgate_core::rules::pattern::Glob;

#[derive(Subcommand)]
pub enum ImportCommand {
    /// Configuration files of envoyproxy/ratelimit
    EnvoyRatelimit {
        /// Configuration files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// An nginx configuration with limit_req and limit_conn, and the files that it includes
    Nginx {
        /// The main file; names of included files are relative to its folder
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Prints the rules on standard output, and what has no equivalent on standard error.
pub fn run(command: &ImportCommand) -> Result<ExitCode, CommandError> {
    let ImportedRules { text, warnings } = match command {
        ImportCommand::EnvoyRatelimit { files } => {
            let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            let texts = files.iter().map(|file| read(file)).collect::<Result<Vec<String>, _>>()?;
            let files: Vec<envoy_ratelimit::ConfigFile<'_>> =
                names.iter().map(String::as_str).zip(texts.iter().map(String::as_str)).collect();
            envoy_ratelimit::import(&files)?
        }
        ImportCommand::Nginx { file } => {
            let folder = file.parent().unwrap_or(Path::new(""));
            nginx::import(&file.display().to_string(), &read(file)?, &mut |pattern| {
                included(folder, pattern)
            })?
        }
    };
    for report in &warnings {
        output::print_error(report);
    }
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// The files of an `include`, by name. Only a name without wildcards must exist.
fn included(folder: &Path, pattern: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = vec![PathBuf::new()];
    for component in folder.join(pattern).components() {
        let name = match component {
            Component::Normal(name) => name.to_string_lossy().into_owned(),
            other => {
                found.iter_mut().for_each(|path| path.push(other));
                continue;
            }
        };
        let glob = Glob::new(&name);
        if glob.is_exact() {
            found.iter_mut().for_each(|path| path.push(&name));
            continue;
        }
        let mut matching: Vec<PathBuf> = Vec::new();
        for path in &found {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path.as_path() };
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let entries = entries.filter(|entry| {
                let entry = entry.file_name();
                let entry = entry.to_string_lossy();
                // As in a shell, a wildcard does not match the dot of a hidden file.
                glob.matches(&entry) && (!entry.starts_with('.') || name.starts_with('.'))
            });
            matching.extend(entries.map(|entry| path.join(entry.file_name())));
        }
        matching.sort();
        found = matching;
    }
    let has_wildcard = !Glob::new(pattern).is_exact();
    let found = found.into_iter().filter(|path| !has_wildcard || path.is_file());
    let text = |path: &Path| read(path).map_err(|error| cause(&error));
    found.map(|path| Ok((path.display().to_string(), text(&path)?))).collect()
}

/// The cause alone: the name is in the configuration.
fn cause(error: &CommandError) -> String {
    match error {
        CommandError::Read { error, .. } => error.to_string(),
        other => other.to_string(),
    }
}
