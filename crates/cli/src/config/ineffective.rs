//! Settings that have no effect together with the others. They are refused, because they would be relied upon.
//!
//! In a flag and in the settings file they are errors. In an environment variable they are warnings: environments are
//! inherited, and a container with another command must not fail over a variable that is left in it.

use super::settings_file::SettingsFile;
use super::{RuleSourceConfig, ServeConfig, StoreConfig, WrittenSettings};
use crate::command_error::CommandError;
use crate::serve::ServeMode;
use tollgate_core::diagnostic::DiagnosticReport;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_limiter::Emergency;

const NOT_SHARED: &str = "it applies to a shared store, and `store` names none";

/// The settings that decide which others have an effect.
pub struct SettingsContext<'a> {
    pub mode: ServeMode,
    pub config: &'a ServeConfig,
}

/// A setting that may be without effect.
struct IneffectiveSetting {
    name: &'static str,
    is_ineffective: bool,
    reason: &'static str,
    is_set: fn(&WrittenSettings) -> bool,
}

impl SettingsContext<'_> {
    fn ineffective_settings(&self) -> impl Iterator<Item = IneffectiveSetting> {
        let is_memory = matches!(self.config.store, StoreConfig::Memory);
        let has_rule_file = self.config.rules.is_some();
        let is_follower = matches!(self.config.rule_source, RuleSourceConfig::ControlPlane(_));
        let is_file_only = matches!(self.config.rule_source, RuleSourceConfig::FileOnly);
        let settings = [
            IneffectiveSetting {
                name: "listen",
                is_ineffective: self.mode == ServeMode::GatewayOnly,
                reason: "`tollgate gateway` has no check API; `tollgate serve` opens both",
                is_set: |settings| settings.listen.is_some(),
            },
            IneffectiveSetting {
                name: "grpc_listen",
                is_ineffective: self.mode == ServeMode::GatewayOnly,
                reason: "`tollgate gateway` has no RLS door; `tollgate serve` opens both",
                is_set: |settings| settings.grpc_listen.is_some(),
            },
            IneffectiveSetting {
                name: "grpc",
                is_ineffective: self.config.grpc.is_none() && self.mode == ServeMode::AllDoors,
                reason: "`grpc_listen` opens no RLS door",
                is_set: |settings| settings.grpc.is_some(),
            },
            IneffectiveSetting {
                name: "resp_listen",
                is_ineffective: self.mode == ServeMode::GatewayOnly,
                reason: "`tollgate gateway` has no RESP door; `tollgate serve` opens both",
                is_set: |settings| settings.resp_listen.is_some(),
            },
            IneffectiveSetting {
                name: "resp_password_file",
                is_ineffective: self.config.resp.is_none() && self.mode == ServeMode::AllDoors,
                reason: "`resp_listen` opens no RESP door",
                is_set: |settings| settings.resp_password_file.is_some(),
            },
            IneffectiveSetting {
                name: "resp",
                is_ineffective: self.config.resp.is_none() && self.mode == ServeMode::AllDoors,
                reason: "`resp_listen` opens no RESP door",
                is_set: |settings| settings.resp.is_some(),
            },
            IneffectiveSetting {
                name: "admin_insecure",
                is_ineffective: self
                    .config
                    .admin
                    .as_ref()
                    .is_none_or(|admin| admin.listen.ip().is_loopback()),
                reason: "`admin_listen` is closed to other hosts",
                is_set: |settings| settings.admin_insecure.is_some(),
            },
            IneffectiveSetting {
                name: "admin",
                is_ineffective: self.config.admin.is_none(),
                reason: "`admin_listen` is off",
                is_set: |settings| settings.admin.is_some(),
            },
            IneffectiveSetting {
                name: "forward_auth",
                is_ineffective: self.mode == ServeMode::GatewayOnly,
                reason: "`tollgate gateway` has no forward-auth; `tollgate serve` opens both",
                is_set: |settings| settings.forward_auth.is_some(),
            },
            IneffectiveSetting {
                name: "emergency",
                is_ineffective: is_memory && self.config.emergency == Emergency::OnOutage,
                reason: "`on_outage` applies to a shared store, and there is none; `on` applies to every store",
                is_set: |settings| settings.emergency.is_some(),
            },
            IneffectiveSetting {
                name: "redis",
                is_ineffective: is_memory,
                reason: NOT_SHARED,
                is_set: |settings| settings.redis.is_some(),
            },
            IneffectiveSetting {
                name: "rules",
                is_ineffective: is_follower,
                reason: "the rules come from the control plane that `control_plane` names",
                is_set: |settings| settings.rules.is_some(),
            },
            IneffectiveSetting {
                name: "repository",
                is_ineffective: is_follower,
                reason: "the rules come from the control plane that `control_plane` names",
                is_set: |settings| settings.repository.is_some(),
            },
            IneffectiveSetting {
                name: "control_token_file",
                is_ineffective: !is_follower,
                reason: "`control_plane` names no control plane",
                is_set: |settings| settings.control_token_file.is_some(),
            },
            IneffectiveSetting {
                name: "rules_poll",
                is_ineffective: is_memory && !is_follower,
                reason: "there is neither a shared store nor a control plane to poll",
                is_set: |settings| settings.rules_poll.is_some(),
            },
            IneffectiveSetting {
                name: "on_failed_rule_tests",
                is_ineffective: !has_rule_file && is_file_only,
                reason: "there are no rules but the built-in example: `rules` names no file, and `repository` is off",
                is_set: |settings| settings.on_failed_rule_tests.is_some(),
            },
        ];
        settings.into_iter().filter(|setting| setting.is_ineffective)
    }

    /// Finds settings without effect on the command line, which are an error, and in the environment: warnings.
    pub fn check_arguments(&self, args: &WrittenSettings) -> Result<Vec<String>, CommandError> {
        let mut warnings = Vec::new();
        for setting in self.ineffective_settings() {
            let IneffectiveSetting { name, reason, is_set, .. } = setting;
            if !is_set(args) {
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
            if (setting.is_set)(&file.settings) {
                let IneffectiveSetting { name, reason, .. } = setting;
                let message = format!("`{name}` has no effect: {reason}");
                document.error_at_name(&DocumentPath::root().field(name), message, "remove it");
            }
        }
        let report = document.into_report();
        if report.errors() > 0 { Err(report) } else { Ok(()) }
    }
}
