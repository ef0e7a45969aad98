//! Small files: settings, rules, certificates, keys.
//!
//! Only regular files are read, and only up to a bound. A FIFO without a writer would block its reader forever, a
//! device may never end, and a file may grow while it is read. A disk that hangs blocks its reader all the same: call
//! these functions from a thread that no decision waits for.

use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The largest file that is read. All of them are written by people.
pub const MOST_BYTES: u64 = 16 << 20;
/// The mode of a new file: the owner may write, the group may read.
const MODE: u32 = 0o640;
/// The mode of a file with a secret.
const PRIVATE_MODE: u32 = 0o600;

/// The content of the regular file at `path`, which has at most [`MOST_BYTES`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, MOST_BYTES)
}

/// The content of the regular file at `path`, which has at most so many bytes.
pub fn read_at_most(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    // Opening some devices has side effects, so only files are opened.
    require_regular(&fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    // The path may have been replaced meanwhile.
    let metadata = file.metadata()?;
    require_regular(&metadata)?;
    if metadata.len() > most_bytes {
        return Err(too_large(most_bytes));
    }
    read_stream(file, most_bytes)
}

/// The content of `source`, which has at most so many bytes. Commands that a user can interrupt may read a pipe.
pub fn read_stream(source: impl Read, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes { Err(too_large(most_bytes)) } else { Ok(bytes) }
}

/// [`read`], for a text.
pub fn read_text(path: &Path) -> io::Result<String> {
    text(read(path)?)
}

/// Bytes as a text.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(bytes).map_err(not_text)
}

/// Creates the file at `path` and its folder, for its owner only. An existing file stays as it is.
pub fn create_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut beside = OsString::from(path);
    beside.push(format!(".{}", std::process::id()));
    let beside = Path::new(&beside);
    let _ = fs::remove_file(beside);
    let written = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_MODE).open(beside).and_then(
        |mut file| {
            file.write_all(content)?;
            file.sync_all()
        },
    );
    // A link does not replace a file, unlike a rename.
    let linked = written.and_then(|()| fs::hard_link(beside, path));
    let _ = fs::remove_file(beside);
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    linked.or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
}

/// Replaces the file at `path`, or creates it and its folder. Readers see the old content or the new one, also after a
/// power failure.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Several nodes of one machine may use the same folder.
    let mut beside = OsString::from(path);
    beside.push(format!(".{}", std::process::id()));
    let beside = Path::new(&beside);
    // A process with the same id may have crashed here.
    let _ = fs::remove_file(beside);
    let written =
        OpenOptions::new().write(true).create_new(true).mode(MODE).open(beside).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
    if let Err(error) = written.and_then(|()| fs::rename(beside, path)) {
        let _ = fs::remove_file(beside);
        return Err(error);
    }
    // The rename is durable when the folder is synced. Not every file system supports that.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

fn require_regular(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_file() { Ok(()) } else { Err(io::Error::other("it is not a regular file")) }
}

fn too_large(most_bytes: u64) -> io::Error {
    io::Error::other(format!("it is larger than {} MiB", most_bytes >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// Only a failed test waits this long.
    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("good"), "text").unwrap();
        symlink("good", path("link")).unwrap();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        fs::create_dir(path("folder")).unwrap();
        File::create(path("large")).unwrap().set_len(MOST_BYTES + 1).unwrap();
        File::create(path("largest")).unwrap().set_len(MOST_BYTES).unwrap();
        for name in ["good", "link"] {
            assert_eq!(read_text(&path(name)).unwrap(), "text", "{name}");
        }
        assert_eq!(read(&path("largest")).unwrap().len() as u64, MOST_BYTES);
        for (path, expected) in [
            (path("fifo"), "it is not a regular file"),
            (path("folder"), "it is not a regular file"),
            ("/dev/zero".into(), "it is not a regular file"),
            (path("large"), "it is larger than 16 MiB"),
            (path("gone"), "No such file or directory (os error 2)"),
        ] {
            let (tell, told) = mpsc::channel();
            let name = path.clone();
            thread::spawn(move || tell.send(read(&name)));
            let found = told.recv_timeout(PATIENCE).expect("the reader blocks");
            assert_eq!(found.unwrap_err().to_string(), expected, "{}", path.display());
        }
    }

    #[test]
    fn reading_ends_at_the_bound_of_an_endless_stream() {
        let endless = read_stream(io::repeat(1), MOST_BYTES).unwrap_err();
        assert_eq!(endless.to_string(), "it is larger than 16 MiB");
        assert_eq!(read_stream(io::repeat(1).take(5), 5).unwrap().len(), 5);
    }

    #[test]
    fn a_file_is_replaced_atomically_and_not_readable_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/for/it/file");
        for content in ["old", "new"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(read_text(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777 & !MODE, 0);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
        fs::create_dir(folder.path().join("taken")).unwrap();
        assert!(replace(&folder.path().join("taken"), b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "also after a failure");
    }
}
