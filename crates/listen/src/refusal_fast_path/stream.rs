//! The stream between hyper and [`ObservedStream`], which answers repeated requests.

use super::RefusalAction;
use super::kept_request::KeptRequest;
use crate::observed_stream::ObservedStream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// So many repeats are answered before other tasks have their turn. Over TLS many can be buffered at once.
pub(super) const MOST_IN_A_ROW: u32 = 16;

/// An [`ObservedStream`] with the fast path, if its connection has one.
pub(crate) struct FastPathStream<S> {
    inner: ObservedStream<S>,
    repeats: Repeats,
}

/// The stream's part of the fast path.
struct Repeats {
    /// All that was read is answered, and all responses are sent: what is read next begins a request.
    is_idle: bool,
    /// The request that was refused last.
    kept: Option<Box<KeptRequest>>,
    /// A response that is not sent to its end, and how much of it is.
    response: Vec<u8>,
    sent: usize,
}

impl<S> FastPathStream<S> {
    pub(crate) fn new(inner: ObservedStream<S>) -> Self {
        let repeats = Repeats { is_idle: true, kept: None, response: Vec::new(), sent: 0 };
        Self { inner, repeats }
    }

    #[cfg(test)]
    pub(super) fn activity(&self) -> &std::sync::Arc<crate::connection_activity::ConnectionActivity> {
        self.inner.activity()
    }

    /// Whether `bytes`, which were just read, are a repeat that is answered here.
    fn refuse_repeat(&mut self, bytes: &[u8]) -> bool {
        let activity = self.inner.activity();
        let (Some(state), Some(kept)) = (&activity.fast_path, &mut self.repeats.kept) else { return false };
        if bytes.is_empty() || !self.repeats.is_idle || activity.is_upgraded() {
            return false;
        }
        let action = kept.refuse_repeat(bytes, state, &mut self.repeats.response);
        if action == RefusalAction::Pass {
            return false;
        }
        self.inner.skip_request();
        if action == RefusalAction::RefuseAndClose {
            self.inner.stop_reading();
        }
        true
    }

    /// Inspects what was read, and keeps it if it is one request after a refusal.
    fn inspect(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let requests = self.inner.requests();
        self.inner.inspect(buffer, before);
        let bytes = &buffer.filled()[before..];
        if bytes.is_empty() {
            return;
        }
        let was_idle = std::mem::take(&mut self.repeats.is_idle);
        if let Some(state) = &self.inner.activity().fast_path
            && was_idle
            && state.is_refused.load(Ordering::Relaxed)
            && self.inner.is_between_requests()
            && self.inner.requests() == requests.wrapping_add(1)
        {
            self.repeats.kept.get_or_insert_default().keep(bytes, state);
        }
    }
}

impl<S: AsyncWrite + Unpin> FastPathStream<S> {
    /// Sends the response to a repeat.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Repeats { response, sent, .. } = &mut self.repeats;
        if response.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while *sent < response.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &response[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => *sent += count,
            }
        }
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        response.clear();
        *sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for FastPathStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        for _ in 0..MOST_IN_A_ROW {
            ready!(this.poll_send(cx))?;
            ready!(this.inner.poll_read_bytes(cx, buffer))?;
            if !this.refuse_repeat(&buffer.filled()[before..]) {
                this.inspect(buffer, before);
                return Poll::Ready(Ok(()));
            }
            buffer.set_filled(before);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FastPathStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Hyper flushes when it has written everything that it has.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_send(cx))?;
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        this.repeats.is_idle =
            this.inner.is_between_requests() && this.inner.activity().has_answered(this.inner.requests());
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
