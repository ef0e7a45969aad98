//! Settings that have no effect together with the others. They are refused, because they would be relied upon.
//!
//! In a flag and in the settings file they are errors. In an environment variable they are warnings: environments are
//! inherited, and a container with another command must not fail over a variable that is left in it.

use super::ServeArgs;
use super::settings_file::{SettingsFile, WrittenSettings};
use super::store::StoreConfig;
use crate::command_error::CommandError;
use crate::serve::ServeMode;
use tollgate_core::diagnostic::DiagnosticReport;
use tollgate_core::document::{Document, DocumentPath};

const NOT_SHARED: &str = "it applies to a shared store, and `store` names none";
const NO_RULE_FILE: &str = "there is no rule file: `rules` names none";

/// The settings that decide which others have an effect.
pub struct SettingsContext<'a> {
    pub mode: ServeMode,
    pub store: &'a StoreConfig,
    pub has_gateway: bool,
    pub has_rule_file: bool,
}

/// A setting without effect.
struct IneffectiveSetting {
    name: &'static str,
    reason: &'static str,
    is_in_arguments: fn(&ServeArgs) -> bool,
    is_in_file: fn(&WrittenSettings) -> bool,
}

impl SettingsContext<'_> {
    fn ineffective_settings(&self) -> Vec<IneffectiveSetting> {
        let is_gateway_only = self.mode == ServeMode::GatewayOnly;
        let is_memory = matches!(self.store, StoreConfig::Memory);
        let mut found = Vec::new();
        let mut add = |is_ineffective, setting| {
            if is_ineffective {
                found.push(setting);
            }
        };
        add(
            is_gateway_only,
            IneffectiveSetting {
                name: "listen",
                reason: "`tollgate gateway` has no check API; `tollgate serve` opens both",
                is_in_arguments: |args| args.listen.is_some(),
                is_in_file: |file| file.listen.is_some(),
            },
        );
        add(
            !self.has_gateway,
            IneffectiveSetting {
                name: "identity",
                reason: "only a gateway extracts identities from requests, and there is none; clients of the check API name them",
                is_in_arguments: |_| false,
                is_in_file: |file| file.identity.is_some(),
            },
        );
        add(
            is_memory,
            IneffectiveSetting {
                name: "emergency",
                reason: NOT_SHARED,
                is_in_arguments: |args| args.emergency.is_some(),
                is_in_file: |_| false,
            },
        );
        add(
            is_memory,
            IneffectiveSetting {
                name: "redis",
                reason: NOT_SHARED,
                is_in_arguments: |_| false,
                is_in_file: |file| file.redis.is_some(),
            },
        );
        add(
            is_memory && !self.has_rule_file,
            IneffectiveSetting {
                name: "data",
                reason: "there is neither a rule file nor a shared store",
                is_in_arguments: |args| args.data.is_some(),
                is_in_file: |file| file.data.is_some(),
            },
        );
        add(
            !self.has_rule_file,
            IneffectiveSetting {
                name: "on_failed_rule_tests",
                reason: NO_RULE_FILE,
                is_in_arguments: |_| false,
                is_in_file: |file| file.on_failed_rule_tests.is_some(),
            },
        );
        found
    }

    /// Finds settings without effect on the command line, which are an error, and in the environment: warnings.
    pub fn check_arguments(&self, args: &ServeArgs) -> Result<Vec<String>, CommandError> {
        let mut warnings = Vec::new();
        for setting in self.ineffective_settings() {
            let IneffectiveSetting { name, reason, is_in_arguments, .. } = setting;
            if !is_in_arguments(args) {
                continue;
            }
            if args.is_from_environment(name) {
                warnings.push(format!("TOLLGATE_{} has no effect: {reason}", name.to_uppercase()));
            } else {
                return Err(CommandError::IneffectiveFlag { flag: name.replace('_', "-"), reason });
            }
        }
        Ok(warnings)
    }

    /// Finds settings without effect in the settings file, which are errors.
    pub fn check_file(&self, file: &SettingsFile) -> Result<(), DiagnosticReport> {
        let mut document = Document::parse(&file.name, &file.text)?;
        for setting in self.ineffective_settings() {
            if (setting.is_in_file)(&file.settings) {
                let IneffectiveSetting { name, reason, .. } = setting;
                let message = format!("`{name}` has no effect: {reason}");
                document.error_at_name(&DocumentPath::root().field(name), message, "remove it");
            }
        }
        let report = document.into_report();
        if report.errors() > 0 { Err(report) } else { Ok(()) }
    }
}
