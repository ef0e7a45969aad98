//! A stream that leaves marks, and bodies that do.

use super::connection::Place;
use super::doorman::{self, Word, Words};
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
    stream: S,
    marks: Arc<Marks>,
    /// What was already read.
    heard: Vec<u8>,
    /// Looks at requests on their way, where their end must not be ambiguous.
    watched: Option<Watched>,
    /// Nothing more is read.
    is_over: bool,
    /// The connection counts for as long as its stream lives, also after a change of protocol.
    _place: Place,
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
        heard: Vec<u8>,
        watch: Option<Watch>,
        marks: &Arc<Marks>,
        place: Place,
    ) -> Self {
        let watched =
            watch.map(|watch| Watched { watch, is_idle: true, words: None, answer: Vec::new(), sent: 0 });
        Self { stream, marks: Arc::clone(marks), heard, watched, is_over: false, _place: place }
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
        loop {
            ready!(this.send(cx))?;
            if !this.heard.is_empty() {
                this.hear(buffer);
            } else if !this.is_over {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
            }
            let bytes = &buffer.filled()[before..];
            if !bytes.is_empty() {
                this.marks.read();
                if this.turn_away(bytes) {
                    buffer.set_filled(before);
                    continue;
                }
            }
            this.watch(buffer, before);
            return Poll::Ready(Ok(()));
        }
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

    /// Hyper flushes when it has handed over all that it has to say.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.send(cx))?;
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
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

#[cfg(test)]
mod tests {
    use super::super::doorman::Doorman;
    use super::*;
    use std::task::Waker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Semaphore;

    const WORDS: &str = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
    const ANSWER: &str = "no";

    struct No(Word);

    impl Doorman for No {
        fn turn_away(&mut self, _target: &[u8], answer: &mut Vec<u8>) -> Word {
            if self.0 != Word::Pass {
                answer.extend_from_slice(ANSWER.as_bytes());
            }
            self.0
        }
    }

    /// A connection, seen from where hyper stands.
    struct Seat {
        stream: Marked<DuplexStream>,
        client: DuplexStream,
        open: Option<Open>,
    }

    impl Seat {
        /// A stream that holds so much, on which [`WORDS`] were refused twice.
        async fn new(room: usize, word: Word) -> Self {
            let (client, stream) = duplex(room);
            let marks = Arc::new(Marks::default());
            let slot = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
            let place = Place { _slot: slot, _seat: None };
            let stream = Marked::new(stream, Vec::new(), Some(Watch::new()), &marks, place);
            let mut seat = Self { stream, client, open: None };
            for _ in 0..2 {
                assert_eq!(seat.says(WORDS).await.as_deref(), Some(WORDS));
                seat.begin();
                let kept = marks.post.take_kept();
                marks.post.refused(kept.then(|| Box::new(No(word)) as Box<dyn Doorman>));
                seat.end();
            }
            seat
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
            self.open = Some(Open::new(&self.stream.marks));
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
        let mut seat = Seat::new(1024, Word::Refused).await;
        for _ in 0..3 {
            assert_eq!(seat.says(WORDS).await, None);
            seat.hears(ANSWER).await;
        }
        let other = "GET /a HTTP/1.1\r\nhost: b\r\n\r\n";
        assert_eq!(seat.says(other).await.as_deref(), Some(other));
    }

    #[tokio::test]
    async fn who_may_pass_is_seen() {
        let mut seat = Seat::new(1024, Word::Pass).await;
        assert_eq!(seat.says(WORDS).await.as_deref(), Some(WORDS));
    }

    #[tokio::test]
    async fn after_a_farewell_comes_the_end() {
        let mut seat = Seat::new(1024, Word::Farewell).await;
        assert_eq!(seat.says(WORDS).await.as_deref(), Some(""), "which hyper takes for the end");
        seat.hears(ANSWER).await;
        assert_eq!(seat.says(WORDS).await.as_deref(), Some(""));
    }

    #[tokio::test]
    async fn words_within_another_request_are_a_part_of_it() {
        let beginnings = ["GET", "GET /b HTTP/1.1\r\nx: ", "POST /b HTTP/1.1\r\ncontent-length: 40\r\n\r\n"];
        for beginning in beginnings {
            let mut seat = Seat::new(1024, Word::Refused).await;
            assert_eq!(seat.says(beginning).await.as_deref(), Some(beginning));
            seat.flush();
            assert_eq!(seat.says(WORDS).await.as_deref(), Some(WORDS), "{beginning:?}");
        }
    }

    #[tokio::test]
    async fn nobody_is_answered_before_it_is_his_turn() {
        let mut seat = Seat::new(1024, Word::Refused).await;
        let other = "GET /a HTTP/1.1\r\nhost: a\r\n\r\n\r\n";
        assert_eq!(seat.says(other).await.as_deref(), Some(other));
        seat.flush();
        assert_eq!(seat.says(WORDS).await.as_deref(), Some(WORDS), "hyper has not put it together");
        let mut seat = Seat::new(1024, Word::Refused).await;
        let both = WORDS.repeat(2);
        assert_eq!(seat.says(&both).await.as_deref(), Some(&*both));
        for _ in 0..2 {
            seat.begin();
            seat.flush();
            assert_eq!(seat.says(WORDS).await.as_deref(), Some(WORDS), "it is being answered");
            seat.end();
        }
    }

    #[tokio::test]
    async fn an_answer_that_does_not_fit_is_sent_later() {
        let mut seat = Seat::new(WORDS.len() + 1, Word::Refused).await;
        // The client does not read.
        let mut unread = 0;
        while unread + ANSWER.len() <= WORDS.len() + 1 {
            assert_eq!(seat.says(WORDS).await, None);
            unread += ANSWER.len();
        }
        assert_eq!(seat.says(WORDS).await, None);
        assert_eq!(seat.client.write(b"G").now(), Some(1), "there is room, and yet");
        assert_eq!(seat.read(), None, "nothing more is read");
        while unread > 0 {
            seat.hears(ANSWER).await;
            unread -= ANSWER.len();
        }
        assert_eq!(seat.read().as_deref(), Some(&b"G"[..]));
        seat.hears(ANSWER).await;
    }

    trait Now: Future<Output: Sized> {
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

    impl<F: Future> Now for F {}
}
