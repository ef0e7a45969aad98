//! Writing to standard output and standard error, either of which may be closed or full.

use crate::command_error::CommandError;
use std::fmt::Display;
use std::io::{self, Write};

/// Writes `text` to standard output; a failure is an error of the command.
pub fn print(text: impl Display) -> Result<(), CommandError> {
    try_print(text).map_err(CommandError::Output)
}

/// Writes `text` to standard output, for callers that go on after a failure.
pub fn try_print(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}")?;
    stdout.flush()
}

/// Writes a line to standard error. A failure of that cannot be reported anywhere.
pub fn print_error(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
