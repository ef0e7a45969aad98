//! What the server was told of each series, and what it has to be told next.

use super::packets::{LineFormat, MOST_BYTES, Tag, tag_value};
use crate::number_text::NumberText;
use std::borrow::Cow;
use std::collections::HashMap;
use tollgate_limiter::metrics::{
    HistogramSnapshot, LabelValues, MetricDefinition, MetricKind, MetricSample, MetricSamples, MetricValue,
};

/// A metric with labels.
type SeriesKey = (&'static str, LabelValues);

/// The counts that were sent. A counter has one. A histogram has one for each bound, those of smaller bounds included, as in
/// the text format of Prometheus, and one for the number of observations.
#[derive(Debug, Default)]
pub(super) struct SentCounts {
    series: HashMap<SeriesKey, SentSeries>,
    flush: u64,
}

#[derive(Debug)]
struct SentSeries {
    counts: Vec<u64>,
    /// The last flush in which the series had a value.
    flush: u64,
}

/// Some lines.
#[derive(Debug, Default)]
pub(super) struct StatsdPacket {
    pub(super) text: String,
    /// The counts that the server has once it has the packet.
    pub(super) counts: Vec<PacketCount>,
}

/// A count that a packet brings up to date.
#[derive(Debug)]
pub(super) struct PacketCount {
    key: SeriesKey,
    index: usize,
    count: u64,
}

impl SentCounts {
    /// The packets that bring the server up to date. Series that have no value any more are forgotten: a rule that is removed
    /// and added again counts from zero.
    pub(super) fn packets(&mut self, samples: &MetricSamples, format: &LineFormat) -> Vec<StatsdPacket> {
        self.flush += 1;
        let mut packets = Packing::default();
        for family in samples.families() {
            for sample in &family.samples {
                self.add_sample(family.definition, sample, format, &mut packets);
            }
        }
        let flush = self.flush;
        self.series.retain(|_, series| series.flush == flush);
        packets.done
    }

    /// Takes note of counts that were sent.
    pub(super) fn record(&mut self, counts: Vec<PacketCount>) {
        for PacketCount { key, index, count } in counts {
            if let Some(series) = self.series.get_mut(&key) {
                series.counts[index] = count;
            }
        }
    }

    fn add_sample(
        &mut self,
        definition: &'static MetricDefinition,
        sample: &MetricSample,
        format: &LineFormat,
        packets: &mut Packing,
    ) {
        let name = definition.name;
        let labels = definition.labels.iter().zip(&sample.labels).filter(|(_, value)| !value.is_empty());
        let tags: Vec<Tag<'_>> = labels.map(|(label, value)| (*label, tag_value(value))).collect();
        match &sample.value {
            MetricValue::Count(count) if definition.kind == MetricKind::Counter => {
                let key = (name, sample.labels.clone());
                let sent = self.sent(&key, &[*count])[0];
                if let Some(growth) = growth(sent, *count) {
                    packets.add(&format.count(name, growth, &tags), Some((key, 0, *count)));
                }
            }
            MetricValue::Count(count) => packets.add(&format.gauge(name, *count as f64, &tags), None),
            MetricValue::Number(number) => {
                if number.is_finite() {
                    packets.add(&format.gauge(name, *number, &tags), None);
                }
            }
            MetricValue::Histogram(histogram) => {
                let key = (name, sample.labels.clone());
                self.add_histogram(key, histogram, &tags, format, packets);
            }
        }
    }

    fn add_histogram(
        &mut self,
        key: SeriesKey,
        histogram: &HistogramSnapshot,
        tags: &[Tag<'_>],
        format: &LineFormat,
        packets: &mut Packing,
    ) {
        let name = key.0;
        let mut total = 0;
        let mut counts: Vec<u64> = Vec::with_capacity(histogram.counts.len() + 1);
        for count in &histogram.counts {
            total += count;
            counts.push(total);
        }
        counts.push(total);
        let sent = self.sent(&key, &counts).to_vec();

        let bucket_name = format!("{name}_bucket");
        let count_name = format!("{name}_count");
        for (index, (sent, count)) in sent.into_iter().zip(counts.iter().copied()).enumerate() {
            let Some(growth) = growth(sent, count) else { continue };
            let line = if index < histogram.counts.len() {
                let bound = histogram.bounds.get(index).copied().unwrap_or(f64::INFINITY);
                let mut bucket_tags = tags.to_vec();
                bucket_tags.push(("le", Cow::Owned(NumberText(bound).to_string())));
                format.count(&bucket_name, growth, &bucket_tags)
            } else {
                format.count(&count_name, growth, tags)
            };
            packets.add(&line, Some((key.clone(), index, count)));
        }
        if histogram.sum.is_finite() {
            packets.add(&format.gauge(&format!("{name}_sum"), histogram.sum, tags), None);
        }
    }

    /// The counts that were sent for a series that has `counts` now.
    fn sent(&mut self, key: &SeriesKey, counts: &[u64]) -> &[u64] {
        let series = self.series.entry(key.clone());
        let series = series.or_insert_with(|| SentSeries { counts: vec![0; counts.len()], flush: 0 });
        series.flush = self.flush;
        let has_restarted = series.counts.len() != counts.len()
            || series.counts.iter().zip(counts).any(|(sent, count)| count < sent);
        if has_restarted {
            series.counts = vec![0; counts.len()];
        }
        &series.counts
    }
}

fn growth(sent: u64, count: u64) -> Option<u64> {
    count.checked_sub(sent).filter(|growth| *growth > 0)
}

/// Lines on their way into packets.
#[derive(Default)]
struct Packing {
    done: Vec<StatsdPacket>,
}

impl Packing {
    fn add(&mut self, line: &str, count: Option<(SeriesKey, usize, u64)>) {
        let fits = |packet: &StatsdPacket| packet.text.len() + 1 + line.len() < MOST_BYTES;
        if !self.done.last().is_some_and(fits) {
            self.done.push(StatsdPacket::default());
        }
        let Some(packet) = self.done.last_mut() else { return };
        if !packet.text.is_empty() {
            packet.text.push('\n');
        }
        packet.text.push_str(line);
        packet.counts.extend(count.map(|(key, index, count)| PacketCount { key, index, count }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::metrics::catalog;

    fn counter(count: u64) -> MetricSamples {
        let mut samples = MetricSamples::default();
        samples.count(&catalog::STORE_CALLS, &["a"], count);
        samples
    }

    fn lines(packets: &[StatsdPacket]) -> Vec<&str> {
        packets.iter().flat_map(|packet| packet.text.lines()).collect()
    }

    /// Flushes, as if all packets arrived.
    fn flushed(sent: &mut SentCounts, samples: &MetricSamples) -> Vec<String> {
        let packets = sent.packets(samples, &LineFormat::new(""));
        let flushed = lines(&packets).into_iter().map(str::to_owned).collect();
        packets.into_iter().for_each(|packet| sent.record(packet.counts));
        flushed
    }

    #[test]
    fn counters_are_sent_as_growth() {
        let mut sent = SentCounts::default();
        for (count, expected) in [
            (5, vec!["tollgate_store_calls_total:5|c|#shard:a"]),
            (5, vec![]),
            (7, vec!["tollgate_store_calls_total:2|c|#shard:a"]),
            // The series has restarted.
            (3, vec!["tollgate_store_calls_total:3|c|#shard:a"]),
        ] {
            assert_eq!(flushed(&mut sent, &counter(count)), expected);
        }
        assert!(flushed(&mut sent, &MetricSamples::default()).is_empty());
        assert_eq!(flushed(&mut sent, &counter(4)), ["tollgate_store_calls_total:4|c|#shard:a"]);
    }

    #[test]
    fn counts_of_a_packet_that_was_not_sent_are_in_the_next_one() {
        let mut sent = SentCounts::default();
        let format = LineFormat::new("edge");
        assert_eq!(
            lines(&sent.packets(&counter(5), &format)),
            ["edge.tollgate_store_calls_total:5|c|#shard:a"]
        );
        assert_eq!(
            lines(&sent.packets(&counter(8), &format)),
            ["edge.tollgate_store_calls_total:8|c|#shard:a"]
        );
    }

    #[test]
    fn gauges_below_zero_are_no_changes() {
        let mut samples = MetricSamples::default();
        samples.number(&catalog::STORE_CLOCK_DRIFT, &["a"], -0.5);
        samples.number(&catalog::STORE_CLOCK_DRIFT, &["b"], 0.25);
        samples.number(&catalog::NODES, &[], f64::NAN);
        let expected = [
            "tollgate_store_clock_drift_seconds:0|g|#shard:a",
            "tollgate_store_clock_drift_seconds:-0.5|g|#shard:a",
            "tollgate_store_clock_drift_seconds:0.25|g|#shard:b",
        ];
        assert_eq!(flushed(&mut SentCounts::default(), &samples), expected);
    }

    #[test]
    fn histograms_are_counters_by_bound_and_a_gauge() {
        let mut sent = SentCounts::default();
        let mut samples = MetricSamples::default();
        let histogram =
            HistogramSnapshot { bounds: vec![100.0 * 1e-9, 1.0], counts: vec![2, 0, 1], sum: 3.5 };
        samples.histogram(&catalog::DECISION_DURATION, &["local"], histogram);
        let expected = [
            "tollgate_decision_duration_seconds_bucket:2|c|#path:local,le:1e-7",
            "tollgate_decision_duration_seconds_bucket:2|c|#path:local,le:1.0",
            "tollgate_decision_duration_seconds_bucket:3|c|#path:local,le:+Inf",
            "tollgate_decision_duration_seconds_count:3|c|#path:local",
            "tollgate_decision_duration_seconds_sum:3.5|g|#path:local",
        ];
        assert_eq!(flushed(&mut sent, &samples), expected);
        assert_eq!(flushed(&mut sent, &samples), expected[4..]);
    }

    #[test]
    fn odd_and_long_labels_do_not_break_lines_or_packets() {
        let mut samples = MetricSamples::default();
        let long = "ü,|#\n".repeat(1_000);
        let labels = [long.as_str(), &long, "", &long, &long, &long];
        for count in 1..=50 {
            samples.count(&catalog::DECISIONS, &labels, count);
        }
        let packets = SentCounts::default().packets(&samples, &LineFormat::new(&"p".repeat(64)));
        assert!(packets.iter().all(|packet| packet.text.len() < MOST_BYTES));
        for line in lines(&packets) {
            assert_eq!(line.matches('|').count(), 2, "{line}");
            assert_eq!(line.matches(',').count(), 4, "{line}");
        }
    }

    /// Counters and histograms grow at random, and packets are lost at random in a way that the system reports.
    #[test]
    fn fuzz_no_count_is_lost_or_sent_twice() {
        type Step = (u8, u16, bool);
        bolero::check!().with_type::<Vec<Step>>().for_each(|steps| {
            let mut sent = SentCounts::default();
            let mut totals = [0_u64; 6];
            let mut received: HashMap<String, u64> = HashMap::new();
            let last = (0, 0, true);
            for (series, growth, arrives) in steps.iter().copied().chain([last]) {
                totals[usize::from(series) % totals.len()] += u64::from(growth);
                for packet in sent.packets(&samples_of(&totals), &LineFormat::new("")) {
                    if arrives {
                        packet.text.lines().for_each(|line| receive(line, &mut received));
                        sent.record(packet.counts);
                    }
                }
            }
            let count = |line: &str| received.get(line).copied().unwrap_or(0);
            for (shard, total) in totals[..3].iter().enumerate() {
                assert_eq!(count(&format!("tollgate_store_calls_total#shard:{shard}")), *total);
            }
            let (one, two, three) = (totals[3], totals[3] + totals[4], totals[3] + totals[4] + totals[5]);
            let name = "tollgate_decision_duration_seconds";
            assert_eq!(count(&format!("{name}_bucket#path:local,le:1.0")), one);
            assert_eq!(count(&format!("{name}_bucket#path:local,le:2.0")), two);
            assert_eq!(count(&format!("{name}_bucket#path:local,le:+Inf")), three);
            assert_eq!(count(&format!("{name}_count#path:local")), three);
        });
    }

    /// Three counters and a histogram of three buckets.
    fn samples_of(totals: &[u64; 6]) -> MetricSamples {
        let mut samples = MetricSamples::default();
        for (shard, total) in totals[..3].iter().enumerate() {
            samples.count(&catalog::STORE_CALLS, &[&shard.to_string()], *total);
        }
        let histogram = HistogramSnapshot { bounds: vec![1.0, 2.0], counts: totals[3..].to_vec(), sum: 0.5 };
        samples.histogram(&catalog::DECISION_DURATION, &["local"], histogram);
        samples
    }

    fn receive(line: &str, received: &mut HashMap<String, u64>) {
        let mut parts = line.split('|');
        let (name, value) = parts.next().unwrap().split_once(':').unwrap();
        let (kind, tags) = (parts.next().unwrap(), parts.next().unwrap());
        if kind == "c" {
            *received.entry(format!("{name}{tags}")).or_default() += value.parse::<u64>().unwrap();
        }
    }
}
