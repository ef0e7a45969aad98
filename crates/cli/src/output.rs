//! What commands write: to standard output, which may be closed or full, and to standard error, which may be too.

use crate::Failure;
use std::fmt::Display;
use std::io::{self, Write};

/// Writes `text` to standard output, and says why if it cannot.
pub fn print(text: impl Display) -> Result<(), Failure> {
    try_print(text).map_err(Failure::Output)
}

/// [`print()`], for those who go on without it.
pub fn try_print(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}")?;
    stdout.flush()
}

/// Writes a line to standard error. There is no place to complain about that one.
pub fn complain(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
