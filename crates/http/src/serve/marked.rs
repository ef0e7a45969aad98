//! A stream that leaves marks, and bodies that do.

use super::connection::Place;
use super::framing::{POISON, Watch};
use super::marks::{Marks, Open};
use hyper::body::{Body, Frame, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that leaves marks. What was read to find out what it speaks is read again.
pub(super) struct Marked<S> {
    pub(super) stream: S,
    pub(super) marks: Arc<Marks>,
    /// What was already read.
    pub(super) heard: Vec<u8>,
    /// Looks for requests with an ambiguous end.
    pub(super) watch: Option<Watch>,
    /// It found one: nothing more is read.
    pub(super) is_over: bool,
    /// The connection counts for as long as its stream lives, also after a change of protocol.
    pub(super) _place: Place,
}

impl<S: AsyncRead + Unpin> AsyncRead for Marked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let this = &mut *self;
        if !this.heard.is_empty() {
            this.hear(buffer);
        } else if !this.is_over {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        }
        let read = buffer.filled().len() - before;
        if read > 0 {
            this.marks.read();
        }
        if let Some(watch) = &mut this.watch
            && !this.is_over
            && !this.marks.is_upgraded()
        {
            let clear = watch.inspect(&buffer.filled()[before..]);
            if clear < read {
                buffer.set_filled(before + clear);
                (this.is_over, this.heard) = (true, POISON.to_vec());
                this.hear(buffer);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S> Marked<S> {
    /// Reads again what was read before.
    fn hear(&mut self, buffer: &mut ReadBuf<'_>) {
        let count = self.heard.len().min(buffer.remaining());
        buffer.put_slice(&self.heard[..count]);
        self.heard.drain(..count);
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Marked<S> {
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

pin_project_lite::pin_project! {
    /// The body of an answer; the request is over when it ends or is dropped.
    pub(super) struct MarkedBody<B> {
        #[pin]
        pub(super) body: B,
        pub(super) open: Open,
    }
}

impl<B: Body> Body for MarkedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
