//! Internal redirects, and code that may do the same: nginx also limits a request by the location that it redirects the request to. Rules see the path
//! that the client sent.

use super::LimitImporter;
use super::scopes::{InheritedLimits, ZoneUse};
use super::syntax::{NginxDirective, shown};
use crate::diagnostic::TextPosition;

impl LimitImporter<'_> {
    /// No path selects a named location: requests are redirected to it.
    pub(super) fn warn_of_named_location(&mut self, limits: &InheritedLimits) {
        for (used, _) in limits.applied() {
            if let Some(zone) = self.zones.get_mut(&used.zone) {
                zone.is_used = true;
            }
            let message = "a limit of a named location has no equivalent";
            let hint = "limit the paths that clients send; the limit is not imported";
            self.warn(used.file, used.position, message, hint);
        }
    }

    /// Names the directives that redirect to a path or to a named location.
    pub(super) fn warn_of_internal_redirects(&mut self, directives: &[NginxDirective]) {
        for directive in directives {
            let last = directive.arguments.last().map_or("", |word| word.text.as_str());
            let is_redirect = match directive.name.text.as_str() {
                // The others end in the same location, or at the client.
                "rewrite" => !matches!(last, "break" | "redirect" | "permanent") && !last.contains("://"),
                "try_files" => !last.starts_with('='),
                "error_page" => last.starts_with(['/', '@', '$']),
                _ => false,
            };
            if is_redirect {
                self.warn_of_internal_redirect(&directive.name.text, directive.file, directive.name.position);
            }
            self.warn_of_internal_redirects(directive.block.as_deref().unwrap_or_default());
        }
    }

    fn warn_of_internal_redirect(&mut self, directive: &str, file: usize, position: TextPosition) {
        let message = format!("the internal redirect of `{directive}` has no equivalent");
        let hint = "limit the paths that clients send as well, if the location that they end in has limits";
        self.warn(file, position, &message, hint);
    }

    /// Names code, which may redirect requests, answer them and limit them.
    pub(super) fn warn_of_code(&mut self, directives: &[NginxDirective]) {
        for directive in directives {
            let name = directive.name.text.as_str();
            if ["_by_lua_block", "_by_lua_file", "_by_lua"].iter().any(|end| name.ends_with(end)) {
                let message = format!("the code of `{}` is not understood", shown(name));
                let hint = "limits, redirects and answers in it are not imported";
                self.warn(directive.file, directive.name.position, &message, hint);
            }
            self.warn_of_code(directive.block.as_deref().unwrap_or_default());
        }
    }

    /// Most configurations have an `index`. It matters if the file is in a location with limits that the folder has not.
    pub(super) fn warn_of_index_files(&mut self) {
        let mut found = Vec::new();
        for server in &self.servers {
            let folders = server.areas.iter().filter(|area| area.serves_files && area.pattern.is_prefix());
            for area in folders {
                let folder = format!("{}/", area.pattern.prefix().trim_end_matches('/'));
                for index in area.limits.index.iter().flatten() {
                    let is_absolute = index.name.starts_with('/');
                    let path =
                        if is_absolute { index.name.clone() } else { format!("{folder}{}", index.name) };
                    let Some(target) = server.area_of(&path) else { continue };
                    let is_new = |used: &ZoneUse| area.limits.applied().all(|(known, _)| known != used);
                    if target.limits.applied().any(|(used, _)| is_new(used)) {
                        found.push((index.file, index.position));
                    }
                }
            }
        }
        for (file, position) in found {
            self.warn_of_internal_redirect("index", file, position);
        }
    }
}

/// Whether a block has no directive that answers requests in another way than with files.
pub(super) fn serves_files(directives: &[NginxDirective]) -> bool {
    !directives.iter().any(|one| one.name.text == "return" || one.name.text.ends_with("_pass"))
}
