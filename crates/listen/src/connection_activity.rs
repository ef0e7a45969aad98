//! The activity of a connection, and the detection of slow and idle clients by it.
//!
//! No timer is set and no clock is read for a request: reads, writes and requests change counters, and every half head time the
//! [`SlowClientDetector`] compares the counters with their last values.

use crate::ServeOptions;
use crate::min_rate::{MinRate, RateWindow, SendLimits};
use crate::refusal_fast_path::FastPathState;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The number of cancelled requests from which on their share matters.
const MOST_CANCELLED: u32 = 200;

/// What the kernel may hold of a response that is not sent yet, beside one segment. By default it holds megabytes, and takes more
/// only when a third of them is gone: a client that reads slowly would look like one that does not read.
pub(crate) const MOST_UNSENT_BYTES: u32 = 16 << 10;
/// What a client may have read since the kernel last took more.
const UNSEEN_BYTES: u64 = 128 << 10;

/// Counters and flags of one connection. They need no order among each other: a reader that misses a change sees it next time.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    /// Bytes were read since the last request, or there was none yet: a head has begun.
    head_begun: AtomicBool,
    /// Requests without a response head.
    answering: AtomicU32,
    /// Requests whose response has not ended.
    open: AtomicU32,
    /// Counts requests.
    requests: AtomicU32,
    /// Counts requests that were cancelled before their response head.
    cancelled: AtomicU32,
    /// Counts reads and writes; on HTTP/2 only those of bodies.
    progress: AtomicU32,
    /// Bytes that were written.
    written: AtomicU64,
    /// The client has to read before more can be written.
    is_write_blocked: AtomicBool,
    /// How the response has to be read, where it differs from the options. HTTP/1.1 only: there is one response at a time.
    send_limits: Mutex<Option<SendLimits>>,
    has_send_limits: AtomicBool,
    /// The connection is closed after the response in progress.
    is_closing: AtomicBool,
    /// Another protocol is spoken: what is read is no request.
    is_upgraded: AtomicBool,
    /// None where the fast path for repeated refusals is not used.
    pub(crate) fast_path: Option<FastPathState>,
}

impl ConnectionActivity {
    pub(crate) fn new(options: &ServeOptions) -> Self {
        Self {
            // The time of the first head runs from the start of the connection.
            head_begun: AtomicBool::new(true),
            answering: AtomicU32::default(),
            open: AtomicU32::default(),
            requests: AtomicU32::default(),
            cancelled: AtomicU32::default(),
            progress: AtomicU32::default(),
            written: AtomicU64::default(),
            is_write_blocked: AtomicBool::default(),
            send_limits: Mutex::default(),
            has_send_limits: AtomicBool::default(),
            is_closing: AtomicBool::default(),
            is_upgraded: AtomicBool::default(),
            fast_path: FastPathState::new(options),
        }
    }

    pub(crate) fn record_read(&self) {
        self.head_begun.store(true, Ordering::Relaxed);
        self.record_progress();
    }

    pub(crate) fn record_progress(&self) {
        self.progress.store(self.progress.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Records that so many bytes were written; none if the client has to read first.
    pub(crate) fn record_write(&self, bytes: Option<usize>) {
        let is_blocked = bytes.is_none();
        if self.is_write_blocked.load(Ordering::Relaxed) != is_blocked {
            self.is_write_blocked.store(is_blocked, Ordering::Relaxed);
        }
        if let Some(bytes) = bytes {
            let written = self.written.load(Ordering::Relaxed).wrapping_add(bytes as u64);
            self.written.store(written, Ordering::Relaxed);
        }
    }

    /// Sets the limits of the response in progress.
    pub(crate) fn set_send_limits(&self, limits: SendLimits) {
        *self.send_limits.lock() = Some(limits);
        self.has_send_limits.store(true, Ordering::Relaxed);
    }

    fn clear_send_limits(&self) {
        if self.has_send_limits.load(Ordering::Relaxed) {
            self.has_send_limits.store(false, Ordering::Relaxed);
            *self.send_limits.lock() = None;
        }
    }

    /// Counts a request that was read and answered without an [`OpenRequest`].
    pub(crate) fn record_answered_request(&self) {
        self.requests.store(self.requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.head_begun.store(false, Ordering::Relaxed);
    }

    /// Whether there were exactly `requests` requests, and all of them are over.
    pub(crate) fn has_answered(&self, requests: u32) -> bool {
        self.open.load(Ordering::Relaxed) == 0 && self.requests.load(Ordering::Relaxed) == requests
    }

    /// Whether no request is being answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn close_after_response(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn closes_after_response(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Whether the client cancels most of its requests, which costs it less than the server and its upstreams.
    pub(crate) fn is_flooded(&self) -> bool {
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        cancelled > MOST_CANCELLED && cancelled > self.requests.load(Ordering::Relaxed) / 2
    }

    pub(crate) fn upgrade(&self) {
        self.is_upgraded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_upgraded(&self) -> bool {
        self.is_upgraded.load(Ordering::Relaxed)
    }
}

/// A request, from its head to the end of its response.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    activity: Arc<ConnectionActivity>,
    is_answering: bool,
}

impl OpenRequest {
    pub(crate) fn new(activity: &Arc<ConnectionActivity>) -> Self {
        activity.clear_send_limits();
        activity.answering.fetch_add(1, Ordering::Relaxed);
        activity.open.fetch_add(1, Ordering::Relaxed);
        activity.requests.fetch_add(1, Ordering::Relaxed);
        Self { activity: Arc::clone(activity), is_answering: true }
    }

    pub(crate) fn activity(&self) -> &ConnectionActivity {
        &self.activity
    }

    /// Records that the response has a head.
    pub(crate) fn record_response_head(&mut self) {
        if std::mem::take(&mut self.is_answering) {
            self.activity.answering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.is_answering {
            self.activity.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        self.record_response_head();
        self.activity.open.fetch_sub(1, Ordering::Relaxed);
        // What was read until now was the request's own body.
        self.activity.head_begun.store(false, Ordering::Relaxed);
    }
}

/// Whether the time of a head is limited. On HTTP/2 other frames come between requests, and no head
/// arrives in parts for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTiming {
    Timed,
    Untimed,
}

/// Finds out whether a client is too slow or idle for too long, by periodic looks at its [`ConnectionActivity`].
pub(crate) struct SlowClientDetector {
    pub(crate) period: Duration,
    head_timing: HeadTiming,
    most_idle_looks: u32,
    /// Looks that found the same head unfinished.
    slow_head_looks: u32,
    /// Looks that found no progress.
    idle_looks: u32,
    requests: u32,
    progress: u32,
    min_rate: Option<MinRate>,
    /// The periods in which writes were blocked.
    window: RateWindow,
    written: u64,
}

impl SlowClientDetector {
    /// The third look at an unfinished head comes at least two periods after its beginning.
    const MOST_SLOW_HEAD_LOOKS: u32 = 2;

    pub(crate) fn new(options: &ServeOptions, head_timing: HeadTiming) -> Self {
        let period = (options.head_time / Self::MOST_SLOW_HEAD_LOOKS).max(Duration::from_millis(1));
        let most_idle_looks = options.idle_time.as_micros().div_ceil(period.as_micros());
        Self {
            period,
            head_timing,
            most_idle_looks: u32::try_from(most_idle_looks).unwrap_or(u32::MAX),
            slow_head_looks: 0,
            idle_looks: 0,
            requests: 0,
            progress: 0,
            min_rate: options.min_rate,
            window: RateWindow::default(),
            written: 0,
        }
    }

    /// Whether the connection is to be closed. Called once in each period.
    pub(crate) fn is_too_slow(&mut self, activity: &ConnectionActivity) -> bool {
        let requests = activity.requests.load(Ordering::Relaxed);
        let progress = activity.progress.load(Ordering::Relaxed);
        let is_answering = activity.answering.load(Ordering::Relaxed) > 0;
        let is_idle = activity.is_idle();
        let in_head =
            self.head_timing == HeadTiming::Timed && activity.head_begun.load(Ordering::Relaxed) && is_idle;
        if requests != self.requests || !in_head {
            self.slow_head_looks = 0;
        }
        if progress != self.progress || requests != self.requests || is_answering {
            self.idle_looks = 0;
        }
        (self.requests, self.progress) = (requests, progress);
        self.slow_head_looks += u32::from(in_head);
        self.idle_looks += 1;
        self.slow_head_looks > Self::MOST_SLOW_HEAD_LOOKS
            || self.idle_looks > self.most_idle_looks
            || self.reads_too_slowly(activity)
    }

    /// Whether the client reads the response below the minimum rate, or beyond its deadline.
    fn reads_too_slowly(&mut self, activity: &ConnectionActivity) -> bool {
        let limits = if activity.has_send_limits.load(Ordering::Relaxed) {
            *activity.send_limits.lock()
        } else {
            None
        };
        let SendLimits { min_rate, until } =
            limits.unwrap_or(SendLimits { min_rate: self.min_rate, until: None });
        if !activity.is_idle() && until.is_some_and(|until| Instant::now() >= until) {
            return true;
        }
        let written = activity.written.load(Ordering::Relaxed);
        self.window.add_bytes(written.wrapping_sub(self.written));
        self.written = written;
        match min_rate {
            Some(least) if activity.is_write_blocked.load(Ordering::Relaxed) => {
                self.window.add_wait_behind(self.period, least, UNSEEN_BYTES)
            }
            _ => false,
        }
    }
}
