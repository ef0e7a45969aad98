//! The line that a finding points at, fit to be shown: secrets hidden, control characters escaped, comments left out,
//! and of a long line the part around the finding.

use super::TextPosition;
use super::redaction::{MASK, Redactions, logins, push_escaped};
use std::ops::Range;

/// Of a long line, so many characters are shown, and so many of them before the finding.
const MOST: usize = 160;
const BEFORE: usize = 60;

/// One line of a document.
pub(super) struct SourceLine {
    chars: Vec<char>,
    /// In order, and apart from each other.
    hidden: Vec<Range<usize>>,
    comment: Option<usize>,
}

/// A part of a line, and the run in it that is marked, in characters from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Excerpt {
    pub(super) text: String,
    pub(super) column: usize,
    pub(super) width: usize,
}

impl SourceLine {
    /// The line `number`, whose text is `text`.
    pub(super) fn new(number: usize, text: &str, hidden: &Redactions) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut ranges: Vec<Range<usize>> = hidden
            .columns(number)
            .map(|range| range.start.min(chars.len())..range.end.min(chars.len()))
            .filter(|range| !range.is_empty())
            .chain(logins(&chars))
            .collect();
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        let comment = comment(&chars);
        Self { chars, hidden: merged, comment }
    }

    /// The part around `position`.
    pub(super) fn excerpt(&self, position: TextPosition) -> Excerpt {
        let marked = position.column.saturating_sub(1);
        // What a comment says cannot be told: old keys are often left there.
        let end = match self.comment.filter(|comment| *comment > marked) {
            Some(comment) => comment,
            None => self.chars.len(),
        };
        let is_long = end > MOST;
        let first = if is_long { marked.saturating_sub(BEFORE).min(end) } else { 0 };
        let last = if is_long { (first + MOST).min(end) } else { end };
        let mut text = String::new();
        if first > 0 {
            text.push('…');
        }
        let mut at = text.chars().count();
        // Where the mark begins and ends in what is shown.
        let (mut from, mut to) = (None, at);
        let marked_to = marked.saturating_add(position.width.max(1));
        let mut hidden = self.hidden.iter().filter(|range| range.end > first).peekable();
        let mut mask: Option<(usize, usize)> = None;
        for index in first..last {
            while hidden.peek().is_some_and(|range| range.end <= index) {
                hidden.next();
                mask = None;
            }
            let place = match (hidden.peek(), mask) {
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
            at = place.1;
            if (marked..marked_to).contains(&index) {
                from = from.or(Some(place.0));
                to = place.1;
            }
        }
        if last < end {
            text.push('…');
        }
        let column = from.unwrap_or(at + marked.saturating_sub(last));
        Excerpt { text, column, width: to.saturating_sub(column).max(1) }
    }
}

/// Where the comment at the end of a line begins, with the spaces before it.
fn comment(line: &[char]) -> Option<usize> {
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
    fn a_line_is_shown_without_its_secrets() {
        let mut hidden = Redactions::default();
        hidden.hide_region(TextRegion { start: (1, 9), end: (1, 16) });
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
            let line = SourceLine::new(1, text, &hidden);
            let excerpt = line.excerpt(TextPosition { line: 1, column: *column, width: *width });
            assert_eq!(
                (excerpt.text.as_str(), excerpt.column, excerpt.width),
                (*shown, *at, *marked),
                "{text}"
            );
        }
    }

    #[test]
    fn of_a_long_line_the_part_around_the_finding_is_shown() {
        let text = "x".repeat(5_000);
        let line = SourceLine::new(1, &text, &Redactions::default());
        for column in [1, 60, 61, 2_500, 5_000] {
            let excerpt = line.excerpt(TextPosition { line: 1, column, width: 9_000 });
            let count = excerpt.text.chars().count();
            assert!(count <= MOST + 2, "{count}");
            assert!(excerpt.column + excerpt.width <= count, "{excerpt:?}");
        }
    }
}
