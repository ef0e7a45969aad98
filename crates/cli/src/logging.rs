//! The log: events, as lines on standard error, written by a thread of its own.
//!
//! Standard error may be a pipe that is not read, or a disk that is full. Nothing waits for it: lines that cannot be
//! written are dropped, and counted in a line when one can be written again.

use crate::Failure;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// LineQueue that wait to be written.
const MOST_WAITING: usize = 4096;
/// How long the end of the process waits for them.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The log, as it was started.
pub struct ProcessLog {
    lines: LineQueue,
}

/// What the writer is told.
enum LogMessage {
    Line(Vec<u8>),
    /// All before this is to be written, and then this is told.
    Written(SyncSender<()>),
}

/// Takes lines.
#[derive(Clone)]
struct LineQueue {
    waiting: SyncSender<LogMessage>,
    dropped: Arc<AtomicU64>,
}

/// Starts it, in colour only if a person is watching.
pub fn start() -> Result<ProcessLog, Failure> {
    let wanted = std::env::var("TOLLGATE_LOG").unwrap_or_default();
    let filter = if wanted.is_empty() { "info" } else { &wanted };
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::plain(format!(
            "TOLLGATE_LOG is `{wanted}`: {error}\n  hint: use error, warn, info, debug or trace"
        ))
    })?;
    let lines = LineQueue::start(io::stderr())
        .map_err(|error| Failure::plain(format!("cannot start a thread for the log: {error}")))?;
    let sender = lines.clone();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || sender.clone())
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // It would be printed to standard error, which panics where that cannot be written.
        .log_internal_errors(false)
        .init();
    Ok(ProcessLog { lines })
}

impl ProcessLog {
    /// Waits until what was logged so far is written, but not for ever.
    pub fn flush(&self) {
        let (written, heard) = sync_channel(1);
        if self.lines.waiting.try_send(LogMessage::Written(written)).is_ok() {
            let _ = heard.recv_timeout(LAST_LINES);
        }
    }
}

impl LineQueue {
    fn start(target: impl Write + Send + 'static) -> io::Result<Self> {
        let (waiting, messages) = sync_channel(MOST_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(&messages, target, &counted))?;
        Ok(Self { waiting, dropped })
    }
}

/// Each write is a whole line.
impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.waiting.try_send(LogMessage::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(messages: &Receiver<LogMessage>, mut target: impl Write, dropped: &AtomicU64) {
    while let Ok(message) = messages.recv() {
        match message {
            LogMessage::Line(line) => {
                if target.write_all(&line).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let lost = dropped.swap(0, Ordering::Relaxed);
                let said = format!("{lost} lines of the log could not be written\n");
                if lost > 0 && target.write_all(said.as_bytes()).is_err() {
                    dropped.fetch_add(lost, Ordering::Relaxed);
                }
            }
            LogMessage::Written(written) => {
                // The process may not wait any more.
                let _ = written.try_send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::mpsc;

    /// Takes a write when it is let to, or fails.
    struct Gate {
        open: mpsc::Receiver<bool>,
        written: Arc<Mutex<String>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.open.recv() {
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
    fn logging_never_waits_and_what_is_lost_is_counted() {
        let ((open, gate), written) = (mpsc::channel(), Arc::default());
        let mut lines = LineQueue::start(Gate { open: gate, written: Arc::clone(&written) }).unwrap();
        // Nothing is read: it waits in the queue, or is dropped.
        for number in 0..2 * MOST_WAITING {
            lines.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let lost = lines.dropped.load(Ordering::Relaxed);
        assert!((MOST_WAITING as u64 - 1..=MOST_WAITING as u64).contains(&lost), "{lost}");
        open.send(false).unwrap();
        for _ in 0..MOST_WAITING + 2 {
            let _ = open.send(true);
        }
        let (tell, told) = sync_channel(1);
        lines.waiting.send(LogMessage::Written(tell)).unwrap();
        told.recv().unwrap();
        let said = format!("{} lines of the log could not be written\n", lost + 1);
        assert!(written.lock().starts_with(&format!("1\n{said}2\n")), "{}", written.lock());
    }
}
