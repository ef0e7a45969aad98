//! The files of a configuration: `include`s, and the reports about each file.

use super::syntax::{NginxDirective, error, parse, shown};
use crate::diagnostic::{Diagnostic, DiagnosticReport, Redactions, TextRegion};

/// Files that include each other end here.
const DEEPEST: usize = 16;
const MOST_FILES: usize = 1_000;
/// The most diagnostics in the report of one file.
const MOST_DIAGNOSTICS: usize = 100;
/// Parts of the names of variables that hold credentials.
const CREDENTIALS: [&str; 6] = ["key", "auth", "token", "secret", "cookie", "session"];

/// Finds the files of an `include`, as (name, text), or says why not. A pattern may match no file.
pub type ReadIncluded<'r> = dyn FnMut(&str) -> Result<Vec<(String, String)>, String> + 'r;

/// All files that were read.
#[derive(Default)]
pub(super) struct ConfigFiles {
    files: Vec<ConfigSource>,
}

struct ConfigSource {
    name: String,
    text: String,
    diagnostics: Vec<Diagnostic>,
    redactions: Redactions,
}

impl ConfigFiles {
    /// The directives of a file, with those of included files in place of their `include`.
    pub(super) fn read(
        &mut self,
        name: &str,
        text: &str,
        read_included: &mut ReadIncluded<'_>,
    ) -> Vec<NginxDirective> {
        self.read_file(name, text, read_included, 0)
    }

    fn read_file(
        &mut self,
        name: &str,
        text: &str,
        read_included: &mut ReadIncluded<'_>,
        depth: usize,
    ) -> Vec<NginxDirective> {
        let file = self.files.len();
        // Columns do not count a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        self.files.push(ConfigSource {
            name: name.to_owned(),
            text: text.to_owned(),
            diagnostics: Vec::new(),
            redactions: Redactions::default(),
        });
        match parse(file, text) {
            Ok(directives) => self.with_included(directives, read_included, depth),
            Err(diagnostic) => {
                self.add(file, diagnostic);
                Vec::new()
            }
        }
    }

    fn with_included(
        &mut self,
        directives: Vec<NginxDirective>,
        read_included: &mut ReadIncluded<'_>,
        depth: usize,
    ) -> Vec<NginxDirective> {
        let mut all = Vec::new();
        for mut directive in directives {
            if directive.name.text == "include" && directive.block.is_none() {
                all.extend(self.included(&directive, read_included, depth));
                continue;
            }
            directive.block =
                directive.block.take().map(|block| self.with_included(block, read_included, depth));
            all.push(directive);
        }
        all
    }

    fn included(
        &mut self,
        directive: &NginxDirective,
        read_included: &mut ReadIncluded<'_>,
        depth: usize,
    ) -> Vec<NginxDirective> {
        let position = directive.arguments.first().map_or(directive.name.position, |word| word.position);
        if depth >= DEEPEST || self.files.len() >= MOST_FILES {
            let hint = "files may be included 16 deep, and up to 1000 of them";
            self.add(directive.file, error(position, "too many files are included", hint));
            return Vec::new();
        }
        let pattern = directive.argument(0);
        match read_included(pattern) {
            Ok(files) => {
                let mut all = Vec::new();
                for (name, text) in files {
                    all.extend(self.read_file(&name, &text, read_included, depth + 1));
                }
                all
            }
            Err(why) => {
                let message = format!("cannot read `{}`: {why}", shown(pattern));
                let hint = "names are relative to the folder of the first file";
                self.add(directive.file, error(position, &message, hint));
                Vec::new()
            }
        }
    }

    /// Hides the values of a map over a credential in reports.
    pub(super) fn hide_credentials(&mut self, map: &NginxDirective) {
        let source = map.argument(0).to_ascii_lowercase();
        if !CREDENTIALS.iter().any(|part| source.contains(part)) {
            return;
        }
        for directive in map.block.iter().flatten() {
            let position = directive.name.position;
            let Some(file) = self.files.get_mut(directive.file) else { continue };
            file.redactions.add_region(TextRegion {
                start: (position.line, position.column),
                end: (position.line, position.column + position.width),
            });
            if directive.name.text != "default" {
                file.redactions.add_text(&directive.name.text);
            }
        }
    }

    /// Adds a diagnostic about a file.
    pub(super) fn add(&mut self, file: usize, diagnostic: Diagnostic) {
        let Some(file) = self.files.get_mut(file) else { return };
        let same = file.diagnostics.iter().filter(|known| known.severity == diagnostic.severity);
        if same.count() < MOST_DIAGNOSTICS && !file.diagnostics.contains(&diagnostic) {
            file.diagnostics.push(diagnostic);
        }
    }

    pub(super) fn name(&self, file: usize) -> &str {
        self.files.get(file).map_or("", |file| &file.name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    /// The reports of all files.
    pub(super) fn into_reports(self) -> Vec<DiagnosticReport> {
        let report = |mut file: ConfigSource| {
            for diagnostic in &mut file.diagnostics {
                diagnostic.message = file.redactions.redact(&diagnostic.message);
                diagnostic.hint = diagnostic.hint.as_ref().map(|hint| file.redactions.redact(hint));
            }
            DiagnosticReport::new(&file.name, &file.text, file.diagnostics, &file.redactions)
        };
        self.files.into_iter().map(report).collect()
    }
}
