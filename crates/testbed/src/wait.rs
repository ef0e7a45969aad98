//! Waiting for a condition instead of a fixed time.

use std::time::Duration;
use tokio::time::Instant;

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Blocks until `holds` returns true, and returns how long that took; panics with `what` after [`PATIENCE`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "timeout waiting until {what}");
        std::thread::sleep(POLL_EVERY);
    }
    start.elapsed()
}

/// Waits until `holds` returns true, and returns how long that took; panics with `what` after [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "timeout waiting until {what}");
        tokio::time::sleep(POLL_EVERY).await;
    }
    start.elapsed()
}
