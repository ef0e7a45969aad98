//! Which metrics and labels a PromQL expression uses. Knows only as much of the language as that needs.

/// A metric in an expression.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetricUse {
    pub(crate) name: String,
    /// The labels that it is selected or aggregated by.
    pub(crate) labels: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text,
    Mark(char),
}

/// The metrics that `expression` uses: words that start with `tollgate_` or `process_`, and recorded ones, with a colon.
pub(crate) fn metric_uses(expression: &str) -> Vec<MetricUse> {
    uses_in(&tokens(expression))
}

/// Whether a word is the name of a metric that Tollgate exports or that a rule records.
pub(crate) fn is_metric(word: &str) -> bool {
    word.starts_with("tollgate_") || word.starts_with("process_") || word.contains(":tollgate_")
}

fn tokens(expression: &str) -> Vec<Token> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':' | '$' | '.');
    let mut tokens = Vec::new();
    let mut letters = expression.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' | '\'' => {
                while let Some(inside) = letters.next() {
                    match inside {
                        '\\' => drop(letters.next()),
                        end if end == letter => break,
                        _ => {}
                    }
                }
                tokens.push(Token::Text);
            }
            // A range such as [5m] says nothing about metrics.
            '[' => letters.by_ref().take_while(|inside| *inside != ']').for_each(drop),
            start if is_word(start) => {
                let mut word = String::from(start);
                while let Some(next) = letters.next_if(|next| is_word(*next)) {
                    word.push(next);
                }
                tokens.push(Token::Word(word));
            }
            space if space.is_whitespace() => {}
            mark => tokens.push(Token::Mark(mark)),
        }
    }
    tokens
}

fn uses_in(tokens: &[Token]) -> Vec<MetricUse> {
    let mut uses = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let Token::Word(word) = &tokens[at] else {
            at += 1;
            continue;
        };
        at += 1;
        if word == "by" || word == "without" {
            let (list, end) = group(tokens, at);
            let (argument, end_of_argument) = group(tokens, end);
            let labels = words(list);
            // `sum(x) by (label)` is written as `sum by (label) (x)`, so that the argument follows.
            assert!(!argument.is_empty(), "no argument follows `{word} ({})`", labels.join(", "));
            for mut inner in uses_in(argument) {
                inner.labels.extend(labels.iter().cloned());
                uses.push(inner);
            }
            at = end_of_argument;
        } else if matches!(word.as_str(), "on" | "ignoring" | "group_left" | "group_right") {
            at = group(tokens, at).1;
        } else if word == "label_values" {
            let (list, end) = group(tokens, at);
            let mut names = words(list).into_iter();
            let name = names.next().unwrap_or_default();
            uses.push(MetricUse { name, labels: names.collect() });
            at = end;
        } else if is_metric(word) {
            let (matchers, end) = group(tokens, at);
            let is_selected = tokens.get(at) == Some(&Token::Mark('{'));
            let labels = if is_selected { words(matchers) } else { Vec::new() };
            uses.push(MetricUse { name: word.clone(), labels });
            at = if is_selected { end } else { at };
        }
    }
    uses
}

/// The tokens between the bracket at `start` and its counterpart, and the position after that. Nothing, if there is no
/// bracket.
fn group(tokens: &[Token], start: usize) -> (&[Token], usize) {
    if !matches!(tokens.get(start), Some(Token::Mark('(' | '{'))) {
        return (&[], start);
    }
    let mut depth = 0;
    for (offset, token) in tokens[start..].iter().enumerate() {
        match token {
            Token::Mark('(' | '{') => depth += 1,
            Token::Mark(')' | '}') => depth -= 1,
            Token::Mark(_) | Token::Word(_) | Token::Text => {}
        }
        if depth == 0 {
            return (&tokens[start + 1..start + offset], start + offset + 1);
        }
    }
    (&tokens[start + 1..], tokens.len())
}

fn words(tokens: &[Token]) -> Vec<String> {
    let word = |token: &Token| match token {
        Token::Word(word) => Some(word.clone()),
        Token::Mark(_) | Token::Text => None,
    };
    tokens.iter().filter_map(word).collect()
}

/// The name of a metric, and labels.
type ExpectedUse = (&'static str, &'static [&'static str]);

#[test]
fn metrics_and_labels_are_found() {
    let table: [(&str, &[ExpectedUse]); 8] = [
        ("tollgate_a", &[("tollgate_a", &[])]),
        (r#"rate(tollgate_a_total{rule!="", x=~"b{c"}[5m]) > 0"#, &[("tollgate_a_total", &["rule", "x"])]),
        (
            "sum by (le, path) (rate(tollgate_a_bucket[$__rate_interval]))",
            &[("tollgate_a_bucket", &["le", "path"])],
        ),
        ("count by (job) (count by (job, v) (tollgate_a))", &[("tollgate_a", &["job", "v", "job"])]),
        (
            "max by (job) (tollgate_a) / on (job) group_left () process_b",
            &[("tollgate_a", &["job"]), ("process_b", &[])],
        ),
        ("job_rule:tollgate_a:ratio5m{rule='x'} or vector(0)", &[("job_rule:tollgate_a:ratio5m", &["rule"])]),
        ("label_values(tollgate_a, instance)", &[("tollgate_a", &["instance"])]),
        ("up == 0", &[]),
    ];
    for (expression, expected) in table {
        let expected: Vec<MetricUse> = expected
            .iter()
            .map(|(name, labels)| MetricUse {
                name: (*name).to_owned(),
                labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            })
            .collect();
        assert_eq!(metric_uses(expression), expected, "{expression}");
    }
}
