//! Requests over a limit that are delayed, flagged or shed.

use super::{admit, limiter, ms, ms_since, of, retry_ms, settle};
use std::sync::Arc;
use tokio::time::{Instant, sleep};
use tollgate_limiter::{Flagged, Outcome, Request};

#[tokio::test(start_paused = true)]
async fn a_tarpit_delays_a_bounded_number_of_refusals() {
    let rules = "rules: [{ id: slow, limit: 1/min, on_exceed: { tarpit: { delay: 2s, most: 3 } } }]";
    let (limiter, start) = (limiter(rules), Instant::now());
    assert!(admit(&limiter, &of("one")).await.decision.allowed());
    let held: Vec<_> = (0..3)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { admit(&limiter, &of("one")).await })
        })
        .collect();
    settle().await;
    let fourth = admit(&limiter, &of("one")).await;
    assert_eq!(
        (ms_since(start), retry_ms(&fourth)),
        (0, Some(60_000)),
        "one above the maximum is refused at once"
    );
    for one in held {
        let refused = one.await.unwrap();
        assert_eq!((ms_since(start), retry_ms(&refused)), (2_000, Some(58_000)));
    }
    // A client that disconnects is not counted as delayed.
    let gone = tokio::spawn({
        let limiter = Arc::clone(&limiter);
        async move { admit(&limiter, &of("one")).await }
    });
    settle().await;
    gone.abort();
    settle().await;
    let again = Instant::now();
    assert_eq!(retry_ms(&admit(&limiter, &of("one")).await), Some(56_000));
    assert_eq!(ms_since(again), 2_000);
}

#[tokio::test(start_paused = true)]
async fn a_flag_admits_requests_with_a_header() {
    let rules = "
rules:
  - { id: captcha, limit: 2/min, on_exceed: { flag: { header: X-Captcha } } }
  - { id: hard, limit: 4/min }
";
    let limiter = limiter(rules);
    assert_eq!(limiter.flag_headers(), ["x-captcha"]);
    let mut flags = Vec::new();
    for _ in 0..4 {
        let admission = admit(&limiter, &of("one")).await;
        assert!(admission.decision.allowed());
        flags.push(admission.decision.flags().next());
    }
    let flag = Some(Flagged { header: "x-captcha", rule: "captcha", is_soft: false });
    assert_eq!(flags, [None, None, flag, flag]);
    // Refusals have none, and a check has the same flags.
    let refused = limiter.check(&of("one")).unwrap().now().unwrap();
    assert!(!refused.allowed() && refused.flags().next().is_none());
}

/// The status of a limit that only flags has the remaining tokens, and 0 once it is exceeded.
#[tokio::test(start_paused = true)]
async fn a_flagged_request_has_the_status_of_its_limit() {
    let flag = "{ id: captcha, limit: 2/min, on_exceed: flag }";
    let soft = "{ id: captcha, limit: 2/min, soft: 50%, on_exceed: flag }";
    // The rules; for each of four requests the limit, the remaining tokens, and the seconds to the reset.
    for (rules, expected) in [
        (flag.to_owned(), [("captcha", 1, 30), ("captcha", 0, 60), ("captcha", 0, 60), ("captcha", 0, 60)]),
        (soft.to_owned(), [("captcha", 1, 30), ("captcha", 0, 60), ("captcha", 0, 60), ("captcha", 0, 60)]),
        (
            format!("{flag}, {{ id: hard, limit: 4/min }}"),
            [("captcha", 1, 30), ("captcha", 0, 60), ("captcha", 0, 60), ("captcha", 0, 60)],
        ),
        (
            format!("{{ id: hard, limit: 4/min, soft: 50% }}, {flag}"),
            [("captcha", 1, 30), ("captcha", 0, 60), ("captcha", 0, 60), ("hard", 0, 60)],
        ),
        (
            "{ id: hard, limit: 4/min, soft: 50% }".to_owned(),
            [("hard", 3, 15), ("hard", 2, 30), ("hard", 1, 45), ("hard", 0, 60)],
        ),
        (
            format!("{flag}, {{ id: busy, algorithm: concurrency, limit: 9 }}"),
            [("captcha", 1, 30), ("captcha", 0, 60), ("captcha", 0, 60), ("captcha", 0, 60)],
        ),
    ] {
        let limiter = limiter(&format!("rules: [{rules}]"));
        let mut found = Vec::new();
        for _ in 0..4 {
            let admission = admit(&limiter, &of("one")).await;
            let decision = admission.decision;
            let Outcome::Admitted(standing) = decision.outcome else { panic!("{rules}: {decision:?}") };
            assert_eq!(standing.wait_us(), None, "{rules}: it passes");
            let by = decision.terms.unwrap().names.rule.as_str();
            found.push((by, standing.remaining, standing.reset_after_us / 1_000_000));
        }
        assert_eq!(found, expected, "{rules}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_soft_part_of_a_limit_has_its_own_action() {
    let rules = "
rules:
  - { id: told, key: api_key, limit: 10/min, soft: 80%, endpoint: /told }
  - { id: slow, key: api_key, limit: 4/min, soft: { at: 50%, then: { tarpit: { delay: 1s } } }, endpoint: /slow }
";
    let limiter = limiter(rules);
    let mut soft = Vec::new();
    for _ in 0..11 {
        let request = Request { endpoint: "/told", ..of("one") };
        let admission = admit(&limiter, &request).await;
        soft.push((admission.decision.allowed(), admission.decision.flags().next().is_some()));
    }
    let expected = [vec![(true, false); 8], vec![(true, true); 2], vec![(false, false)]].concat();
    assert_eq!(soft, expected);

    let mut took = Vec::new();
    for _ in 0..4 {
        let start = Instant::now();
        assert!(admit(&limiter, &Request { endpoint: "/slow", ..of("one") }).await.decision.allowed());
        took.push(ms_since(start));
    }
    assert_eq!(took, [0, 0, 1_000, 1_000]);
}

/// In flight may be 10: from 5 on priority 0 is refused, from 8 on all but the critical, at 10 all.
const SHED: &str = "
rules:
  - { id: shed, limit: 1/day, on_exceed: { shed: { in_flight: 10 } } }
  - { id: month, limit: 1000/day }
";

#[tokio::test(start_paused = true)]
async fn requests_of_low_priority_are_shed_first() {
    let limiter = limiter(SHED);
    let mut held = Vec::new();
    let mut found = Vec::new();
    for in_flight in 0..=10 {
        let mut least = None;
        for priority in [0, 50, 100, 150, 199, 200, 255] {
            let request = Request { priority: Some(priority), ..of("one") };
            let admission = admit(&limiter, &request).await;
            if admission.decision.allowed() && least.is_none() {
                least = Some(priority);
            }
        }
        found.push((in_flight, least));
        let critical = Request { priority: Some(255), ..of("one") };
        let admission = admit(&limiter, &critical).await;
        assert_eq!(admission.decision.allowed(), in_flight < 10);
        held.extend(admission.permit);
    }
    let expected = [
        (0, Some(0)),
        (1, Some(0)),
        (2, Some(0)),
        (3, Some(0)),
        (4, Some(0)),
        (5, Some(100)),
        (6, Some(150)),
        (7, Some(200)),
        (8, Some(200)),
        (9, Some(200)),
        (10, None),
    ];
    assert_eq!(found, expected);
    drop(held);
    assert!(admit(&limiter, &of("one")).await.decision.allowed(), "all have ended");
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_not_shed_count_under_other_limits() {
    let limiter = limiter(SHED);
    let mut remaining = Vec::new();
    for _ in 0..3 {
        let admission = admit(&limiter, &of("one")).await;
        let Outcome::Admitted(standing) = admission.decision.outcome else { panic!("{admission:?}") };
        remaining.push(standing.remaining);
    }
    assert_eq!(remaining, [0, 998, 997], "the first by its own limit, the others by the month's");
    // A node with a high load sheds, however few requests are in flight.
    limiter.set_load(900);
    assert!(!admit(&limiter, &of("one")).await.decision.allowed());
    assert!(admit(&limiter, &Request { priority: Some(200), ..of("one") }).await.decision.allowed());
    limiter.set_load(0);
    assert!(admit(&limiter, &of("one")).await.decision.allowed());
    sleep(ms(1)).await;
}
