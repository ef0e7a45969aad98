//! Limits that descriptors state: their units, their windows, and what cannot be counted.

use crate::rls_fixture::{RlsFixture, START_US, descriptor, headers, metadata, over, request, statuses};
use tollgate_server::rls_door::proto::{
    Code, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit, Unit,
};

const DAY_S: u64 = 86_400;
/// The units with their lengths in seconds, and as they are in responses.
const UNITS: [(RateLimitUnit, u64, Unit); 6] = [
    (RateLimitUnit::Second, 1, Unit::Second),
    (RateLimitUnit::Minute, 60, Unit::Minute),
    (RateLimitUnit::Hour, 3_600, Unit::Hour),
    (RateLimitUnit::Day, DAY_S, Unit::Day),
    (RateLimitUnit::Month, 30 * DAY_S, Unit::Month),
    (RateLimitUnit::Year, 365 * DAY_S, Unit::Year),
];

fn stated(entries: &[(&str, &str)], requests_per_unit: u32, unit: i32) -> RateLimitRequest {
    let limit = Some(RateLimitOverride { requests_per_unit, unit });
    request(&[RateLimitDescriptor { limit, ..descriptor(entries) }])
}

#[tokio::test]
async fn a_descriptor_may_state_its_limit() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    for (unit, _, shown) in UNITS {
        // The rule for users does not apply.
        let asked = stated(&[("user", "ann"), ("unit", unit.as_str_name())], 5, unit.into());
        for remaining in (0..5).rev() {
            let answer = client.ask(&asked).await;
            assert_eq!(statuses(&answer), [(Code::Ok, remaining)]);
            let limit = answer.statuses[0].current_limit.clone().unwrap();
            assert_eq!((limit.requests_per_unit, limit.unit()), (5, shown));
            assert_eq!(metadata(&answer, "rule").as_deref(), Some("request_limit"));
        }
        assert_eq!(statuses(&client.ask(&asked).await), [over(0)], "{unit:?}");
        // Other entries, and another domain, are counted by themselves.
        let other = stated(&[("user", "ben"), ("unit", unit.as_str_name())], 5, unit.into());
        assert_eq!(statuses(&client.ask(&other).await), [(Code::Ok, 4)]);
        let elsewhere = RateLimitRequest { domain: "elsewhere".to_owned(), ..asked };
        assert_eq!(statuses(&client.ask(&elsewhere).await), [(Code::Ok, 4)]);
    }
}

/// A window ends when the clock says so, however late in it the first request came.
#[tokio::test]
async fn windows_are_aligned_to_the_clock() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let mut now_us = START_US;
    for (unit, seconds, _) in UNITS {
        let asked = stated(&[("user", "ann"), ("unit", unit.as_str_name())], 2, unit.into());
        let length_us = seconds * 1_000_000;
        // Two thirds into a window; the second one then follows the first.
        let mut boundary_us = (now_us / length_us + 1) * length_us;
        now_us = boundary_us + length_us * 2 / 3;
        fixture.clock.set_us(now_us);
        for _ in 0..2 {
            boundary_us += length_us;
            for remaining in [1, 0] {
                assert_eq!(statuses(&client.ask(&asked).await), [(Code::Ok, remaining)], "{unit:?}");
            }
            let refused = client.ask(&asked).await;
            assert_eq!(statuses(&refused), [over(0)], "{unit:?}");
            let left_s = (boundary_us - now_us).div_ceil(1_000_000);
            assert_eq!(headers(&refused)["retry-after"], left_s.to_string(), "{unit:?}");
            let reset = refused.statuses[0].duration_until_reset.as_ref().unwrap();
            assert_eq!(reset.seconds as u64, left_s, "{unit:?}");
            fixture.clock.set_us(boundary_us - 1);
            assert_eq!(statuses(&client.ask(&asked).await), [over(0)], "{unit:?}: just before its end");
            now_us = boundary_us;
            fixture.clock.set_us(now_us);
        }
    }
}

#[tokio::test]
async fn limits_that_cannot_be_counted_are_exceeded() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let [second, month, year] =
        [RateLimitUnit::Second, RateLimitUnit::Month, RateLimitUnit::Year].map(i32::from);
    for (requests_per_unit, unit, why) in [
        (0, RateLimitUnit::Minute.into(), "a limit of 0"),
        (0, year, "a limit of 0"),
        (5, 0, "without a unit"),
        (5, 77, "without a unit"),
        (u32::MAX, -1, "without a unit"),
        (u32::MAX, year, "cannot be counted exactly"),
        (72_000_000, year, "cannot be counted exactly"),
        (u32::MAX, month, "cannot be counted exactly"),
        (869_000_000, month, "cannot be counted exactly"),
    ] {
        let answer = client.ask(&stated(&[("user", "eve")], requests_per_unit, unit)).await;
        assert_eq!(statuses(&answer), [over(0)], "{requests_per_unit} per {unit}");
        let body = String::from_utf8_lossy(&answer.raw_body);
        assert!(body.contains("BAD_REQUEST") && body.contains(why), "{requests_per_unit} per {unit}: {body}");
    }
    // The most that the documentation promises, and all of it.
    for (most, unit) in [(71_000_000, year), (868_000_000, month), (u32::MAX, second)] {
        let mut asked = stated(&[("unit", &unit.to_string())], most, unit);
        assert_eq!(statuses(&client.ask(&asked).await), [(Code::Ok, most - 1)], "{most} per {unit}");
        asked.hits_addend = most - 1;
        assert_eq!(statuses(&client.ask(&asked).await), [(Code::Ok, 0)], "{most} per {unit}");
        asked.hits_addend = 1;
        assert_eq!(statuses(&client.ask(&asked).await), [over(0)], "{most} per {unit}");
    }
}
