//! Numbers with the same digits in every exporter.

use std::fmt;

/// The number without the last digits of binary fractions: bounds of histograms are multiples of powers of ten.
pub(crate) fn rounded(number: f64) -> f64 {
    format!("{number:.12e}").parse().unwrap_or(number)
}

/// A number as Prometheus writes it.
pub(crate) struct NumberText(pub(crate) f64);

impl fmt::Display for NumberText {
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
