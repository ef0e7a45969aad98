//! The difference of two rule files: by lines, and by rules, tiers and lists.

mod summary;

use serde::{Deserialize, Serialize};
use similar::{Algorithm, DiffTag, capture_diff_slices};
use std::fmt::Write;
use std::ops::Range;
use summary::summarise;
pub use summary::{ChangedPart, FieldChange, PartChange, PartChangeKind};

/// The lines around a change that a unified diff shows.
const CONTEXT: usize = 3;
/// The work grows with the square of the number of differing lines. Beyond this many, all of them are shown as removed
/// and added.
const MOST_COMPARED: usize = 10_000;

/// The difference of two rule files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleDiff {
    /// As `diff -u` prints it, without the lines that name the files. Empty if the texts are equal.
    pub unified: String,
    /// All lines of both texts.
    pub lines: Vec<DiffLine>,
    /// What was added, removed and changed, by name. Empty if one of the texts is not YAML.
    pub summary: Vec<PartChange>,
}

/// One line of a [`RuleDiff`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffLine {
    /// In which of the texts it is.
    pub kind: DiffLineKind,
    /// Its number in the first text, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub a: Option<usize>,
    /// Its number in the second text, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub b: Option<usize>,
    /// The line without its line break.
    pub text: String,
}

/// In which of the two texts a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffLineKind {
    /// In both.
    Same,
    /// Only in the second.
    Added,
    /// Only in the first.
    Removed,
}

/// Compares the rule files `a` and `b`.
pub fn diff(a: &str, b: &str) -> RuleDiff {
    let lines = diff_lines(&lines_of(a), &lines_of(b));
    RuleDiff { unified: unified(&lines), lines, summary: summarise(a, b) }
}

/// The lines of a text. A line break at the end does not begin another line.
fn lines_of(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = crate::diagnostic::lines(text).collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    lines
}

fn diff_lines(a: &[&str], b: &[&str]) -> Vec<DiffLine> {
    let before = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (rest_a, rest_b) = (&a[before..], &b[before..]);
    let after = rest_a.iter().rev().zip(rest_b.iter().rev()).take_while(|(a, b)| a == b).count();
    let (middle_a, middle_b) = (before..a.len() - after, before..b.len() - after);
    let mut lines = Vec::with_capacity(a.len().max(b.len()));
    push_same(&mut lines, a, 0..before, 0);
    let (old, new) = (&a[middle_a.clone()], &b[middle_b.clone()]);
    if old.len() + new.len() > MOST_COMPARED {
        push_changed(&mut lines, a, middle_a.clone(), b, middle_b.clone());
    } else {
        for operation in capture_diff_slices(Algorithm::Myers, old, new) {
            let (tag, in_a, in_b) = operation.as_tag_tuple();
            let in_a = in_a.start + before..in_a.end + before;
            let in_b = in_b.start + before..in_b.end + before;
            match tag {
                DiffTag::Equal => push_same(&mut lines, a, in_a, in_b.start),
                DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                    push_changed(&mut lines, a, in_a, b, in_b);
                }
            }
        }
    }
    push_same(&mut lines, a, middle_a.end..a.len(), middle_b.end);
    lines
}

fn push_same(lines: &mut Vec<DiffLine>, a: &[&str], in_a: Range<usize>, start_b: usize) {
    let start_a = in_a.start;
    lines.extend(in_a.map(|index| DiffLine {
        kind: DiffLineKind::Same,
        a: Some(index + 1),
        b: Some(start_b + (index - start_a) + 1),
        text: a[index].to_owned(),
    }));
}

fn push_changed(lines: &mut Vec<DiffLine>, a: &[&str], in_a: Range<usize>, b: &[&str], in_b: Range<usize>) {
    lines.extend(in_a.map(|index| DiffLine {
        kind: DiffLineKind::Removed,
        a: Some(index + 1),
        b: None,
        text: a[index].to_owned(),
    }));
    lines.extend(in_b.map(|index| DiffLine {
        kind: DiffLineKind::Added,
        a: None,
        b: Some(index + 1),
        text: b[index].to_owned(),
    }));
}

fn unified(lines: &[DiffLine]) -> String {
    let mut out = String::new();
    let mut next = 0;
    while let Some(first) = (next..lines.len()).find(|index| lines[*index].kind != DiffLineKind::Same) {
        let start = first.saturating_sub(CONTEXT).max(next);
        // A hunk ends where twice the context is unchanged.
        let mut last = first;
        for (index, line) in lines.iter().enumerate().skip(first) {
            if line.kind != DiffLineKind::Same {
                last = index;
            } else if index - last > 2 * CONTEXT {
                break;
            }
        }
        let end = (last + 1 + CONTEXT).min(lines.len());
        let hunk = &lines[start..end];
        let (a, b) = (span(lines, start, hunk, |line| line.a), span(lines, start, hunk, |line| line.b));
        // Writing to a text cannot fail.
        let _ = writeln!(out, "@@ -{a} +{b} @@");
        for line in hunk {
            let sign = match line.kind {
                DiffLineKind::Same => ' ',
                DiffLineKind::Added => '+',
                DiffLineKind::Removed => '-',
            };
            let _ = writeln!(out, "{sign}{}", line.text);
        }
        next = end;
    }
    out
}

/// The first line and the number of lines of a hunk in one text. An empty range is written after the line before it.
fn span(
    lines: &[DiffLine],
    start: usize,
    hunk: &[DiffLine],
    number: impl Fn(&DiffLine) -> Option<usize>,
) -> String {
    let count = hunk.iter().filter_map(&number).count();
    let first = hunk.iter().find_map(&number);
    let before = lines[..start].iter().rev().find_map(&number).unwrap_or(0);
    match (first, count) {
        (Some(first), 1) => first.to_string(),
        (Some(first), count) => format!("{first},{count}"),
        (None, _) => format!("{before},0"),
    }
}
