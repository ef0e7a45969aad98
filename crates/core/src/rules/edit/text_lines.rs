//! The lines of a text, by byte offset. A carriage return alone also ends a line in YAML.

use crate::diagnostic::lines;

/// The first byte of the line with `at`.
pub(super) fn line_start(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.rfind(['\n', '\r']).map_or(0, |end| end + 1)
}

/// The end of the line with `at`, before its line break.
pub(super) fn line_end(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.find(['\n', '\r']).map_or(text.len(), |end| at + end)
}

/// The first byte of the next line.
pub(super) fn after_line(text: &str, at: usize) -> usize {
    let end = line_end(text, at);
    match text.as_bytes().get(end) {
        None => end,
        Some(b'\r') if text.as_bytes().get(end + 1) == Some(&b'\n') => end + 2,
        Some(_) => end + 1,
    }
}

/// The number of characters in the line before `at`.
pub(super) fn column(text: &str, at: usize) -> usize {
    text.get(line_start(text, at)..at).unwrap_or_default().chars().count()
}

/// Whether only spaces precede `at` in its line.
pub(super) fn is_indentation(text: &str, at: usize) -> bool {
    text.get(line_start(text, at)..at).is_some_and(|before| before.chars().all(|c| c == ' '))
}

/// Whether there is an empty line between two offsets.
pub(super) fn is_blank_between(text: &str, from: usize, to: usize) -> bool {
    let from = after_line(text, from);
    let between = text.get(from..line_start(text, to).max(from)).unwrap_or_default();
    // What follows the last line break is the line of `to` itself.
    let count = lines(between).count().saturating_sub(1);
    lines(between).take(count).any(|line| line.trim().is_empty())
}

/// The line break that the text uses.
pub(super) fn line_break(text: &str) -> &'static str {
    match text.find(['\n', '\r']) {
        Some(at) if text[at..].starts_with("\r\n") => "\r\n",
        Some(at) if text[at..].starts_with('\r') => "\r",
        _ => "\n",
    }
}
