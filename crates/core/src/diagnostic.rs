//! Errors and warnings about a document: position, message and hint.

mod excerpt;
mod redaction;

use excerpt::{Excerpt, SourceLine};
pub use redaction::sanitized;
pub(crate) use redaction::{Redactions, TextRegion};
use std::fmt;

/// How severe a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The document is refused.
    Error,
    /// The document is accepted, but part of it is probably unintended.
    Warning,
}

/// A run of characters in one line of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPosition {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// In characters; at least 1.
    pub width: usize,
}

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The value or name that it is about.
    pub position: TextPosition,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

/// All diagnostics of one document in the order of its text, with excerpts. It contains no secret of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiagnosticReport {
    source: String,
    diagnostics: Vec<Diagnostic>,
    /// The line of each diagnostic.
    excerpts: Vec<Option<Excerpt>>,
}

impl DiagnosticReport {
    /// The diagnostics of `text`, which was read from `source`.
    pub(crate) fn new(
        source: &str,
        text: &str,
        mut diagnostics: Vec<Diagnostic>,
        redactions: &Redactions,
    ) -> Self {
        diagnostics.sort_by_key(|diagnostic| (diagnostic.position, diagnostic.severity));
        let mut lines = lines(text).zip(1..);
        let mut current: Option<(SourceLine, usize)> = None;
        let excerpts = diagnostics.iter().map(|diagnostic| {
            let wanted = diagnostic.position.line;
            if current.as_ref().is_none_or(|(_, number)| *number != wanted) {
                let found = lines.find(|(_, number)| *number == wanted);
                current = found.map(|(text, number)| (SourceLine::new(number, text, redactions), number));
            }
            current.as_ref().map(|(line, _)| line.excerpt(diagnostic.position))
        });
        let excerpts = excerpts.collect();
        Self { source: sanitized(source), diagnostics, excerpts }
    }

    /// All errors and warnings.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// Whether there are neither errors nor warnings.
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// The number of errors.
    pub fn errors(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }
}

impl std::error::Error for DiagnosticReport {}

impl fmt::Display for DiagnosticReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (diagnostic, excerpt)) in self.diagnostics.iter().zip(&self.excerpts).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let TextPosition { line, column, .. } = diagnostic.position;
            let severity = match diagnostic.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            writeln!(f, "{}:{line}:{column}: {severity}: {}", self.source, diagnostic.message)?;
            if let Some(Excerpt { text, column, width }) = excerpt {
                let margin = " ".repeat(line.to_string().len());
                let before = text.chars().chain(std::iter::repeat(' ')).take(*column);
                let before: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
                writeln!(f, "  {line} | {text}")?;
                writeln!(f, "  {margin} | {before}{}", "^".repeat(*width))?;
            }
            if let Some(hint) = &diagnostic.hint {
                writeln!(f, "  hint: {hint}")?;
            }
        }
        Ok(())
    }
}

/// The lines of a text. A carriage return alone also ends a line in YAML.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\n', '\r']) else {
            rest = None;
            return Some(text);
        };
        let length = if text[end..].starts_with("\r\n") { 2 } else { 1 };
        rest = Some(&text[end + length..]);
        Some(&text[..end])
    })
}

/// The word of `known` that is most similar to `word`, if one is similar enough to suggest.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
