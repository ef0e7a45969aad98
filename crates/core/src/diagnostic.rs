//! What is wrong with a document: where, what, and what to do about it.

mod excerpt;
mod redaction;

use excerpt::{Excerpt, SourceLine};
pub use redaction::sanitized;
pub(crate) use redaction::{Redactions, TextRegion};
use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The document is not used.
    Error,
    /// The document is used, but probably does not do what was meant.
    Warning,
}

/// A place in a text: one line, one run of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPosition {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// How many characters; at least 1.
    pub width: usize,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Where.
    pub position: TextPosition,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: Option<String>,
}

/// All findings of one document, in the order of the text, ready to be shown. It holds no secret of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiagnosticReport {
    source: String,
    problems: Vec<Diagnostic>,
    /// Of each problem, the line that it is in.
    excerpts: Vec<Option<Excerpt>>,
}

impl DiagnosticReport {
    /// The findings in `text`, which was read from `source`.
    pub(crate) fn new(source: &str, text: &str, mut problems: Vec<Diagnostic>, hidden: &Redactions) -> Self {
        problems.sort_by_key(|problem| (problem.position, problem.severity));
        let mut lines = lines(text).zip(1..);
        let mut current: Option<(SourceLine, usize)> = None;
        let excerpts = problems.iter().map(|problem| {
            let wanted = problem.position.line;
            if current.as_ref().is_none_or(|(_, number)| *number != wanted) {
                let found = lines.find(|(_, number)| *number == wanted);
                current = found.map(|(text, number)| (SourceLine::new(number, text, hidden), number));
            }
            current.as_ref().map(|(line, _)| line.excerpt(problem.position))
        });
        let excerpts = excerpts.collect();
        Self { source: sanitized(source), problems, excerpts }
    }

    /// The findings.
    pub fn problems(&self) -> &[Diagnostic] {
        &self.problems
    }

    /// How many of them are errors.
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|problem| problem.severity == Severity::Error).count()
    }
}

impl std::error::Error for DiagnosticReport {}

impl fmt::Display for DiagnosticReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (problem, excerpt)) in self.problems.iter().zip(&self.excerpts).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let TextPosition { line, column, .. } = problem.position;
            let severity = match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            writeln!(f, "{}:{line}:{column}: {severity}: {}", self.source, problem.message)?;
            if let Some(Excerpt { text, column, width }) = excerpt {
                let margin = " ".repeat(line.to_string().len());
                let before = text.chars().chain(std::iter::repeat(' ')).take(*column);
                let before: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
                writeln!(f, "  {line} | {text}")?;
                writeln!(f, "  {margin} | {before}{}", "^".repeat(*width))?;
            }
            if let Some(hint) = &problem.hint {
                writeln!(f, "  hint: {hint}")?;
            }
        }
        Ok(())
    }
}

/// The lines of a text. YAML also ends them with a carriage return alone.
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

/// The nearest of `known` to a word that is not among them, if one is near.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
