//! Waiting for a condition, never for a time.

use std::time::Duration;
use tokio::time::Instant;

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Blocks until `holds`, and says after how long; panics with `what` when that takes too long.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(LOOK_EVERY);
    }
    start.elapsed()
}

/// Waits until `holds`, and says after how long; panics with `what` when that takes too long.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    start.elapsed()
}
