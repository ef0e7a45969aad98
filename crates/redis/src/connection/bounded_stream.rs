//! A stream whose replies are bounded: see [`super::reply_bounds`].

use super::reply_bounds::{ReplyScanner, ReplyWatch};
use super::stream::ServerStream;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// See the module.
pub(super) struct BoundedStream {
    inner: Box<dyn ServerStream>,
    scanner: ReplyScanner,
    watch: Arc<ReplyWatch>,
}

impl BoundedStream {
    pub(super) fn new(inner: Box<dyn ServerStream>, watch: Arc<ReplyWatch>) -> Self {
        Self { inner, scanner: ReplyScanner::default(), watch }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = to.filled().len();
        std::task::ready!(Pin::new(&mut this.inner).poll_read(context, to))?;
        let read = this.scanner.read(&to.filled()[before..], &this.watch);
        Poll::Ready(read.map_err(|fault| {
            to.set_filled(before);
            // To the client library the connection is broken, as it is after a reset.
            io::Error::new(io::ErrorKind::ConnectionReset, format!("invalid answer: {fault}"))
        }))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
