//! How old the wait is that a refused client is told while other nodes use the same bucket.

use super::fleet::{Node, alone, patient_nodes};
use super::several::look;
use crate::setting::load;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate_limiter::{Outcome, Request};
use tollgate_testbed::judging::could_not_judge;
use tollgate_testbed::{RedisServer, StallMonitor};

/// A refusal is believed for 250 ms; a call takes the rest.
const STALEST_US: u64 = 250_000 + 20_000;
/// What the time between a reply and the look at the store may change.
const TOLERANCE_US: i64 = 20_000;
/// A client that is refused is told to wait for the next call at least.
const GATE_US: i64 = 100_000;
const RULES: &str =
    "rules: [{ id: one, key: api_key, params: { capacity: 100, refill_rate: 10 }, on_store_failure: deny }]";
const COST: u32 = 50;
const LENGTH: Duration = Duration::from_secs(4);

fn costing(cost: u32) -> Request<'static> {
    Request { api_key: Some("one"), endpoint: "/", cost: cost.into(), ..Request::default() }
}

/// Takes every token that comes in, so that no wait of another request gets shorter.
async fn take_all(node: Arc<Node>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::Relaxed) {
        node.check(&costing(1)).await;
        sleep(Duration::from_millis(5)).await;
    }
}

/// When a client may come again, as it was told and as it is true, in microseconds of this run.
#[derive(Clone, Copy, Debug)]
struct Sample {
    now_us: u64,
    told_us: u64,
    true_us: u64,
}

/// The wait of another request only grows: what it is told now must not be shorter than what was true so long ago.
/// Returns by how much it is at worst.
fn worst_us(samples: &[Sample], age_us: u64) -> i64 {
    let worse = |sample: &Sample| {
        let before = samples.iter().rev().find(|before| before.now_us + age_us <= sample.now_us)?;
        Some(before.true_us as i64 - sample.told_us as i64)
    };
    samples.iter().filter_map(worse).max().unwrap()
}

#[test]
fn what_a_refused_client_is_told_is_never_old() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let mut nodes = patient_nodes(&server.url(), RULES, 2).await;
        let (refuses, takes) = (nodes.remove(0), nodes.remove(0));
        while takes.check(&costing(10)).await.0 {}
        let witness = StallMonitor::start();
        let is_over = Arc::new(AtomicBool::new(false));
        let taking = tokio::spawn(take_all(takes, Arc::clone(&is_over)));
        let loaded = load(RULES);
        let meter = *loaded.rules.limits().next().unwrap().1.meter();
        let (start, calls) = (Instant::now(), refuses.store.calls());
        let mut samples = Vec::new();
        while start.elapsed() < LENGTH {
            let decision = refuses.limiter.check(&costing(COST)).unwrap().decision().await;
            let now_us = start.elapsed().as_micros() as u64;
            let Outcome::Limited(standing) = decision.outcome else { panic!("{decision:?}") };
            let told_us = now_us + standing.wait_us().unwrap();
            let (account, store_time) = tokio::task::block_in_place(|| look(&server, &loaded));
            let wait_us = account.step(&meter, store_time, COST).retry_after_us;
            let true_us = start.elapsed().as_micros() as u64 + wait_us;
            samples.push(Sample { now_us, told_us, true_us });
            sleep_until(start + Duration::from_millis(20) * samples.len() as u32).await;
        }
        is_over.store(true, Ordering::Relaxed);
        taking.await.unwrap();
        let calls = refuses.store.calls() - calls;
        let (worst_us, stall_us) = (worst_us(&samples, STALEST_US), witness.longest().as_micros() as i64);
        let ahead_us =
            samples.iter().map(|sample| sample.told_us as i64 - sample.true_us as i64).max().unwrap();
        let grown_us = samples[samples.len() - 1].true_us - samples[0].true_us;
        println!("{} refused, {calls} calls, the wait has grown by {grown_us} µs", samples.len());
        println!("at worst {worst_us} µs too short, {ahead_us} µs too long, stall {stall_us} µs");
        if stall_us > 20_000 && worst_us.max(ahead_us - GATE_US) > TOLERANCE_US {
            could_not_judge(format!("{worst_us} µs too short, {ahead_us} µs too long, stall {stall_us} µs"));
        }
        assert!(worst_us <= TOLERANCE_US, "{worst_us} µs too short");
        assert!(ahead_us <= GATE_US + TOLERANCE_US, "{ahead_us} µs too long");
        assert!(grown_us > 2_000_000, "the wait has grown by {grown_us} µs");
        assert!(calls <= 6 * LENGTH.as_secs(), "{calls} calls in {LENGTH:?}");
    });
}

/// A token every 60 ms: sooner than a client that sends more than its limit is asked about again.
const SHORT_WAITS: &str = "
rules:
  - { id: tokens, endpoint: /tokens, params: { capacity: 3, refill_rate: 1000/min } }
  - { id: level, endpoint: /level, algorithm: leaky_bucket, params: { capacity: 3, leak_rate: 1000/min } }
  - { id: spaced, endpoint: /spaced, algorithm: gcra, params: { capacity: 3, refill_rate: 1000/min } }
  - { id: strict, endpoint: /strict, params: { capacity: 3, refill_rate: 1000/min }, consistency: strict }
  - { id: log, endpoint: /log, algorithm: sliding_window_log, params: { limit: 3, window: 60ms } }
  - { id: window, endpoint: /window, algorithm: fixed_window, params: { limit: 3, window: 60ms } }
";

#[test]
fn a_client_that_waits_as_it_is_told_passes_however_short_the_wait_is() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let node = patient_nodes(&server.url(), SHORT_WAITS, 1).await.remove(0);
        for endpoint in ["/tokens", "/level", "/spaced", "/strict", "/log", "/window"] {
            let mut waits = 0;
            for round in 0..5 {
                let key = format!("{endpoint}-{round}");
                let request = Request { api_key: Some(&key), endpoint, ..Request::default() };
                let wait_us = loop {
                    let decision = node.limiter.check(&request).unwrap().decision().await;
                    if let Outcome::Limited(standing) = decision.outcome {
                        break standing.wait_us().unwrap();
                    }
                };
                sleep(Duration::from_micros(wait_us)).await;
                assert_eq!(node.check(&request).await, (true, false), "{endpoint} after {wait_us} µs");
                waits += u32::from(wait_us < GATE_US as u64);
            }
            assert!(waits > 0, "{endpoint}: no short wait was seen");
        }
    });
}
