//! Times as logs write them.

use std::time::{Duration, UNIX_EPOCH};
use tollgate_core::time::UnixTime;

/// Beyond the year 9999 there is no text; no clock is there.
const LAST_US: u64 = 253_402_300_799_999_999;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A time in RFC 3339 with microseconds: `2026-11-17T06:12:03.000250Z`.
pub fn rfc3339_us(time: UnixTime) -> String {
    let time = UNIX_EPOCH + Duration::from_micros(time.as_us().min(LAST_US));
    humantime::format_rfc3339_micros(time).to_string()
}

/// A time as Apache's logs write it, cut to the second: `17/Nov/2026:06:12:03 +0000`.
pub fn common_log_time(time: UnixTime) -> String {
    let text = rfc3339_us(time);
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let month = part(5, 7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    let month = month.copied().unwrap_or_default();
    format!("{}/{month}/{}:{} +0000", part(8, 10), part(0, 4), part(11, 19))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_not_rounded_up() {
        for (us, rfc3339, common) in [
            (0, "1970-01-01T00:00:00.000000Z", "01/Jan/1970:00:00:00 +0000"),
            (1_794_895_923_999_999, "2026-11-17T06:12:03.999999Z", "17/Nov/2026:06:12:03 +0000"),
            (u64::MAX, "9999-12-31T23:59:59.999999Z", "31/Dec/9999:23:59:59 +0000"),
        ] {
            let time = UnixTime::from_us(us);
            assert_eq!((rfc3339_us(time).as_str(), common_log_time(time).as_str()), (rfc3339, common));
        }
    }
}
