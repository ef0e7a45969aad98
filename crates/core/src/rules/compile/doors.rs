//! Warnings about rules that an open door cannot apply.

use super::{RuleCompiler, inherited};
use crate::algorithm::Algorithm;
use crate::document::DocumentPath;
use crate::key::Dimension;
use crate::request::NamedIdentity;
use crate::rules::doors::{DoorCapability, OpenDoor};
use crate::rules::on_exceed::DEFAULT_PRIORITY;
use crate::rules::written::{OnExceed, WrittenRule};

impl RuleCompiler<'_> {
    pub(super) fn warn_of_doors(&mut self, doors: &[OpenDoor]) {
        for door in doors {
            for (index, rule) in self.file.rules.iter().enumerate() {
                let path = DocumentPath::root().field("rules").index(index);
                self.warn_of_actions(rule, door, &path);
                self.warn_of_algorithm(rule, index, door, &path);
                self.warn_of_conditions(rule, door, &path);
                self.warn_of_key(rule, door, &path);
            }
            self.warn_of_tiers(door);
        }
    }

    /// `on_exceed` and `soft`, of the rule or of the defaults.
    fn warn_of_actions(&mut self, rule: &WrittenRule, door: &OpenDoor, path: &DocumentPath) {
        let defaults = &self.file.defaults;
        let action = inherited(rule.on_exceed.as_ref(), defaults.on_exceed.as_ref(), "on_exceed", path);
        let soft = inherited(rule.soft.as_ref(), defaults.soft.as_ref(), "soft", path);
        let soft = soft.map(|(soft, path)| (&soft.then, path));
        for (action, path) in action.into_iter().chain(soft) {
            let Some(needed) = action.needed_capability() else { continue };
            let name = action.name();
            if !door.can(needed) {
                let message = match path.name() {
                    Some("soft") => {
                        format!("`{name}` has no effect in {}: requests are not delayed there", door.name)
                    }
                    _ => format!(
                        "`{name}` has no effect in {}: requests are refused at once, as with `reject`",
                        door.name
                    ),
                };
                self.document.warning(&path, message, "it works in the gateway and the tower layer");
            } else if let OnExceed::Shed(shed) = action
                && !door.can(DoorCapability::Priority)
                && shed.critical > DEFAULT_PRIORITY
            {
                let message = format!(
                    "no request is critical in {}: without `identity: priority`, all have priority {DEFAULT_PRIORITY}",
                    door.name
                );
                let hint = "add `identity: { priority: { header: … } }` to the settings";
                self.document.warning(&path, message, hint);
            }
        }
    }

    fn warn_of_algorithm(&mut self, rule: &WrittenRule, index: usize, door: &OpenDoor, path: &DocumentPath) {
        if door.can(DoorCapability::Completion) {
            return;
        }
        let compiled = self.origins.iter().position(|origin| *origin == index);
        let Some(compiled) = compiled.map(|index| &self.parts.rules[index]) else { return };
        let limits = compiled.sizes.all().flat_map(|size| self.parts.sizes[size as usize].clone());
        let mut limits = limits.map(|limit| self.parts.limits[limit as usize].algorithm());
        if limits.any(|algorithm| algorithm == Algorithm::Concurrency) {
            let message = format!(
                "{} refuses every request that matches rule `{}` with an error: it does not see requests end",
                door.name, rule.id
            );
            let hint = "send these requests through the gateway, or use another algorithm";
            self.document.warning(&path.field("algorithm"), message, hint);
        }
    }

    /// Conditions on identities that no request of this door has.
    fn warn_of_conditions(&mut self, rule: &WrittenRule, door: &OpenDoor, path: &DocumentPath) {
        let mut unmet: Vec<(&str, DocumentPath)> = Vec::new();
        if rule.domain.is_some() && !door.can(DoorCapability::Domain) {
            unmet.push(("domain", path.field("domain")));
        }
        if let Some(matches) = &rule.matches {
            let path = path.field("match");
            let named = NamedIdentity::ALL.into_iter();
            let named = named.filter(|kind| matches.pattern(*kind).is_some() && !door.provides(kind.name()));
            unmet.extend(named.map(|kind| (kind.name(), path.field(kind.pattern_field()))));
            let ids = matches.ids.keys().filter(|name| !door.provides(name));
            unmet.extend(ids.map(|name| (name.as_str(), path.field("ids").field(name))));
            let exactly = matches.exactly.iter().flat_map(|names| names.0.iter().enumerate());
            let exactly = exactly.filter(|(_, name)| match Dimension::from_name(name) {
                Dimension::Named(_) | Dimension::Custom(_) => !door.provides(name),
                _ => false,
            });
            unmet.extend(exactly.map(|(index, name)| (name.as_str(), path.field("exactly").index(index))));
        }
        for (name, path) in unmet {
            let message =
                format!("rule `{}` never applies in {}: its requests have no `{name}`", rule.id, door.name);
            self.document.warning(&path, message, source_hint(name));
        }
    }

    fn warn_of_key(&mut self, rule: &WrittenRule, door: &OpenDoor, path: &DocumentPath) {
        let (own, default) = (rule.key.as_ref(), self.file.defaults.key.as_ref());
        let Some((names, path)) = inherited(own, default, "key", path) else { return };
        for (index, name) in names.0.iter().enumerate() {
            let dimension = Dimension::from_name(name);
            let is_provided = match dimension {
                Dimension::Named(_) | Dimension::Custom(_) => door.provides(name),
                Dimension::Domain => door.can(DoorCapability::Domain),
                _ => true,
            };
            if !is_provided {
                let message = format!("requests of {} have no `{name}` to count by", door.name);
                self.document.warning(&path.index(index), message, source_hint(name));
            }
        }
    }

    /// Tiers that no client of the door can be in.
    fn warn_of_tiers(&mut self, door: &OpenDoor) {
        for (name, tier) in &self.file.tiers {
            let path = DocumentPath::root().field("tiers").field(name);
            let is_given = |rule: &WrittenRule| {
                let pattern = rule.matches.as_ref().and_then(|matches| matches.api_key_pattern.as_ref());
                rule.tier.as_ref() == Some(name) && pattern.is_some()
            };
            let is_default = self.file.defaults.tier.as_ref() == Some(name);
            let has_members = !tier.keys.is_empty() || tier.api_key_pattern.is_some();
            if !door.can(DoorCapability::Tier)
                && !has_members
                && !is_default
                && !self.file.rules.iter().any(is_given)
            {
                let message = format!("no client of {} can be in tier `{name}`", door.name);
                let hint =
                    "add `api_key_pattern` or `keys` to it, or `identity: { tier: … }` to the settings";
                self.document.warning_at_name(&path, message, hint);
            } else if tier.api_key_pattern.is_some() && !door.provides("api_key") {
                let message = format!(
                    "no client of {} matches this pattern: its requests have no `api_key`",
                    door.name
                );
                self.document.warning(&path.field("api_key_pattern"), message, source_hint("api_key"));
            }
        }
    }
}

/// How to configure a source of the identity.
fn source_hint(name: &str) -> String {
    match Dimension::from_name(name) {
        Dimension::Domain => "remove `domain`".to_owned(),
        Dimension::Custom(_) => {
            format!("add a source: `identity: {{ ids: {{ {name}: … }} }}` in the settings")
        }
        _ => format!("add a source: `identity: {{ {name}: … }}` in the settings"),
    }
}
