//! Metrics as OTLP: cumulative sums, gauges and histograms with explicit bounds.

use super::attributes::{scope, text_attribute};
use super::collector::{Collector, error_chain};
use crate::export_failures::ExportFailures;
use crate::number_text;
use crate::process;
use crate::registry::MetricRegistry;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tollgate_limiter::Clock;
use tollgate_limiter::metrics::{
    HistogramSnapshot, MetricDefinition, MetricKind, MetricSample, MetricSamples, MetricValue,
};
use tonic::transport::Channel;

/// Data points in one request. Collectors refuse messages above 4 MiB; a point has less than 1 KiB.
const MOST_POINTS: usize = 2_000;

/// The times of a data point, in nanoseconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointTimes {
    /// When counting began.
    pub(super) start_ns: u64,
    pub(super) now_ns: u64,
}

/// Pushes the metrics of a registry.
#[derive(Debug)]
pub(super) struct MetricExport {
    interval: Duration,
    collector: Collector,
    channel: Option<Channel>,
    registry: Arc<MetricRegistry>,
    clock: Clock,
    start_ns: u64,
    resource: Resource,
    failures: Arc<ExportFailures>,
}

impl MetricExport {
    pub(super) fn new(
        interval: Duration,
        collector: Collector,
        registry: Arc<MetricRegistry>,
        clock: Clock,
        resource: Resource,
        failures: Arc<ExportFailures>,
    ) -> Self {
        let now_ns = now_ns(&clock);
        let start_ns = process::start_time().map_or(now_ns, |seconds| (seconds * 1e9) as u64);
        let start_ns = start_ns.min(now_ns);
        Self { interval, collector, channel: None, registry, clock, start_ns, resource, failures }
    }

    /// Exports at every interval until `stopping`, and then once more.
    pub(super) async fn run(&mut self, mut stopping: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval_at(Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let export = async {
                ticks.tick().await;
                self.export().await;
            };
            // An export that is under way is cut, and its connection closed: the last one has the same totals or higher ones.
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => break,
                () = export => {}
            }
        }
        self.export().await;
    }

    async fn export(&mut self) {
        let times = PointTimes { start_ns: self.start_ns, now_ns: now_ns(&self.clock) };
        let requests = encode(&self.registry.collect(), times, &self.resource);
        let channel = self.channel.take().unwrap_or_else(|| self.collector.connect());
        let sent = send(&self.collector, channel.clone(), requests);
        match tokio::time::timeout(self.collector.timeout(), sent).await {
            Ok(Ok(())) => self.channel = Some(channel),
            // The next export connects again.
            Ok(Err(error)) => self.failures.record("metrics", &error),
            Err(_) => self.failures.record("metrics", &"no answer within the timeout"),
        }
    }
}

async fn send(
    collector: &Collector,
    channel: Channel,
    requests: Vec<ExportMetricsServiceRequest>,
) -> Result<(), String> {
    let mut client = MetricsServiceClient::new(channel);
    for request in requests {
        let answer = client.export(collector.request(request)).await;
        let answer = answer.map_err(|status| error_chain(&status))?.into_inner();
        if let Some(partial) = answer.partial_success.filter(|partial| partial.rejected_data_points > 0) {
            let rejected = partial.rejected_data_points;
            return Err(format!("the collector rejected {rejected} data points: {}", partial.error_message));
        }
    }
    Ok(())
}

fn now_ns(clock: &Clock) -> u64 {
    clock.now().as_us().saturating_mul(1_000)
}

/// The samples as requests of bounded size.
pub(super) fn encode(
    samples: &MetricSamples,
    times: PointTimes,
    resource: &Resource,
) -> Vec<ExportMetricsServiceRequest> {
    let mut requests = Vec::new();
    let mut metrics = Vec::new();
    let mut room = MOST_POINTS;
    for family in samples.families() {
        let mut rest = family.samples.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(room));
            metrics.push(metric(family.definition, now, times));
            room -= now.len();
            rest = later;
            if room == 0 {
                requests.push(request(std::mem::take(&mut metrics), resource));
                room = MOST_POINTS;
            }
        }
    }
    if !metrics.is_empty() {
        requests.push(request(metrics, resource));
    }
    requests
}

fn request(metrics: Vec<Metric>, resource: &Resource) -> ExportMetricsServiceRequest {
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
    let resource = Some(resource.clone());
    let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }];
    ExportMetricsServiceRequest { resource_metrics }
}

fn metric(definition: &MetricDefinition, samples: &[MetricSample], times: PointTimes) -> Metric {
    let cumulative = AggregationTemporality::Cumulative as i32;
    let numbers = || samples.iter().filter_map(|sample| number_point(definition, sample, times)).collect();
    let data = match definition.kind {
        MetricKind::Counter => {
            Data::Sum(Sum { data_points: numbers(), aggregation_temporality: cumulative, is_monotonic: true })
        }
        MetricKind::Gauge => Data::Gauge(Gauge { data_points: numbers() }),
        MetricKind::Histogram => {
            let points = samples.iter().filter_map(|sample| histogram_point(definition, sample, times));
            Data::Histogram(Histogram { data_points: points.collect(), aggregation_temporality: cumulative })
        }
    };
    Metric {
        name: definition.name.to_owned(),
        description: definition.help.to_owned(),
        unit: unit(definition.name).to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn number_point(
    definition: &MetricDefinition,
    sample: &MetricSample,
    times: PointTimes,
) -> Option<NumberDataPoint> {
    let value = match &sample.value {
        MetricValue::Count(count) => Value::AsInt(i64::try_from(*count).unwrap_or(i64::MAX)),
        MetricValue::Number(number) => Value::AsDouble(*number),
        MetricValue::Histogram(_) => return None,
    };
    // A gauge has no start.
    let start_ns = if definition.kind == MetricKind::Counter { times.start_ns } else { 0 };
    Some(NumberDataPoint {
        attributes: attributes(definition, sample),
        start_time_unix_nano: start_ns,
        time_unix_nano: times.now_ns,
        value: Some(value),
        ..NumberDataPoint::default()
    })
}

fn histogram_point(
    definition: &MetricDefinition,
    sample: &MetricSample,
    times: PointTimes,
) -> Option<HistogramDataPoint> {
    let MetricValue::Histogram(HistogramSnapshot { bounds, counts, sum }) = &sample.value else {
        return None;
    };
    Some(HistogramDataPoint {
        attributes: attributes(definition, sample),
        start_time_unix_nano: times.start_ns,
        time_unix_nano: times.now_ns,
        count: counts.iter().sum(),
        sum: Some(*sum),
        bucket_counts: counts.clone(),
        explicit_bounds: bounds.iter().copied().map(number_text::rounded).collect(),
        ..HistogramDataPoint::default()
    })
}

/// The labels. An empty value means that the label does not apply.
fn attributes(definition: &MetricDefinition, sample: &MetricSample) -> Vec<KeyValue> {
    let labels = definition.labels.iter().zip(&sample.labels).filter(|(_, value)| !value.is_empty());
    labels.map(|(label, value)| text_attribute(label, value)).collect()
}

/// The unit that the name of a metric ends with, as UCUM writes it.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some("ratio") => "1",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::metrics::catalog;

    const TIMES: PointTimes = PointTimes { start_ns: 1, now_ns: 2 };

    #[test]
    fn units_follow_the_names() {
        for (definition, expected) in [
            (&catalog::STORE_UNAVAILABLE, "s"),
            (&catalog::DECISION_DURATION, "s"),
            (&catalog::GATEWAY_BYTES, "By"),
            (&catalog::MEMORY_BYTES, "By"),
            (&catalog::REMAINING, "1"),
            (&catalog::DECISIONS, ""),
            (&catalog::HOTTEST_KEY, ""),
        ] {
            assert_eq!(unit(definition.name), expected, "{}", definition.name);
        }
    }

    #[test]
    fn many_series_are_split_into_requests() {
        let mut samples = MetricSamples::default();
        for series in 0..4_500_u64 {
            samples.count(&catalog::STORE_CALLS, &[&format!("shard-{series}")], series);
        }
        samples.number(&catalog::NODES, &[], 1.0);
        let requests = encode(&samples, TIMES, &Resource::default());
        assert_eq!(requests.len(), 3);
        let metrics =
            requests.iter().flat_map(|request| &request.resource_metrics[0].scope_metrics[0].metrics);
        let total: i64 = metrics
            .flat_map(|metric| match &metric.data {
                Some(Data::Sum(sum)) => sum.data_points.as_slice(),
                _ => &[],
            })
            .map(|point| match point.value {
                Some(Value::AsInt(count)) => count,
                _ => panic!("not a count"),
            })
            .sum();
        assert_eq!(total, 4_500 * 4_499 / 2);
        assert!(encode(&MetricSamples::default(), TIMES, &Resource::default()).is_empty());
    }

    #[test]
    fn counts_beyond_the_range_of_the_protocol_are_clamped() {
        let mut samples = MetricSamples::default();
        samples.count(&catalog::LEASE_COALESCED, &[], u64::MAX);
        let requests = encode(&samples, TIMES, &Resource::default());
        let Some(Data::Sum(sum)) = &requests[0].resource_metrics[0].scope_metrics[0].metrics[0].data else {
            panic!("not a sum");
        };
        assert_eq!(sum.data_points[0].value, Some(Value::AsInt(i64::MAX)));
    }

    #[test]
    fn fuzz_every_series_is_encoded_once_with_its_value() {
        bolero::check!().with_type::<Vec<(String, u32, [u32; 3])>>().for_each(|series| {
            let mut samples = MetricSamples::default();
            for (label, count, buckets) in series {
                samples.count(&catalog::STORE_CALLS, &[label], u64::from(*count));
                let counts: Vec<u64> = buckets.iter().copied().map(u64::from).collect();
                let histogram = HistogramSnapshot { bounds: vec![1.0, 2.0], counts, sum: 0.5 };
                samples.histogram(&catalog::DECISION_DURATION, &[label], histogram);
            }
            let requests = encode(&samples, TIMES, &Resource::default());
            let metrics: Vec<&Metric> = requests
                .iter()
                .flat_map(|request| &request.resource_metrics[0].scope_metrics[0].metrics)
                .collect();
            let mut counts = Vec::new();
            let mut histograms = Vec::new();
            for metric in metrics {
                match &metric.data {
                    Some(Data::Sum(sum)) => counts.extend(&sum.data_points),
                    Some(Data::Histogram(histogram)) => histograms.extend(&histogram.data_points),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((counts.len(), histograms.len()), (series.len(), series.len()));
            for ((label, count, buckets), (sum, histogram)) in
                series.iter().zip(counts.iter().zip(&histograms))
            {
                assert_eq!(sum.value, Some(Value::AsInt(i64::from(*count))));
                assert_eq!(sum.attributes.is_empty(), label.is_empty());
                assert_eq!(histogram.bucket_counts, buckets.map(u64::from));
                assert_eq!(histogram.count, buckets.iter().copied().map(u64::from).sum::<u64>());
            }
        });
    }
}
