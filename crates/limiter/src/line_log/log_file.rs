//! A log file: opened for appending, reopened on request, and rotated by size.

use super::LogRotation;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// The bytes in the file, or those since the last rotation that failed.
    size: u64,
    rotation: Option<LogRotation>,
    /// Devices and pipes are not rotated.
    is_regular: bool,
}

impl LogFile {
    pub(super) fn open(path: &Path, rotation: Option<LogRotation>) -> io::Result<Self> {
        // Without this flag, a FIFO that no process reads would block.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let opened = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(flags).open(path);
        let file = opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NXIO) => io::Error::other("no process reads this FIFO"),
            _ => error,
        })?;
        // Later, a slow reader of a pipe may block the thread of the log.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        let metadata = file.metadata()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            size: metadata.len(),
            rotation,
            is_regular: metadata.is_file(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the path again. On an error the old file is kept.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        *self = Self::open(&self.path, self.rotation)?;
        Ok(())
    }

    /// Whether the file has to be rotated before `more` bytes are written.
    pub(super) fn is_rotation_due(&self, more: u64) -> bool {
        let most = |rotation: LogRotation| self.size.saturating_add(more) > rotation.rotate_bytes;
        self.is_regular && self.size > 0 && self.rotation.is_some_and(most)
    }

    /// Renames the old files and opens a new one. On an error the file that is open is used until it has grown by the size
    /// of a rotation again.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        self.size = 0;
        let keep = self.rotation.map_or(1, |rotation| rotation.keep.max(1));
        for number in (1..keep).rev() {
            rename(&self.numbered(number), &self.numbered(number + 1))?;
        }
        rename(&self.path, &self.numbered(1))?;
        self.reopen()
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Renames a file if it exists.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use crate::line_log::{LineLog, LogDestination, LogRotation};
    use rustix::fs::{CWD, FileType, Mode};
    use std::fs;
    use std::io::Read;
    use std::path::Path;

    async fn write_line(log: &LineLog, line: &str) {
        log.send(Box::new(line.to_owned()));
        log.flush().await;
    }

    fn contents(path: &Path) -> Vec<String> {
        let names = [".3", ".2", ".1", ""].map(|number| format!("{}{number}", path.display()));
        names.into_iter().filter_map(|name| fs::read_to_string(name).ok()).collect()
    }

    #[tokio::test]
    async fn a_fifo_without_a_reader_is_an_error_and_one_with_a_reader_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let destination = LogDestination::File(path.clone());
        let error = LineLog::open("test", &destination, None).unwrap_err();
        assert_eq!(error.to_string(), "no process reads this FIFO");
        // More than a pipe holds: the thread waits for the reader instead of dropping lines.
        let line = "x".repeat(100 << 10);
        let expected = format!("{line}\n");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        let log = loop {
            match LineLog::open("test", &destination, None) {
                Ok(log) => break log,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        write_line(&log, &line).await;
        assert_eq!(log.dropped(), 0);
        drop(log);
        assert!(reader.join().unwrap() == expected);
    }

    #[tokio::test]
    async fn files_are_rotated_by_size_and_the_oldest_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let destination = LogDestination::File(path.clone());
        let rotation = Some(LogRotation { rotate_bytes: 10, keep: 2 });
        fs::write(&path, "old\n").unwrap();
        let log = LineLog::open("test", &destination, rotation).unwrap();
        for (line, expected) in [
            ("one", &["old\none\n"][..]),
            ("two", &["old\none\n", "two\n"]),
            ("three", &["old\none\n", "two\nthree\n"]),
            ("longer than a file", &["old\none\n", "two\nthree\n", "longer than a file\n"]),
            ("x", &["two\nthree\n", "longer than a file\n", "x\n"]),
        ] {
            write_line(&log, line).await;
            assert_eq!(contents(&path), expected, "{line}");
        }
        assert_eq!(log.dropped(), 0);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_rotated_is_written_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // A folder cannot be replaced by a file.
        fs::create_dir_all(folder.path().join("log.1/x")).unwrap();
        let rotation = Some(LogRotation { rotate_bytes: 10, keep: 1 });
        let log = LineLog::open("test", &LogDestination::File(path.clone()), rotation).unwrap();
        for _ in 0..10 {
            write_line(&log, "a line").await;
        }
        assert_eq!((fs::read_to_string(&path).unwrap(), log.dropped()), ("a line\n".repeat(10), 0));
    }

    #[tokio::test]
    async fn a_moved_file_is_reopened_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("moved"));
        let log = LineLog::open("test", &LogDestination::File(path.clone()), None).unwrap();
        write_line(&log, "one").await;
        fs::rename(&path, &moved).unwrap();
        write_line(&log, "two").await;
        log.reopen();
        write_line(&log, "three").await;
        let texts = [moved, path].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(texts, ["one\ntwo\n", "three\n"]);
    }
}
