//! The values of all metrics in one form, whichever exporter wrote them.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AttributeText;
use opentelemetry_proto::tonic::metrics::v1::AggregationTemporality;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use std::collections::BTreeMap;

/// Name and labels to the value. Labels without a value are left out.
pub type Totals = BTreeMap<(String, BTreeMap<String, String>), TotalValue>;

/// Counts are compared exactly, other numbers to thirteen digits: the text has no more.
#[derive(Clone, Debug, PartialEq)]
pub enum TotalValue {
    /// A count.
    Count(u64),
    /// Another number.
    Number(String),
}

/// A number that is no count.
pub fn number(value: f64) -> TotalValue {
    TotalValue::Number(format!("{value:.12e}"))
}

/// What a text that Prometheus scrapes contains.
pub fn of_prometheus(text: &str) -> Totals {
    text.lines().filter(|line| !line.starts_with('#')).map(prometheus_line).collect()
}

fn prometheus_line(line: &str) -> ((String, BTreeMap<String, String>), TotalValue) {
    let (name_and_labels, value) = line.rsplit_once(' ').unwrap();
    let value = match value.parse() {
        Ok(count) => TotalValue::Count(count),
        Err(_) => number(value.parse().unwrap()),
    };
    let Some((name, labels)) = name_and_labels.split_once('{') else {
        return ((name_and_labels.to_owned(), BTreeMap::new()), value);
    };
    let mut parsed = BTreeMap::new();
    let mut rest = labels.strip_suffix('}').unwrap();
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"").unwrap();
        let mut text = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next().unwrap() {
                (_, '\\') => text.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    other => other,
                }),
                (end, '"') => break end,
                (_, other) => text.push(other),
            }
        };
        if !text.is_empty() {
            parsed.insert(label.to_owned(), text);
        }
        rest = quoted[end + 1..].trim_start_matches(',');
    }
    ((name.to_owned(), parsed), value)
}

/// What OTLP requests contain.
pub fn of_otlp<'r>(requests: impl IntoIterator<Item = &'r ExportMetricsServiceRequest>) -> Totals {
    let mut totals = Totals::new();
    let resources = requests.into_iter().flat_map(|request| &request.resource_metrics);
    for metric in resources.flat_map(|resource| &resource.scope_metrics).flat_map(|scope| &scope.metrics) {
        let name = |suffix: &str| format!("{}{suffix}", metric.name);
        let mut add = |suffix: &str, labels: BTreeMap<String, String>, value| {
            let before = totals.insert((name(suffix), labels), value);
            assert_eq!(before, None, "{} twice", metric.name);
        };
        match metric.data.as_ref().unwrap() {
            Data::Sum(sum) => {
                assert!(sum.is_monotonic);
                assert_eq!(sum.aggregation_temporality, AggregationTemporality::Cumulative as i32);
                for point in &sum.data_points {
                    assert!(
                        point.start_time_unix_nano > 0 && point.start_time_unix_nano <= point.time_unix_nano
                    );
                    add("", labels(&point.attributes), point_value(point.value));
                }
            }
            Data::Gauge(gauge) => {
                for point in &gauge.data_points {
                    add("", labels(&point.attributes), point_value(point.value));
                }
            }
            Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality, AggregationTemporality::Cumulative as i32);
                for point in &histogram.data_points {
                    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                    assert_eq!(point.count, point.bucket_counts.iter().sum::<u64>());
                    let mut total = 0;
                    for (bucket, count) in point.bucket_counts.iter().enumerate() {
                        total += count;
                        let mut labels = labels(&point.attributes);
                        let bound = point.explicit_bounds.get(bucket).copied().unwrap_or(f64::INFINITY);
                        labels.insert("le".to_owned(), bound_text(bound));
                        add("_bucket", labels, TotalValue::Count(total));
                    }
                    add("_count", labels(&point.attributes), TotalValue::Count(point.count));
                    add("_sum", labels(&point.attributes), number(point.sum.unwrap()));
                }
            }
            other => panic!("{other:?}"),
        }
    }
    totals
}

/// The bounds of `test_node`, as the text has them.
fn bound_text(bound: f64) -> String {
    match bound {
        f64::INFINITY => "+Inf".to_owned(),
        bound if bound < 1e-4 => format!("{bound:e}"),
        bound if bound.fract() == 0.0 => format!("{bound:.1}"),
        bound => bound.to_string(),
    }
}

fn point_value(value: Option<Value>) -> TotalValue {
    match value.unwrap() {
        Value::AsInt(count) => TotalValue::Count(u64::try_from(count).unwrap()),
        Value::AsDouble(value) => number(value),
    }
}

fn labels(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    attributes.iter().map(|attribute| (attribute.key.clone(), attribute_text(attribute))).collect()
}

/// The value of an attribute that is a text.
pub fn attribute_text(attribute: &KeyValue) -> String {
    match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
        AttributeText::StringValue(text) => text.clone(),
        AttributeText::IntValue(number) => number.to_string(),
        AttributeText::BoolValue(value) => value.to_string(),
        other => panic!("{other:?}"),
    }
}
