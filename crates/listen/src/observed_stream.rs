//! A stream that leaves activity, and bodies that do.

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;

use crate::connection::ConnectionPermits;
use crate::connection_activity::{ConnectionActivity, HeadTiming, OpenRequest};
use crate::framing::{FramingWatch, POISON};
use crate::http2_streams::StreamMeter;
use crate::repeat_refusal::{self, KeptRequest, RefusalAction};
use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// So many are turned away in a row before others have their turn, as hyper does with those that it answers. Over TLS
/// many can be there at once.
const MOST_IN_A_ROW: u32 = 16;

/// A stream that leaves activity. What was read to find out what it speaks is read again.
pub(crate) struct ObservedStream<S> {
    stream: S,
    /// Whether what is read and written says that the peer is not idle: on HTTP/2 it may be pings.
    heads: HeadTiming,
    activity: Arc<ConnectionActivity>,
    /// What was already read.
    heard: Vec<u8>,
    /// Looks at requests on their way, where their end must not be ambiguous.
    watched: Option<WatchedRequests>,
    /// Nothing more is read.
    is_over: bool,
    /// The connection counts for as long as its stream lives, also after a change of protocol.
    permits: ConnectionPermits,
}

/// What is known of the requests on a stream.
struct WatchedRequests {
    watch: FramingWatch,
    /// All that was read was answered, and all answers were sent: what comes next is a new request.
    is_idle: bool,
    /// Of the request that was refused last.
    words: Option<Box<KeptRequest>>,
    /// An answer that is not sent to its end, and how much of it is.
    answer: Vec<u8>,
    sent: usize,
}

impl<S> ObservedStream<S> {
    pub(crate) fn new(
        stream: S,
        heads: HeadTiming,
        heard: Vec<u8>,
        watch: Option<FramingWatch>,
        activity: &Arc<ConnectionActivity>,
        permits: ConnectionPermits,
    ) -> Self {
        let watched = watch.map(|watch| WatchedRequests {
            watch,
            is_idle: true,
            words: None,
            answer: Vec::new(),
            sent: 0,
        });
        Self { stream, heads, activity: Arc::clone(activity), heard, watched, is_over: false, permits }
    }

    /// What a write or a flush came to.
    fn note_write(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => self.activity.wrote(Some(*bytes)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.activity.wrote(None),
        }
        if written.is_ready() && self.heads == HeadTiming::Timed {
            self.activity.moved();
        }
    }

    /// Whether the peer's address is refused for a while: then no more of its requests are read. One that is being
    /// answered may end.
    fn is_refused(&self) -> bool {
        let is_refused = self.permits.counted.as_ref().is_some_and(|counted| counted.is_refused());
        if is_refused {
            self.activity.close_after_response();
        }
        is_refused && self.activity.is_idle() && !self.activity.is_upgraded()
    }

    /// Reads again what was read before.
    fn hear(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.heard.len().min(buffer.remaining());
        buffer.put_slice(&self.heard[..count]);
        self.heard.drain(..count);
    }

    /// Whether what was read was answered here.
    fn refuse_repeat(&mut self, bytes: &[u8]) -> bool {
        let Some(WatchedRequests { watch, is_idle: true, words: Some(words), answer, .. }) =
            &mut self.watched
        else {
            return false;
        };
        let word = words.refuse_repeat(bytes, &self.activity, answer);
        if word != RefusalAction::Pass {
            watch.skip();
            self.activity.record_repeat_refusal();
            self.is_over = word == RefusalAction::RefuseAndClose;
        }
        word != RefusalAction::Pass
    }

    /// Follows the request in what was read; at the first thing that is ambiguous it is cut off.
    fn watch(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let read = buffer.filled().len() - before;
        let Some(watched) = &mut self.watched else { return };
        if read == 0 || self.is_over || self.activity.is_upgraded() {
            return;
        }
        let requests = watched.watch.requests();
        let was_idle = std::mem::take(&mut watched.is_idle);
        let bytes = &buffer.filled()[before..];
        let clear = watched.watch.inspect(bytes);
        if clear < read {
            buffer.set_filled(before + clear);
            (self.is_over, self.heard) = (true, POISON.to_vec());
            self.hear(buffer);
        } else if was_idle
            && repeat_refusal::was_refused(&self.activity)
            && watched.watch.is_between()
            && watched.watch.requests() == requests.wrapping_add(1)
        {
            watched.words.get_or_insert_default().keep(bytes, &self.activity);
        }
    }
}

impl<S: AsyncWrite + Unpin> ObservedStream<S> {
    /// Sends what was answered here.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(WatchedRequests { answer, sent, .. }) = &mut self.watched else {
            return Poll::Ready(Ok(()));
        };
        if answer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while *sent < answer.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &answer[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => *sent += count,
            }
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        answer.clear();
        *sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        for _ in 0..MOST_IN_A_ROW {
            ready!(this.send(cx))?;
            if this.is_refused() {
                // As if the peer had closed.
                return Poll::Ready(Ok(()));
            }
            if !this.heard.is_empty() {
                this.hear(buffer);
            } else if !this.is_over {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
            }
            let bytes = &buffer.filled()[before..];
            if !bytes.is_empty() {
                if this.heads == HeadTiming::Timed {
                    this.activity.read();
                }
                if this.refuse_repeat(bytes) {
                    buffer.set_filled(before);
                    continue;
                }
            }
            this.watch(buffer, before);
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_write(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note_write(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Hyper flushes when it has handed over all that it has to say.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.send(cx))?;
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.activity.wrote(flushed.is_ready().then_some(0));
        ready!(flushed)?;
        if let Some(watched) = &mut this.watched {
            let watch = &watched.watch;
            watched.is_idle = watch.is_between() && this.activity.has_answered(watch.requests());
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

pin_project_lite::pin_project! {
    /// The body of an answer; the request is over when it ends or is dropped.
    pub(crate) struct ObservedBody<B> {
        #[pin]
        pub(crate) body: B,
        pub(crate) open: OpenRequest,
        // Of its stream, where there are several.
        pub(crate) meter: Option<Arc<StreamMeter>>,
    }
}

impl<B: Body> Body for ObservedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let Some(meter) = this.meter else { return this.body.poll_frame(cx) };
        meter.ask();
        let polled = this.body.poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            meter.hand_over(frame.data_ref().map_or(0, |data| data.remaining() as u64));
            this.open.activity().moved();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
