//! Resets HTTP/2 streams whose client does not read them.
//!
//! A client can stall one stream by not opening its flow-control window, while the rest of its connection makes progress. Hyper
//! polls a body only if the window is open. So a body that was not polled since its last frame is stalled by its client; the task
//! of the stream measures for how long. A client may open the window only after it has read much of what it has: as much as was
//! sent before the first stall may still be unread.

use crate::min_rate::{MinRate, RateWindow, SendLimits};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::futures::TaskLocalFuture;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

tokio::task_local! {
    static METER: Arc<StreamMeter>;
}

/// What the body of a response tells the task of its stream.
#[derive(Debug)]
pub(crate) struct StreamMeter {
    /// The body was not polled since its last frame.
    is_stalled: AtomicBool,
    bytes: AtomicU64,
    limits: Mutex<SendLimits>,
    /// The limits have a deadline.
    has_deadline: AtomicBool,
}

impl StreamMeter {
    /// The meter of the stream whose task is running.
    pub(crate) fn current() -> Option<Arc<Self>> {
        METER.try_with(Arc::clone).ok()
    }

    pub(crate) fn set_limits(&self, limits: SendLimits) {
        *self.limits.lock() = limits;
        self.has_deadline.store(limits.until.is_some(), Ordering::Relaxed);
    }

    /// Records that hyper polls the body.
    pub(crate) fn record_poll(&self) {
        self.is_stalled.store(false, Ordering::Relaxed);
    }

    /// Records that the body has returned a frame of so many bytes.
    pub(crate) fn record_frame(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.is_stalled.store(true, Ordering::Relaxed);
    }
}

/// Spawns the tasks of streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor {
    pub(crate) min_rate: Option<MinRate>,
    /// The longest stall.
    pub(crate) idle_time: Duration,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let meter = Arc::new(StreamMeter {
            is_stalled: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            limits: Mutex::new(SendLimits { min_rate: self.min_rate, until: None }),
            has_deadline: AtomicBool::new(false),
        });
        let future = METER.scope(Arc::clone(&meter), future);
        tokio::spawn(PacedStream { future, meter, idle_time: self.idle_time, stall: None, deadline: None });
    }
}

pin_project! {
    /// A stream, until it ends or is reset.
    struct PacedStream<F> {
        #[pin]
        future: TaskLocalFuture<Arc<StreamMeter>, F>,
        meter: Arc<StreamMeter>,
        idle_time: Duration,
        stall: Option<StreamStall>,
        deadline: Option<Pin<Box<Sleep>>>,
    }
}

/// The times in which a stream is stalled.
#[derive(Debug)]
struct StreamStall {
    window: RateWindow,
    /// When the present stall began.
    since: Option<Instant>,
    /// Until when time is counted.
    counted: Instant,
    /// Bytes that are counted.
    bytes: u64,
    /// Bytes that were sent before the first stall.
    at_first: u64,
    timer: Pin<Box<Sleep>>,
}

/// So many looks at a stalled stream in a grace period.
const LOOKS: u32 = 4;

impl<F: Future<Output = ()>> Future for PacedStream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.future.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if this.stall.is_some() || this.meter.is_stalled.load(Ordering::Relaxed) {
            let stall = this.stall.get_or_insert_with(|| StreamStall::new(this.meter));
            if stall.poll_slow(this.meter, *this.idle_time, cx) {
                tracing::debug!("stream reset: the client does not read it");
                return Poll::Ready(());
            }
        }
        if this.meter.has_deadline.load(Ordering::Relaxed) && this.deadline.is_none() {
            *this.deadline = this.meter.limits.lock().until.map(|until| Box::pin(sleep_until(until)));
        }
        let Some(deadline) = this.deadline else { return Poll::Pending };
        ready!(deadline.as_mut().poll(cx));
        tracing::debug!("stream reset: total timeout");
        Poll::Ready(())
    }
}

impl StreamStall {
    fn new(meter: &StreamMeter) -> Self {
        let bytes = meter.bytes.load(Ordering::Relaxed);
        Self {
            window: RateWindow::default(),
            since: None,
            counted: Instant::now(),
            bytes,
            at_first: bytes,
            timer: Box::pin(sleep(Duration::ZERO)),
        }
    }

    /// Whether the client is too slow. If not, the task is woken for the next look.
    fn poll_slow(&mut self, meter: &StreamMeter, idle_time: Duration, cx: &mut Context<'_>) -> bool {
        let bytes = meter.bytes.load(Ordering::Relaxed);
        if bytes != self.bytes || !meter.is_stalled.load(Ordering::Relaxed) {
            self.window.add_bytes(bytes.wrapping_sub(self.bytes));
            self.bytes = bytes;
            let is_slow = self.since.take().is_some() && self.count(meter);
            if is_slow || !meter.is_stalled.load(Ordering::Relaxed) {
                return is_slow;
            }
        }
        let grace = meter.limits.lock().min_rate.map_or(idle_time, |least| least.grace.min(idle_time));
        let every = (grace / LOOKS).max(Duration::from_millis(1));
        let since = *self.since.get_or_insert_with(|| {
            let now = Instant::now();
            self.counted = now;
            self.timer.as_mut().reset(now + every);
            now
        });
        while self.timer.as_mut().poll(cx).is_ready() {
            if since.elapsed() >= idle_time || self.count(meter) {
                return true;
            }
            self.timer.as_mut().reset(Instant::now() + every);
        }
        false
    }

    /// Counts the time since the last count. True if the client is too slow.
    fn count(&mut self, meter: &StreamMeter) -> bool {
        let now = Instant::now();
        let wait = now.saturating_duration_since(std::mem::replace(&mut self.counted, now));
        let least = meter.limits.lock().min_rate;
        least.is_some_and(|least| self.window.add_wait_behind(wait, least, self.at_first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::timeout;

    const LEAST: MinRate = MinRate { bytes_per_second: 100, grace: Duration::from_secs(10) };
    const IDLE: Duration = Duration::from_secs(75);

    fn meter(first: u64) -> StreamMeter {
        let limits = Mutex::new(SendLimits { min_rate: Some(LEAST), until: None });
        let (is_stalled, has_deadline) = (AtomicBool::new(false), AtomicBool::new(false));
        let meter = StreamMeter { is_stalled, bytes: AtomicU64::new(0), limits, has_deadline };
        meter.record_frame(first);
        meter
    }

    async fn slow(stall: &mut StreamStall, meter: &StreamMeter) {
        poll_fn(|cx| if stall.poll_slow(meter, IDLE, cx) { Poll::Ready(()) } else { Poll::Pending }).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_stream_has_time_for_what_was_sent() {
        // The bytes that were sent, and the seconds in which the window has to open.
        for (first, seconds) in [(0, 10), (1_000, 12), (2_000, 22), (5_000, 52), (1 << 20, 75)] {
            let (meter, start) = (meter(first), Instant::now());
            slow(&mut StreamStall::new(&meter), &meter).await;
            let took = start.elapsed().as_secs();
            assert!((seconds..=seconds + 3).contains(&took), "{first}: {took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rare_but_large_window_updates_are_not_slow() {
        let meter = meter(7_000);
        let mut stall = StreamStall::new(&meter);
        for _ in 0..100 {
            assert!(timeout(Duration::from_secs(60), slow(&mut stall, &meter)).await.is_err());
            meter.record_poll();
            meter.record_frame(6_500);
        }
        assert!(timeout(Duration::from_secs(3_600), slow(&mut stall, &meter)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_server_makes_no_client_slow() {
        let meter = meter(1);
        let mut stall = StreamStall::new(&meter);
        for _ in 0..100 {
            meter.record_poll();
            assert!(timeout(Duration::from_secs(60), slow(&mut stall, &meter)).await.is_err());
            meter.record_frame(1);
            assert!(timeout(Duration::from_millis(10), slow(&mut stall, &meter)).await.is_err());
        }
    }
}
