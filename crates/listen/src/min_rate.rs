//! How fast a peer has to send, or to take what is ready for it.
//!
//! Only the time counts in which the peer is the one that is waited for: a body that a slow server sends now and then,
//! as server-sent events are, makes no client slow. Rates are averages over windows of such time, as long as the grace
//! period, so a peer may pause for nearly that long, and none can save up bytes for an idle hour.
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

/// The least that a peer sends or takes while it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// On average over the grace period.
    pub bytes_per_second: u32,
    /// The length of a window, and so the longest pause.
    pub grace: Duration,
}

impl Default for MinRate {
    /// 240 bytes a second over 20 seconds: slower than any link that people use, and faster than a byte now and then.
    fn default() -> Self {
        Self { bytes_per_second: 240, grace: Duration::from_secs(20) }
    }
}

/// What a peer did in the window so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateWindow {
    waited: Duration,
    bytes: u64,
}

impl RateWindow {
    /// Bytes moved.
    pub fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The peer was waited for. Says whether it was too slow over a whole window.
    pub fn add_wait(&mut self, wait: Duration, least: MinRate) -> bool {
        self.add_wait_behind(wait, least, 0)
    }

    /// The same for a peer that takes bytes out of a buffer which is filled up only now and then: so many may have
    /// been taken besides those that were counted. The window then goes on until it is certain.
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

    /// How much longer the peer can be waited for before the window is whole.
    fn left(&self, least: MinRate) -> Duration {
        least.grace.saturating_sub(self.waited)
    }
}

/// The waits for one peer, with a timer.
#[derive(Debug)]
pub struct PeerWait {
    least: MinRate,
    window: RateWindow,
    /// When the present wait began.
    since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl PeerWait {
    /// The first wait begins.
    pub fn new(least: MinRate) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + least.grace));
        Self { least, window: RateWindow::default(), since: Some(now), timer }
    }

    /// The peer is waited for. Says whether it was too slow; otherwise the task is woken to ask again.
    pub fn poll_slow(&mut self, cx: &mut Context<'_>) -> bool {
        let mut since = *self.since.get_or_insert_with(Instant::now);
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if self.window.add_wait(now.saturating_duration_since(since), self.least) {
                return true;
            }
            (since, self.since) = (now, Some(now));
            // A grace period of nothing is one of a moment.
            let left = self.window.left(self.least).max(Duration::from_millis(1));
            self.timer.as_mut().reset(now + left);
        }
        false
    }

    /// The wait is over, and so many bytes came of it. Says whether it was too slow.
    pub fn end(&mut self, bytes: u64) -> bool {
        self.window.add_bytes(bytes);
        let Some(since) = self.since.take() else { return false };
        self.window.add_wait(since.elapsed(), self.least)
    }
}

/// How an answer has to be taken by its client; as an extension of the response, where that differs from what
/// [`ServeOptions`](crate::ServeOptions) say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// None for clients that may be as slow as they like.
    pub min_rate: Option<MinRate>,
    /// When it has to be over.
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
    fn rates_are_averages_over_windows_of_waiting() {
        // Each wait in milliseconds, the bytes that came of it, and whether the peer is too slow then.
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
    fn what_is_in_a_buffer_may_have_been_taken() {
        let mut window = RateWindow::default();
        let mut add = |wait_s, bytes| {
            window.add_bytes(bytes);
            window.add_wait_behind(Duration::from_secs(wait_s), LEAST, 5_000)
        };
        assert!(!add(10, 0) && !add(40, 0), "it may have taken all of it");
        assert!(add(1, 0), "and now it has taken all of it too slowly");
        assert!(!add(10, 1_000) && !add(50, 0), "a window in which enough was taken is over");
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
    async fn a_trickle_ends_after_the_grace_period() {
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
    async fn time_in_which_the_peer_is_not_waited_for_does_not_count() {
        let mut wait = PeerWait::new(LEAST);
        for _ in 0..100 {
            assert!(timeout(Duration::from_secs(1), slow(&mut wait)).await.is_err());
            assert!(!wait.end(200));
            advance(Duration::from_secs(3_600)).await;
        }
    }
}
