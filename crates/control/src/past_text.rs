//! Times of what has happened, as texts.

use tollgate_core::rate::{SECOND_US, rfc3339};
use tollgate_core::time::UnixTime;

/// A time in RFC 3339, rounded down to the second: what has happened is never in the future.
pub(crate) fn past_text(time: UnixTime) -> String {
    rfc3339(UnixTime::from_us(time.as_us() / SECOND_US * SECOND_US))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_down() {
        for us in [1_800_000_000_000_000, 1_800_000_000_000_001, 1_800_000_000_999_999] {
            assert_eq!(past_text(UnixTime::from_us(us)), "2027-01-15T08:00:00Z", "{us}");
        }
    }
}
