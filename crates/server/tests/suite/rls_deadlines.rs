//! The RLS door asked with deadlines of 20 ms, Envoy's default, at half of its load: none is missed, unless the machine stalls.

use crate::rls_fixture::{RlsFixture, descriptor, request};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_server::rls_door::proto::{RateLimitRequest, RateLimitServiceClient};
use tollgate_testbed::StallMonitor;
use tollgate_testbed::judging::{could_not_judge, judged};
use tonic::transport::Channel;

const DEADLINE: Duration = Duration::from_millis(20);
/// The least stall that is recorded: several of them may come together.
const STALL: Duration = Duration::from_millis(4);
const CONCURRENCY: usize = 16;
const CALIBRATION: Duration = Duration::from_millis(500);
const TEST: Duration = Duration::from_secs(2);
/// The load was half of what the machine can do if afterwards it can still do this part of what it could before.
const LEAST_CAPACITY: f64 = 0.8;

fn asked(number: usize) -> RateLimitRequest {
    let user = format!("user-{}", number % 100);
    request(&[descriptor(&[("user", &user)]), descriptor(&[("remote_address", "203.0.113.9")])])
}

/// The calls in a second with as many in flight as fit.
async fn most_per_second(client: &RateLimitServiceClient<Channel>) -> f64 {
    let start = Instant::now();
    let workers = (0..CONCURRENCY).map(|worker| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let mut calls = 0_usize;
            while start.elapsed() < CALIBRATION {
                client.should_rate_limit(asked(worker * 1_000 + calls)).await.unwrap();
                calls += 1;
            }
            calls
        })
    });
    let mut calls = 0;
    for worker in workers.collect::<Vec<_>>() {
        calls += worker.await.unwrap();
    }
    calls as f64 / start.elapsed().as_secs_f64()
}

#[test]
fn deadlines_are_met_at_half_load() {
    judged(|| {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(meet_deadlines_at_half_load());
    });
}

async fn meet_deadlines_at_half_load() {
    let fixture = RlsFixture::start().await;
    let client = fixture.client().await.0;
    let capacity = most_per_second(&client).await;
    let rate = capacity / 2.0;
    let monitor = StallMonitor::start_on_every_core(STALL);
    let missed: Arc<Mutex<Vec<Range<Instant>>>> = Arc::default();
    let start = Instant::now();
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut sent, mut calls) = (0, Vec::new());
    while start.elapsed() < TEST {
        ticks.tick().await;
        // After a stall the calls that were due are not made up for: that would be another load.
        let due =
            ((rate / 1_000.0).ceil() as usize).min((start.elapsed().as_secs_f64() * rate) as usize - sent);
        for _ in 0..due {
            let (mut client, missed, number) = (client.clone(), Arc::clone(&missed), sent);
            sent += 1;
            calls.push(tokio::spawn(async move {
                let mut request = tonic::Request::new(asked(number));
                request.set_timeout(DEADLINE);
                let begin = Instant::now();
                if client.should_rate_limit(request).await.is_err() {
                    missed.lock().push(begin..Instant::now());
                }
            }));
        }
    }
    for call in calls {
        call.await.unwrap();
    }
    let stalls = monitor.stalls();
    assert!(sent > 100, "{sent} calls at {rate:.0} a second");
    let missed = std::mem::take(&mut *missed.lock());
    // A stall delays what was sent before it and what waits behind that.
    let is_excused = |call: &Range<Instant>| {
        stalls.iter().any(|stall| stall.start < call.end && call.start < stall.end + DEADLINE)
    };
    let unexcused = missed.iter().filter(|call| !is_excused(call)).count();
    if unexcused == 0 {
        return;
    }
    let capacity_left = most_per_second(&client).await;
    if capacity_left < LEAST_CAPACITY * capacity {
        could_not_judge(format!("{capacity_left:.0} calls a second after {capacity:.0}"));
    }
    panic!("of {sent} calls {} missed the deadline; {} stalls", missed.len(), stalls.len());
}
