//! The streams of HTTP/2 connections: those whose clients do not take what is ready for them are reset.
//!
//! A client may let a stream stand still by not making room for more of it, while the rest of its connection moves. Hyper
//! asks for the next frame of a body only when there is room. So a body that was not asked again since its last frame
//! is one that its client does not take; the task of the stream watches for how long. A client may make room only when it
//! has taken much of what it has: as much as went to it before it first stood still may be on its way to be taken.

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

/// What the body of an answer tells the task of its stream.
#[derive(Debug)]
pub(crate) struct StreamMeter {
    /// A frame was handed over, and no other was asked for since.
    is_full: AtomicBool,
    bytes: AtomicU64,
    pace: Mutex<SendLimits>,
    /// It was said when the answer has to be over.
    has_until: AtomicBool,
}

impl StreamMeter {
    /// That of the stream whose task is running.
    pub(crate) fn current() -> Option<Arc<Self>> {
        METER.try_with(Arc::clone).ok()
    }

    pub(crate) fn set_pace(&self, pace: SendLimits) {
        *self.pace.lock() = pace;
        self.has_until.store(pace.until.is_some(), Ordering::Relaxed);
    }

    /// There is room for a frame.
    pub(crate) fn ask(&self) {
        self.is_full.store(false, Ordering::Relaxed);
    }

    /// A frame is handed over.
    pub(crate) fn hand_over(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.is_full.store(true, Ordering::Relaxed);
    }
}

/// Runs streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor {
    pub(crate) min_rate: Option<MinRate>,
    /// How long a stream may stand still.
    pub(crate) idle_time: Duration,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let meter = Arc::new(StreamMeter {
            is_full: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            pace: Mutex::new(SendLimits { min_rate: self.min_rate, until: None }),
            has_until: AtomicBool::new(false),
        });
        let future = METER.scope(Arc::clone(&meter), future);
        tokio::spawn(PacedStream { future, meter, idle_time: self.idle_time, stall: None, until: None });
    }
}

pin_project! {
    /// A stream, until it has ended or is given up.
    struct PacedStream<F> {
        #[pin]
        future: TaskLocalFuture<Arc<StreamMeter>, F>,
        meter: Arc<StreamMeter>,
        idle_time: Duration,
        stall: Option<StreamStall>,
        until: Option<Pin<Box<Sleep>>>,
    }
}

/// The times in which a client did not take what was ready.
#[derive(Debug)]
struct StreamStall {
    window: RateWindow,
    /// When the present one began.
    since: Option<Instant>,
    /// When time was last counted.
    counted: Instant,
    /// Bytes that were counted.
    bytes: u64,
    /// What had gone to the client when it first stood still.
    at_first: u64,
    timer: Pin<Box<Sleep>>,
}

/// How often a stream that stands still is looked at.
const LOOKS: u32 = 4;

impl<F: Future<Output = ()>> Future for PacedStream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.future.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if this.stall.is_some() || this.meter.is_full.load(Ordering::Relaxed) {
            let stall = this.stall.get_or_insert_with(|| StreamStall::new(this.meter));
            if stall.poll_slow(this.meter, *this.idle_time, cx) {
                tracing::debug!("a stream was reset: its client does not take what is ready");
                return Poll::Ready(());
            }
        }
        if this.meter.has_until.load(Ordering::Relaxed) && this.until.is_none() {
            *this.until = this.meter.pace.lock().until.map(|until| Box::pin(sleep_until(until)));
        }
        let Some(until) = this.until else { return Poll::Pending };
        ready!(until.as_mut().poll(cx));
        tracing::debug!("a stream was reset: its total time is over");
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

    /// Looks at the stream. Says whether its client is too slow; otherwise the task is woken to look again.
    fn poll_slow(&mut self, meter: &StreamMeter, idle_time: Duration, cx: &mut Context<'_>) -> bool {
        let bytes = meter.bytes.load(Ordering::Relaxed);
        if bytes != self.bytes || !meter.is_full.load(Ordering::Relaxed) {
            self.window.add_bytes(bytes.wrapping_sub(self.bytes));
            self.bytes = bytes;
            let is_slow = self.since.take().is_some() && self.count(meter);
            if is_slow || !meter.is_full.load(Ordering::Relaxed) {
                return is_slow;
            }
        }
        let grace = meter.pace.lock().min_rate.map_or(idle_time, |least| least.grace.min(idle_time));
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

    /// Counts the time since it was last counted.
    fn count(&mut self, meter: &StreamMeter) -> bool {
        let now = Instant::now();
        let wait = now.saturating_duration_since(std::mem::replace(&mut self.counted, now));
        let least = meter.pace.lock().min_rate;
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
        let pace = Mutex::new(SendLimits { min_rate: Some(LEAST), until: None });
        let (is_full, has_until) = (AtomicBool::new(false), AtomicBool::new(false));
        let meter = StreamMeter { is_full, bytes: AtomicU64::new(0), pace, has_until };
        meter.hand_over(first);
        meter
    }

    async fn slow(stall: &mut StreamStall, meter: &StreamMeter) {
        poll_fn(|cx| if stall.poll_slow(meter, IDLE, cx) { Poll::Ready(()) } else { Poll::Pending }).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_stands_still_has_as_long_as_its_client_may_take_for_what_it_has() {
        // What went to the client at first, and the seconds in which it has to make room.
        for (first, seconds) in [(0, 10), (1_000, 12), (2_000, 22), (5_000, 52), (1 << 20, 75)] {
            let (meter, start) = (meter(first), Instant::now());
            slow(&mut StreamStall::new(&meter), &meter).await;
            let took = start.elapsed().as_secs();
            assert!((seconds..=seconds + 3).contains(&took), "{first}: {took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_makes_room_seldom_but_for_much_is_not_slow() {
        let meter = meter(7_000);
        let mut stall = StreamStall::new(&meter);
        for _ in 0..100 {
            assert!(timeout(Duration::from_secs(60), slow(&mut stall, &meter)).await.is_err());
            meter.ask();
            meter.hand_over(6_500);
        }
        assert!(timeout(Duration::from_secs(3_600), slow(&mut stall, &meter)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_sends_seldom_makes_no_client_slow() {
        let meter = meter(1);
        let mut stall = StreamStall::new(&meter);
        for _ in 0..100 {
            meter.ask();
            assert!(timeout(Duration::from_secs(60), slow(&mut stall, &meter)).await.is_err());
            meter.hand_over(1);
            assert!(timeout(Duration::from_millis(10), slow(&mut stall, &meter)).await.is_err());
        }
    }
}
