//! Where a node gets its rules: the settings `repository`, `control_plane`, `control_token_file` and `rules_poll`.

use super::setting_value::{SettingError, TextOrNumber, parse_duration};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tollgate_control::HttpClient;
use tollgate_limiter::file;

/// The variable with the token for the control plane. It is no flag: other users see the flags of a process.
const TOKEN_VARIABLE: &str = "TOLLGATE_CONTROL_TOKEN";
const DEFAULT_POLL: Duration = Duration::from_secs(10);

/// Where a node gets its rules.
#[derive(Clone, Debug)]
pub enum RuleSourceConfig {
    /// From its repository, which a rule file seeds.
    Repository,
    /// From its rule file only.
    FileOnly,
    /// From another control plane.
    ControlPlane(HttpClient),
}

/// The flags.
pub struct RuleSourceFlags {
    pub repository: Option<String>,
    pub control_plane: Option<String>,
    pub control_token_file: Option<PathBuf>,
}

/// The rule source that `flags` name.
pub fn read(flags: RuleSourceFlags) -> Result<RuleSourceConfig, SettingError> {
    let has_repository = flags.repository.as_deref().map_or(Ok(true), parse_repository)?;
    let Some(url) = flags.control_plane else {
        return Ok(if has_repository { RuleSourceConfig::Repository } else { RuleSourceConfig::FileOnly });
    };
    let variable = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
    let token = match flags.control_token_file {
        Some(path) => Some(read_token(&path)?),
        None => variable,
    };
    let client = HttpClient::new(&url, token.as_deref(), None).map_err(SettingError::ControlPlane)?;
    Ok(RuleSourceConfig::ControlPlane(client))
}

/// `on` or `off`.
pub fn parse_repository(text: &str) -> Result<bool, SettingError> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(SettingError::Repository(text.to_owned())),
    }
}

/// How often the repository in Redis or the control plane is polled.
pub fn poll_interval(setting: Option<&TextOrNumber>) -> Result<Duration, SettingError> {
    let parsed = setting.map(|setting| parse_duration(setting, "rules_poll", 100_000..=3_600_000_000));
    Ok(parsed.transpose()?.unwrap_or(DEFAULT_POLL))
}

fn read_token(path: &Path) -> Result<String, SettingError> {
    let unreadable = |error| SettingError::ControlTokenFile { path: path.display().to_string(), error };
    Ok(file::read_text(path).map_err(unreadable)?.trim().to_owned())
}
