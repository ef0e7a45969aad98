//! The thread that writes the access log.
//!
//! An error ends nothing: what could not be written is dropped and counted, and later lines are tried again. A disk that
//! was full for a while leaves a gap.

use super::{LogState, LogTarget, Message, write_line};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};

/// So many bytes are collected before they are written, unless nothing else waits.
const BATCH_BYTES: usize = 64 << 10;

pub(super) struct LogWriter {
    target: LogTarget,
    state: Arc<LogState>,
    /// Parameters of a query whose values are not written.
    hidden: Vec<String>,
    /// Whole lines.
    batch: Vec<u8>,
    lines: u64,
    is_failing: bool,
    /// The last write broke off in the middle of a line.
    is_inside_line: bool,
}

impl LogWriter {
    pub(super) fn new(target: LogTarget, state: Arc<LogState>, hidden: Vec<String>) -> Self {
        Self { target, state, hidden, batch: Vec::new(), lines: 0, is_failing: false, is_inside_line: false }
    }

    /// Writes until nothing can be sent any more.
    pub(super) fn run(mut self, waiting: &Receiver<Message>) {
        loop {
            let message = match waiting.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.write();
                    waiting.recv().ok()
                }
                other => other.ok(),
            };
            if self.state.reopen.swap(false, Ordering::AcqRel) {
                self.write();
                self.reopen();
            }
            match message {
                Some(Message::Line(entry)) => {
                    write_line(&mut self.batch, &entry, &self.hidden).expect("a vector takes everything");
                    self.lines += 1;
                    if self.batch.len() >= BATCH_BYTES {
                        self.write();
                    }
                }
                Some(Message::Written(written)) => {
                    self.write();
                    // The receiver may have given up.
                    let _ = written.send(());
                }
                Some(Message::Wake) => {}
                None => return self.write(),
            }
        }
    }

    /// Writes the batch, or counts its lines as dropped.
    fn write(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        // What was cut short stands alone.
        let ends_another = usize::from(self.is_inside_line);
        if self.is_inside_line {
            self.batch.insert(0, b'\n');
        }
        let (written, result) = write_all(&mut self.target, &self.batch);
        if written > 0 {
            self.is_inside_line = self.batch[written - 1] != b'\n';
        }
        match result {
            Ok(()) if self.is_failing => {
                let dropped = self.state.dropped.load(Ordering::Relaxed);
                tracing::info!(dropped, "the access log is written again");
                self.is_failing = false;
            }
            Ok(()) => {}
            Err(error) => {
                let ends =
                    self.batch[..written].iter().skip(ends_another).filter(|byte| **byte == b'\n').count();
                self.state.dropped.fetch_add(self.lines - ends as u64, Ordering::Relaxed);
                if !self.is_failing {
                    tracing::error!(%error, "the access log cannot be written; lines are dropped until it can");
                }
                self.is_failing = true;
            }
        }
        self.batch.clear();
        self.lines = 0;
    }

    fn reopen(&mut self) {
        let LogTarget::File(path, _) = &self.target else { return };
        let file = path.display();
        match LogTarget::open(path) {
            Ok(target) => {
                tracing::info!(%file, "the access log is opened again");
                (self.target, self.is_inside_line) = (target, false);
            }
            Err(error) => {
                tracing::error!(%file, %error, "the access log cannot be opened again; the old file is used")
            }
        }
    }
}

/// How many bytes were written, and what ended it.
fn write_all(target: &mut LogTarget, bytes: &[u8]) -> (usize, io::Result<()>) {
    let target: &mut dyn Write = match target {
        LogTarget::Stream(stream) => stream,
        LogTarget::File(_, file) => file,
    };
    let mut written = 0;
    while written < bytes.len() {
        match target.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, target.flush())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Takes so many more bytes, then fails.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (room, written) = &mut *self.0.lock();
            let taken = bytes.len().min(*room);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room -= taken;
            written.extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_was_full_leaves_a_gap_and_no_mixed_lines() {
        let (disk, state) = (Disk::default(), Arc::new(LogState::default()));
        let mut writer =
            LogWriter::new(LogTarget::Stream(Box::new(disk.clone())), Arc::clone(&state), Vec::new());
        for (room, lines, dropped, expected) in [
            (100, "a\nb\n", 0, "a\nb\n"),
            (0, "c\n", 1, "a\nb\n"),
            (5, "dd\nee\nff\n", 3, "a\nb\ndd\nee"),
            (1, "gg\n", 4, "a\nb\ndd\nee\n"),
            (1, "hh\n", 5, "a\nb\ndd\nee\nh"),
            (100, "ii\n", 5, "a\nb\ndd\nee\nh\nii\n"),
            (100, "jj\n", 5, "a\nb\ndd\nee\nh\nii\njj\n"),
        ] {
            disk.0.lock().0 = room;
            writer.batch.extend(lines.as_bytes());
            writer.lines += lines.lines().count() as u64;
            writer.write();
            assert_eq!(state.dropped.load(Ordering::Relaxed), dropped, "{lines}");
            assert_eq!(String::from_utf8_lossy(&disk.0.lock().1), expected, "{lines}");
        }
    }
}
