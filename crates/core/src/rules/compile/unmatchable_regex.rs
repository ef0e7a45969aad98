//! Finds regular expressions that match no path.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Why a regular expression matches no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnmatchableRegex {
    /// It needs a character that paths contain only as an escape.
    Character(char),
    /// `^` after a character, or `$` before one.
    Anchor,
    /// A class without characters.
    EmptyClass,
    /// It needs a text that canonical paths do not contain.
    Text(&'static str),
    /// It needs an escape, and paths are matched decoded.
    Escape,
}

/// Texts that canonical paths do not contain.
const NOT_CANONICAL: [&str; 3] = ["//", "/./", "/../"];

/// The reason why `regex` matches no path, if one is found. Reasons that need a search of all states are not found.
pub(super) fn find_unmatchable(regex: &str) -> Option<UnmatchableRegex> {
    let hir = ParserBuilder::new().dot_matches_new_line(true).build().parse(regex).ok()?;
    find(&hir, RequiredContext::default())
}

/// Whether a match needs characters before and after an expression.
#[derive(Clone, Copy, Default)]
struct RequiredContext {
    before: bool,
    after: bool,
}

fn find(hir: &Hir, context: RequiredContext) -> Option<UnmatchableRegex> {
    match hir.kind() {
        HirKind::Empty => None,
        HirKind::Literal(literal) => {
            let text = String::from_utf8_lossy(&literal.0);
            let never =
                NOT_CANONICAL.into_iter().find(|never| text.contains(never)).map(UnmatchableRegex::Text);
            let escape = has_escape(&text).then_some(UnmatchableRegex::Escape);
            never
                .or(escape)
                .or_else(|| text.chars().find(|c| is_only_escaped(*c)).map(UnmatchableRegex::Character))
        }
        HirKind::Class(class) => find_in_class(class),
        HirKind::Look(Look::Start) if context.before => Some(UnmatchableRegex::Anchor),
        HirKind::Look(Look::End) if context.after => Some(UnmatchableRegex::Anchor),
        HirKind::Look(_) => None,
        HirKind::Repetition(repetition) if repetition.min == 0 => None,
        HirKind::Repetition(repetition) => find(&repetition.sub, context),
        HirKind::Capture(capture) => find(&capture.sub, context),
        HirKind::Concat(parts) => parts.iter().enumerate().find_map(|(index, part)| {
            let needs_text = |parts: &[Hir]| {
                parts.iter().any(|part| part.properties().minimum_len().is_none_or(|length| length > 0))
            };
            let before = context.before || needs_text(&parts[..index]);
            let after = context.after || needs_text(&parts[index + 1..]);
            find(part, RequiredContext { before, after })
        }),
        HirKind::Alternation(parts) => {
            let found = parts.iter().map(|part| find(part, context)).collect::<Option<Vec<_>>>()?;
            found.first().copied()
        }
    }
}

/// Whether a text contains an escape such as `%20`.
fn has_escape(text: &str) -> bool {
    text.as_bytes().windows(3).any(|three| three[0] == b'%' && three[1..].iter().all(u8::is_ascii_hexdigit))
}

fn find_in_class(class: &Class) -> Option<UnmatchableRegex> {
    let class = match class {
        Class::Unicode(class) => class,
        Class::Bytes(class) => return class.ranges().is_empty().then_some(UnmatchableRegex::EmptyClass),
    };
    let Some(first) = class.iter().next() else { return Some(UnmatchableRegex::EmptyClass) };
    // A class of many characters contains some that paths contain.
    let all_escaped = class.iter().all(|range| {
        let (start, end) = (u32::from(range.start()), u32::from(range.end()));
        end - start < 256 && (start..=end).filter_map(char::from_u32).all(is_only_escaped)
    });
    all_escaped.then_some(UnmatchableRegex::Character(first.start()))
}

/// Whether paths contain this character only as an escape: the query is removed, and paths with a backslash or a control
/// character are refused.
fn is_only_escaped(c: char) -> bool {
    c.is_ascii_control() || matches!(c, '?' | '#' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmatchable_expressions_are_found() {
        use UnmatchableRegex::{Anchor, Character, EmptyClass, Escape, Text};
        let table: &[(&str, Option<UnmatchableRegex>)] = &[
            ("a^", Some(Anchor)),
            ("$a", Some(Anchor)),
            ("^/a(b|c)^/d", Some(Anchor)),
            ("(x^|y^)", Some(Anchor)),
            ("(x^|y)", None),
            ("(a^)?b", None),
            ("(a^)+b", Some(Anchor)),
            ("[^\\s\\S]", Some(EmptyClass)),
            ("/a\\?b=1", Some(Character('?'))),
            ("/a[?#]", Some(Character('#'))),
            ("/a\\?", Some(Character('?'))),
            ("/a?", None),
            ("/a[?]?", None),
            ("/a;v=1", None),
            ("^/a//b$", Some(Text("//"))),
            ("^/a/../b$", None),
            ("^/a/\\.\\./b$", Some(Text("/../"))),
            ("^/a/\\./b$", Some(Text("/./"))),
            ("^/a%20b$", Some(Escape)),
            ("^/a%2Fb$", Some(Escape)),
            ("^/100%$", None),
            ("/a\\\\b", Some(Character('\\'))),
            ("/a\\n", Some(Character('\n'))),
            ("/a\\s+b", None),
            ("^/v[0-9]+/(users|orders)(/.*)?$", None),
            ("^$", None),
            ("^^/a$$", None),
            ("(?m)^/a", None),
            ("(?i)/LOGIN", None),
            ("\\b/x\\b", None),
            ("[^/]+/[^;]*", None),
            (".*", None),
            ("(", None),
        ];
        for (regex, expected) in table {
            assert_eq!(find_unmatchable(regex), *expected, "{regex}");
        }
    }
}
