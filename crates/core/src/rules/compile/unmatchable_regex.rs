//! Regular expressions that no path can match.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Why an expression matches no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnmatchableRegex {
    /// It needs this character, which no path has when it is matched.
    Character(char),
    /// `^` behind something, or `$` before it.
    Anchor,
    /// A class without characters.
    Nothing,
    /// It needs this text, which the canonical form of a path never has.
    Text(&'static str),
    /// It needs an escape, which is decoded before.
    Escape,
}

/// What the canonical form of a path never has.
const NOT_CANONICAL: [&str; 3] = ["//", "/./", "/../"];

/// What keeps `regex` from matching any path; none if nothing is found. It may miss what only a search of all states
/// would find.
pub(super) fn impossible(regex: &str) -> Option<UnmatchableRegex> {
    let hir = ParserBuilder::new().dot_matches_new_line(true).build().parse(regex).ok()?;
    look(&hir, RequiredContext::default())
}

/// Whether something must have been matched before an expression, and behind it.
#[derive(Clone, Copy, Default)]
struct RequiredContext {
    before: bool,
    behind: bool,
}

fn look(hir: &Hir, around: RequiredContext) -> Option<UnmatchableRegex> {
    match hir.kind() {
        HirKind::Empty => None,
        HirKind::Literal(literal) => {
            let text = String::from_utf8_lossy(&literal.0);
            let never =
                NOT_CANONICAL.into_iter().find(|never| text.contains(never)).map(UnmatchableRegex::Text);
            let escape = has_escape(&text).then_some(UnmatchableRegex::Escape);
            never
                .or(escape)
                .or_else(|| text.chars().find(|c| is_foreign(*c)).map(UnmatchableRegex::Character))
        }
        HirKind::Class(class) => look_at_class(class),
        HirKind::Look(Look::Start) if around.before => Some(UnmatchableRegex::Anchor),
        HirKind::Look(Look::End) if around.behind => Some(UnmatchableRegex::Anchor),
        HirKind::Look(_) => None,
        HirKind::Repetition(repetition) if repetition.min == 0 => None,
        HirKind::Repetition(repetition) => look(&repetition.sub, around),
        HirKind::Capture(capture) => look(&capture.sub, around),
        HirKind::Concat(parts) => parts.iter().enumerate().find_map(|(index, part)| {
            let needs_text = |parts: &[Hir]| {
                parts.iter().any(|part| part.properties().minimum_len().is_none_or(|length| length > 0))
            };
            let before = around.before || needs_text(&parts[..index]);
            let behind = around.behind || needs_text(&parts[index + 1..]);
            look(part, RequiredContext { before, behind })
        }),
        HirKind::Alternation(parts) => {
            let found = parts.iter().map(|part| look(part, around)).collect::<Option<Vec<_>>>()?;
            found.first().copied()
        }
    }
}

/// Whether a text has a `%` and two hexadecimal digits in it.
fn has_escape(text: &str) -> bool {
    text.as_bytes().windows(3).any(|three| three[0] == b'%' && three[1..].iter().all(u8::is_ascii_hexdigit))
}

fn look_at_class(class: &Class) -> Option<UnmatchableRegex> {
    let class = match class {
        Class::Unicode(class) => class,
        Class::Bytes(class) => return class.ranges().is_empty().then_some(UnmatchableRegex::Nothing),
    };
    let Some(first) = class.iter().next() else { return Some(UnmatchableRegex::Nothing) };
    // A class of many characters has some that paths have.
    let all_foreign = class.iter().all(|range| {
        let (start, end) = (u32::from(range.start()), u32::from(range.end()));
        end - start < 256 && (start..=end).filter_map(char::from_u32).all(is_foreign)
    });
    all_foreign.then_some(UnmatchableRegex::Character(first.start()))
}

/// Whether no path has this character, but as an escape, in the form that is matched: the query is cut off, and paths
/// with a backslash or a control character are refused.
fn is_foreign(c: char) -> bool {
    c.is_ascii_control() || matches!(c, '?' | '#' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_path_matches_is_found() {
        use UnmatchableRegex::{Anchor, Character, Escape, Nothing, Text};
        let table: &[(&str, Option<UnmatchableRegex>)] = &[
            ("a^", Some(Anchor)),
            ("$a", Some(Anchor)),
            ("^/a(b|c)^/d", Some(Anchor)),
            ("(x^|y^)", Some(Anchor)),
            ("(x^|y)", None),
            ("(a^)?b", None),
            ("(a^)+b", Some(Anchor)),
            ("[^\\s\\S]", Some(Nothing)),
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
            assert_eq!(impossible(regex), *expected, "{regex}");
        }
    }
}
