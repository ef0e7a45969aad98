//! What the stream answers by itself, and what it passes to hyper.

use super::stream::FastPathStream;
use super::{RefusalAction, RepeatRefuser};
use crate::connection::ConnectionPermits;
use crate::connection_activity::{ConnectionActivity, HeadTiming, OpenRequest};
use crate::framing::FramingWatch;
use crate::listener_counters::OpenConnection;
use crate::observed_stream::ObservedStream;
use crate::{Framing, RefusalFastPath, ServeOptions};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::Semaphore;

const REQUEST: &str = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
const RESPONSE: &str = "no";

/// A stream as a connection makes it.
pub(super) fn fast_path_stream<S>(stream: S, refusal_fast_path: RefusalFastPath) -> FastPathStream<S> {
    let options = ServeOptions { framing: Framing::Strict, refusal_fast_path, ..ServeOptions::default() };
    let activity = Arc::new(ConnectionActivity::new(&options));
    let slot = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let permits =
        ConnectionPermits { _slot: slot, open: OpenConnection::new(&Arc::default()), counted: None };
    let framing = Some(FramingWatch::new());
    FastPathStream::new(ObservedStream::new(
        stream,
        HeadTiming::Timed,
        Vec::new(),
        framing,
        &activity,
        permits,
    ))
}

struct FixedRefuser(RefusalAction);

impl RepeatRefuser for FixedRefuser {
    fn refuse_repeat(&mut self, _target: &[u8], response: &mut Vec<u8>) -> RefusalAction {
        if self.0 != RefusalAction::Pass {
            response.extend_from_slice(RESPONSE.as_bytes());
        }
        self.0
    }
}

/// A connection as hyper sees it, and its client.
struct StreamUnderTest {
    stream: FastPathStream<DuplexStream>,
    client: DuplexStream,
    open: Option<OpenRequest>,
}

impl StreamUnderTest {
    /// A stream with a buffer of so many bytes, on which [`REQUEST`] was refused twice.
    async fn new(buffer: usize, action: RefusalAction) -> Self {
        Self::with(buffer, action, RefusalFastPath::Enabled).await
    }

    async fn with(buffer: usize, action: RefusalAction, fast_path: RefusalFastPath) -> Self {
        let (client, stream) = duplex(buffer);
        let stream = fast_path_stream(stream, fast_path);
        let mut tested = Self { stream, client, open: None };
        for _ in 0..2 {
            assert_eq!(tested.send(REQUEST).await.as_deref(), Some(REQUEST));
            tested.begin();
            if let Some(state) = &tested.stream.activity().fast_path {
                let is_kept = state.take_kept();
                let refuser = is_kept.then(|| Box::new(FixedRefuser(action)) as Box<dyn RepeatRefuser>);
                state.record_refusal(refuser);
            }
            tested.end();
        }
        tested
    }

    /// What hyper reads when the client sends `text`; none if that is nothing.
    async fn send(&mut self, text: &str) -> Option<String> {
        self.client.write_all(text.as_bytes()).await.unwrap();
        self.read().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = [0; 256];
        let mut buffer = ReadBuf::new(&mut bytes);
        let cx = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Ready(read) => read.map(|()| buffer.filled().to_vec()).ok(),
            Poll::Pending => None,
        }
    }

    /// Hyper has parsed a request.
    fn begin(&mut self) {
        self.open = Some(OpenRequest::new(self.stream.activity()));
    }

    /// Hyper has sent its response.
    fn end(&mut self) {
        self.open = None;
        self.flush();
    }

    fn flush(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut self.stream).poll_flush(cx).is_ready());
    }

    async fn expect_response(&mut self, text: &str) {
        let mut received = vec![0; text.len()];
        self.client.read_exact(&mut received).await.unwrap();
        assert_eq!(String::from_utf8(received).unwrap(), text);
    }
}

#[tokio::test]
async fn repeats_are_answered_and_not_passed_on() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
    for _ in 0..3 {
        assert_eq!(tested.send(REQUEST).await, None);
        tested.expect_response(RESPONSE).await;
    }
    let other = "GET /a HTTP/1.1\r\nhost: b\r\n\r\n";
    assert_eq!(tested.send(other).await.as_deref(), Some(other));
}

#[tokio::test]
async fn switched_off_everything_is_passed_on() {
    let mut tested = StreamUnderTest::with(1024, RefusalAction::Refuse, RefusalFastPath::Disabled).await;
    assert_eq!(tested.send(REQUEST).await.as_deref(), Some(REQUEST));
}

#[tokio::test]
async fn repeats_that_may_pass_are_passed_on() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Pass).await;
    assert_eq!(tested.send(REQUEST).await.as_deref(), Some(REQUEST));
}

#[tokio::test]
async fn after_refuse_and_close_reads_find_the_end() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::RefuseAndClose).await;
    assert_eq!(tested.send(REQUEST).await.as_deref(), Some(""), "the end, to hyper");
    tested.expect_response(RESPONSE).await;
    assert_eq!(tested.send(REQUEST).await.as_deref(), Some(""));
}

#[tokio::test]
async fn the_same_bytes_within_another_request_are_no_repeat() {
    let beginnings = ["GET", "GET /b HTTP/1.1\r\nx: ", "POST /b HTTP/1.1\r\ncontent-length: 40\r\n\r\n"];
    for beginning in beginnings {
        let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
        assert_eq!(tested.send(beginning).await.as_deref(), Some(beginning));
        tested.flush();
        assert_eq!(tested.send(REQUEST).await.as_deref(), Some(REQUEST), "{beginning:?}");
    }
}

#[tokio::test]
async fn repeats_are_not_answered_out_of_order() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
    let other = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n\r\n";
    assert_eq!(tested.send(other).await.as_deref(), Some(other));
    tested.flush();
    assert_eq!(tested.send(REQUEST).await.as_deref(), Some(REQUEST), "hyper has not parsed it yet");
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
    let both = REQUEST.repeat(2);
    assert_eq!(tested.send(&both).await.as_deref(), Some(&*both));
    for _ in 0..2 {
        tested.begin();
        tested.flush();
        assert_eq!(tested.send(REQUEST).await.as_deref(), Some(REQUEST), "another is being answered");
        tested.end();
    }
}

#[tokio::test]
async fn a_response_that_does_not_fit_is_sent_later() {
    let mut tested = StreamUnderTest::new(REQUEST.len() + 1, RefusalAction::Refuse).await;
    // The client does not read.
    let mut unread = 0;
    while unread + RESPONSE.len() <= REQUEST.len() + 1 {
        assert_eq!(tested.send(REQUEST).await, None);
        unread += RESPONSE.len();
    }
    assert_eq!(tested.send(REQUEST).await, None);
    assert_eq!(tested.client.write(b"G").ready_now(), Some(1), "the client can send");
    assert_eq!(tested.read(), None, "nothing more is read");
    while unread > 0 {
        tested.expect_response(RESPONSE).await;
        unread -= RESPONSE.len();
    }
    assert_eq!(tested.read().as_deref(), Some(&b"G"[..]));
    tested.expect_response(RESPONSE).await;
}

trait ReadyNow: Future<Output: Sized> {
    /// The result, if it is ready at the first poll.
    fn ready_now<T>(self) -> Option<T>
    where
        Self: Future<Output = io::Result<T>> + Sized,
    {
        let mut this = std::pin::pin!(self);
        match this.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output.ok(),
            Poll::Pending => None,
        }
    }
}

impl<F: Future> ReadyNow for F {}
