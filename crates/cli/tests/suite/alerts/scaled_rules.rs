//! The shipped rules and alerts with minutes turned into seconds, so that an alert that needs ten minutes fires in ten
//! seconds.
//!
//! Of the text of `tollgate.rules.yml` only durations are replaced, each by a sixtieth of it: `for: 10m`, the ranges
//! `[5m]`, and `offset 5m`. Everything else, thresholds included, is tested as it ships.

/// What stands before a duration.
const PREFIXES: [&str; 3] = ["for: ", "[", "offset "];

/// How many times shorter the durations are.
const FACTOR: u64 = 60;

/// The text of a rule file with all durations scaled down.
pub fn scaled_rules(text: &str) -> String {
    PREFIXES.iter().fold(text.to_owned(), |text, prefix| scale_after(&text, prefix))
}

/// Scales the durations that directly follow `prefix`.
fn scale_after(text: &str, prefix: &str) -> String {
    let mut parts = text.split(prefix);
    let mut scaled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        scaled += prefix;
        match duration_ms(part) {
            Some((ms, rest)) => scaled += &format!("{}ms{rest}", ms / FACTOR),
            None => scaled += part,
        }
    }
    scaled
}

/// The duration at the start of `text` and what follows it; none if there is no duration.
fn duration_ms(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let unit_ms = match text[digits..].chars().next()? {
        's' => 1_000,
        'm' => 60_000,
        'h' => 3_600_000,
        _ => return None,
    };
    let rest = &text[digits + 1..];
    // Not in the middle of a word, and not a duration of several units.
    (!rest.starts_with(|letter: char| letter.is_ascii_alphanumeric())).then_some((number * unit_ms, rest))
}

#[test]
fn durations_are_scaled_and_nothing_else() {
    for (text, expected) in [
        ("for: 10m\n", "for: 10000ms\n"),
        ("for: 30s\n", "for: 500ms\n"),
        ("for: 1h\n", "for: 60000ms\n"),
        ("rate(a_total[5m]) > 0.1", "rate(a_total[5000ms]) > 0.1"),
        ("a unless a offset 5m) / 300", "a unless a offset 5000ms) / 300"),
        ("increase(a[15m]) > 3 and b[10m]", "increase(a[15000ms]) > 3 and b[10000ms]"),
        ("job:a:ratio_rate5m > 300", "job:a:ratio_rate5m > 300"),
        ("rule_files: [a.yml]", "rule_files: [a.yml]"),
        ("in the last 5 minutes: {{ $value }}", "in the last 5 minutes: {{ $value }}"),
    ] {
        assert_eq!(scaled_rules(text), expected);
    }
}
