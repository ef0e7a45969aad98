//! A stream to a server that may respond before it has read the whole request.
//!
//! A server that has seen enough (the body is too large, credentials are missing) responds and closes the connection,
//! and what is still being sent resets it. The response can be read nevertheless. So a write error is not reported:
//! later writes are discarded, and the next read finds the response or the error.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether a server is known to have stopped reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteClosed(Arc<AtomicBool>);

impl WriteClosed {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stream whose writes succeed after the server has stopped reading.
#[derive(Debug)]
pub(super) struct UpstreamStream<S> {
    stream: S,
    write_closed: WriteClosed,
}

impl<S> UpstreamStream<S> {
    pub(super) fn new(stream: S, write_closed: WriteClosed) -> Self {
        Self { stream, write_closed }
    }

    /// The result of a write; `discarded` instead of an error if the server has stopped reading.
    fn written<T>(&self, result: io::Result<T>, discarded: T) -> io::Result<T> {
        match result {
            Err(error) if is_closed(&error) => {
                self.write_closed.set();
                Ok(discarded)
            }
            other => other,
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected)
}

impl<S: AsyncRead + Unpin> AsyncRead for UpstreamStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UpstreamStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.write_closed.get() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(self.written(result, bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        Poll::Ready(self.written(result, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
        Poll::Ready(self.written(result, ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_response_is_read_after_a_failed_write() {
        let (near, mut far) = tokio::io::duplex(64);
        let write_closed = WriteClosed::default();
        let mut stream = UpstreamStream::new(near, write_closed.clone());
        stream.write_all(b"request").await.unwrap();
        assert!(!write_closed.get());
        far.write_all(b"response").await.unwrap();
        drop(far);
        for _ in 0..3 {
            stream.write_all(&[0; 1_000]).await.unwrap();
        }
        assert!(write_closed.get());
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert_eq!(response, "response");
    }
}
