//! A stream that leaves marks, and bodies that do.

use super::connection::Place;
use super::framing::Watch;
use super::marks::{Marks, Open};
use hyper::body::{Body, Frame, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that leaves marks. What was read to find out what it speaks is read again.
pub(super) struct Marked<S> {
    pub(super) stream: S,
    pub(super) marks: Arc<Marks>,
    /// What was already read.
    pub(super) heard: Vec<u8>,
    /// Looks for requests with an ambiguous end.
    pub(super) watch: Option<Watch>,
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
        let polled = if this.heard.is_empty() {
            Pin::new(&mut this.stream).poll_read(cx, buffer)
        } else {
            let count = this.heard.len().min(buffer.remaining());
            buffer.put_slice(&this.heard[..count]);
            this.heard.drain(..count);
            Poll::Ready(Ok(()))
        };
        if buffer.filled().len() > before {
            this.marks.read();
            if let Some(watch) = &mut this.watch
                && !this.marks.is_upgraded()
            {
                let kept = watch.inspect(&mut buffer.filled_mut()[before..]);
                buffer.set_filled(before + kept);
            }
        }
        polled
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
