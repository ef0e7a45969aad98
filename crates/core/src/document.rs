//! A YAML document in which every value has a position.
//!
//! Serde stops at the first value that it cannot decode, and users want all errors at once. A [`Document`] is therefore
//! decoded repeatedly: each value that fails is reported and removed, and the rest is decoded again. Later checks name a
//! value by its [`DocumentPath`], and the document adds line and column. JSON is a subset of YAML and works the same way.

mod decode;
mod decode_messages;
mod secrets;
mod yaml_parser;
mod yaml_tree;

use crate::diagnostic::{Diagnostic, DiagnosticReport, Redactions, Severity, TextPosition, nearest};
use decode::{DecodeError, NodeDeserializer};
use serde::de::DeserializeOwned;
use std::fmt;
use yaml_tree::YamlNode;

/// The most diagnostics of one severity in a report.
const MOST_DIAGNOSTICS: usize = 100;
/// Each error costs another pass over the document. Of a very large document fewer errors are reported: decoding ends
/// after this many visited nodes.
const MOST_VISITED_NODES: usize = 1_000_000;
/// Messages quote the document, and a value may be a whole page.
const LONGEST_MESSAGE: usize = 400;
/// Separates the hint in error texts of other crates.
const HINT_LINE: &str = "\n  hint: ";

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// The entry of a mapping.
    Field(String),
    /// The item of a sequence, from 0.
    Index(usize),
}

/// The path of a value in a document, such as `rules[2].params.capacity`.
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

    /// The name of the last field; `None` for an item of a sequence and for the root.
    pub fn name(&self) -> Option<&str> {
        match self.0.last() {
            Some(PathSegment::Field(name)) => Some(name),
            _ => None,
        }
    }

    /// The path without its last segment; the root for the root.
    pub fn parent(&self) -> Self {
        let mut segments = self.0.clone();
        segments.pop();
        Self(segments)
    }

    /// The steps from the root.
    pub(crate) fn segments(&self) -> &[PathSegment] {
        &self.0
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

/// The part of a mapping entry that a diagnostic points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryPart {
    /// The value.
    Value,
    /// The name of the entry.
    Name,
}

/// A parsed document and the diagnostics so far.
pub struct Document {
    source: String,
    text: String,
    root: YamlNode,
    diagnostics: Vec<Diagnostic>,
    redactions: Redactions,
}

/// Without the text, which may contain secrets.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("source", &self.source)
            .field("diagnostics", &self.diagnostics)
            .finish()
    }
}

impl Document {
    /// Parses `text`; `source` is its name in reports. A text that is not YAML is a report at once.
    pub fn parse(source: &str, text: &str) -> Result<Self, DiagnosticReport> {
        // Some editors write a byte order mark. Columns do not count it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match yaml_parser::parse(text) {
            Ok((root, errors)) => {
                let (source, text) = (source.to_owned(), text.to_owned());
                let redactions = secrets::in_tree(&root);
                let mut document = Self { source, text, root, diagnostics: Vec::new(), redactions };
                errors.into_iter().for_each(|error| document.add(error));
                Ok(document)
            }
            Err(mut error) => {
                let redactions = secrets::in_text(text);
                error.message = redactions.redact(&error.message);
                Err(DiagnosticReport::new(source, text, vec![error], &redactions))
            }
        }
    }

    /// The whole document as JSON, with aliases and merged entries written out.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        self.root.to_json()
    }

    /// Decodes the document. Values that cannot be decoded are reported and removed. `None` if nothing is left.
    ///
    /// A custom error of a `Deserialize` implementation may end with a hint, as in `5x is not a size; write 5k`.
    pub fn decode<T: DeserializeOwned>(&mut self) -> Option<T> {
        if !self.root.is_mapping() {
            let hint = "write `name: value` lines";
            self.error(&DocumentPath::root(), "the document must be a mapping", hint);
            return None;
        }
        // An entry without a value is probably unintended, and a rule with an empty condition would match all
        // requests.
        for (name, position) in self.root.remove_empty() {
            let (message, hint) = decode_messages::empty(name.as_deref());
            self.add(Diagnostic { severity: Severity::Error, position, message, hint: Some(hint) });
        }
        let mut visited = 0usize;
        loop {
            visited = visited.saturating_add(self.root.size());
            let error = match serde_path_to_error::deserialize::<_, T>(NodeDeserializer(&self.root)) {
                Ok(value) => return Some(value),
                Err(error) => error,
            };
            let path = path_of(error.path());
            let error = error.into_inner();
            self.add_decode_error(&path, &error);
            let is_enough = self.is_full(Severity::Error) || visited > MOST_VISITED_NODES;
            if path.0.is_empty() || is_enough || !self.root.remove(&path.0) {
                return None;
            }
        }
    }

    fn add_decode_error(&mut self, path: &DocumentPath, error: &DecodeError) {
        let mut part = EntryPart::Value;
        if let DecodeError::UnknownField { name, known } = error {
            part = EntryPart::Name;
            // A name that resembles no field may be an API key with the wrong indentation.
            let is_typo = nearest(name, known.iter().copied()).is_some();
            if let Some(entry) = self.root.entry(&path.0)
                && !secrets::is_word(&entry.name)
                && !is_typo
            {
                secrets::redact_entry(entry, &mut self.redactions);
            }
        }
        let message = decode_messages::message(error, path.name());
        self.report(Severity::Error, path, part, message, decode_messages::hint(error));
    }

    /// Adds an error about the value at `path`.
    pub fn error(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        self.report(Severity::Error, path, EntryPart::Value, message.into(), hint.into().0);
    }

    /// Adds an error about the name of the entry at `path`.
    pub fn error_at_name(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        self.report(Severity::Error, path, EntryPart::Name, message.into(), hint.into().0);
    }

    /// Adds an error about something that the mapping at `path` lacks, unless an entry of it was removed: that entry
    /// may be the missing one.
    pub fn missing(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        if !self.is_damaged(path) {
            self.report(Severity::Error, path, EntryPart::Value, message.into(), hint.into().0);
        }
    }

    /// Whether an error was added so far.
    pub fn has_errors(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Whether anything was removed from the value at `path`.
    pub fn is_damaged(&self, path: &DocumentPath) -> bool {
        self.root.is_damaged(&path.0)
    }

    /// Whether the entry at `path` itself was removed.
    pub fn is_removed(&self, path: &DocumentPath) -> bool {
        self.root.is_removed(&path.0)
    }

    /// Adds a warning about the value at `path`.
    pub fn warning(&mut self, path: &DocumentPath, message: impl Into<String>, hint: impl Into<Hint>) {
        self.report(Severity::Warning, path, EntryPart::Value, message.into(), hint.into().0);
    }

    /// Adds a warning about the name of the entry at `path`.
    pub fn warning_at_name(
        &mut self,
        path: &DocumentPath,
        message: impl Into<String>,
        hint: impl Into<Hint>,
    ) {
        self.report(Severity::Warning, path, EntryPart::Name, message.into(), hint.into().0);
    }

    /// The line on which the value at `path` starts.
    pub fn line(&self, path: &DocumentPath) -> usize {
        self.root.locate(&path.0, EntryPart::Value).line
    }

    /// All diagnostics.
    pub fn into_report(self) -> DiagnosticReport {
        DiagnosticReport::new(&self.source, &self.text, self.diagnostics, &self.redactions)
    }

    fn report(
        &mut self,
        severity: Severity,
        path: &DocumentPath,
        part: EntryPart,
        message: String,
        hint: Option<String>,
    ) {
        if self.is_full(severity) {
            return;
        }
        let position: TextPosition = self.root.locate(&path.0, part);
        self.add(Diagnostic { severity, position, message, hint });
    }

    /// Errors and warnings are counted separately: warnings must not crowd out an error.
    fn is_full(&self, severity: Severity) -> bool {
        self.diagnostics.iter().filter(|known| known.severity == severity).count() >= MOST_DIAGNOSTICS
    }

    /// A value that several rules inherit fails once for each, and is reported once.
    fn add(&mut self, mut diagnostic: Diagnostic) {
        if self.is_full(diagnostic.severity) {
            return;
        }
        let (message, hint) = match diagnostic.message.split_once(HINT_LINE) {
            Some((message, hint)) if diagnostic.hint.is_none() => (message.to_owned(), Some(hint.to_owned())),
            _ => (diagnostic.message, diagnostic.hint),
        };
        diagnostic.message = shortened(self.redactions.redact(&message));
        diagnostic.hint = hint.map(|hint| shortened(self.redactions.redact(&hint)));
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// An optional hint: converts from a text and from `None`.
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
