//! What is answered at the door, and what is not.

use super::*;
use crate::repeat_refusal::RepeatRefuser;
use std::task::Waker;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Semaphore;

const WORDS: &str = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
const ANSWER: &str = "no";

struct FixedRefuser(RefusalAction);

impl RepeatRefuser for FixedRefuser {
    fn refuse_repeat(&mut self, _target: &[u8], answer: &mut Vec<u8>) -> RefusalAction {
        if self.0 != RefusalAction::Pass {
            answer.extend_from_slice(ANSWER.as_bytes());
        }
        self.0
    }
}

/// A connection, seen from where hyper stands.
struct StreamUnderTest {
    stream: ObservedStream<DuplexStream>,
    client: DuplexStream,
    open: Option<OpenRequest>,
}

impl StreamUnderTest {
    /// A stream that holds so much, on which [`WORDS`] were refused twice.
    async fn new(room: usize, word: RefusalAction) -> Self {
        let (client, stream) = duplex(room);
        let activity = Arc::new(ConnectionActivity::default());
        let slot = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let permits = ConnectionPermits { _slot: slot, counted: None };
        let stream = ObservedStream::new(
            stream,
            HeadTiming::Timed,
            Vec::new(),
            Some(FramingWatch::new()),
            &activity,
            permits,
        );
        let mut tested = Self { stream, client, open: None };
        for _ in 0..2 {
            assert_eq!(tested.says(WORDS).await.as_deref(), Some(WORDS));
            tested.begin();
            let kept = activity.repeats.take_kept();
            activity
                .repeats
                .record_refusal(kept.then(|| Box::new(FixedRefuser(word)) as Box<dyn RepeatRefuser>));
            tested.end();
        }
        tested
    }

    /// What is read when the client says `text`; none if that is nothing.
    async fn says(&mut self, text: &str) -> Option<String> {
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

    /// Hyper has put a request together.
    fn begin(&mut self) {
        self.open = Some(OpenRequest::new(&self.stream.activity));
    }

    /// Hyper has sent its answer.
    fn end(&mut self) {
        self.open = None;
        self.flush();
    }

    fn flush(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut self.stream).poll_flush(cx).is_ready());
    }

    async fn hears(&mut self, text: &str) {
        let mut heard = vec![0; text.len()];
        self.client.read_exact(&mut heard).await.unwrap();
        assert_eq!(String::from_utf8(heard).unwrap(), text);
    }
}

#[tokio::test]
async fn known_words_are_answered_and_not_seen() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
    for _ in 0..3 {
        assert_eq!(tested.says(WORDS).await, None);
        tested.hears(ANSWER).await;
    }
    let other = "GET /a HTTP/1.1\r\nhost: b\r\n\r\n";
    assert_eq!(tested.says(other).await.as_deref(), Some(other));
}

#[tokio::test]
async fn who_may_pass_is_seen() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Pass).await;
    assert_eq!(tested.says(WORDS).await.as_deref(), Some(WORDS));
}

#[tokio::test]
async fn after_a_farewell_comes_the_end() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::RefuseAndClose).await;
    assert_eq!(tested.says(WORDS).await.as_deref(), Some(""), "which hyper takes for the end");
    tested.hears(ANSWER).await;
    assert_eq!(tested.says(WORDS).await.as_deref(), Some(""));
}

#[tokio::test]
async fn words_within_another_request_are_a_part_of_it() {
    let beginnings = ["GET", "GET /b HTTP/1.1\r\nx: ", "POST /b HTTP/1.1\r\ncontent-length: 40\r\n\r\n"];
    for beginning in beginnings {
        let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
        assert_eq!(tested.says(beginning).await.as_deref(), Some(beginning));
        tested.flush();
        assert_eq!(tested.says(WORDS).await.as_deref(), Some(WORDS), "{beginning:?}");
    }
}

#[tokio::test]
async fn nobody_is_answered_before_it_is_his_turn() {
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
    let other = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n\r\n";
    assert_eq!(tested.says(other).await.as_deref(), Some(other));
    tested.flush();
    assert_eq!(tested.says(WORDS).await.as_deref(), Some(WORDS), "hyper has not put it together");
    let mut tested = StreamUnderTest::new(1024, RefusalAction::Refuse).await;
    let both = WORDS.repeat(2);
    assert_eq!(tested.says(&both).await.as_deref(), Some(&*both));
    for _ in 0..2 {
        tested.begin();
        tested.flush();
        assert_eq!(tested.says(WORDS).await.as_deref(), Some(WORDS), "it is being answered");
        tested.end();
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_sent_later() {
    let mut tested = StreamUnderTest::new(WORDS.len() + 1, RefusalAction::Refuse).await;
    // The client does not read.
    let mut unread = 0;
    while unread + ANSWER.len() <= WORDS.len() + 1 {
        assert_eq!(tested.says(WORDS).await, None);
        unread += ANSWER.len();
    }
    assert_eq!(tested.says(WORDS).await, None);
    assert_eq!(tested.client.write(b"G").now(), Some(1), "there is room, and yet");
    assert_eq!(tested.read(), None, "nothing more is read");
    while unread > 0 {
        tested.hears(ANSWER).await;
        unread -= ANSWER.len();
    }
    assert_eq!(tested.read().as_deref(), Some(&b"G"[..]));
    tested.hears(ANSWER).await;
}

trait ReadyNow: Future<Output: Sized> {
    /// What it comes to, if that is known at once.
    fn now<T>(self) -> Option<T>
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
