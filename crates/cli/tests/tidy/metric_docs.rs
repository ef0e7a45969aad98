//! `docs/metrics.md` is generated from the catalog.

use crate::{read, root};
use std::fmt::Write;
use std::fs;
use tollgate_limiter::metrics::MetricDefinition;
use tollgate_limiter::metrics::catalog::ALL;

const PAGE: &str = "docs/metrics.md";
const UPDATE: &str = "TOLLGATE_UPDATE_DOCS";

const HEAD: &str = "# Metrics

Every metric of Tollgate, and the question that it answers. The page is generated from
`crates/limiter/src/metrics/catalog.rs`: `TOLLGATE_UPDATE_DOCS=1 cargo test -p tollgate --test tidy` writes it.

No label has values that come from clients, so the number of series does not grow with the number of clients. Rules,
tiers, routes, shards, upstreams and servers are configured; all other labels have a fixed set of values. A histogram has
the series `_bucket` (with the label `le`), `_sum` and `_count`. The series of a rule end when the rule is removed.

[telemetry.md](telemetry.md) says how to use the metrics, and [runbook.md](runbook.md) what to do when an alert fires.
";

fn page() -> String {
    let mut page = String::from(HEAD);
    let mut section = "";
    for metric in ALL {
        if metric.section != section {
            section = metric.section;
            let columns = "| metric | type | labels | meaning | question |\n|---|---|---|---|---|";
            writeln!(page, "\n## {section}\n\n{columns}").unwrap();
        }
        writeln!(page, "{}", row(metric)).unwrap();
    }
    page
}

fn row(metric: &MetricDefinition) -> String {
    let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    let MetricDefinition { name, kind, help, question, .. } = metric;
    format!("| `{name}` | {kind} | {} | {help} | {question} |", labels.join(", "))
}

#[test]
fn the_page_of_metrics_is_generated_from_the_catalog() {
    let page = page();
    if std::env::var_os(UPDATE).is_some() {
        fs::write(root().join(PAGE), &page).unwrap();
    }
    assert!(read(PAGE) == page, "{PAGE} differs from the catalog; set {UPDATE}=1 to write it");
}

#[test]
fn sections_of_the_catalog_are_contiguous() {
    let mut sections: Vec<&str> = ALL.iter().map(|metric| metric.section).collect();
    sections.dedup();
    let count = sections.len();
    sections.sort_unstable();
    sections.dedup();
    assert_eq!(sections.len(), count, "a section occurs twice");
}
