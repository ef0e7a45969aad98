//! What is wrong with a document: where, what, and what to do about it.

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
pub struct Position {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// How many characters; at least 1.
    pub width: usize,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Error or warning.
    pub severity: Severity,
    /// Where.
    pub position: Position,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: Option<String>,
}

/// All findings of one document, in the order of the text, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    source: String,
    lines: Vec<String>,
    problems: Vec<Problem>,
}

impl Report {
    /// The findings in `text`, which was read from `source`.
    pub fn new(source: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.position, problem.severity));
        let lines = lines(text);
        Self { source: source.to_owned(), lines, problems }
    }

    /// The findings.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// How many of them are errors.
    pub fn errors(&self) -> usize {
        self.problems.iter().filter(|problem| problem.severity == Severity::Error).count()
    }
}

impl std::error::Error for Report {}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let Position { line, column, width } = problem.position;
            let severity = match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            writeln!(f, "{}:{line}:{column}: {severity}: {}", self.source, problem.message)?;
            if let Some(text) = self.lines.get(line.saturating_sub(1)) {
                let margin = " ".repeat(line.to_string().len());
                let (text, column) = around(text, column);
                let before: String =
                    text.chars().take(column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
                let width = width.min((text.chars().count() + 1).saturating_sub(column).max(1));
                writeln!(f, "  {line} | {text}")?;
                writeln!(f, "  {margin} | {before}{}", "^".repeat(width))?;
            }
            if let Some(hint) = &problem.hint {
                writeln!(f, "  hint: {hint}")?;
            }
        }
        Ok(())
    }
}

/// The lines of a text. YAML also ends them with a carriage return alone.
fn lines(text: &str) -> Vec<String> {
    text.replace("\r\n", "\n").split(['\n', '\r']).map(str::to_owned).collect()
}

/// The part of a long line that `column` is in, and the column there. A document may be one line of JSON.
fn around(line: &str, column: usize) -> (String, usize) {
    const MOST: usize = 160;
    const BEFORE: usize = 60;
    let count = line.chars().count();
    if count <= MOST {
        return (line.to_owned(), column);
    }
    let skipped = column.saturating_sub(BEFORE);
    let shown: String = line.chars().skip(skipped).take(MOST).collect();
    let (head, tail) = (if skipped > 0 { "…" } else { "" }, if skipped + MOST < count { "…" } else { "" });
    (format!("{head}{shown}{tail}"), column - skipped + head.chars().count())
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
