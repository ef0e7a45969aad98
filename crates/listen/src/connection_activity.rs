//! What happened on a connection, for those who look later.
//!
//! Slow and silent peers are found without a timer or a clock per request: reads, writes and requests
//! leave activity, and every half head time somebody looks whether the activity changed.

use crate::ServeOptions;
use crate::min_rate::{MinRate, RateWindow, SendLimits};
use crate::repeat_refusal::RepeatRefusals;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Requests on one connection that may be taken back before it matters how many were not.
const MOST_ABANDONED: u32 = 200;

/// What the system may hold of an answer that its peer has not been sent, beside what one segment takes. By default it would
/// hold megabytes, and take more only when a third of them is gone: a peer that reads slowly would look like one that
/// does not read.
pub(crate) const MOST_UNSENT_BYTES: u32 = 16 << 10;
/// What a peer may have taken since the system last took more.
const UNSEEN_BYTES: u64 = 128 << 10;

/// No order between the activity is needed: who looks, looks again.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    /// Bytes came since the last request, or it is the first: a head has begun.
    head_begun: AtomicBool,
    /// Requests that are being answered: until the head of the answer is there.
    answering: AtomicU32,
    /// Requests that are not over: until the answer's body has ended.
    open: AtomicU32,
    /// Counts requests.
    requests: AtomicU32,
    /// Counts requests that were taken back before they were answered.
    abandoned: AtomicU32,
    /// Counts reads and writes; on HTTP/2 only those of bodies.
    moves: AtomicU32,
    /// Bytes that were written.
    written: AtomicU64,
    /// The peer has to read before more can be written.
    is_blocked: AtomicBool,
    /// How the answer has to be taken, if that is not as usual. Only where there is one answer at a time.
    pace: Mutex<Option<SendLimits>>,
    has_pace: AtomicBool,
    /// The connection ends after the answer that is being made.
    is_closing: AtomicBool,
    /// Another protocol is spoken: what is read is no longer ours to judge.
    upgraded: AtomicBool,
    /// Who turns away those who were refused.
    pub(crate) repeats: RepeatRefusals,
}

impl Default for ConnectionActivity {
    fn default() -> Self {
        // Whoever connects has something to say: its first head begins with the connection.
        Self {
            head_begun: AtomicBool::new(true),
            answering: AtomicU32::default(),
            open: AtomicU32::default(),
            requests: AtomicU32::default(),
            abandoned: AtomicU32::default(),
            moves: AtomicU32::default(),
            written: AtomicU64::default(),
            is_blocked: AtomicBool::default(),
            pace: Mutex::default(),
            has_pace: AtomicBool::default(),
            is_closing: AtomicBool::default(),
            upgraded: AtomicBool::default(),
            repeats: RepeatRefusals::default(),
        }
    }
}

impl ConnectionActivity {
    pub(crate) fn read(&self) {
        self.head_begun.store(true, Ordering::Relaxed);
        self.moved();
    }

    pub(crate) fn moved(&self) {
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// So many bytes were written; none if the peer has to read first.
    pub(crate) fn wrote(&self, bytes: Option<usize>) {
        let is_blocked = bytes.is_none();
        if self.is_blocked.load(Ordering::Relaxed) != is_blocked {
            self.is_blocked.store(is_blocked, Ordering::Relaxed);
        }
        if let Some(bytes) = bytes {
            let written = self.written.load(Ordering::Relaxed).wrapping_add(bytes as u64);
            self.written.store(written, Ordering::Relaxed);
        }
    }

    /// Says how the answer that is being made has to be taken.
    pub(crate) fn set_pace(&self, pace: SendLimits) {
        *self.pace.lock() = Some(pace);
        self.has_pace.store(true, Ordering::Relaxed);
    }

    fn forget_pace(&self) {
        if self.has_pace.load(Ordering::Relaxed) {
            self.has_pace.store(false, Ordering::Relaxed);
            *self.pace.lock() = None;
        }
    }

    /// A request was answered by whoever stands at the door.
    pub(crate) fn record_repeat_refusal(&self) {
        self.requests.store(self.requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.head_begun.store(false, Ordering::Relaxed);
    }

    /// Whether so many requests came, and all of them are over.
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

    /// Whether most of what is asked is taken back at once, which costs us and the servers behind us more
    /// than who does it.
    pub(crate) fn is_flooded(&self) -> bool {
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        abandoned > MOST_ABANDONED && abandoned > self.requests.load(Ordering::Relaxed) / 2
    }

    pub(crate) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
        // What is said from now on is no request, whatever it looks like.
        self.repeats.record_other_response();
    }

    pub(crate) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }
}

/// A request, from its head to the end of its answer.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    activity: Arc<ConnectionActivity>,
    answering: bool,
}

impl OpenRequest {
    pub(crate) fn new(activity: &Arc<ConnectionActivity>) -> Self {
        activity.forget_pace();
        activity.answering.fetch_add(1, Ordering::Relaxed);
        activity.open.fetch_add(1, Ordering::Relaxed);
        activity.requests.fetch_add(1, Ordering::Relaxed);
        Self { activity: Arc::clone(activity), answering: true }
    }

    pub(crate) fn activity(&self) -> &ConnectionActivity {
        &self.activity
    }

    /// The head of the answer is there.
    pub(crate) fn answered(&mut self) {
        if std::mem::take(&mut self.answering) {
            self.activity.answering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.answering {
            self.activity.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        self.answered();
        self.activity.open.fetch_sub(1, Ordering::Relaxed);
        // What came until now was the request's own body.
        self.activity.head_begun.store(false, Ordering::Relaxed);
    }
}

/// Whether heads are waited for: on HTTP/2 other frames come between requests, and no head comes in parts
/// for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTiming {
    Timed,
    Untimed,
}

/// How long a connection is waited for.
pub(crate) struct SlowClientDetector {
    pub(crate) every: Duration,
    heads: HeadTiming,
    most_quiet_looks: u32,
    /// Looks that found the same head unfinished.
    slow_looks: u32,
    /// Looks that found nothing moved.
    quiet_looks: u32,
    requests: u32,
    moves: u32,
    min_rate: Option<MinRate>,
    /// The time in which looks found the peer not reading.
    window: RateWindow,
    written: u64,
}

impl SlowClientDetector {
    /// The third look at an unfinished head comes at least two periods after its beginning.
    const MOST_SLOW_LOOKS: u32 = 2;

    pub(crate) fn new(options: &ServeOptions, heads: HeadTiming) -> Self {
        let every = (options.head_time / Self::MOST_SLOW_LOOKS).max(Duration::from_millis(1));
        let most_quiet_looks = options.idle_time.as_micros().div_ceil(every.as_micros());
        Self {
            every,
            heads,
            most_quiet_looks: u32::try_from(most_quiet_looks).unwrap_or(u32::MAX),
            slow_looks: 0,
            quiet_looks: 0,
            requests: 0,
            moves: 0,
            min_rate: options.min_rate,
            window: RateWindow::default(),
            written: 0,
        }
    }

    /// Looks at a connection and says whether to give up on it.
    pub(crate) fn ends(&mut self, activity: &ConnectionActivity) -> bool {
        let requests = activity.requests.load(Ordering::Relaxed);
        let moves = activity.moves.load(Ordering::Relaxed);
        let answering = activity.answering.load(Ordering::Relaxed) > 0;
        let open = activity.open.load(Ordering::Relaxed) > 0;
        let in_head = self.heads == HeadTiming::Timed && activity.head_begun.load(Ordering::Relaxed) && !open;
        if requests != self.requests || !in_head {
            self.slow_looks = 0;
        }
        if moves != self.moves || requests != self.requests || answering {
            self.quiet_looks = 0;
        }
        (self.requests, self.moves) = (requests, moves);
        self.slow_looks += u32::from(in_head);
        self.quiet_looks += 1;
        self.slow_looks > Self::MOST_SLOW_LOOKS
            || self.quiet_looks > self.most_quiet_looks
            || self.is_too_slow(activity, open)
    }

    /// Whether the peer takes what is ready for it too slowly, or its time is over.
    fn is_too_slow(&mut self, activity: &ConnectionActivity, open: bool) -> bool {
        let pace = if activity.has_pace.load(Ordering::Relaxed) { *activity.pace.lock() } else { None };
        let SendLimits { min_rate, until } =
            pace.unwrap_or(SendLimits { min_rate: self.min_rate, until: None });
        if open && until.is_some_and(|until| Instant::now() >= until) {
            return true;
        }
        let written = activity.written.load(Ordering::Relaxed);
        self.window.add_bytes(written.wrapping_sub(self.written));
        self.written = written;
        match min_rate {
            Some(least) if activity.is_blocked.load(Ordering::Relaxed) => {
                self.window.add_wait_behind(self.every, least, UNSEEN_BYTES)
            }
            _ => false,
        }
    }
}
