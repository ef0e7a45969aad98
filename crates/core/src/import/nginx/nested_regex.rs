//! The paths that begin with a text and match a regular expression, as one regular expression.
//!
//! nginx tests a nested `location ~` on the whole path, after the prefix of the outer location has matched. A match may
//! begin inside the prefix: of the paths in `/api/`, those that match `/api/v[12]/login` are
//! `^/api/(?:v[12]/login|api/v[12]/login|.*/api/v[12]/login)`. Each alternative is what remains of the expression after it
//! has consumed the prefix from some character on (its derivative). The last one begins after the prefix.

use regex::RegexBuilder;
use regex_syntax::ast::{self, Ast, RepetitionKind, RepetitionRange};
use std::fmt::Write;

/// More alternatives than this are not worth a regular expression.
const MOST_REMAINDERS: usize = 64;

/// The result of [`within_prefix`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegexWithin {
    /// This regular expression matches exactly the paths that fulfil both conditions.
    Regex(String),
    /// No path fulfils both conditions.
    Nothing,
    /// The expression has parts that are not supported here.
    Unsupported,
}

/// A part of a regular expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// Matches one character, as it is written.
    Char(String),
    /// `^`
    Start,
    /// `$`
    End,
    Group(Vec<Sequence>),
    Repeat {
        part: Box<Part>,
        min: u32,
        max: Option<u32>,
    },
}

type Sequence = Vec<Part>;

/// Whether letters match in both cases.
#[derive(Clone, Copy)]
struct CaseFolding(bool);

/// A regular expression for the paths that begin with `prefix` and match `regex`.
pub(super) fn within_prefix(prefix: &str, regex: &str) -> RegexWithin {
    let (folding, text) = match regex.strip_prefix("(?i)") {
        Some(rest) => (CaseFolding(true), rest),
        None => (CaseFolding(false), regex),
    };
    let parsed = ast::parse::Parser::new().parse(text).ok();
    let Some(whole) = parsed.and_then(|ast| alternatives(&ast, text)) else {
        return RegexWithin::Unsupported;
    };
    let start = format!("^{}", regex::escape(prefix));
    let mut remainders: Vec<Sequence> = Vec::new();
    for (index, c) in prefix.chars().enumerate() {
        // A match may begin at this character.
        remainders.push(vec![Part::Group(whole.clone())]);
        let mut next = Vec::new();
        for remainder in &remainders {
            if is_complete(remainder, index == 0) {
                return RegexWithin::Regex(start);
            }
            step(remainder, c, index == 0, folding, &mut next);
        }
        remainders.clear();
        next.into_iter().for_each(|one| push_new(&mut remainders, one));
        if remainders.len() > MOST_REMAINDERS {
            return RegexWithin::Unsupported;
        }
    }
    if remainders.iter().any(|remainder| is_complete(remainder, prefix.is_empty())) {
        return RegexWithin::Regex(start);
    }
    if let Some(later) = after_start(&[Part::Group(whole)]) {
        let any = Part::Repeat { part: Box::new(Part::Char(".".to_owned())), min: 0, max: None };
        remainders.push(std::iter::once(any).chain(later).collect());
    }
    if remainders.is_empty() {
        return RegexWithin::Nothing;
    }
    let mut rest = String::new();
    let is_single = remainders.len() == 1;
    match (folding.0, is_single) {
        (true, _) => rest.push_str("(?i:"),
        (false, false) => rest.push_str("(?:"),
        (false, true) => {}
    }
    write_alternatives(&remainders, &mut rest);
    if folding.0 || !is_single {
        rest.push(')');
    }
    RegexWithin::Regex(start + &rest)
}

/// The alternatives of an expression; `None` if it has parts that are not supported.
fn alternatives(ast: &Ast, text: &str) -> Option<Vec<Sequence>> {
    match ast {
        Ast::Alternation(alternation) => alternation.asts.iter().map(|one| sequence(one, text)).collect(),
        other => Some(vec![sequence(other, text)?]),
    }
}

fn sequence(ast: &Ast, text: &str) -> Option<Sequence> {
    match ast {
        Ast::Empty(_) => Some(Vec::new()),
        Ast::Concat(concat) => concat.asts.iter().map(|one| part(one, text)).collect(),
        other => Some(vec![part(other, text)?]),
    }
}

fn part(ast: &Ast, text: &str) -> Option<Part> {
    let written = || Part::Char(text[ast.span().start.offset..ast.span().end.offset].to_owned());
    Some(match ast {
        Ast::Literal(_) | Ast::Dot(_) | Ast::ClassUnicode(_) | Ast::ClassPerl(_) | Ast::ClassBracketed(_) => {
            written()
        }
        Ast::Assertion(assertion) => match assertion.kind {
            ast::AssertionKind::StartLine | ast::AssertionKind::StartText => Part::Start,
            ast::AssertionKind::EndLine | ast::AssertionKind::EndText => Part::End,
            _ => return None,
        },
        Ast::Group(group) => match &group.kind {
            ast::GroupKind::NonCapturing(flags) if !flags.items.is_empty() => return None,
            _ => Part::Group(alternatives(&group.ast, text)?),
        },
        Ast::Repetition(repetition) => {
            let (min, max) = match &repetition.op.kind {
                RepetitionKind::ZeroOrOne => (0, Some(1)),
                RepetitionKind::ZeroOrMore => (0, None),
                RepetitionKind::OneOrMore => (1, None),
                RepetitionKind::Range(RepetitionRange::Exactly(count)) => (*count, Some(*count)),
                RepetitionKind::Range(RepetitionRange::AtLeast(min)) => (*min, None),
                RepetitionKind::Range(RepetitionRange::Bounded(min, max)) => (*min, Some(*max)),
            };
            Part::Repeat { part: Box::new(part(&repetition.ast, text)?), min, max }
        }
        Ast::Empty(_) | Ast::Concat(_) | Ast::Alternation(_) => Part::Group(alternatives(ast, text)?),
        Ast::Flags(_) => return None,
    })
}

/// Whether a sequence matches without another character.
fn is_complete(sequence: &[Part], at_start: bool) -> bool {
    sequence.iter().all(|part| match part {
        Part::Char(_) | Part::End => false,
        Part::Start => at_start,
        Part::Group(alternatives) => alternatives.iter().any(|one| is_complete(one, at_start)),
        Part::Repeat { part, min, .. } => {
            *min == 0 || is_complete(std::slice::from_ref(part.as_ref()), at_start)
        }
    })
}

/// Adds what remains of a sequence after it has consumed `c`.
fn step(sequence: &[Part], c: char, at_start: bool, folding: CaseFolding, found: &mut Vec<Sequence>) {
    let Some((first, rest)) = sequence.split_first() else { return };
    match first {
        Part::Char(written) if matches_char(written, c, folding) => found.push(rest.to_vec()),
        Part::Char(_) | Part::End => {}
        Part::Start if at_start => step(rest, c, at_start, folding, found),
        Part::Start => {}
        Part::Group(alternatives) => {
            for alternative in alternatives {
                let joined: Sequence = alternative.iter().chain(rest).cloned().collect();
                step(&joined, c, at_start, folding, found);
            }
        }
        Part::Repeat { part, min, max } => {
            let mut once = Vec::new();
            if *max != Some(0) {
                step(std::slice::from_ref(part.as_ref()), c, at_start, folding, &mut once);
            }
            let max = max.map(|max| max.saturating_sub(1));
            let again = Part::Repeat { part: part.clone(), min: min.saturating_sub(1), max };
            let is_last = max == Some(0);
            for remainder in once {
                let again = (!is_last).then(|| again.clone());
                found.push(remainder.into_iter().chain(again).chain(rest.iter().cloned()).collect());
            }
            if is_complete(std::slice::from_ref(first), at_start) {
                step(rest, c, at_start, folding, found);
            }
        }
    }
}

fn matches_char(written: &str, c: char, folding: CaseFolding) -> bool {
    let regex = RegexBuilder::new(&format!("^(?:{written})$"))
        .case_insensitive(folding.0)
        .dot_matches_new_line(true)
        .build();
    regex.is_ok_and(|regex| regex.is_match(c.encode_utf8(&mut [0; 4])))
}

/// The sequence without the alternatives that match only at the start of a path; `None` if that is all of it.
fn after_start(sequence: &[Part]) -> Option<Sequence> {
    let mut later = Vec::new();
    for part in sequence {
        match part {
            Part::Start => return None,
            Part::Group(alternatives) => {
                let alternatives: Vec<Sequence> =
                    alternatives.iter().filter_map(|one| after_start(one)).collect();
                if alternatives.is_empty() {
                    return None;
                }
                later.push(Part::Group(alternatives));
            }
            Part::Repeat { part, min, max } => match after_start(std::slice::from_ref(part.as_ref())) {
                Some(inner) => {
                    let part = Box::new(single(inner));
                    later.push(Part::Repeat { part, min: *min, max: *max });
                }
                None if *min > 0 => return None,
                None => {}
            },
            Part::Char(_) | Part::End => later.push(part.clone()),
        }
    }
    Some(later)
}

fn single(mut sequence: Sequence) -> Part {
    if sequence.len() == 1 { sequence.remove(0) } else { Part::Group(vec![sequence]) }
}

fn write_alternatives(alternatives: &[Sequence], text: &mut String) {
    for (index, sequence) in alternatives.iter().enumerate() {
        if index > 0 {
            text.push('|');
        }
        for part in sequence {
            match part {
                // Needs no parentheses.
                Part::Group(inner) if inner.len() == 1 => write_alternatives(inner, text),
                part => write_part(part, text),
            }
        }
    }
}

fn write_part(part: &Part, text: &mut String) {
    match part {
        Part::Char(written) => text.push_str(written),
        Part::Start => text.push('^'),
        Part::End => text.push('$'),
        Part::Group(alternatives) => {
            text.push_str("(?:");
            write_alternatives(alternatives, text);
            text.push(')');
        }
        Part::Repeat { part, min, max } => {
            match part.as_ref() {
                // `a+?` would be another repetition.
                Part::Repeat { .. } => write_part(&Part::Group(vec![vec![*part.clone()]]), text),
                part => write_part(part, text),
            }
            let _ = match (min, max) {
                (0, Some(1)) => write!(text, "?"),
                (0, None) => write!(text, "*"),
                (1, None) => write!(text, "+"),
                (1, Some(1)) => Ok(()),
                (min, None) => write!(text, "{{{min},}}"),
                (min, Some(max)) if min == max => write!(text, "{{{min}}}"),
                (min, Some(max)) => write!(text, "{{{min},{max}}}"),
            };
        }
    }
}

fn push_new(list: &mut Vec<Sequence>, sequence: Sequence) {
    if !list.contains(&sequence) {
        list.push(sequence);
    }
}
