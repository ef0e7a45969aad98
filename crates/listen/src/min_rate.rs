//! The minimum rate at which a peer has to send a body, or to read one.
//!
//! Only time counts in which the peer is waited for: a body that a slow server sends in parts, such as server-sent events, makes
//! no client slow. Rates are averages over windows of such time, as long as the grace period. So a peer may pause for nearly that
//! long, and cannot save up bytes for a longer pause.
//!
//! ```
//! use std::time::Duration;
//! use tollgate_listen::{MinRate, RateWindow};
//!
//! let least = MinRate { bytes_per_second: 240, grace: Duration::from_secs(20) };
//! let mut window = RateWindow::default();
//! // One byte every two seconds.
//! for _ in 0..9 {
//!     window.add_bytes(1);
//!     assert!(!window.add_wait(Duration::from_secs(2), least));
//! }
//! assert!(window.add_wait(Duration::from_secs(2), least), "9 bytes in 20 s are too few");
//! ```

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

const SECOND_US: u128 = 1_000_000;

/// The minimum rate of a peer while it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// On average over the grace period.
    pub bytes_per_second: u32,
    /// The length of a window, which is also the longest pause.
    pub grace: Duration,
}

impl Default for MinRate {
    /// 240 bytes a second over 20 seconds: slower than any link in use, and faster than a client that trickles bytes.
    fn default() -> Self {
        Self { bytes_per_second: 240, grace: Duration::from_secs(20) }
    }
}

/// The bytes and the waiting time of the present window.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateWindow {
    waited: Duration,
    bytes: u64,
}

impl RateWindow {
    /// Adds bytes that the peer has sent or read.
    pub fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds time in which the peer was waited for. True if the window is full and its rate below the minimum.
    pub fn add_wait(&mut self, wait: Duration, least: MinRate) -> bool {
        self.add_wait_behind(wait, least, 0)
    }

    /// The same for a peer that reads from a buffer which is refilled only now and then: it may have read up to `buffered` bytes
    /// more than were counted. The window then goes on until the result is certain.
    pub(crate) fn add_wait_behind(&mut self, wait: Duration, least: MinRate, buffered: u64) -> bool {
        self.waited += wait;
        if self.waited < least.grace {
            return false;
        }
        let needed = u128::from(least.bytes_per_second) * self.waited.as_micros();
        let is_slow = u128::from(self.bytes.saturating_add(buffered)) * SECOND_US < needed;
        if is_slow || u128::from(self.bytes) * SECOND_US >= needed {
            *self = Self::default();
        }
        is_slow
    }

    /// The waiting time until the window is full.
    fn left(&self, least: MinRate) -> Duration {
        least.grace.saturating_sub(self.waited)
    }
}

/// A [`RateWindow`] with a timer, for a body that a task reads from a peer.
#[derive(Debug)]
pub struct PeerWait {
    least: MinRate,
    window: RateWindow,
    /// When the present wait began; none if the peer is not waited for.
    since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl PeerWait {
    /// Starts the first wait.
    pub fn new(least: MinRate) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + least.grace));
        Self { least, window: RateWindow::default(), since: Some(now), timer }
    }

    /// Starts or continues a wait. True if the peer is too slow; otherwise the task is woken for the next poll.
    pub fn poll_slow(&mut self, cx: &mut Context<'_>) -> bool {
        let mut since = *self.since.get_or_insert_with(Instant::now);
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.window.add_wait(now.saturating_duration_since(since), self.least) {
                return true;
            }
            (since, self.since) = (now, Some(now));
            // With a grace period of zero the timer would fire at once, for ever.
            let left = self.window.left(self.least).max(Duration::from_millis(1));
            self.timer.as_mut().reset(now + left);
        }
        false
    }

    /// Ends the wait, in which so many bytes came. True if the peer is too slow.
    pub fn end(&mut self, bytes: u64) -> bool {
        self.window.add_bytes(bytes);
        let Some(since) = self.since.take() else { return false };
        self.window.add_wait(since.elapsed(), self.least)
    }
}

/// How the client has to read a response: an extension of the response, where that differs from
/// [`ServeOptions`](crate::ServeOptions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// None for no minimum.
    pub min_rate: Option<MinRate>,
    /// The deadline of the response.
    pub until: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;
    use tokio::time::{advance, timeout};

    const LEAST: MinRate = MinRate { bytes_per_second: 100, grace: Duration::from_secs(10) };

    #[test]
    fn rates_are_averages_over_windows() {
        // A wait in milliseconds, the bytes that came in it, and whether the peer is too slow then.
        let table: [&[(u64, u64, bool)]; 6] = [
            &[(9_999, 0, false), (1, 0, true)],
            &[(9_999, 0, false), (1, 1_000, false), (10_000, 999, true)],
            &[(5_000, 1_000_000, false), (5_000, 0, false), (10_000, 0, true)],
            &[(2_000, 1, false), (2_000, 1, false), (2_000, 1, false), (2_000, 1, false), (2_000, 1, true)],
            &[(0, 0, false), (1_000, 100, false), (9_000, 900, false), (10_000, 1_000, false)],
            &[(60_000, 5_999, true)],
        ];
        for row in table {
            let mut window = RateWindow::default();
            for (wait_ms, bytes, is_slow) in row {
                window.add_bytes(*bytes);
                let found = window.add_wait(Duration::from_millis(*wait_ms), LEAST);
                assert_eq!(found, *is_slow, "{wait_ms} ms, {bytes} bytes of {row:?}");
            }
        }
    }

    #[test]
    fn buffered_bytes_may_have_been_read() {
        let mut window = RateWindow::default();
        let mut add = |wait_s, bytes| {
            window.add_bytes(bytes);
            window.add_wait_behind(Duration::from_secs(wait_s), LEAST, 5_000)
        };
        assert!(!add(10, 0) && !add(40, 0), "all of it may have been read");
        assert!(add(1, 0), "now even that is too slow");
        assert!(!add(10, 1_000) && !add(50, 0), "a window with enough bytes is over");
        assert!(add(1, 0));
    }

    async fn slow(wait: &mut PeerWait) {
        poll_fn(|cx| if wait.poll_slow(cx) { Poll::Ready(()) } else { Poll::Pending }).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_has_the_grace_period() {
        let (mut wait, start) = (PeerWait::new(LEAST), Instant::now());
        slow(&mut wait).await;
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_too_slow_after_the_grace_period() {
        let mut wait = PeerWait::new(LEAST);
        let mut seconds = 0;
        loop {
            let step = Duration::from_secs(2);
            let fired = timeout(step, slow(&mut wait)).await.is_ok();
            seconds += 2;
            if fired || wait.end(1) {
                break;
            }
        }
        assert_eq!(seconds, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_wait_does_not_count() {
        let mut wait = PeerWait::new(LEAST);
        for _ in 0..100 {
            assert!(timeout(Duration::from_secs(1), slow(&mut wait)).await.is_err());
            assert!(!wait.end(200));
            advance(Duration::from_secs(3_600)).await;
        }
    }
}
