//! What happened on a connection, for those who look later.
//!
//! Slow and silent peers are found without a timer or a clock per request: reads, writes and requests
//! leave marks, and every half head time somebody looks whether the marks changed.

use super::ServeOptions;
use super::doorman::Post;
use super::pace::{MinRate, RateWindow, SendPace};
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
pub(super) const MOST_UNSENT_BYTES: u32 = 16 << 10;
/// What a peer may have taken since the system last took more.
const UNSEEN_BYTES: u64 = 128 << 10;

/// No order between the marks is needed: who looks, looks again.
#[derive(Debug)]
pub(super) struct Marks {
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
    pace: Mutex<Option<SendPace>>,
    has_pace: AtomicBool,
    /// The connection ends after the answer that is being made.
    hung_up: AtomicBool,
    /// Another protocol is spoken: what is read is no longer ours to judge.
    upgraded: AtomicBool,
    /// Who turns away those who were refused.
    pub(super) post: Post,
}

impl Default for Marks {
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
            hung_up: AtomicBool::default(),
            upgraded: AtomicBool::default(),
            post: Post::default(),
        }
    }
}

impl Marks {
    pub(super) fn read(&self) {
        self.head_begun.store(true, Ordering::Relaxed);
        self.moved();
    }

    pub(super) fn moved(&self) {
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// So many bytes were written; none if the peer has to read first.
    pub(super) fn wrote(&self, bytes: Option<usize>) {
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
    pub(super) fn set_pace(&self, pace: SendPace) {
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
    pub(super) fn turned_away(&self) {
        self.requests.store(self.requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.head_begun.store(false, Ordering::Relaxed);
    }

    /// Whether so many requests came, and all of them are over.
    pub(super) fn has_answered(&self, requests: u32) -> bool {
        self.open.load(Ordering::Relaxed) == 0 && self.requests.load(Ordering::Relaxed) == requests
    }

    /// Whether no request is being answered.
    pub(super) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    pub(super) fn hang_up(&self) {
        self.hung_up.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Relaxed)
    }

    /// Whether most of what is asked is taken back at once, which costs us and the servers behind us more
    /// than who does it.
    pub(super) fn is_flooded(&self) -> bool {
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        abandoned > MOST_ABANDONED && abandoned > self.requests.load(Ordering::Relaxed) / 2
    }

    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
        // What is said from now on is no request, whatever it looks like.
        self.post.passed();
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }
}

/// A request, from its head to the end of its answer.
#[derive(Debug)]
pub(super) struct Open {
    marks: Arc<Marks>,
    answering: bool,
}

impl Open {
    pub(super) fn new(marks: &Arc<Marks>) -> Self {
        marks.forget_pace();
        marks.answering.fetch_add(1, Ordering::Relaxed);
        marks.open.fetch_add(1, Ordering::Relaxed);
        marks.requests.fetch_add(1, Ordering::Relaxed);
        Self { marks: Arc::clone(marks), answering: true }
    }

    pub(super) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The head of the answer is there.
    pub(super) fn answered(&mut self) {
        if std::mem::take(&mut self.answering) {
            self.marks.answering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.answering {
            self.marks.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        self.answered();
        self.marks.open.fetch_sub(1, Ordering::Relaxed);
        // What came until now was the request's own body.
        self.marks.head_begun.store(false, Ordering::Relaxed);
    }
}

/// Whether heads are waited for: on HTTP/2 other frames come between requests, and no head comes in parts
/// for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heads {
    Timed,
    Untimed,
}

/// How long a connection is waited for.
pub(super) struct Patience {
    pub(super) every: Duration,
    heads: Heads,
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

impl Patience {
    /// The third look at an unfinished head comes at least two periods after its beginning.
    const MOST_SLOW_LOOKS: u32 = 2;

    pub(super) fn new(options: &ServeOptions, heads: Heads) -> Self {
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
    pub(super) fn ends(&mut self, marks: &Marks) -> bool {
        let requests = marks.requests.load(Ordering::Relaxed);
        let moves = marks.moves.load(Ordering::Relaxed);
        let answering = marks.answering.load(Ordering::Relaxed) > 0;
        let open = marks.open.load(Ordering::Relaxed) > 0;
        let in_head = self.heads == Heads::Timed && marks.head_begun.load(Ordering::Relaxed) && !open;
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
            || self.is_too_slow(marks, open)
    }

    /// Whether the peer takes what is ready for it too slowly, or its time is over.
    fn is_too_slow(&mut self, marks: &Marks, open: bool) -> bool {
        let pace = if marks.has_pace.load(Ordering::Relaxed) { *marks.pace.lock() } else { None };
        let SendPace { min_rate, until } = pace.unwrap_or(SendPace { min_rate: self.min_rate, until: None });
        if open && until.is_some_and(|until| Instant::now() >= until) {
            return true;
        }
        let written = marks.written.load(Ordering::Relaxed);
        self.window.add_bytes(written.wrapping_sub(self.written));
        self.written = written;
        match min_rate {
            Some(least) if marks.is_blocked.load(Ordering::Relaxed) => {
                self.window.add_wait_behind(self.every, least, UNSEEN_BYTES)
            }
            _ => false,
        }
    }
}
