//! What rules ask of the open doors in vain.

use super::RuleCompiler;
use crate::algorithm::Algorithm;
use crate::document::DocumentPath;
use crate::key::Dimension;
use crate::rules::doors::{DoorCapability, OpenDoor};
use crate::rules::on_exceed::USUAL_PRIORITY;
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
        let defaults = (&self.file.defaults, DocumentPath::root().field("defaults"));
        let own = rule.on_exceed.as_ref().map(|said| (said, path.field("on_exceed")));
        let inherited = defaults.0.on_exceed.as_ref().map(|said| (said, defaults.1.field("on_exceed")));
        let soft = rule.soft.as_ref().map(|soft| (&soft.then, path.field("soft")));
        let inherited_soft = defaults.0.soft.as_ref().map(|soft| (&soft.then, defaults.1.field("soft")));
        for (said, path) in own.or(inherited).into_iter().chain(soft.or(inherited_soft)) {
            let (action, needs) = match said {
                OnExceed::Queue(_) | OnExceed::Tarpit(_) => (said.name(), DoorCapability::Wait),
                OnExceed::Shed(_) => (said.name(), DoorCapability::Completion),
                OnExceed::Reject | OnExceed::Flag(_) | OnExceed::Shadow => continue,
            };
            if !door.can(needs) {
                let message = match path.name() {
                    Some("soft") => {
                        format!("`{action}` has no effect in {}: nothing is delayed there", door.name)
                    }
                    _ => format!(
                        "`{action}` has no effect in {}: it refuses at once, as with `reject`",
                        door.name
                    ),
                };
                self.document.warning(&path, message, "it works in the gateway and the tower layer");
            } else if let OnExceed::Shed(shed) = said
                && !door.can(DoorCapability::Priority)
                && shed.critical > USUAL_PRIORITY
            {
                let message = format!(
                    "no request is critical in {}: without `identity: priority`, all have priority {USUAL_PRIORITY}",
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
        let Some(compiled) = compiled.map(|place| &self.parts.rules[place]) else { return };
        let limits = compiled.sizes.all().flat_map(|size| self.parts.sizes[size as usize].clone());
        let mut limits = limits.map(|limit| self.parts.limits[limit as usize].algorithm());
        if limits.any(|algorithm| algorithm == Algorithm::Concurrency) {
            let message = format!(
                "{} refuses every request that meets rule `{}` with an error: it does not see requests end",
                door.name, rule.id
            );
            let hint = "send these requests through the gateway, or count them per time";
            self.document.warning(&path.field("algorithm"), message, hint);
        }
    }

    /// Conditions about what no request of this door has.
    fn warn_of_conditions(&mut self, rule: &WrittenRule, door: &OpenDoor, path: &DocumentPath) {
        let mut in_vain: Vec<(&str, DocumentPath)> = Vec::new();
        if rule.domain.is_some() && !door.can(DoorCapability::Domain) {
            in_vain.push(("domain", path.field("domain")));
        }
        if let Some(matches) = &rule.matches {
            let path = path.field("match");
            let named = [
                ("api_key", "api_key_pattern", &matches.api_key_pattern),
                ("user", "user_pattern", &matches.user_pattern),
                ("tenant", "tenant_pattern", &matches.tenant_pattern),
            ];
            let named = named.into_iter().filter(|(name, _, said)| said.is_some() && !door.finds(name));
            in_vain.extend(named.map(|(name, field, _)| (name, path.field(field))));
            let ids = matches.ids.keys().filter(|name| !door.finds(name));
            in_vain.extend(ids.map(|name| (name.as_str(), path.field("ids").field(name))));
        }
        for (name, path) in in_vain {
            let message =
                format!("rule `{}` never applies in {}: its requests have no `{name}`", rule.id, door.name);
            self.document.warning(&path, message, where_from(name));
        }
    }

    fn warn_of_key(&mut self, rule: &WrittenRule, door: &OpenDoor, path: &DocumentPath) {
        let own = rule.key.as_ref().map(|names| (names, path.field("key")));
        let inherited = self.file.defaults.key.as_ref();
        let inherited = inherited.map(|names| (names, DocumentPath::root().field("defaults").field("key")));
        let Some((names, path)) = own.or(inherited) else { return };
        for (index, name) in names.0.iter().enumerate() {
            let is_identity = !matches!(Dimension::from_name(name), Dimension::Ip | Dimension::Route);
            if is_identity && !door.finds(name) {
                let message =
                    format!("nothing is counted by `{name}` in {}: its requests have none", door.name);
                self.document.warning(&path.index(index), message, where_from(name));
            }
        }
    }

    /// Tiers into which nothing puts a client.
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
                let message = format!("nothing puts a client of {} into tier `{name}`", door.name);
                let hint =
                    "give it an `api_key_pattern` or `keys`, or add `identity: { tier: … }` to the settings";
                self.document.warning_at_name(&path, message, hint);
            } else if tier.api_key_pattern.is_some() && !door.finds("api_key") {
                let message = format!(
                    "this puts no client of {} into the tier: its requests have no `api_key`",
                    door.name
                );
                self.document.warning(&path.field("api_key_pattern"), message, where_from("api_key"));
            }
        }
    }
}

/// Where the identity would come from.
fn where_from(name: &str) -> String {
    match Dimension::from_name(name) {
        Dimension::Custom(_) if name == "domain" => "remove `domain`".to_owned(),
        Dimension::Custom(_) => {
            format!("say where it is: `identity: {{ ids: {{ {name}: … }} }}` in the settings")
        }
        _ => format!("say where it is: `identity: {{ {name}: … }}` in the settings"),
    }
}
