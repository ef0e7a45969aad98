//! Settings without effect in the chosen mode: they are refused, because they would be believed to work.
//!
//! A flag and an entry of the settings file are errors. A variable is a warning: environments are shared between
//! programs and inherited, and a container that is started otherwise should not fail over a variable that is left in it.

use super::{ConfigFile, ServeArgs, Store};
use crate::serve::Doors;
use tollgate_core::diagnostic::DiagnosticReport;
use tollgate_core::document::{Document, DocumentPath};

/// What is run, as far as it decides which settings matter.
pub struct Setup<'a> {
    pub doors: Doors,
    pub store: &'a Store,
    pub has_gateway: bool,
    pub has_rule_file: bool,
}

/// A setting without effect, and why.
pub struct WithoutEffect {
    name: &'static str,
    reason: &'static str,
}

impl Setup<'_> {
    fn idle(&self) -> Vec<WithoutEffect> {
        let is_alone = self.doors == Doors::GatewayAlone;
        let is_memory = matches!(self.store, Store::Memory);
        let not_shared = "it is about a store that nodes share, and `store` names none";
        let no_rule_file = "there is no rule file: `rules` names none";
        [
            (is_alone, "listen", "`tollgate gateway` answers no checks; `tollgate serve` opens both"),
            (
                !self.has_gateway,
                "identity",
                "only a gateway finds identities in requests, and there is none; callers of the check API name them",
            ),
            (is_memory, "emergency", not_shared),
            (is_memory, "redis", not_shared),
            (is_memory && !self.has_rule_file, "data", "there is neither a rule file nor a store that nodes share"),
            (!self.has_rule_file, "on_failed_rule_tests", no_rule_file),
        ]
        .into_iter()
        .filter(|(is_idle, ..)| *is_idle)
        .map(|(_, name, reason)| WithoutEffect { name, reason })
        .collect()
    }
}

/// What stands on the command line or in the environment without effect: an error, or warnings.
pub fn check_arguments(args: &ServeArgs, setup: &Setup<'_>) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    for WithoutEffect { name, reason } in setup.idle() {
        let is_stated = match name {
            "listen" => args.listen.is_some(),
            "emergency" => args.emergency.is_some(),
            "data" => args.data.is_some(),
            _ => false,
        };
        if !is_stated {
            continue;
        }
        if args.is_from_environment(name) {
            warnings.push(format!("TOLLGATE_{} has no effect: {reason}", name.to_uppercase()));
        } else {
            return Err(format!("--{} has no effect: {reason}", name.replace('_', "-")));
        }
    }
    Ok(warnings)
}

/// What stands in the settings file, `text` by the name `source`, without effect.
pub fn check_file(
    file: &ConfigFile,
    source: &str,
    text: &str,
    setup: &Setup<'_>,
) -> Result<(), DiagnosticReport> {
    let idle = setup.idle().into_iter().filter(|idle| match idle.name {
        "listen" => file.listen.is_some(),
        "identity" => file.identity.is_some(),
        "redis" => file.redis.is_some(),
        "data" => file.data.is_some(),
        "on_failed_rule_tests" => file.on_failed_rule_tests.is_some(),
        _ => false,
    });
    let mut document = Document::parse(source, text)?;
    for WithoutEffect { name, reason } in idle {
        document.error_at_name(
            &DocumentPath::root().field(name),
            format!("`{name}` has no effect: {reason}"),
            "remove it",
        );
    }
    let report = document.into_report();
    if report.errors() > 0 { Err(report) } else { Ok(()) }
}
