//! A stream to a server that may answer before it has read all of a request.
//!
//! A server that has seen enough (a body that is too large, no credentials) answers and closes, and what is still sent
//! to it resets the connection. Its answer is there to be read nevertheless. So an error of a write is not told: what is
//! written from then on goes nowhere, and the next read tells whether there is an answer.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether a server reads what is sent to it, as far as is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listening(Arc<AtomicBool>);

impl Listening {
    /// The server has closed its side: nothing more can be sent.
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the file.
#[derive(Debug)]
pub(super) struct UpstreamStream<S> {
    stream: S,
    listening: Listening,
}

impl<S> UpstreamStream<S> {
    pub(super) fn new(stream: S, listening: Listening) -> Self {
        Self { stream, listening }
    }

    /// What a write comes to; `written` if it went nowhere.
    fn wrote<T>(&self, result: io::Result<T>, written: T) -> io::Result<T> {
        match result {
            Err(error) if is_closed(&error) => {
                self.listening.0.store(true, Ordering::Relaxed);
                Ok(written)
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
        if self.listening.is_over() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(self.wrote(result, bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        Poll::Ready(self.wrote(result, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
        Poll::Ready(self.wrote(result, ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn what_was_answered_is_read_after_a_write_failed() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let listening = Listening::default();
        let mut stream = UpstreamStream::new(ours, listening.clone());
        stream.write_all(b"request").await.unwrap();
        assert!(!listening.is_over());
        theirs.write_all(b"answer").await.unwrap();
        drop(theirs);
        for _ in 0..3 {
            stream.write_all(&[0; 1_000]).await.unwrap();
        }
        assert!(listening.is_over());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    }
}
