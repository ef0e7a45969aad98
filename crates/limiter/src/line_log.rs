//! A log of lines: a bounded queue, and a thread that writes to standard output or to a file.
//!
//! A caller never waits. If the queue is full because the disk is slow or hangs, or if a line cannot be written because the
//! disk is full or the reader of a pipe is gone, the line is dropped and counted. Later lines are attempted again.

mod json_fields;
mod log_file;
mod log_time;
mod writer;

pub use json_fields::{JsonFields, is_hidden};
use log_file::LogFile;
pub use log_time::{common_log_time, rfc3339_us};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use writer::LineWriter;

/// The most lines that wait to be written.
const MOST_QUEUED: usize = 64 << 10;
/// The most memory of lines that wait to be written.
const MOST_QUEUED_BYTES: usize = 64 << 20;
/// How long a shutdown waits for queued lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a flush looks for room in a full queue.
const FLUSH_RETRY: Duration = Duration::from_millis(10);

/// A line that is not formatted yet. The thread of the log formats it, so that its caller does not have to.
pub trait LogLine: Send + fmt::Debug {
    /// Appends the text of the line to `out`. It has no line break; the log adds one.
    fn write(&self, out: &mut Vec<u8>);

    /// The memory that the line takes while it is queued, roughly.
    fn queued_bytes(&self) -> usize;
}

impl LogLine for String {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn queued_bytes(&self) -> usize {
        self.capacity()
    }
}

/// Where a log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// A file, which is appended to. It is created with mode 640.
    File(PathBuf),
}

impl fmt::Display for LogDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// When a file is rotated: `log` becomes `log.1`, `log.1` becomes `log.2`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRotation {
    /// The size that a file does not exceed, unless one batch of lines does.
    pub rotate_bytes: u64,
    /// The number of old files that are kept, at least 1.
    pub keep: u32,
}

/// A handle to a log of lines. Clones share the queue and the thread, which ends with the last handle.
#[derive(Clone, Debug)]
pub struct LineLog {
    queue: SyncSender<WriterMessage>,
    state: Arc<LineLogState>,
}

/// What the thread and the handles share.
#[derive(Debug)]
struct LineLogState {
    /// Such as `access`, for messages and metrics.
    name: &'static str,
    /// Lines that were not written.
    dropped: AtomicU64,
    queued_bytes: AtomicUsize,
    /// The file is to be reopened.
    reopen: AtomicBool,
}

/// Where the thread writes.
enum LogSink {
    Stream(Box<dyn Write + Send>),
    File(LogFile),
}

/// A message to the thread.
#[derive(Debug)]
enum WriterMessage {
    Line(Box<dyn LogLine>),
    /// Write everything before this, then notify the sender.
    Flush(oneshot::Sender<()>),
    /// Look at the state.
    Wake,
}

impl LineLog {
    /// Opens the log `name`, such as `access`. Rotation applies to regular files only.
    pub fn open(
        name: &'static str,
        destination: &LogDestination,
        rotation: Option<LogRotation>,
    ) -> io::Result<Self> {
        let sink = match destination {
            // A descriptor of its own: the standard library's handle buffers, and is shared under a lock.
            LogDestination::Stdout => {
                LogSink::Stream(Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
            }
            LogDestination::File(path) => LogSink::File(LogFile::open(path, rotation)?),
        };
        Self::start(name, sink)
    }

    /// Writes the log `name` to `stream`, which is flushed whenever the queue is empty.
    pub fn to_stream(name: &'static str, stream: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start(name, LogSink::Stream(Box::new(stream)))
    }

    fn start(name: &'static str, sink: LogSink) -> io::Result<Self> {
        let (log, messages) = Self::with_queue(name, MOST_QUEUED);
        let writer = LineWriter::new(sink, Arc::clone(&log.state));
        thread::Builder::new().name(format!("{name}-log")).spawn(move || writer.run(&messages))?;
        Ok(log)
    }

    fn with_queue(name: &'static str, most_queued: usize) -> (Self, Receiver<WriterMessage>) {
        let (queue, messages) = sync_channel(most_queued);
        let state = LineLogState {
            name,
            dropped: AtomicU64::new(0),
            queued_bytes: AtomicUsize::new(0),
            reopen: AtomicBool::new(false),
        };
        (Self { queue, state: Arc::new(state) }, messages)
    }

    /// Queues a line, or drops and counts it. Returns at once.
    pub fn send(&self, line: Box<dyn LogLine>) {
        let bytes = line.queued_bytes();
        let queued = self.state.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if queued.saturating_add(bytes) > MOST_QUEUED_BYTES
            || self.queue.try_send(WriterMessage::Line(line)).is_err()
        {
            self.state.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.record_dropped(1);
        }
    }

    /// Counts lines that their caller has dropped.
    pub fn record_dropped(&self, lines: u64) {
        self.state.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    /// The number of lines that were dropped: `tollgate_log_lines_dropped_total`.
    pub fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// The name of the log: the label `log` of its metrics.
    pub fn name(&self) -> &'static str {
        self.state.name
    }

    /// Makes the thread reopen its file, after another program has moved it. Returns at once; lines that are already queued
    /// may still go to the old file. Without a file this has no effect.
    pub fn reopen(&self) {
        self.state.reopen.store(true, Ordering::Release);
        // If the queue is full, the thread is awake.
        let _ = self.queue.try_send(WriterMessage::Wake);
    }

    /// Waits until the queued lines are written or dropped, for at most 2 s.
    pub async fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let (flushed, wait) = oneshot::channel();
        let mut message = WriterMessage::Flush(flushed);
        while let Err(error) = self.queue.try_send(message) {
            match error {
                TrySendError::Full(unsent) if Instant::now() < deadline => message = unsent,
                TrySendError::Full(_) | TrySendError::Disconnected(_) => return,
            }
            sleep_until((Instant::now() + FLUSH_RETRY).min(deadline)).await;
        }
        // The thread reports its errors itself.
        let _ = timeout_at(deadline, wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::{Condvar, Mutex};

    /// A disk that hangs until it is released.
    #[derive(Clone, Default)]
    struct HungDisk(Arc<HungDiskState>);

    #[derive(Default)]
    struct HungDiskState {
        is_released: Mutex<bool>,
        released: Condvar,
        written: Mutex<Vec<u8>>,
    }

    impl HungDisk {
        fn release(&self) {
            *self.0.is_released.lock() = true;
            self.0.released.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.written.lock().clone()).unwrap()
        }
    }

    impl Write for HungDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut is_released = self.0.is_released.lock();
            while !*is_released {
                self.0.released.wait(&mut is_released);
            }
            self.0.written.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn send(log: &LineLog, line: impl fmt::Display) {
        log.send(Box::new(line.to_string()));
    }

    #[tokio::test]
    async fn lines_are_written_in_their_order() {
        let disk = HungDisk::default();
        disk.release();
        let log = LineLog::to_stream("test", disk.clone()).unwrap();
        (0..10_000).for_each(|number| send(&log, number));
        log.flush().await;
        let expected: String = (0..10_000).map(|number| format!("{number}\n")).collect();
        assert_eq!((disk.text(), log.dropped(), log.name()), (expected, 0, "test"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hung_disk_blocks_neither_callers_nor_a_shutdown() {
        let disk = HungDisk::default();
        let log = LineLog::to_stream("test", disk.clone()).unwrap();
        let sent = 3 * MOST_QUEUED as u64;
        (0..sent).for_each(|number| send(&log, number));
        // The batch that hangs, and what the queue has room for.
        assert!((sent - 2 * MOST_QUEUED as u64..=sent - MOST_QUEUED as u64).contains(&log.dropped()));
        let before = Instant::now();
        log.flush().await;
        assert!((FLUSH_TIMEOUT..FLUSH_TIMEOUT * 2).contains(&before.elapsed()));
        disk.release();
        drop(log);
    }

    #[test]
    fn the_memory_of_queued_lines_is_bounded() {
        let (log, messages) = LineLog::with_queue("test", MOST_QUEUED);
        let line = "x".repeat(1 << 20);
        (0..100).for_each(|_| send(&log, &line));
        assert_eq!(log.dropped(), 100 - 64);
        drop(messages);
        send(&log, "the thread is gone");
        assert_eq!(log.dropped(), 101 - 64);
    }

    #[tokio::test]
    async fn a_full_disk_and_a_closed_pipe_drop_lines_and_count_them() {
        let full = LogDestination::File("/dev/full".into());
        let rotation = LogRotation { rotate_bytes: 1, keep: 1 };
        let log = LineLog::open("test", &full, Some(rotation)).unwrap();
        let (reader, pipe) = io::pipe().unwrap();
        drop(reader);
        let closed = LineLog::to_stream("test", pipe).unwrap();
        for log in [log, closed] {
            for expected in 1..=3 {
                send(&log, "line");
                log.flush().await;
                assert_eq!(log.dropped(), expected);
            }
        }
    }
}
