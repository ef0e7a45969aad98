//! Mutated rule files: they load, or a report has positions inside the file.

use super::rule_files::EVERYTHING;
use fastrand::Rng;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::rules;

/// Loads `text`, checks the positions of the report, and runs the tests if they are short. Returns whether it loads.
fn check_text(text: &str) -> bool {
    let (report, loads) = match rules::load("x", text) {
        Ok(loaded) => {
            let sent: u64 =
                loaded.tests.iter().flat_map(|(_, test)| &test.steps).map(|s| s.send.unwrap_or(1)).sum();
            if sent < 2_000 {
                rules::run_tests(&loaded);
            }
            (loaded.warnings, true)
        }
        Err(report) => (report, false),
    };
    let unified = text.replace("\r\n", "\n");
    let lines: Vec<&str> = unified.split(['\n', '\r']).collect();
    assert!(loads || report.errors() > 0, "refused without an error:\n{text}");
    for diagnostic in report.diagnostics() {
        let position = diagnostic.position;
        let length = lines.get(position.line - 1).map(|line| line.chars().count());
        // A missing value is reported one column after the end of the line.
        let inside = length.is_some_and(|length| position.column >= 1 && position.column <= length + 1);
        assert!(inside && position.width >= 1, "{diagnostic:?} is not in\n{text}");
        assert!(!diagnostic.message.is_empty());
    }
    assert!(report.to_string().lines().count() >= report.diagnostics().len());
    loads
}

const WORDS: [&str; 40] = [
    "id",
    "limit",
    "limits",
    "burst",
    "params",
    "rules",
    "tiers",
    "5/s",
    "0/s",
    "-1",
    "0",
    "1e9",
    "18446744073709551615",
    "99999999999999999999",
    "0.0000001",
    "null",
    "~",
    "true",
    "[]",
    "{}",
    "\"\"",
    "*",
    "&a",
    "*a",
    "<<: *a",
    "!!str",
    "---",
    "...",
    "? x",
    "- ",
    ": ",
    "#",
    "\t",
    "\r",
    "|",
    ">",
    "'",
    "\"",
    "{*rest}",
    "\u{feff}é🦀",
];

pub(super) fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    if chars.is_empty() {
        return rng.choice(WORDS).unwrap_or_default().to_owned();
    }
    let at = rng.usize(..chars.len());
    match rng.u8(..8) {
        0 => chars[at] = char::from(rng.u8(..128)),
        1 => chars[at] = char::from(chars[at] as u8 ^ (1 << rng.u8(..7))),
        2 => drop(chars.drain(at..(at + rng.usize(1..20)).min(text.chars().count()))),
        3 => drop(chars.splice(at..at, rng.choice(WORDS).unwrap_or_default().chars())),
        4 => {
            let mut lines: Vec<&str> = text.split('\n').collect();
            let (one, other) = (rng.usize(..lines.len()), rng.usize(..lines.len()));
            lines.swap(one, other);
            return lines.join("\n");
        }
        5 => {
            let mut tokens: Vec<&str> = text.split_inclusive([' ', '\n']).collect();
            let (one, other) = (rng.usize(..tokens.len()), rng.usize(..tokens.len()));
            tokens.swap(one, other);
            return tokens.concat();
        }
        6 => {
            let mut tokens: Vec<&str> = text.split_inclusive([' ', '\n']).collect();
            let one = rng.usize(..tokens.len());
            tokens[one] = rng.choice(WORDS).unwrap_or_default();
            return tokens.concat();
        }
        _ => {
            let digits: Vec<usize> =
                (0..chars.len()).filter(|index| chars[*index].is_ascii_digit()).collect();
            // Earlier mutations may have removed all of them.
            let digit = rng.choice(&digits).copied().unwrap_or(at);
            let number =
                rng.choice(["0", "-1", "999999999999", "0.5", "1e30", "00", "1_0"]).unwrap_or_default();
            drop(chars.splice(digit..=digit, number.chars()));
        }
    }
    chars.into_iter().collect()
}

/// Mutated configurations of other programs, up to seven mutations each. `import` returns the rules, if it accepts the text: they
/// must load.
pub(super) fn fuzz_imports(sample: &str, import: impl Fn(&str) -> Option<String> + RefUnwindSafe) {
    let (played, imported) = (AtomicU64::new(0), AtomicU64::new(0));
    let (import, played, imported) = (&import, &played, &imported);
    bolero::check!().with_type::<(u64, u8)>().for_each(|(seed, changes)| {
        let mut rng = Rng::with_seed(*seed);
        played.fetch_add(1, Ordering::Relaxed);
        let mut text = sample.to_owned();
        for _ in 0..changes % 8 {
            text = mutate(&text, &mut rng);
        }
        if let Some(rules) = import(&text) {
            assert!(rules::load("x", &rules).is_ok(), "{text}\n{rules}");
            imported.fetch_add(1, Ordering::Relaxed);
        }
    });
    // How many are played is a matter of time.
    let (played, imported) = (played.load(Ordering::Relaxed), imported.load(Ordering::Relaxed));
    assert!(imported > 0 && imported > played / 10, "only {imported} of {played} were imported");
}

/// 2,500 files with one to three mutations each.
fn mutations(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut loaded = 0;
    for _ in 0..2_500 {
        let mut text = EVERYTHING.to_owned();
        for _ in 0..rng.u8(1..=3) {
            text = mutate(&text, &mut rng);
        }
        loaded += usize::from(check_text(&text));
    }
    assert!((100..2_000).contains(&loaded), "{loaded} load: too few or too many for a test");
}

#[test]
fn mutations_1() {
    mutations(1);
}

#[test]
fn mutations_2() {
    mutations(2);
}

#[test]
fn mutations_3() {
    mutations(3);
}

#[test]
fn mutations_4() {
    mutations(4);
}

#[test]
fn any_text() {
    bolero::check!().with_iterations(4_000).with_type::<String>().for_each(|text| {
        check_text(text);
    });
}

/// Words of a rule file in any order: more of these are valid YAML than of random texts.
#[test]
fn any_words() {
    const MORE: [&str; 16] = [
        "rules: [{ id: a, limit: 5/s }]",
        "\n",
        "\n  ",
        "\n  - ",
        "{ ",
        " }",
        "[",
        "]",
        ", ",
        "id: a",
        "limit: 5/s",
        "rules:",
        "tiers:",
        "match: ",
        "tests:",
        "deny: [a]",
    ];
    bolero::check!().with_iterations(4_000).with_type::<Vec<u8>>().for_each(|choices| {
        let word = |choice: &u8| {
            let choice = usize::from(*choice) % (WORDS.len() + 4 * MORE.len());
            if choice < WORDS.len() { WORDS[choice] } else { MORE[(choice - WORDS.len()) % MORE.len()] }
        };
        check_text(&choices.iter().map(word).collect::<String>());
    });
}
