//! Dashboards, alerts, their tests and the documentation use metrics and labels that exist, and every metric is used.

use crate::promql::{MetricUse, is_metric, metric_uses};
use crate::{assert_none, read, root, tracked_files};
use std::collections::BTreeSet;
use tollgate_limiter::metrics::catalog::ALL;
use tollgate_limiter::metrics::{MetricDefinition, MetricKind};

const RULES: &str = "deploy/prometheus/tollgate.rules.yml";
const RULE_TESTS: &str = "deploy/prometheus/tollgate.test.yml";
const RUNBOOK: &str = "docs/runbook.md";

/// An expression, and where it stands.
struct Expression {
    place: String,
    text: String,
}

/// The metric of a series, and whether the series has the label `le`.
fn definition_of(series: &str) -> Option<(&'static MetricDefinition, bool)> {
    let named = |name: &str| ALL.iter().copied().find(|metric| metric.name == name);
    let of_histogram = |suffix: &str| {
        let metric = named(series.strip_suffix(suffix)?)?;
        (metric.kind == MetricKind::Histogram).then_some((metric, suffix == "_bucket"))
    };
    // A histogram has no series with its own name.
    let plain = named(series).filter(|metric| metric.kind != MetricKind::Histogram);
    plain
        .map(|metric| (metric, false))
        .or_else(|| ["_bucket", "_sum", "_count"].into_iter().find_map(of_histogram))
}

/// What is wrong with a metric in an expression.
fn fault(used: &MetricUse, recorded: &BTreeSet<String>) -> Option<String> {
    let MetricUse { name, labels } = used;
    let is_target = |label: &str| matches!(label, "job" | "instance");
    let known: Vec<&str> = if recorded.contains(name) {
        // The first part of the name of a recorded metric is the list of its labels.
        name.split(':').next().unwrap_or_default().split('_').collect()
    } else {
        let Some((metric, has_le)) = definition_of(name) else {
            return Some(format!("{name} is not in the catalog"));
        };
        let le = has_le.then_some("le");
        metric.labels.iter().copied().chain(le).chain(["job", "instance"]).collect()
    };
    let unknown = labels.iter().find(|label| !known.contains(&label.as_str()) && !is_target(label));
    unknown.map(|label| format!("{name} has no label {label}"))
}

/// The values of a field of a YAML file, one a line or as a block (`|`).
fn yaml_values(path: &str, field: &str) -> Vec<Expression> {
    let text = read(path);
    let mut lines = text.lines().enumerate().peekable();
    let mut values = Vec::new();
    while let Some((index, line)) = lines.next() {
        let trimmed = line.trim_start();
        let Some(value) = trimmed.strip_prefix("- ").unwrap_or(trimmed).strip_prefix(field) else { continue };
        let Some(value) = value.strip_prefix(": ") else { continue };
        let indent = line.len() - trimmed.len();
        let mut text = value.to_owned();
        if value == "|" {
            text.clear();
            let is_inside =
                |line: &str| line.trim().is_empty() || line.len() - line.trim_start().len() > indent;
            while let Some((_, inside)) = lines.next_if(|(_, line)| is_inside(line)) {
                text.push_str(inside);
                text.push('\n');
            }
        }
        values.push(Expression { place: format!("{path}:{}", index + 1), text });
    }
    values
}

/// The names that the rules record.
fn recorded_names() -> BTreeSet<String> {
    yaml_values(RULES, "record").into_iter().map(|record| record.text).collect()
}

fn dashboards() -> impl Iterator<Item = String> {
    tracked_files().into_iter().filter(|path| path.starts_with("deploy/grafana/") && path.ends_with(".json"))
}

/// The queries of a dashboard: those of panels, variables and annotations.
fn queries(path: &str) -> Vec<Expression> {
    fn collect(value: &serde_json::Value, place: &str, found: &mut Vec<Expression>) {
        match value {
            serde_json::Value::Object(fields) => {
                let title = fields.get("title").and_then(|title| title.as_str());
                let place = title.map_or_else(|| place.to_owned(), |title| format!("{place}: {title}"));
                for (name, value) in fields {
                    match value.as_str() {
                        Some(text) if name == "expr" || name == "query" => {
                            found.push(Expression { place: place.clone(), text: text.to_owned() });
                        }
                        _ => collect(value, &place, found),
                    }
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, place, found)),
            _ => {}
        }
    }
    let dashboard = serde_json::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut found = Vec::new();
    collect(&dashboard, path, &mut found);
    found
}

/// The code of a Markdown page: the lines of fenced blocks, and what stands in backticks.
fn code(path: &str) -> Vec<Expression> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for (index, line) in read(path).lines().enumerate() {
        let place = || format!("{path}:{}", index + 1);
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced {
            found.push(Expression { place: place(), text: line.to_owned() });
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.map(|span| Expression { place: place(), text: span.to_owned() }));
        }
    }
    found
}

/// The code of documentation that names metrics. Crates of Rust are named alike: `tollgate_core`.
fn documented() -> Vec<Expression> {
    let is_crate = |word: &str| {
        let name = word.strip_prefix("tollgate_").unwrap_or_default();
        root().join("crates").join(name).is_dir()
    };
    let names_metrics = |text: &str| {
        let mut words = text.split(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter));
        words.any(|word| is_metric(word) && !word.contains("::") && !is_crate(word) && !word.ends_with('_'))
    };
    let is_page = |path: &String| path.ends_with(".md") && (path.starts_with("docs/") || path == "README.md");
    let pages = tracked_files().into_iter().filter(|path| is_page(path) && !path.starts_with("docs/adr/"));
    let code = pages.flat_map(|path| code(&path));
    code.filter(|expression| names_metrics(&expression.text)).collect()
}

/// Names of histograms in the text stand for all of their series.
fn is_histogram(used: &MetricUse) -> bool {
    ALL.iter().any(|metric| metric.name == used.name && metric.kind == MetricKind::Histogram)
}

#[test]
fn metrics_and_labels_that_are_used_exist() {
    let recorded = recorded_names();
    let mut faults = Vec::new();
    let mut check = |expression: &Expression, is_text: bool| {
        for used in metric_uses(&expression.text) {
            if !(is_text && is_histogram(&used)) {
                let fault = fault(&used, &recorded);
                faults.extend(fault.map(|fault| format!("{}: {fault}", expression.place)));
            }
        }
    };
    let rules = yaml_values(RULES, "expr");
    let series: Vec<Expression> = yaml_values(RULE_TESTS, "series")
        .into_iter()
        .map(|Expression { place, text }| Expression { place, text: text.trim_matches('\'').to_owned() })
        .collect();
    let queries: Vec<Expression> = dashboards().flat_map(|path| queries(&path)).collect();
    assert!(rules.len() > 20 && series.len() > 50 && queries.len() > 50, "files were not read");
    rules.iter().chain(&series).chain(&queries).for_each(|expression| check(expression, false));
    documented().iter().for_each(|expression| check(expression, true));
    assert_none(&faults, "metrics and labels that do not exist");
}

#[test]
fn every_metric_is_used() {
    let queries = dashboards().flat_map(|path| queries(&path));
    let expressions = yaml_values(RULES, "expr").into_iter().chain(queries).chain(code(RUNBOOK));
    let mut used = BTreeSet::new();
    for name in expressions.flat_map(|expression| metric_uses(&expression.text)).map(|used| used.name) {
        used.insert(definition_of(&name).map_or(name, |(metric, _)| metric.name.to_owned()));
    }
    let unused = ALL.iter().filter(|metric| !used.contains(metric.name)).map(|metric| metric.name.to_owned());
    assert_none(&unused.collect::<Vec<_>>(), "metrics in no dashboard, alert or runbook");
}

#[test]
fn every_alert_has_a_section_in_the_runbook_and_a_test() {
    let alerts: Vec<String> = yaml_values(RULES, "alert").into_iter().map(|alert| alert.text).collect();
    let links: Vec<String> = yaml_values(RULES, "runbook_url").into_iter().map(|link| link.text).collect();
    let expected: Vec<String> =
        alerts.iter().map(|alert| format!("{RUNBOOK}#{}", alert.to_lowercase())).collect();
    assert_eq!(links, expected);
    let runbook = read(RUNBOOK);
    let sections: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let known: BTreeSet<&str> = alerts.iter().map(String::as_str).collect();
    assert_eq!(sections, known, "sections of the runbook and alerts");
    let tested: Vec<String> =
        yaml_values(RULE_TESTS, "alertname").into_iter().map(|alert| alert.text).collect();
    let untested = alerts.into_iter().filter(|alert| !tested.contains(alert));
    assert_none(&untested.collect::<Vec<_>>(), "alerts without a test");
}
