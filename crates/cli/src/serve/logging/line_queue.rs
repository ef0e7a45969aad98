//! A bounded queue of log lines, and the thread that writes them.

use super::repeats::RepeatLimit;
use crate::config::LogFormat;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Level;

/// The most lines in the queue.
const MAX_QUEUED: usize = 4096;
/// How long the end of the process waits for queued lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the thread looks for repeated lines to report.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// A message to the writing thread.
enum LogMessage {
    Line(Vec<u8>),
    /// Is answered when every earlier line is written.
    Flush(SyncSender<()>),
}

/// A bounded queue of lines.
#[derive(Clone)]
pub struct LineQueue {
    messages: SyncSender<LogMessage>,
    dropped: Arc<DroppedLines>,
}

/// Lines that were not written.
#[derive(Debug, Default)]
struct DroppedLines {
    /// Since the last line that said so.
    unreported: AtomicU64,
    /// Since the start.
    total: Arc<AtomicU64>,
}

impl LineQueue {
    /// Starts a thread that writes to `target`.
    pub fn start(
        target: impl Write + Send + 'static,
        format: LogFormat,
        repeats: Arc<RepeatLimit>,
    ) -> io::Result<Self> {
        let (messages, queue) = sync_channel(MAX_QUEUED);
        let dropped = Arc::new(DroppedLines::default());
        let writer = QueueWriter { target, format, repeats, dropped: Arc::clone(&dropped) };
        thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(&queue))?;
        Ok(Self { messages, dropped })
    }

    /// Waits until the lines so far are written, for at most a second.
    pub fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        if self.messages.try_send(LogMessage::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(FLUSH_TIMEOUT);
        }
    }

    /// The number of lines that were dropped since the start.
    pub fn dropped_lines(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.dropped.total)
    }
}

impl DroppedLines {
    fn add_one(&self) {
        self.unreported.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
    }
}

/// Every write is a whole line.
impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.messages.try_send(LogMessage::Line(line.to_vec())).is_err() {
            self.dropped.add_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The state of the writing thread.
struct QueueWriter<W> {
    target: W,
    format: LogFormat,
    repeats: Arc<RepeatLimit>,
    dropped: Arc<DroppedLines>,
}

impl<W: Write> QueueWriter<W> {
    /// Writes until the queue is closed.
    fn run(mut self, queue: &Receiver<LogMessage>) {
        let mut last_report = Instant::now();
        loop {
            match queue.recv_timeout(REPORT_EVERY) {
                Ok(LogMessage::Line(line)) => self.write(&line),
                Ok(LogMessage::Flush(done)) => {
                    self.report_repeats(None);
                    // The receiver may have stopped waiting.
                    let _ = done.try_send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            if now.duration_since(last_report) >= REPORT_EVERY {
                last_report = now;
                self.report_repeats(Some(now));
            }
        }
    }

    fn write(&mut self, line: &[u8]) {
        if self.target.write_all(line).is_err() {
            return self.dropped.add_one();
        }
        let lost = self.dropped.unreported.swap(0, Ordering::Relaxed);
        if lost == 0 {
            return;
        }
        let message = format!("{lost} log lines were dropped");
        let note = match self.format {
            LogFormat::Text => format!("{message}\n"),
            LogFormat::Json => self.format.line(Level::WARN, module_path!(), &message),
        };
        if self.target.write_all(note.as_bytes()).is_err() {
            self.dropped.unreported.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Reports the lines that were suppressed until `now`; without it, all.
    fn report_repeats(&mut self, now: Option<Instant>) {
        for report in self.repeats.take_reports(now) {
            let line = self.format.line(report.level, report.target, &report.message());
            self.write(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::mpsc;

    /// Blocks each write until it is allowed or told to fail.
    struct BlockingWriter {
        verdicts: mpsc::Receiver<bool>,
        written: Arc<Mutex<String>>,
    }

    impl Write for BlockingWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.verdicts.recv() {
                Ok(true) => {
                    self.written.lock().push_str(&String::from_utf8_lossy(bytes));
                    Ok(bytes.len())
                }
                _ => Err(io::ErrorKind::BrokenPipe.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn logging_never_blocks_and_counts_dropped_lines() {
        let ((allow, verdicts), written) = (mpsc::channel(), Arc::default());
        let target = BlockingWriter { verdicts, written: Arc::clone(&written) };
        let mut lines = LineQueue::start(target, LogFormat::Text, Arc::default()).unwrap();
        // Nothing is written yet: lines are queued or dropped.
        for number in 0..2 * MAX_QUEUED {
            lines.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let lost = lines.dropped_lines().load(Ordering::Relaxed);
        assert!((MAX_QUEUED as u64 - 1..=MAX_QUEUED as u64).contains(&lost), "{lost}");
        allow.send(false).unwrap();
        for _ in 0..MAX_QUEUED + 2 {
            let _ = allow.send(true);
        }
        let (done, is_done) = sync_channel(1);
        lines.messages.send(LogMessage::Flush(done)).unwrap();
        is_done.recv().unwrap();
        let note = format!("{} log lines were dropped\n", lost + 1);
        assert!(written.lock().starts_with(&format!("1\n{note}2\n")), "{}", written.lock());
        assert_eq!(lines.dropped_lines().load(Ordering::Relaxed), lost + 1, "the total stays");
    }
}
