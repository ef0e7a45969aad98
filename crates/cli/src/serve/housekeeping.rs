//! Housekeeping of the embedded store.

use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::Limiter;

const TIDY_EVERY: Duration = Duration::from_millis(100);
/// A warning that lasts is repeated every ten seconds.
const WARN_EVERY_TICKS: u32 = 100;

/// Removes expired states, and warns while the memory of the store is used up. Never returns.
pub async fn run(limiter: Arc<Limiter>) {
    let mut every = tokio::time::interval(TIDY_EVERY);
    let mut reported = 0;
    let mut silent_ticks = 0;
    loop {
        every.tick().await;
        limiter.tidy();
        let overflowed = limiter.store().overflowed();
        if overflowed > reported && silent_ticks == 0 {
            tracing::warn!(
                checks = overflowed - reported,
                "store memory is full: new keys share overflow cells; raise --store-memory"
            );
            reported = overflowed;
            silent_ticks = WARN_EVERY_TICKS;
        }
        silent_ticks = u32::saturating_sub(silent_ticks, 1);
    }
}
