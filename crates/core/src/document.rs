//! A YAML document whose every value knows its place.
//!
//! Serde stops at the first thing it cannot read. People want all of them at once: so a document is
//! decoded, and when that fails, the offending entry is reported, cut out, and what is left is decoded
//! again. Whoever checks the decoded value further names a finding by its [`DocumentPath`], and the document
//! turns it into a line and a column. JSON is YAML, so the same holds for it.

mod secrets;
mod serde_messages;
mod yaml;

use crate::diagnostic::{Diagnostic, DiagnosticReport, Redactions, Severity, TextPosition};
use serde::de::DeserializeOwned;
use std::fmt;
use yaml::YamlNode;

/// Findings of a kind that are reported.
const MOST_PROBLEMS: usize = 100;
/// Each error takes another look at the whole document. Of a very large one, fewer errors are told: so many values are
/// looked at.
const MOST_WORK: usize = 1_000_000;
/// A message quotes what was written, which may be a whole page.
const LONGEST_MESSAGE: usize = 400;
/// How the hint of an error begins that is one text.
const HINT: &str = "\n  hint: ";

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// The entry of a mapping.
    Field(String),
    /// The item of a sequence, from 0.
    Index(usize),
}

/// Where in a document a value stands, such as `rules[2].params.capacity`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentPath(Vec<PathSegment>);

impl DocumentPath {
    /// The whole document.
    pub fn root() -> Self {
        Self::default()
    }

    /// The entry `name` of this mapping.
    pub fn field(&self, name: &str) -> Self {
        self.with(PathSegment::Field(name.to_owned()))
    }

    /// The item `index` of this sequence.
    pub fn index(&self, index: usize) -> Self {
        self.with(PathSegment::Index(index))
    }

    /// The name of the entry, if it is one of a mapping.
    pub fn name(&self) -> Option<&str> {
        match self.0.last() {
            Some(PathSegment::Field(name)) => Some(name),
            _ => None,
        }
    }

    /// What it is part of; the root is part of itself.
    pub fn parent(&self) -> Self {
        let mut segments = self.0.clone();
        segments.pop();
        Self(segments)
    }

    fn with(&self, segment: PathSegment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }
}

impl fmt::Display for DocumentPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.0.iter().enumerate() {
            match segment {
                PathSegment::Field(name) if index == 0 => f.write_str(name)?,
                PathSegment::Field(name) => write!(f, ".{name}")?,
                PathSegment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// What a finding points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPart {
    /// The value.
    Value,
    /// The name of the entry.
    Name,
}

/// A parsed document and what was found in it so far.
pub struct Document {
    source: String,
    text: String,
    root: YamlNode,
    problems: Vec<Diagnostic>,
    hidden: Redactions,
}

/// Without what stands in it, which may be secret.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document").field("source", &self.source).field("problems", &self.problems).finish()
    }
}

impl Document {
    /// Reads `text`; `source` is its name in reports. What is not even YAML is a report at once.
    pub fn parse(source: &str, text: &str) -> Result<Self, DiagnosticReport> {
        // Some editors begin a file with a mark of its encoding; columns do not count it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match yaml::parse(text) {
            Ok((root, problems)) => {
                let (source, text, hidden) = (source.to_owned(), text.to_owned(), secrets::in_tree(&root));
                let mut document = Self { source, text, root, problems: Vec::new(), hidden };
                problems.into_iter().for_each(|problem| document.note(problem));
                Ok(document)
            }
            Err(mut problem) => {
                let hidden = secrets::in_text(text);
                problem.message = hidden.scrub(&problem.message);
                Err(DiagnosticReport::new(source, text, vec![problem], &hidden))
            }
        }
    }

    /// Decodes the document, cutting out what cannot be read and noting it. None if nothing is left.
    pub fn decode<T: DeserializeOwned>(&mut self) -> Option<T> {
        if !self.root.is_mapping() {
            let hint = "write `name: value` lines";
            self.error(&DocumentPath::root(), "the document has to be a mapping", hint);
            return None;
        }
        // An entry without a value is a slip more often than a wish, and a rule with an empty condition
        // would be about everybody.
        for (name, position) in self.root.cut_empty() {
            let (message, hint) = serde_messages::empty(name.as_deref());
            self.note(Diagnostic { severity: Severity::Error, position, message, hint: Some(hint) });
        }
        let mut work = 0usize;
        loop {
            work = work.saturating_add(self.root.size());
            let error = match serde_path_to_error::deserialize::<_, T>(self.root.to_json()) {
                Ok(value) => return Some(value),
                Err(error) => error,
            };
            let path = path_of(error.path());
            let message = error.inner().to_string();
            let at = if message.starts_with("unknown field") { EntryPart::Name } else { EntryPart::Value };
            let (message, hint) = serde_messages::explain(&message, path.name());
            let is_root = path.0.is_empty();
            // What is no field and resembles none may be a key that is indented wrongly.
            if at == EntryPart::Name
                && let Some(entry) = self.root.entry(&path.0)
                && !secrets::is_word(&entry.name)
                && !hint.as_ref().is_some_and(|hint| hint.starts_with(serde_messages::GUESS))
            {
                secrets::hide_entry(entry, &mut self.hidden);
            }
            self.problem(Severity::Error, &path, at, message, hint);
            let is_enough = self.has_enough(Severity::Error) || work > MOST_WORK;
            if is_root || is_enough || !self.root.cut(&path.0) {
                return None;
            }
        }
    }

    /// Notes an error about the value at `path`.
    pub fn error(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        self.problem(Severity::Error, path, EntryPart::Value, message.into(), hint.into().0);
    }

    /// Notes an error about the name of the entry at `path`.
    pub fn error_at_name(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        self.problem(Severity::Error, path, EntryPart::Name, message.into(), hint.into().0);
    }

    /// Notes an error about something that the mapping at `path` lacks, unless an entry of it was cut out
    /// before: then that may well have been it.
    pub fn missing(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        if !self.is_damaged(path) {
            self.problem(Severity::Error, path, EntryPart::Value, message.into(), hint.into().0);
        }
    }

    /// Whether an error was found so far.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Whether anything was cut out of the value at `path`.
    pub fn is_damaged(&self, path: &DocumentPath) -> bool {
        self.root.is_damaged(&path.0)
    }

    /// Whether the very entry at `path` was cut out.
    pub fn is_lost(&self, path: &DocumentPath) -> bool {
        self.root.is_lost(&path.0)
    }

    /// Notes a warning about the value at `path`.
    pub fn warning(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        self.problem(Severity::Warning, path, EntryPart::Value, message.into(), hint.into().0);
    }

    /// Notes a warning about the name of the entry at `path`.
    pub fn warning_at_name(
        &mut self,
        path: &DocumentPath,
        message: impl Into<String>,
        hint: impl Into<Hint>,
    ) {
        self.problem(Severity::Warning, path, EntryPart::Name, message.into(), hint.into().0);
    }

    /// The line on which the value at `path` begins.
    pub fn line(&self, path: &DocumentPath) -> usize {
        self.root.locate(&path.0, EntryPart::Value).line
    }

    /// Everything found.
    pub fn into_report(self) -> DiagnosticReport {
        DiagnosticReport::new(&self.source, &self.text, self.problems, &self.hidden)
    }

    fn problem(
        &mut self,
        severity: Severity,
        path: &DocumentPath,
        at: EntryPart,
        message: String,
        hint: Option<String>,
    ) {
        if self.has_enough(severity) {
            return;
        }
        let position: TextPosition = self.root.locate(&path.0, at);
        self.note(Diagnostic { severity, position, message, hint });
    }

    /// Errors and warnings are counted apart: warnings must not crowd out an error.
    fn has_enough(&self, severity: Severity) -> bool {
        self.problems.iter().filter(|known| known.severity == severity).count() >= MOST_PROBLEMS
    }

    /// What several rules inherit is found wrong several times, and said once.
    fn note(&mut self, mut problem: Diagnostic) {
        if self.has_enough(problem.severity) {
            return;
        }
        // Errors of other crates carry their hint with them.
        let (message, hint) = match problem.message.split_once(HINT) {
            Some((message, hint)) if problem.hint.is_none() => (message.to_owned(), Some(hint.to_owned())),
            _ => (problem.message, problem.hint),
        };
        problem.message = shortened(self.hidden.scrub(&message));
        problem.hint = hint.map(|hint| shortened(self.hidden.scrub(&hint)));
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// An optional hint, so that callers write a text or `None`.
#[derive(Debug)]
pub struct Hint(Option<String>);

impl From<&str> for Hint {
    fn from(text: &str) -> Self {
        Self(Some(text.to_owned()))
    }
}

impl From<String> for Hint {
    fn from(text: String) -> Self {
        Self(Some(text))
    }
}

impl From<Option<String>> for Hint {
    fn from(text: Option<String>) -> Self {
        Self(text)
    }
}

fn path_of(path: &serde_path_to_error::Path) -> DocumentPath {
    use serde_path_to_error::Segment as Found;
    DocumentPath(
        path.iter()
            .filter_map(|segment| match segment {
                Found::Seq { index } => Some(PathSegment::Index(*index)),
                Found::Map { key } => Some(PathSegment::Field(key.clone())),
                Found::Enum { .. } | Found::Unknown => None,
            })
            .collect(),
    )
}
