//! A stream that leaves marks, and bodies that do.

#[cfg(test)]
mod orders;
#[cfg(test)]
mod tests;

use super::connection::Place;
use super::doorman::{self, Word, Words};
use super::framing::{POISON, Watch};
use super::marks::{Heads, Marks, Open};
use super::streams::StreamMeter;
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

/// A stream that leaves marks. What was read to find out what it speaks is read again.
pub(super) struct Marked<S> {
    stream: S,
    /// Whether what is read and written says that the peer is not idle: on HTTP/2 it may be pings.
    heads: Heads,
    marks: Arc<Marks>,
    /// What was already read.
    heard: Vec<u8>,
    /// Looks at requests on their way, where their end must not be ambiguous.
    watched: Option<Watched>,
    /// Nothing more is read.
    is_over: bool,
    /// The connection counts for as long as its stream lives, also after a change of protocol.
    place: Place,
}

/// What is known of the requests on a stream.
struct Watched {
    watch: Watch,
    /// All that was read was answered, and all answers were sent: what comes next is a new request.
    is_idle: bool,
    /// Of the request that was refused last.
    words: Option<Box<Words>>,
    /// An answer that is not sent to its end, and how much of it is.
    answer: Vec<u8>,
    sent: usize,
}

impl<S> Marked<S> {
    pub(super) fn new(
        stream: S,
        heads: Heads,
        heard: Vec<u8>,
        watch: Option<Watch>,
        marks: &Arc<Marks>,
        place: Place,
    ) -> Self {
        let watched =
            watch.map(|watch| Watched { watch, is_idle: true, words: None, answer: Vec::new(), sent: 0 });
        Self { stream, heads, marks: Arc::clone(marks), heard, watched, is_over: false, place }
    }

    /// What a write or a flush came to.
    fn note_write(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => self.marks.wrote(Some(*bytes)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.marks.wrote(None),
        }
        if written.is_ready() && self.heads == Heads::Timed {
            self.marks.moved();
        }
    }

    /// Whether the peer's address is refused for a while: then no more of its requests are read. One that is being
    /// answered may end.
    fn is_refused(&self) -> bool {
        let is_refused = self.place.seat.as_ref().is_some_and(|seat| seat.is_refused());
        if is_refused {
            self.marks.hang_up();
        }
        is_refused && self.marks.is_idle() && !self.marks.is_upgraded()
    }

    /// Reads again what was read before.
    fn hear(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.heard.len().min(buffer.remaining());
        buffer.put_slice(&self.heard[..count]);
        self.heard.drain(..count);
    }

    /// Whether what was read was answered here.
    fn turn_away(&mut self, bytes: &[u8]) -> bool {
        let Some(Watched { watch, is_idle: true, words: Some(words), answer, .. }) = &mut self.watched else {
            return false;
        };
        let word = words.turn_away(bytes, &self.marks, answer);
        if word != Word::Pass {
            watch.skip();
            self.marks.turned_away();
            self.is_over = word == Word::Farewell;
        }
        word != Word::Pass
    }

    /// Follows the request in what was read; at the first thing that is ambiguous it is cut off.
    fn watch(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let read = buffer.filled().len() - before;
        let Some(watched) = &mut self.watched else { return };
        if read == 0 || self.is_over || self.marks.is_upgraded() {
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
            && doorman::was_refused(&self.marks)
            && watched.watch.is_between()
            && watched.watch.requests() == requests.wrapping_add(1)
        {
            watched.words.get_or_insert_default().keep(bytes, &self.marks);
        }
    }
}

impl<S: AsyncWrite + Unpin> Marked<S> {
    /// Sends what was answered here.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(Watched { answer, sent, .. }) = &mut self.watched else { return Poll::Ready(Ok(())) };
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Marked<S> {
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
                if this.heads == Heads::Timed {
                    this.marks.read();
                }
                if this.turn_away(bytes) {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Marked<S> {
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
        this.marks.wrote(flushed.is_ready().then_some(0));
        ready!(flushed)?;
        if let Some(watched) = &mut this.watched {
            let watch = &watched.watch;
            watched.is_idle = watch.is_between() && this.marks.has_answered(watch.requests());
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
    pub(super) struct MarkedBody<B> {
        #[pin]
        pub(super) body: B,
        pub(super) open: Open,
        // Of its stream, where there are several.
        pub(super) meter: Option<Arc<StreamMeter>>,
    }
}

impl<B: Body> Body for MarkedBody<B> {
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
            this.open.marks().moved();
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
