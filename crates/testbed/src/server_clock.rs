//! A wall clock that a test can move while a server runs, see `server_clock.c`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that names the file with the offset.
pub(crate) const FILE: &str = "TOLLGATE_TEST_CLOCK";

/// Compiles the library into `folder`.
pub(crate) fn compile(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    fs::write(&source, include_str!("server_clock.c")).expect("the source is written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
    assert!(compiler.status().expect("a C compiler is installed").success(), "the clock is compiled");
    library
}

/// Sets the clock of the server that reads `file` to `ahead_ms` ahead of the system time.
pub(crate) fn step(file: &Path, ahead_ms: i64) {
    let written = OpenOptions::new().create(true).truncate(false).write(true).open(file);
    // One write of all eight bytes: the server may read them at any time.
    let written = written.and_then(|file| file.write_all_at(&(ahead_ms * 1_000).to_ne_bytes(), 0));
    written.expect("the offset is written");
}
