//! Requests that are queued, delayed, flagged, shed, or counted until they end, on tokio's paused time.

mod exceeding;
mod in_flight;
mod queueing;

use crate::setting::{PLENTY, START_US, load};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::rules::LoadedRules;
use tollgate_limiter::{Admission, Clock, Limiter, ManualClock, MemoryStore, Outcome, Request};

/// A limiter whose clock follows tokio's time.
pub fn limiter(text: &str) -> Arc<Limiter> {
    let clock = Clock::Manual(ManualClock::following_tokio(START_US));
    let limiter = Limiter::new(MemoryStore::new(PLENTY), clock);
    let LoadedRules { rules, lists, .. } = load(text);
    limiter.install(rules, lists).unwrap();
    Arc::new(limiter)
}

pub fn of(key: &str) -> Request<'_> {
    Request { api_key: Some(key), endpoint: "/", ..Request::default() }
}

pub async fn admit(limiter: &Arc<Limiter>, request: &Request<'_>) -> Admission {
    limiter.admit(request).unwrap().admission().await
}

/// Runs all tasks that are ready, without time passing.
pub async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

pub fn ms_since(start: Instant) -> u128 {
    start.elapsed().as_millis()
}

/// The retry time; none if there is none.
pub fn retry_ms(admission: &Admission) -> Option<u64> {
    match admission.decision.outcome {
        Outcome::Limited(standing) => standing.wait_us().map(|wait_us| wait_us.div_ceil(1_000)),
        other => panic!("not limited: {other:?}"),
    }
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
