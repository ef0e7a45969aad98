//! The lines of StatsD, and packets of them.

use cadence::{Counted, Gauged, MetricBuilder, NopMetricSink, StatsdClient};
use std::borrow::Cow;

/// The largest packet: the payload that fits in an Ethernet frame, with room for tunnels.
pub(super) const MOST_BYTES: usize = 1_432;
/// The longest value of a tag.
const LONGEST_VALUE: usize = 200;

/// Formats lines: `prefix.name:value|type|#label:value,…`, with the tags of DogStatsD.
#[derive(Debug)]
pub(super) struct LineFormat {
    /// Formats, and sends nothing.
    client: StatsdClient,
}

/// A label and its value as a tag.
pub(super) type Tag<'t> = (&'t str, Cow<'t, str>);

impl LineFormat {
    pub(super) fn new(prefix: &str) -> Self {
        Self { client: StatsdClient::from_sink(prefix, NopMetricSink) }
    }

    /// A counter that has grown by `growth`.
    pub(super) fn count(&self, name: &str, growth: u64, tags: &[Tag<'_>]) -> String {
        line(self.client.count_with_tags(name, growth), tags)
    }

    /// The value of a gauge.
    pub(super) fn gauge(&self, name: &str, value: f64, tags: &[Tag<'_>]) -> String {
        let value_line = line(self.client.gauge_with_tags(name, value), tags);
        if value.is_sign_positive() {
            return value_line;
        }
        // Many servers take a sign for a change of the last value.
        let zero_line = line(self.client.gauge_with_tags(name, 0.0), tags);
        format!("{zero_line}\n{value_line}")
    }
}

fn line<'t, M>(mut builder: MetricBuilder<'t, '_, M>, tags: &'t [Tag<'_>]) -> String
where
    M: cadence::Metric + From<String>,
{
    for (name, value) in tags {
        builder = builder.with_tag(name, value);
    }
    builder.try_send().map(|metric| metric.as_metric_str().to_owned()).unwrap_or_default()
}

/// A value without the characters that separate the parts of a line, and of bounded length.
pub(super) fn tag_value(value: &str) -> Cow<'_, str> {
    let is_reserved = |letter: char| matches!(letter, '|' | ',' | '#') || letter.is_control();
    if value.len() <= LONGEST_VALUE && !value.contains(is_reserved) {
        return Cow::Borrowed(value);
    }
    let mut end = value.len().min(LONGEST_VALUE);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(value[..end].replace(is_reserved, "_"))
}
