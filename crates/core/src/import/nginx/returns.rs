//! `return`, and `rewrite` with a redirect: nginx answers with them before it looks at limits.

use super::LimitImporter;
use super::scopes::{InheritedLimits, ServerArea, ZoneUse};
use super::syntax::NginxDirective;
use super::variables::ConfigPlace;
use std::collections::BTreeSet;

const ANY_PATH: [&str; 10] = ["^", "^/", "/", ".*", "(.*)", "^.*", "^.*$", "^(.*)", "^(.*)$", "^/(.*)$"];

/// The requests that the directives of a block answer before its limits.
struct EarlyAnswers {
    /// The directive that answers all of them.
    all: Option<ConfigPlace>,
    /// Directives that answer some of them.
    some: Vec<ConfigPlace>,
}

impl LimitImporter<'_> {
    /// Registers the statuses that a block redirects to another location, which has limits of its own.
    pub(super) fn add_redirected_statuses(&mut self, directives: &[NginxDirective]) {
        for directive in directives {
            if let ("error_page", [statuses @ .., target]) =
                (directive.name.text.as_str(), directive.arguments.as_slice())
                && target.text.starts_with(['/', '@', '$'])
            {
                self.redirected_statuses.extend(statuses.iter().map(|status| status.text.clone()));
            }
            self.add_redirected_statuses(directive.block.as_deref().unwrap_or_default());
        }
    }

    /// Removes the limits of the areas of a block if it answers all of their requests before. `outer` are the limits that
    /// surround the block.
    pub(super) fn remove_limits_after_answers(
        &mut self,
        directives: &[NginxDirective],
        outer: &InheritedLimits,
        areas: &mut [ServerArea],
    ) {
        let answers = early_answers(directives, &self.redirected_statuses);
        if let Some(place) = answers.all {
            let mut has_own = false;
            for area in areas {
                let uses = area.limits.applied().map(|(zone_use, _)| zone_use);
                let is_outer = |zone_use: &ZoneUse| outer.applied().any(|(known, _)| known == zone_use);
                for own in uses.filter(|zone_use| !is_outer(zone_use)) {
                    has_own = true;
                    if let Some(zone) = self.zones.get_mut(&own.zone) {
                        zone.is_used = true;
                    }
                }
                area.limits.remove_uses();
            }
            if has_own {
                let message =
                    "nginx answers with this before it looks at limits: those of this block never apply";
                self.warn(place.file, place.position, message, "they are not imported");
            }
        } else if areas.iter().any(|area| area.limits.applied().next().is_some()) {
            for place in answers.some {
                let message = "requests that nginx answers with this are not limited there; here they count";
                let hint = "if that matters, name their paths, hosts or methods in `except` of the rules";
                self.warn(place.file, place.position, message, hint);
            }
        }
    }
}

/// Follows the directives in their order, up to the first that answers all requests.
fn early_answers(directives: &[NginxDirective], redirected: &BTreeSet<String>) -> EarlyAnswers {
    let mut answers = EarlyAnswers { all: None, some: Vec::new() };
    // Whether no request has left these directives.
    let mut is_complete = true;
    for directive in directives {
        let place = ConfigPlace { file: directive.file, position: directive.name.position };
        let (answers_all, answers_some) = match directive.name.text.as_str() {
            "break" => return answers,
            "return" if is_redirected(directive, redirected) => return answers,
            "return" => (true, true),
            "rewrite" if is_redirect(directive) => (ANY_PATH.contains(&directive.argument(0)), true),
            "rewrite" => {
                is_complete &= directive.argument(2) != "break";
                (false, false)
            }
            "if" => {
                let inner = directive.block.as_deref().unwrap_or_default();
                is_complete &= !inner.iter().any(leaves);
                let inner = early_answers(inner, redirected);
                answers.some.extend(inner.all.into_iter().chain(inner.some));
                (false, false)
            }
            _ => (false, false),
        };
        if answers_all && is_complete {
            answers.all = Some(place);
            return answers;
        }
        if answers_some {
            answers.some.push(place);
        }
        if answers_all {
            return answers;
        }
    }
    answers
}

/// Whether later directives of the block are not for all requests.
fn leaves(directive: &NginxDirective) -> bool {
    directive.name.text == "break" || directive.name.text == "rewrite" && directive.argument(2) == "break"
}

/// Whether a `rewrite` answers with a redirect.
fn is_redirect(directive: &NginxDirective) -> bool {
    let target = directive.argument(1);
    matches!(directive.argument(2), "permanent" | "redirect")
        || ["http://", "https://", "$scheme"].iter().any(|start| target.starts_with(start))
}

/// Whether the status of a `return` leads to another location.
fn is_redirected(directive: &NginxDirective, redirected: &BTreeSet<String>) -> bool {
    matches!(directive.arguments.as_slice(), [status] if redirected.contains(&status.text))
}
