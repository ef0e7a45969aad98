//! One connection: HTTP/1.1 with keep-alive, an eye on its progress, and an ear for the drain.
//!
//! Slow and silent peers are found without a timer or a clock per request: reads, writes and requests
//! leave marks, and every half head time somebody looks whether the marks changed.

use super::{Phase, ServeOptions};
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// A connection that was accepted.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) options: ServeOptions,
}

impl Connection {
    /// Serves it to its end.
    pub(super) async fn run<S, B>(self, http: &http1::Builder, service: S)
    where
        S: Service<Request<Incoming>, Response = Response<B>>,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let Self { stream, peer, mut phase, options } = self;
        let marks = Arc::new(Marks::default());
        let io = TokioIo::new(Marked { stream, marks: Arc::clone(&marks) });
        let service = service_fn(|request| {
            marks.begin_request();
            let answer = service.call(request);
            let marks = &marks;
            async move {
                let answer = answer.await;
                marks.end_request();
                answer
            }
        });
        let mut served = pin!(http.serve_connection(io, service));
        let mut patience = Patience::new(&options);
        let mut looks = interval_at(Instant::now() + patience.every, patience.every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                ended = served.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "the connection broke");
                    }
                    return;
                }
                // No sender means that the server is gone altogether.
                changed = phase.changed() => {
                    let now = *phase.borrow_and_update();
                    match (changed, now) {
                        (Ok(()), Phase::Serving) => {}
                        (Ok(()), Phase::Draining) => served.as_mut().graceful_shutdown(),
                        (Ok(()), Phase::Stopped) | (Err(_), _) => return,
                    }
                }
                _ = looks.tick() => {
                    if patience.ends(&marks) {
                        tracing::debug!(%peer, "the connection was too slow or too long silent");
                        return;
                    }
                }
            }
        }
    }
}

/// What happened on a connection, for those who look later. Written and read by one task at a time, so
/// no order between the marks is needed.
#[derive(Debug)]
struct Marks {
    /// Bytes came since the last request, or it is the first: a head has begun.
    head_begun: AtomicBool,
    /// A request is being answered, for as long as that takes.
    answering: AtomicBool,
    /// Counts requests.
    requests: AtomicU32,
    /// Counts reads and writes.
    moves: AtomicU32,
}

impl Default for Marks {
    fn default() -> Self {
        // Whoever connects has something to say: its first head begins with the connection.
        Self {
            head_begun: AtomicBool::new(true),
            answering: AtomicBool::default(),
            requests: AtomicU32::default(),
            moves: AtomicU32::default(),
        }
    }
}

impl Marks {
    fn begin_request(&self) {
        self.answering.store(true, Ordering::Relaxed);
        self.requests.store(self.requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn end_request(&self) {
        self.answering.store(false, Ordering::Relaxed);
        // What came until now was the request's own body.
        self.head_begun.store(false, Ordering::Relaxed);
    }

    fn read(&self) {
        self.head_begun.store(true, Ordering::Relaxed);
        self.moved();
    }

    fn moved(&self) {
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// How long a connection is waited for.
struct Patience {
    every: Duration,
    most_quiet_looks: u32,
    /// Looks that found the same head unfinished.
    slow_looks: u32,
    /// Looks that found nothing moved.
    quiet_looks: u32,
    requests: u32,
    moves: u32,
}

impl Patience {
    /// The third look at an unfinished head comes at least two periods after its beginning.
    const MOST_SLOW_LOOKS: u32 = 2;

    fn new(options: &ServeOptions) -> Self {
        let every = (options.head_time / Self::MOST_SLOW_LOOKS).max(Duration::from_millis(1));
        let most_quiet_looks = options.idle_time.as_micros().div_ceil(every.as_micros());
        Self {
            every,
            most_quiet_looks: u32::try_from(most_quiet_looks).unwrap_or(u32::MAX),
            slow_looks: 0,
            quiet_looks: 0,
            requests: 0,
            moves: 0,
        }
    }

    /// Looks at a connection and says whether to give up on it.
    fn ends(&mut self, marks: &Marks) -> bool {
        let requests = marks.requests.load(Ordering::Relaxed);
        let moves = marks.moves.load(Ordering::Relaxed);
        let answering = marks.answering.load(Ordering::Relaxed);
        let in_head = marks.head_begun.load(Ordering::Relaxed) && !answering;
        if requests != self.requests || !in_head {
            self.slow_looks = 0;
        }
        if moves != self.moves || answering {
            self.quiet_looks = 0;
        }
        (self.requests, self.moves) = (requests, moves);
        self.slow_looks += u32::from(in_head);
        self.quiet_looks += 1;
        self.slow_looks > Self::MOST_SLOW_LOOKS || self.quiet_looks > self.most_quiet_looks
    }
}

/// A stream that leaves marks.
struct Marked {
    stream: TcpStream,
    marks: Arc<Marks>,
}

impl AsyncRead for Marked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.marks.read();
        }
        polled
    }
}

impl AsyncWrite for Marked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            self.marks.moved();
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        if polled.is_ready() {
            self.marks.moved();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
