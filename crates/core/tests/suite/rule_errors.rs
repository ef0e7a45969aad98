//! The reports about invalid rule files, word for word: see `rule_errors.txt`.
//!
//! After a change of messages, `UPDATE=1 cargo test -p tollgate-core rule_errors` rewrites the file; read the difference
//! as a user who made the mistake would.

use std::fmt::Write as _;
use tollgate_core::diagnostic::Severity;
use tollgate_core::rules;

const CASES: &str = include_str!("rule_errors.txt");
const CASE: &str = "\n==========\n";
const REPORT: &str = "\n----------\n";

#[test]
fn reports() {
    let mut now = String::new();
    for (index, case) in CASES.split(CASE).enumerate() {
        let (text, _) = case.split_once(REPORT).unwrap_or((case, ""));
        let report = match rules::load("rules.yaml", text) {
            Ok(loaded) => format!("loads\n{}", loaded.warnings),
            Err(report) => report.to_string(),
        };
        let separator = if index > 0 { CASE } else { "" };
        write!(now, "{separator}{text}{REPORT}{}", report.trim_end_matches('\n')).unwrap();
    }
    if std::env::var_os("UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/rule_errors.txt");
        std::fs::write(path, &now).unwrap();
        return;
    }
    for (expected, found) in CASES.split(CASE).zip(now.split(CASE)) {
        assert!(expected == found, "expected\n{expected}\n\nfound\n{found}");
    }
}

#[test]
fn nearly_every_error_has_a_hint() {
    let (mut total, mut hints) = (0, 0);
    for case in CASES.split(CASE) {
        let (text, _) = case.split_once(REPORT).unwrap();
        if let Err(report) = rules::load("rules.yaml", text) {
            total += report.diagnostics().len();
            hints += report.diagnostics().iter().filter(|diagnostic| diagnostic.hint.is_some()).count();
            for diagnostic in report.diagnostics() {
                for word in ["invalid type", "expected u", "struct ", "line ", "column "] {
                    let raw = diagnostic.message.contains(word) && diagnostic.severity == Severity::Error;
                    assert!(!raw || word == "line ", "{} is the text of a parser", diagnostic.message);
                }
            }
        }
    }
    assert!(total > 150 && hints * 100 >= total * 95, "{hints} hints for {total} total");
}

#[test]
fn alias_bombs_are_refused() {
    let mut aliases = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n".to_owned();
    for (name, inner) in "bcdefghij".chars().zip("abcdefghi".chars()) {
        writeln!(aliases, "{name}: &{name} [{}]", vec![format!("*{inner}"); 9].join(", ")).unwrap();
    }
    let long_text = format!("a: &a \"{}\"\nb: [{}]", "x".repeat(1_000_000), vec!["*a"; 10_000].join(", "));
    let anchors: String = (0..60).map(|level| format!("&a{level} [")).collect();
    let copies = format!("rules: {anchors}{}{}", "1,".repeat(20_000), "]".repeat(60));
    let deep = format!("rules: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (bomb, expected) in
        [(aliases, "too large"), (long_text, "too large"), (copies, "too large"), (deep, "nested too deeply")]
    {
        let report = rules::load("bomb.yaml", &bomb).unwrap_err().to_string();
        assert!(report.contains(expected) && report.len() < 2_000, "{}", &report[..report.len().min(2_000)]);
    }
}

#[test]
fn a_large_file_loads_quickly() {
    let keys: String = (0..20_000).map(|key| format!("      key-{key}: {{ limit: 7/s }}\n")).collect();
    let denied: String = (0..20_000).map(|key| format!("  - other-{key}\n")).collect();
    let text = format!("rules:\n  - id: a\n    limit: 5/s\n    override:\n{keys}deny:\n{denied}");
    rules::load("large.yaml", &text).unwrap();
    // An error at the end is still found, and the report shows only its line.
    let report = rules::load("large.yaml", &format!("{text}  - \"*\"\n")).unwrap_err();
    assert!(
        report.to_string().starts_with("large.yaml:40006:5: error: this denies all clients\n"),
        "{report}"
    );
}

#[test]
fn all_line_endings_count() {
    for end in ["\n", "\r\n", "\r"] {
        let text = ["# a comment", "rules:", "  - id: a", "    limt: 5/s", ""].join(end);
        let report = rules::load("x", &text).unwrap_err().to_string();
        let shown = "x:4:5: error: unknown field `limt`\n  4 |     limt: 5/s\n    |     ^^^^\n";
        assert!(report.starts_with(shown), "{end:?}: {report}");
    }
}

#[test]
fn long_lines_are_cut_around_the_position() {
    let text = format!("{{\"deny\": [{}\"*\"], \"rules\": []}}", "\"somebody\", ".repeat(100));
    let report = rules::load("one-line.json", &text).unwrap_err().to_string();
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(lines[0], "one-line.json:1:1211: error: this denies all clients");
    let caret = lines[2].chars().position(|c| c == '^').unwrap();
    assert_eq!(lines[1].chars().skip(caret).take(3).collect::<String>(), "\"*\"");
    assert!(lines[1].chars().count() < 200, "{report}");
}

#[test]
fn the_number_of_errors_is_capped() {
    let rules: String = (0..1_000).map(|index| format!("  - {{ id: r{index}, limt: 5/s }}\n")).collect();
    let report = rules::load("x", &format!("rules:\n{rules}")).unwrap_err();
    assert_eq!(report.diagnostics().len(), 100);
}

/// In excerpts, messages and the file name.
#[test]
fn control_characters_are_escaped() {
    let table = [
        ("rules: [{ id: \"a\\e[31m\", limit: 5/s }]", "`a\\u{1b}[31m` is not a valid id"),
        ("rules: [{ id: \"a\u{1b}[31m\", limit: 5/s }]", "\\u{1b}[31m"),
        ("rules: [{ id: a\u{9b}31m, limit: 5/s }]", "\\u{9b}31m"),
        ("rules: [{ id: \"a\u{202e}b\", limit: 5/s }]", "`a\\u{202e}b` is not a valid id"),
        ("rules: [{ id: \"a\\nb: error\", limit: 5/s }]", "`a\\nb: error` is not a valid id"),
        ("rules: [{ id: a\0, limit: 5/s }]", "\\u{0}"),
        ("rules: [{ id: a, limit: 5/s, \"\\e]0;x\\a\": 1 }]", "unknown field"),
        ("rules: [{ id: a, limit: \"5/s\\e[2J\" }]", "\\u{1b}[2J"),
    ];
    for (text, expected) in table {
        let report = rules::load("x\u{1b}[2J.yaml", text).unwrap_err().to_string();
        assert!(report.contains(expected), "{text:?}: {report}");
        assert!(report.starts_with("x\\u{1b}[2J.yaml:1:"), "{report}");
        let steers = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!report.contains(steers), "{report:?}");
        let about = report.lines().filter(|line| line.starts_with('x')).count();
        assert_eq!(about, 1, "no line is forged: {report}");
    }
}

#[test]
fn a_byte_order_mark_is_not_counted() {
    let report = rules::load("x", "\u{feff}rules: [{ id: a, limt: 5/s }]\n").unwrap_err().to_string();
    let shown = "x:1:18: error: unknown field `limt`\n  1 | rules: [{ id: a, limt: 5/s }]\n    |                  ^^^^\n";
    assert!(report.starts_with(shown), "{report}");
    rules::load("x", "\u{feff}rules: [{ id: a, limit: 5/s }]\n").unwrap();
}

#[test]
fn a_large_file_full_of_errors_is_checked_quickly() {
    let fields: String = (0..100_000).map(|field| format!("k{field}: 1\n")).collect();
    let report = rules::load("x", &fields).unwrap_err();
    assert!((1..=100).contains(&report.errors()), "{}", report.errors());
}

#[test]
fn many_warnings_do_not_hide_an_error() {
    let keys: String = (0..300).map(|key| format!("      sk-{key}: {{ limit: 7/s }}\n")).collect();
    let text = format!("rules:\n  - id: a\n    limit: 5/s\n    override:\n{keys}deny: [sk-*]\n");
    assert_eq!(rules::load("x", &text).unwrap().warnings.diagnostics().len(), 100);
    let report = rules::load("x", &format!("{text}tests: [{{ name: x, steps: [] }}]\n")).unwrap_err();
    assert_eq!(report.errors(), 1, "{report}");
}
