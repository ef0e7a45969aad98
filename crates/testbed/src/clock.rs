//! A wall clock that a test can move while a server runs, see `clock.c`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::LazyLock;

/// The environment variable that names the file with the step.
pub(crate) const FILE: &str = "TOLLGATE_TEST_CLOCK";

static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let library = std::env::temp_dir().join(format!("tollgate-clock-{}.so", process::id()));
    let source = library.with_extension("c");
    fs::write(&source, include_str!("clock.c")).expect("the source is written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
    assert!(compiler.status().expect("a C compiler is installed").success(), "the clock is compiled");
    fs::remove_file(source).expect("the source is removed");
    library
});

/// The library, which is compiled when it is first needed.
pub(crate) fn library() -> PathBuf {
    LIBRARY.clone()
}

/// Puts the clock of the server that reads `file` so far ahead of the true time, or behind it.
pub(crate) fn step(file: &Path, ahead_ms: i64) {
    let written = OpenOptions::new().create(true).truncate(false).write(true).open(file);
    // All eight bytes at once: the server reads them at any moment.
    let written = written.and_then(|file| file.write_all_at(&(ahead_ms * 1_000).to_ne_bytes(), 0));
    written.expect("the step is written");
}
