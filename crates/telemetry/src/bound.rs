//! Bounds of histogram buckets, with the same digits in every exporter.

use std::fmt;

/// The bound without the last digits of binary fractions: bounds are multiples of powers of ten.
pub(crate) fn rounded(bound: f64) -> f64 {
    format!("{bound:.12e}").parse().unwrap_or(bound)
}

/// A bound as Prometheus writes it.
pub(crate) struct BoundText(pub(crate) f64);

impl fmt::Display for BoundText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == f64::INFINITY {
            return f.write_str("+Inf");
        }
        let rounded = rounded(self.0);
        if rounded != 0.0 && !(1e-4..1e16).contains(&rounded.abs()) {
            write!(f, "{rounded:e}")
        } else if rounded.fract() == 0.0 {
            write!(f, "{rounded:.1}")
        } else {
            write!(f, "{rounded}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::TextFormat;
    use tollgate_limiter::metrics::{Histogram, MetricSamples, catalog};

    #[test]
    fn bounds_are_written_as_in_the_prometheus_text() {
        let snapshot = Histogram::latencies().snapshot();
        let mut samples = MetricSamples::default();
        samples.histogram(&catalog::DECISION_DURATION, &["local"], snapshot.clone());
        let text = TextFormat::Prometheus.render(&samples);
        for bound in snapshot.bounds.into_iter().chain([f64::INFINITY]) {
            assert!(text.contains(&format!("le=\"{}\"}} 0\n", BoundText(bound))), "{bound}");
        }
    }
}
