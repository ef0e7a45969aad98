//! The log of the process: lines on standard error, written by a thread of its own.
//!
//! Standard error may be a pipe that is not read, or a disk that is full. Nothing waits for it: lines that cannot be
//! written are dropped, and the next line that can be written is followed by their number.

use crate::command_error::CommandError;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// The most lines in the queue.
const MAX_QUEUED: usize = 4096;
/// How long the end of the process waits for queued lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A handle to the log of the process.
pub struct ProcessLog {
    lines: LineQueue,
}

/// A message to the writing thread.
enum LogMessage {
    Line(Vec<u8>),
    /// Is answered when every earlier line is written.
    Flush(SyncSender<()>),
}

/// A bounded queue of lines.
#[derive(Clone)]
struct LineQueue {
    messages: SyncSender<LogMessage>,
    dropped: Arc<AtomicU64>,
}

/// Starts the log, in colour only on a terminal.
pub fn start() -> Result<ProcessLog, CommandError> {
    let wanted = std::env::var("TOLLGATE_LOG").unwrap_or_default();
    let filter = if wanted.is_empty() { "info" } else { &wanted };
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| CommandError::LogFilter { value: wanted.clone(), error })?;
    let lines = LineQueue::start(io::stderr()).map_err(CommandError::Thread)?;
    let sender = lines.clone();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || sender.clone())
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // An internal error would be printed to standard error, which panics if that cannot be written.
        .log_internal_errors(false)
        .init();
    Ok(ProcessLog { lines })
}

impl ProcessLog {
    /// Waits until the lines so far are written, for at most a second.
    pub fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        if self.lines.messages.try_send(LogMessage::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

impl LineQueue {
    fn start(target: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, queue) = sync_channel(MAX_QUEUED);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&queue, target, &counted))?;
        Ok(Self { messages, dropped })
    }
}

/// Every write is a whole line.
impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.messages.try_send(LogMessage::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(queue: &Receiver<LogMessage>, mut target: impl Write, dropped: &AtomicU64) {
    while let Ok(message) = queue.recv() {
        match message {
            LogMessage::Line(line) => {
                if target.write_all(&line).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let lost = dropped.swap(0, Ordering::Relaxed);
                let note = format!("{lost} log lines were dropped\n");
                if lost > 0 && target.write_all(note.as_bytes()).is_err() {
                    dropped.fetch_add(lost, Ordering::Relaxed);
                }
            }
            LogMessage::Flush(done) => {
                // The receiver may have stopped waiting.
                let _ = done.try_send(());
            }
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
        let mut lines = LineQueue::start(BlockingWriter { verdicts, written: Arc::clone(&written) }).unwrap();
        // Nothing is written yet: lines are queued or dropped.
        for number in 0..2 * MAX_QUEUED {
            lines.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let lost = lines.dropped.load(Ordering::Relaxed);
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
    }
}
