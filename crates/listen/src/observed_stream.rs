//! The stream of a connection, and the bodies of its responses, with records of their activity.

use crate::connection::ConnectionPermits;
use crate::connection_activity::{ConnectionActivity, HeadTiming, OpenRequest};
use crate::framing::{FramingWatch, POISON};
use crate::http2_streams::StreamMeter;
use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that records its activity, refuses ambiguous framing, and stops reading from refused addresses.
pub(crate) struct ObservedStream<S> {
    stream: S,
    /// With [`HeadTiming::Untimed`] reads and writes are no activity: on HTTP/2 they may be pings.
    head_timing: HeadTiming,
    activity: Arc<ConnectionActivity>,
    /// Bytes that were read to detect the protocol, and the end of an ambiguous request. They are read first.
    unread: Vec<u8>,
    /// None where requests may be ambiguous.
    framing: Option<FramingWatch>,
    /// Nothing more is read from the stream.
    is_over: bool,
    /// Held for as long as the stream lives, also after a change of protocol.
    permits: ConnectionPermits,
}

impl<S> ObservedStream<S> {
    pub(crate) fn new(
        stream: S,
        head_timing: HeadTiming,
        unread: Vec<u8>,
        framing: Option<FramingWatch>,
        activity: &Arc<ConnectionActivity>,
        permits: ConnectionPermits,
    ) -> Self {
        let activity = Arc::clone(activity);
        Self { stream, head_timing, activity, unread, framing, is_over: false, permits }
    }

    pub(crate) fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.activity
    }

    /// The number of request heads that were inspected or skipped. 0 without a framing watch.
    pub(crate) fn requests(&self) -> u32 {
        self.framing.as_ref().map_or(0, FramingWatch::requests)
    }

    /// Whether everything that was inspected are whole requests. False without a framing watch.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.framing.as_ref().is_some_and(FramingWatch::is_between)
    }

    /// Counts the request that was just read as one that was read and answered.
    pub(crate) fn skip_request(&mut self) {
        if let Some(framing) = &mut self.framing {
            framing.skip_request();
        }
        self.activity.record_answered_request();
    }

    /// From now on reads find the end of the stream.
    pub(crate) fn stop_reading(&mut self) {
        self.is_over = true;
    }

    /// Inspects the request in what was read behind `before`. From the first byte that is ambiguous on, it is replaced.
    pub(crate) fn inspect(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let read = buffer.filled().len() - before;
        let Some(framing) = &mut self.framing else { return };
        if read == 0 || self.is_over || self.activity.is_upgraded() {
            return;
        }
        let clear = framing.inspect(&buffer.filled()[before..]);
        if clear < read {
            buffer.set_filled(before + clear);
            (self.is_over, self.unread) = (true, POISON.to_vec());
            self.take_unread(buffer);
        }
    }

    /// Records the result of a write.
    fn record_write(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => self.activity.record_write(Some(*bytes)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.activity.record_write(None),
        }
        if written.is_ready() && self.head_timing == HeadTiming::Timed {
            self.activity.record_progress();
        }
    }

    /// Whether the client's address is refused, and no request is being answered: then no more requests are read.
    fn is_refused(&self) -> bool {
        let is_refused = self.permits.counted.as_ref().is_some_and(|counted| counted.is_refused());
        if is_refused {
            self.activity.close_after_response();
        }
        is_refused && self.activity.is_idle() && !self.activity.is_upgraded()
    }

    fn take_unread(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread[..count]);
        self.unread.drain(..count);
    }
}

impl<S: AsyncRead + Unpin> ObservedStream<S> {
    /// Reads without inspection. What is read has to be [inspected](Self::inspect) or [skipped](Self::skip_request).
    pub(crate) fn poll_read_bytes(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_refused() {
            // As if the client had closed.
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        if !self.unread.is_empty() {
            self.take_unread(buffer);
        } else if !self.is_over {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        }
        if buffer.filled().len() > before && self.head_timing == HeadTiming::Timed {
            self.activity.record_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ObservedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.poll_read_bytes(cx, buffer))?;
        self.inspect(buffer, before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ObservedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_write(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.record_write(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.activity.record_write(flushed.is_ready().then_some(0));
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

pin_project_lite::pin_project! {
    /// The body of a response; the request is over when it ends or is dropped.
    pub(crate) struct ObservedBody<B> {
        #[pin]
        pub(crate) body: B,
        pub(crate) open: OpenRequest,
        // Of its stream, on HTTP/2.
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
        meter.record_poll();
        let polled = this.body.poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            meter.record_frame(frame.data_ref().map_or(0, |data| data.remaining() as u64));
            this.open.activity().record_progress();
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
