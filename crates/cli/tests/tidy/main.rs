//! Conventions of the source tree that neither the compiler nor clippy checks. Each test lists every violation.

#![allow(clippy::unwrap_used, clippy::panic)] // A failed precondition ends the test.

mod metric_docs;
mod metric_names;
mod promql;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A source file of more lines has more than one subject.
const MAX_LINES: usize = 600;

/// Names that say nothing about the content of a file.
const VAGUE_NAMES: [&str; 9] =
    ["mod", "util", "utils", "common", "helper", "helpers", "manager", "types", "base"];

/// Core is pure: it reads no clock, does no I/O and does not await.
const IMPURE: [&str; 10] = [
    "Instant",
    "SystemTime",
    "tokio",
    "std::fs",
    "std::thread",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
];

/// Marks of unfinished work, split so that this file does not contain them.
const UNFINISHED: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("#[ig", "nore"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The files that git tracks and that are in the working tree.
fn tracked_files() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let listed = listed.unwrap_or_else(|error| panic!("git cannot be started: {error}"));
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let paths = String::from_utf8(listed.stdout).unwrap();
    let paths = paths.split('\0').filter(|path| !path.is_empty() && root().join(path).is_file());
    paths.map(str::to_owned).collect()
}

fn tracked_sources() -> impl Iterator<Item = String> {
    tracked_files().into_iter().filter(|path| path.ends_with(".rs") && path.contains("/src/"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn assert_none(violations: &[String], rule: &str) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

/// The name of the struct, enum, union or trait that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) => rest,
        None => line,
    };
    let line = line.trim_start();
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let rest =
        ["struct ", "enum ", "union ", "trait "].iter().find_map(|keyword| line.strip_prefix(keyword))?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    rest[..end].starts_with(char::is_uppercase).then_some(&rest[..end])
}

#[test]
fn declarations_are_recognized() {
    for (line, expected) in [
        ("struct Plain;", Some("Plain")),
        ("    pub(crate) enum Nested<T> {", Some("Nested")),
        ("pub(in crate::a) trait Scoped: Send {", Some("Scoped")),
        ("pub struct Tuple(u8);", Some("Tuple")),
        ("/// struct Comment", None),
        ("type Associated = u8;", None),
        ("let structure = 1;", None),
        ("impl Trait for Plain {", None),
    ] {
        assert_eq!(declared_type(line), expected, "{line}");
    }
}

/// A name is searched for and spoken of without its module, so it must mean one thing.
#[test]
fn type_names_are_unique_in_the_workspace() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in tracked_sources() {
        for (index, line) in read(&path).lines().enumerate() {
            if let Some(name) = declared_type(line) {
                places.entry(name.to_owned()).or_default().push(format!("{path}:{}", index + 1));
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    let twice = places.iter().map(|(name, places)| format!("{name}: {}", places.join(", ")));
    assert_none(&twice.collect::<Vec<_>>(), "each type name occurs once");
}

#[test]
fn source_files_are_short() {
    let long = tracked_files().into_iter().filter(|path| path.contains("/src/")).filter_map(|path| {
        let lines = read(&path).lines().count();
        (lines > MAX_LINES).then(|| format!("{path}: {lines} lines"))
    });
    assert_none(&long.collect::<Vec<_>>(), &format!("no source file has more than {MAX_LINES} lines"));
}

#[test]
fn file_names_say_what_is_inside() {
    let vague = tracked_files().into_iter().filter(|path| {
        let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str());
        path.ends_with(".rs") && stem.is_some_and(|stem| VAGUE_NAMES.contains(&stem))
    });
    assert_none(&vague.collect::<Vec<_>>(), "files are named after their subject, and never mod.rs");
}

#[test]
fn core_is_pure() {
    let mut impure = Vec::new();
    for path in tracked_sources().filter(|path| path.starts_with("crates/core/src/")) {
        for (index, line) in read(&path).lines().enumerate() {
            impure.extend(words_in(line, &IMPURE).map(|word| format!("{path}:{}: {word}", index + 1)));
        }
    }
    assert_none(&impure, "core reads no clock, does no I/O and does not await");
}

/// Those of `words` that stand in `line`, not as a part of a longer word.
fn words_in<'w>(line: &str, words: &'w [&'w str]) -> impl Iterator<Item = &'w str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    words.iter().copied().filter(move |word| {
        line.match_indices(word).any(|(start, _)| {
            !line[..start].ends_with(is_word) && !line[start + word.len()..].starts_with(is_word)
        })
    })
}

#[test]
fn nothing_is_unfinished() {
    let mut unfinished = Vec::new();
    for path in tracked_files().into_iter().filter(|path| path.ends_with(".rs") || path.ends_with(".lua")) {
        for (index, line) in read(&path).lines().enumerate() {
            let marks = UNFINISHED.iter().filter(|mark| line.contains(**mark));
            unfinished.extend(marks.map(|mark| format!("{path}:{}: {mark}", index + 1)));
        }
    }
    assert_none(&unfinished, "no code is unfinished and no test is switched off");
}

#[test]
fn decision_records_are_numbered_without_gaps() {
    let mut numbers: Vec<String> = tracked_files()
        .iter()
        .filter_map(|path| path.strip_prefix("docs/adr/"))
        .filter(|name| name.starts_with(|letter: char| letter.is_ascii_digit()))
        .map(|name| name.chars().take_while(char::is_ascii_digit).collect())
        .collect();
    numbers.sort_unstable();
    let expected: Vec<String> = (1..=numbers.len()).map(|number| format!("{number:04}")).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn the_glossary_stays_short() {
    let rows = read("docs/glossary.md").lines().filter(|line| line.starts_with("| ")).count();
    assert!(rows <= 31, "{} terms; at most 30 are read", rows - 1);
}

/// A file that a document names in backticks exists: `limiter/clock.rs` is `crates/limiter/src/clock.rs`, and a name without
/// a crate is that of any file.
#[test]
fn documents_name_files_that_exist() {
    let files = tracked_files();
    let mut violations = Vec::new();
    for document in ["ARCHITECTURE.md", "docs/code-paths.md", "CONTRIBUTING.md"] {
        for (number, line) in read(document).lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2) {
                let is_file = [".rs", ".lua", ".md", ".yaml"].iter().any(|end| name.ends_with(end));
                if !is_file
                    || name.contains('*')
                    || ["mod.rs", "tollgate.yaml"].contains(&name)
                    || name.contains("NAME")
                    || name.contains('<')
                    || name.contains('…')
                {
                    continue;
                }
                let is_named = |path: &String| {
                    path == name
                        || path.ends_with(&format!("/src/{name}"))
                        || name.split_once('/').is_some_and(|(krate, rest)| {
                            *path == format!("crates/{krate}/src/{rest}")
                                || *path == format!("crates/{krate}/{rest}")
                        })
                        || path.ends_with(&format!("/{name}"))
                };
                if !files.iter().any(is_named) {
                    violations.push(format!("{document}:{}: {name}", number + 1));
                }
            }
        }
    }
    assert_none(&violations, "files that do not exist");
}
