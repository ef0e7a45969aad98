//! The access log: one line of JSON for each request, written by a thread of its own.
//!
//! A request never waits for a disk: if the writer is behind, or cannot write, the line is dropped and counted.

mod writer;

use bytes::Buf;
use http::{Method, Response, Uri};
use hyper::body::{Body, Frame, SizeHint};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate_http::body::ErrorCode;
use tollgate_http::identity::redacted;
use tollgate_limiter::Clock;
use writer::LogWriter;

/// Lines that wait to be written.
const MOST_WAITING: usize = 64 << 10;
/// How long a shutdown waits for them.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Takes lines.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: SyncSender<Message>,
    state: Arc<LogState>,
    clock: Clock,
}

/// What the writer and its senders share.
#[derive(Debug, Default)]
struct LogState {
    /// Lines that were not written.
    dropped: AtomicU64,
    /// The file is to be opened again.
    reopen: AtomicBool,
}

/// Where lines go.
enum LogTarget {
    Stream(Box<dyn Write + Send>),
    File(PathBuf, File),
}

impl LogTarget {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
        Ok(Self::File(path.to_owned(), file))
    }
}

/// What the writer is told.
#[derive(Debug)]
enum Message {
    Line(Entry),
    /// All before this is to be written, and then this is told.
    Written(oneshot::Sender<()>),
    /// There is something new in the state.
    Wake,
}

/// One request and its answer.
#[derive(Debug)]
struct Entry {
    began_us: u64,
    took_us: u64,
    client: IpAddr,
    method: Method,
    target: Uri,
    status: u16,
    bytes: u64,
    whole: bool,
}

impl AccessLog {
    /// Writes to `target`, which is flushed whenever nothing waits. The values of the query parameters `hidden` are not
    /// written: they are identities, and may be as good as passwords.
    pub fn start(target: impl Write + Send + 'static, clock: Clock, hidden: Vec<String>) -> io::Result<Self> {
        Self::write_to(LogTarget::Stream(Box::new(target)), clock, hidden)
    }

    /// Adds lines to the file at `path`, which is made if it is not there, and cannot be read by everybody on the machine.
    pub fn open(path: &Path, clock: Clock, hidden: Vec<String>) -> io::Result<Self> {
        Self::write_to(LogTarget::open(path)?, clock, hidden)
    }

    fn write_to(target: LogTarget, clock: Clock, hidden: Vec<String>) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(MOST_WAITING);
        let state = Arc::new(LogState::default());
        let writer = LogWriter::new(target, Arc::clone(&state), hidden);
        thread::Builder::new().name("access-log".to_owned()).spawn(move || writer.run(&waiting))?;
        Ok(Self { lines, state, clock })
    }

    /// Has the file opened again, for it was moved away to be archived. Waits for nothing; lines that were sent before
    /// may still go to the old file. Without a file it does nothing.
    pub fn reopen(&self) {
        self.state.reopen.store(true, Ordering::Release);
        // If the queue is full, the writer is awake.
        let _ = self.lines.try_send(Message::Wake);
    }

    /// Waits until what was noted so far is written, but not for ever.
    pub(crate) async fn written(&self) {
        let (written, heard) = oneshot::channel();
        if self.lines.try_send(Message::Written(written)).is_ok() {
            // A writer that has given up, or is slow, has said so itself.
            let _ = tokio::time::timeout(LAST_LINES, heard).await;
        }
    }

    /// Lines that were dropped, because they came faster than they could be written, or could not be written at all.
    pub fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// A request begins.
    pub(crate) fn begin(&self, client: IpAddr, method: &Method, target: &Uri) -> Line {
        let entry = Entry {
            began_us: self.clock.now_us(),
            took_us: 0,
            client,
            method: method.clone(),
            target: target.clone(),
            status: 0,
            bytes: 0,
            whole: false,
        };
        Line { log: self.clone(), entry: Some(entry) }
    }
}

/// A request that is not over; it is written when this is dropped.
#[derive(Debug)]
pub(crate) struct Line {
    log: AccessLog,
    entry: Option<Entry>,
}

impl Line {
    /// It was over a limit, and is over with a body of so many bytes.
    pub(crate) fn refused(mut self, bytes: usize) {
        let status = ErrorCode::RateLimitExceeded.status();
        if let Some(entry) = &mut self.entry {
            (entry.status, entry.bytes, entry.whole) = (status.as_u16(), bytes as u64, true);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(mut entry) = self.entry.take() {
            entry.took_us = self.log.clock.now_us().saturating_sub(entry.began_us);
            if self.log.lines.try_send(Message::Line(entry)).is_err() {
                self.log.state.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A body whose end is the end of a line.
#[derive(Debug)]
pub struct Logged<B> {
    body: B,
    line: Option<Box<Line>>,
}

impl<B: Body> Logged<B> {
    /// Without a line it is only the body.
    pub(crate) fn wrap(line: Option<Box<Line>>, answer: Response<B>) -> Response<Self> {
        let status = answer.status().as_u16();
        answer.map(|body| {
            let mut logged = Self { body, line };
            logged.note(|entry| entry.status = status);
            logged.look_for_end();
            logged
        })
    }

    fn note(&mut self, note: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.line.as_mut().and_then(|line| line.entry.as_mut()) {
            note(entry);
        }
    }

    fn look_for_end(&mut self) {
        if self.body.is_end_stream() {
            self.note(|entry| entry.whole = true);
        }
    }
}

impl<B: Body + Unpin> Body for Logged<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.remaining() as u64);
                self.note(|entry| entry.bytes += bytes);
                self.look_for_end();
            }
            Poll::Ready(None) => self.note(|entry| entry.whole = true),
            _ => {}
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

fn write_line(target: &mut impl Write, entry: &Entry, hidden: &[String]) -> io::Result<()> {
    let Entry { began_us, took_us, client, method, target: uri, status, bytes, whole } = entry;
    let time = tollgate_core::rate::rfc3339(*began_us);
    // Hyper lets quotes stand in a target, but no control characters; a method is a token.
    let uri = redacted(uri, hidden).replace('\\', "\\\\").replace('"', "\\\"");
    writeln!(
        target,
        r#"{{"time":"{time}","client":"{client}","method":"{method}","target":"{uri}","status":{status},"bytes":{bytes},"duration_us":{took_us},"complete":{whole}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json() {
        let entry = Entry {
            began_us: 1_000_000,
            took_us: 250,
            client: "::1".parse().unwrap(),
            method: Method::GET,
            target: "/a?b=%22&key=secret".parse().unwrap(),
            status: 200,
            bytes: 5,
            whole: true,
        };
        let mut line = Vec::new();
        write_line(&mut line, &entry, &["key".to_owned()]).unwrap();
        let expected = r#"{"time":"1970-01-01T00:00:01Z","client":"::1","method":"GET","target":"/a?b=%22&key=…","status":200,"bytes":5,"duration_us":250,"complete":true}"#;
        assert_eq!(String::from_utf8(line).unwrap().trim_end(), expected);
    }
}
