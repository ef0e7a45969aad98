//! The streams of HTTP/2 connections: those whose clients do not take what is ready for them are reset.
//!
//! A client may let a stream stand still by not making room for more of it, while the rest of its connection moves. Hyper
//! asks for the next frame of a body only when there is room. So a body that was not asked again since its last frame
//! is one that its client does not take; the task of the stream watches for how long.

use super::pace::{MinRate, PeerWait, SendPace};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::task::futures::TaskLocalFuture;
use tokio::time::{Sleep, sleep_until};

tokio::task_local! {
    static METER: Arc<StreamMeter>;
}

/// What the body of an answer tells the task of its stream.
#[derive(Debug)]
pub(super) struct StreamMeter {
    /// A frame was handed over, and no other was asked for since.
    is_full: AtomicBool,
    bytes: AtomicU64,
    pace: Mutex<SendPace>,
    /// It was said when the answer has to be over.
    has_until: AtomicBool,
}

impl StreamMeter {
    /// That of the stream whose task is running.
    pub(super) fn current() -> Option<Arc<Self>> {
        METER.try_with(Arc::clone).ok()
    }

    pub(super) fn set_pace(&self, pace: SendPace) {
        *self.pace.lock() = pace;
        self.has_until.store(pace.until.is_some(), Ordering::Relaxed);
    }

    /// There is room for a frame.
    pub(super) fn ask(&self) {
        self.is_full.store(false, Ordering::Relaxed);
    }

    /// A frame is handed over.
    pub(super) fn hand_over(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.is_full.store(true, Ordering::Relaxed);
    }
}

/// Runs streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExecutor {
    pub(super) min_rate: Option<MinRate>,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let meter = Arc::new(StreamMeter {
            is_full: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            pace: Mutex::new(SendPace { min_rate: self.min_rate, until: None }),
            has_until: AtomicBool::new(false),
        });
        let future = METER.scope(Arc::clone(&meter), future);
        tokio::spawn(PacedStream { future, meter, wait: None, until: None });
    }
}

pin_project! {
    /// A stream, until it has ended or is given up.
    struct PacedStream<F> {
        #[pin]
        future: TaskLocalFuture<Arc<StreamMeter>, F>,
        meter: Arc<StreamMeter>,
        wait: Option<Stall>,
        until: Option<Pin<Box<Sleep>>>,
    }
}

/// The times in which a client did not take what was ready.
#[derive(Debug)]
struct Stall {
    wait: PeerWait,
    /// Bytes that were counted.
    bytes: u64,
}

impl<F: Future<Output = ()>> Future for PacedStream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.future.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let is_full = this.meter.is_full.load(Ordering::Relaxed);
        if let Some(stall) = this.wait
            && stall.is_slow(this.meter, is_full, cx)
        {
            tracing::debug!("a stream was reset: its client does not take what is ready");
            return Poll::Ready(());
        }
        if is_full
            && this.wait.is_none()
            && let Some(least) = this.meter.pace.lock().min_rate
        {
            let bytes = this.meter.bytes.load(Ordering::Relaxed);
            let stall = this.wait.insert(Stall { wait: PeerWait::new(least), bytes });
            // Wakes the task when the time is over.
            stall.wait.poll_slow(cx);
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

impl Stall {
    fn is_slow(&mut self, meter: &StreamMeter, is_full: bool, cx: &mut Context<'_>) -> bool {
        let bytes = meter.bytes.load(Ordering::Relaxed);
        let moved = bytes.wrapping_sub(self.bytes);
        self.bytes = bytes;
        (moved > 0 || !is_full) && self.wait.end(moved) || is_full && self.wait.poll_slow(cx)
    }
}
