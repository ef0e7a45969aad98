//! The line that a diagnostic points at: secrets redacted, control characters escaped, comments omitted, and a long line
//! cut to the part around the position.

use super::TextPosition;
use super::redaction::{MASK, Redactions, credentials, push_escaped};
use std::ops::Range;

/// The longest excerpt of a line, and how much of it precedes the position, in characters.
const LONGEST: usize = 160;
const BEFORE: usize = 60;

/// One line of a document.
pub(super) struct SourceLine {
    chars: Vec<char>,
    /// In order and disjoint.
    redacted: Vec<Range<usize>>,
    comment_start: Option<usize>,
}

/// Part of a line and the marked run in it; columns in characters from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Excerpt {
    pub(super) text: String,
    pub(super) column: usize,
    pub(super) width: usize,
}

impl SourceLine {
    /// Line `number` with the text `text`.
    pub(super) fn new(number: usize, text: &str, redactions: &Redactions) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut ranges: Vec<Range<usize>> = redactions
            .columns(number)
            .map(|range| range.start.min(chars.len())..range.end.min(chars.len()))
            .filter(|range| !range.is_empty())
            .chain(credentials(&chars))
            .collect();
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        let comment_start = comment_start(&chars);
        Self { chars, redacted: merged, comment_start }
    }

    /// The part around `position`.
    pub(super) fn excerpt(&self, position: TextPosition) -> Excerpt {
        let marked = position.column.saturating_sub(1);
        // Comments are omitted: disabled keys are often left in them.
        let end = match self.comment_start.filter(|comment| *comment > marked) {
            Some(comment) => comment,
            None => self.chars.len(),
        };
        let is_long = end > LONGEST;
        let first = if is_long { marked.saturating_sub(BEFORE).min(end) } else { 0 };
        let last = if is_long { (first + LONGEST).min(end) } else { end };
        let mut text = String::new();
        if first > 0 {
            text.push('…');
        }
        let mut at = text.chars().count();
        // The start and the end of the mark in the excerpt.
        let (mut from, mut to) = (None, at);
        let marked_to = marked.saturating_add(position.width.max(1));
        let mut redacted = self.redacted.iter().filter(|range| range.end > first).peekable();
        let mut mask: Option<(usize, usize)> = None;
        for index in first..last {
            while redacted.peek().is_some_and(|range| range.end <= index) {
                redacted.next();
                mask = None;
            }
            let shown = match (redacted.peek(), mask) {
                (Some(range), Some(mask)) if range.contains(&index) => mask,
                (Some(range), None) if range.contains(&index) => {
                    text.push_str(MASK);
                    *mask.insert((at, at + MASK.len()))
                }
                _ => {
                    let before = text.len();
                    match self.chars[index] {
                        '\t' => text.push('\t'),
                        c => push_escaped(c, &mut text),
                    }
                    (at, at + text[before..].chars().count())
                }
            };
            at = shown.1;
            if (marked..marked_to).contains(&index) {
                from = from.or(Some(shown.0));
                to = shown.1;
            }
        }
        if last < end {
            text.push('…');
        }
        let column = from.unwrap_or(at + marked.saturating_sub(last));
        Excerpt { text, column, width: to.saturating_sub(column).max(1) }
    }
}

/// The start of the comment at the end of a line, with the spaces before it.
fn comment_start(line: &[char]) -> Option<usize> {
    let mut quote: Option<char> = None;
    let mut before = ' ';
    for (index, c) in line.iter().copied().enumerate() {
        match quote {
            Some(open) if c == open && before != '\\' => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') && (before.is_whitespace() || "[{,:(".contains(before)) => {
                quote = Some(c);
            }
            None if c == '#' && before.is_whitespace() => {
                let spaces = line[..index].iter().rev().take_while(|c| c.is_whitespace()).count();
                return Some(index - spaces);
            }
            None => {}
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::redaction::TextRegion;
    use super::*;

    #[test]
    fn secrets_are_redacted() {
        let mut redactions = Redactions::default();
        redactions.add_region(TextRegion { start: (1, 9), end: (1, 16) });
        let table: &[(&str, usize, usize, &str, usize, usize)] = &[
            ("secret: hunter2", 9, 7, "secret: ***", 8, 3),
            ("secret: hunter2, b: 5", 21, 1, "secret: ***, b: 5", 16, 1),
            ("secret: hunter2, b: 5", 1, 6, "secret: ***, b: 5", 0, 6),
            ("secret: hunter2 # was hunter1", 1, 6, "secret: ***", 0, 6),
            ("secret: \u{1b}[31mh2, \u{1b}[0m", 18, 1, "secret: ***, \\u{1b}[0m", 13, 6),
            ("a: 'b # c', d", 13, 1, "a: 'b # ***", 8, 3),
            ("\tx: 5", 2, 1, "\tx: 5", 1, 1),
            ("x", 9, 1, "x", 8, 1),
        ];
        for (text, column, width, shown, at, marked) in table {
            let line = SourceLine::new(1, text, &redactions);
            let excerpt = line.excerpt(TextPosition { line: 1, column: *column, width: *width });
            assert_eq!(
                (excerpt.text.as_str(), excerpt.column, excerpt.width),
                (*shown, *at, *marked),
                "{text}"
            );
        }
    }

    #[test]
    fn long_lines_are_cut_around_the_position() {
        let text = "x".repeat(5_000);
        let line = SourceLine::new(1, &text, &Redactions::default());
        for column in [1, 60, 61, 2_500, 5_000] {
            let excerpt = line.excerpt(TextPosition { line: 1, column, width: 9_000 });
            let count = excerpt.text.chars().count();
            assert!(count <= LONGEST + 2, "{count}");
            assert!(excerpt.column + excerpt.width <= count, "{excerpt:?}");
        }
    }
}
