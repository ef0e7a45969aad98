//! The thread that writes a log.
//!
//! An error is not fatal: lines that cannot be written are dropped and counted, and later ones are attempted again. A full
//! disk leaves a gap.

use super::{LineLogState, LogSink, WriterMessage};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};

/// A batch is written when it has this many bytes, or when the queue is empty.
const BATCH_BYTES: usize = 64 << 10;

pub(super) struct LineWriter {
    sink: LogSink,
    state: Arc<LineLogState>,
    /// Whole lines.
    batch: Vec<u8>,
    lines: u64,
    is_failing: bool,
    /// The last write ended inside a line.
    is_inside_line: bool,
}

impl LineWriter {
    pub(super) fn new(sink: LogSink, state: Arc<LineLogState>) -> Self {
        Self { sink, state, batch: Vec::new(), lines: 0, is_failing: false, is_inside_line: false }
    }

    /// Writes until all handles are dropped.
    pub(super) fn run(mut self, messages: &Receiver<WriterMessage>) {
        loop {
            let message = match messages.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.write();
                    messages.recv().ok()
                }
                other => other.ok(),
            };
            if self.state.reopen.swap(false, Ordering::AcqRel) {
                self.write();
                self.reopen();
            }
            match message {
                Some(WriterMessage::Line(line)) => {
                    self.state.queued_bytes.fetch_sub(line.queued_bytes(), Ordering::Relaxed);
                    line.write(&mut self.batch);
                    self.batch.push(b'\n');
                    self.lines += 1;
                    if self.batch.len() >= BATCH_BYTES {
                        self.write();
                    }
                }
                Some(WriterMessage::Flush(flushed)) => {
                    self.write();
                    // The receiver may have timed out.
                    let _ = flushed.send(());
                }
                Some(WriterMessage::Wake) => {}
                None => return self.write(),
            }
        }
    }

    /// Writes the batch, or counts its lines as dropped.
    fn write(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.rotate_if_due();
        // A truncated line gets its line break.
        let ends_another = usize::from(self.is_inside_line);
        if self.is_inside_line {
            self.batch.insert(0, b'\n');
        }
        let (written, result) = write_all(&mut self.sink, &self.batch);
        if written > 0 {
            self.is_inside_line = self.batch[written - 1] != b'\n';
        }
        let log = self.state.name;
        match result {
            Ok(()) if self.is_failing => {
                let dropped = self.state.dropped.load(Ordering::Relaxed);
                tracing::info!(dropped, "{log} log writable again");
                self.is_failing = false;
            }
            Ok(()) => {}
            Err(error) => {
                let ends =
                    self.batch[..written].iter().skip(ends_another).filter(|byte| **byte == b'\n').count();
                self.state.dropped.fetch_add(self.lines - ends as u64, Ordering::Relaxed);
                if !self.is_failing {
                    tracing::error!(%error, "cannot write the {log} log; dropping lines");
                }
                self.is_failing = true;
            }
        }
        self.batch.clear();
        self.lines = 0;
    }

    fn rotate_if_due(&mut self) {
        let LogSink::File(file) = &mut self.sink else { return };
        if !file.is_rotation_due(self.batch.len() as u64) {
            return;
        }
        match file.rotate() {
            Ok(()) => self.is_inside_line = false,
            Err(error) => {
                let (log, file) = (self.state.name, file.path().display());
                tracing::error!(%file, %error, "cannot rotate the {log} log; using the old file");
            }
        }
    }

    fn reopen(&mut self) {
        let LogSink::File(log_file) = &mut self.sink else { return };
        let (log, result) = (self.state.name, log_file.reopen());
        let file = log_file.path().display();
        match result {
            Ok(()) => {
                tracing::info!(%file, "{log} log reopened");
                self.is_inside_line = false;
            }
            Err(error) => {
                tracing::error!(%file, %error, "cannot reopen the {log} log; using the old file")
            }
        }
    }
}

/// The number of bytes written, and the error that ended the write.
fn write_all(sink: &mut LogSink, bytes: &[u8]) -> (usize, io::Result<()>) {
    let sink: &mut dyn Write = match sink {
        LogSink::Stream(stream) => stream,
        LogSink::File(file) => file,
    };
    let mut written = 0;
    while written < bytes.len() {
        match sink.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, sink.flush())
}

#[cfg(test)]
mod tests {
    use super::super::LineLog;
    use super::*;
    use parking_lot::Mutex;

    /// Accepts the given number of bytes, then fails.
    #[derive(Clone, Default)]
    struct FullDisk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for FullDisk {
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
    fn a_full_disk_leaves_a_gap_and_no_mixed_lines() {
        let (disk, log) = (FullDisk::default(), LineLog::with_queue("test", 1).0);
        let mut writer = LineWriter::new(LogSink::Stream(Box::new(disk.clone())), Arc::clone(&log.state));
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
            assert_eq!(log.dropped(), dropped, "{lines}");
            assert_eq!(String::from_utf8_lossy(&disk.0.lock().1), expected, "{lines}");
        }
    }
}
