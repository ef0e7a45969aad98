//! The text formats that Prometheus scrapes: its own (0.0.4) and OpenMetrics 1.0.
//!
//! Both are line formats with the same samples. They differ in the name that the `HELP` and `TYPE` lines of a counter have,
//! in the type name of unknown values, and in the `# EOF` line of OpenMetrics.

use crate::number_text::NumberText;
use std::fmt::Write;
use tollgate_limiter::metrics::{
    HistogramSnapshot, LabelValues, MetricDefinition, MetricFamily, MetricKind, MetricSamples, MetricValue,
};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus 0.0.4, which people and `promtool` read.
    Prometheus,
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
}

impl TextFormat {
    /// The format that the `Accept` header of a scrape prefers.
    pub fn accepted(accept: Option<&str>) -> Self {
        let quality = |media_type: &str| {
            let mut best: Option<f32> = None;
            for entry in accept.unwrap_or_default().split(',') {
                let mut parts = entry.split(';').map(str::trim);
                if parts.next().is_some_and(|found| found.eq_ignore_ascii_case(media_type)) {
                    let stated = parts.find_map(|part| part.strip_prefix("q=")).and_then(|q| q.parse().ok());
                    best = Some(best.unwrap_or(0.0).max(stated.unwrap_or(1.0)));
                }
            }
            best
        };
        match (quality("application/openmetrics-text"), quality("text/plain")) {
            (Some(open_metrics), plain) if open_metrics > plain.unwrap_or(0.0) => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes all samples.
    pub fn render(self, samples: &MetricSamples) -> String {
        let mut text = String::with_capacity(64 * 1024);
        for family in samples.families() {
            self.write_family(&mut text, family);
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    fn write_family(self, text: &mut String, family: &MetricFamily) {
        let MetricDefinition { name, kind, help, labels, .. } = family.definition;
        let family_name = match (self, kind) {
            (Self::OpenMetrics, MetricKind::Counter) => name.trim_end_matches("_total"),
            (Self::OpenMetrics, MetricKind::Gauge | MetricKind::Histogram) | (Self::Prometheus, _) => name,
        };
        text.push_str("# HELP ");
        text.push_str(family_name);
        text.push(' ');
        write_escaped(text, help, self == Self::OpenMetrics);
        let _ = write!(text, "\n# TYPE {family_name} {kind}\n");
        let mut bounds = BoundTexts::default();
        for sample in &family.samples {
            match &sample.value {
                MetricValue::Count(count) => {
                    write_name(text, name, labels, &sample.labels);
                    let _ = writeln!(text, " {count}");
                }
                MetricValue::Number(number) => {
                    write_name(text, name, labels, &sample.labels);
                    let _ = writeln!(text, " {}", NumberText(*number));
                }
                MetricValue::Histogram(histogram) => {
                    let mut shown = String::new();
                    write_labels(&mut shown, labels, &sample.labels);
                    write_histogram(text, name, &shown, bounds.of(histogram), histogram);
                }
            }
        }
    }
}

/// The bounds of a histogram as text. Those of one family are mostly the same, and take more time than all the rest.
#[derive(Default)]
struct BoundTexts {
    bounds: Vec<f64>,
    texts: Vec<String>,
}

impl BoundTexts {
    /// The upper bound of each bucket.
    fn of(&mut self, histogram: &HistogramSnapshot) -> &[String] {
        if self.bounds != histogram.bounds || self.texts.is_empty() {
            self.bounds.clone_from(&histogram.bounds);
            let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
            self.texts = bounds.map(|bound| NumberText(bound).to_string()).collect();
        }
        &self.texts
    }
}

/// Writes a histogram whose labels are `labels`, without braces.
fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    bounds: &[String],
    histogram: &HistogramSnapshot,
) {
    let separator = if labels.is_empty() { "" } else { "," };
    let mut total = 0;
    for (count, bound) in histogram.counts.iter().zip(bounds) {
        total += count;
        let _ = writeln!(text, "{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {total}");
    }
    let (open, close) = if labels.is_empty() { ("", "") } else { ("{", "}") };
    let _ = writeln!(text, "{name}_sum{open}{labels}{close} {}", NumberText(histogram.sum));
    let _ = writeln!(text, "{name}_count{open}{labels}{close} {total}");
}

/// Writes the name of a sample with its labels.
fn write_name(text: &mut String, name: &str, labels: &[&str], values: &LabelValues) {
    text.push_str(name);
    if !labels.is_empty() {
        text.push('{');
        write_labels(text, labels, values);
        text.push('}');
    }
}

fn write_labels(text: &mut String, labels: &[&str], values: &LabelValues) {
    let mut separator = "";
    for (label, value) in labels.iter().zip(values) {
        text.push_str(separator);
        separator = ",";
        text.push_str(label);
        text.push_str("=\"");
        write_escaped(text, value, true);
        text.push('"');
    }
}

fn write_escaped(text: &mut String, value: &str, with_quotes: bool) {
    // Almost all values need no escapes, and a large node has tens of thousands of samples.
    if !value.bytes().any(|byte| matches!(byte, b'\\' | b'\n' | b'"')) {
        return text.push_str(value);
    }
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if with_quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::metrics::catalog;

    fn samples() -> MetricSamples {
        let mut samples = MetricSamples::default();
        let labels = ["a\"b\\c\n", "token_bucket", "", "/v1/{id}", "check", "allowed"];
        samples.count(&catalog::DECISIONS, &labels, 7);
        samples.number(&catalog::RULES_REVISION, &[], 3.0);
        let histogram =
            HistogramSnapshot { bounds: vec![2.5e-7, 0.1, 1.0], counts: vec![1, 0, 2, 4], sum: 0.25 };
        samples.histogram(&catalog::DECISION_DURATION, &["local"], histogram);
        samples
    }

    const DECISIONS: &str = r#"tollgate_decisions_total{rule="a\"b\\c\n",algorithm="token_bucket",tier="",route="/v1/{id}",door="check",outcome="allowed"} 7
"#;

    #[test]
    fn prometheus_text_is_as_its_manual_says() {
        let text = TextFormat::Prometheus.render(&samples());
        assert!(text.contains("# TYPE tollgate_decisions_total counter\n"), "{text}");
        assert!(text.contains(DECISIONS), "{text}");
        assert!(
            text.contains("# TYPE tollgate_rules_revision gauge\ntollgate_rules_revision 3.0\n"),
            "{text}"
        );
        let histogram = r#"# TYPE tollgate_decision_duration_seconds histogram
tollgate_decision_duration_seconds_bucket{path="local",le="2.5e-7"} 1
tollgate_decision_duration_seconds_bucket{path="local",le="0.1"} 1
tollgate_decision_duration_seconds_bucket{path="local",le="1.0"} 3
tollgate_decision_duration_seconds_bucket{path="local",le="+Inf"} 7
tollgate_decision_duration_seconds_sum{path="local"} 0.25
tollgate_decision_duration_seconds_count{path="local"} 7
"#;
        assert!(text.contains(histogram), "{text}");
        assert!(!text.contains("# EOF"));
    }

    #[test]
    fn open_metrics_names_families_without_the_suffix() {
        let text = TextFormat::OpenMetrics.render(&samples());
        assert!(text.contains("# TYPE tollgate_decisions counter\n"), "{text}");
        assert!(text.contains(DECISIONS), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn the_format_follows_the_accept_header() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            (None, TextFormat::Prometheus),
            (Some("*/*"), TextFormat::Prometheus),
            (Some("text/plain"), TextFormat::Prometheus),
            (Some(prometheus), TextFormat::OpenMetrics),
            (Some("application/openmetrics-text;q=0.2,text/plain;q=0.5"), TextFormat::Prometheus),
            (Some("Application/OpenMetrics-Text"), TextFormat::OpenMetrics),
            (Some(";;,,q=,"), TextFormat::Prometheus),
        ] {
            assert_eq!(TextFormat::accepted(accept), format, "{accept:?}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0.0"),
            (100.0 * 1e-9, "1e-7"),
            (250_000.0 * 1e-9, "0.00025"),
            (0.1 + 0.2, "0.3"),
            (1_794_778_812.0, "1794778812.0"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(NumberText(number).to_string(), text);
        }
    }
}
