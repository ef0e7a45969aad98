//! The log of the process: lines on standard error, as text or JSON, written by a thread of its own.
//!
//! Standard error may be a pipe that is not read, or a disk that is full. Nothing waits for it: lines that cannot be
//! written are dropped, and the next line that can be written is followed by their number.

mod json_lines;
mod line_queue;
mod repeats;

use crate::command_error::CommandError;
use crate::config::LogFormat;
use json_lines::JsonLines;
use line_queue::LineQueue;
use repeats::{RepeatLayer, RepeatLimit};
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

/// A handle to the log of the process.
pub struct ProcessLog {
    lines: LineQueue,
}

/// Starts the log. Text is in colour only on a terminal.
pub fn start(format: LogFormat) -> Result<ProcessLog, CommandError> {
    let wanted = std::env::var("TOLLGATE_LOG").unwrap_or_default();
    let filter = if wanted.is_empty() { "info" } else { &wanted };
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| CommandError::LogFilter { value: wanted.clone(), error })?;
    let repeats = Arc::new(RepeatLimit::default());
    let lines = LineQueue::start(io::stderr(), format, Arc::clone(&repeats)).map_err(CommandError::Thread)?;
    let sender = lines.clone();
    let events = fmt::layer()
        .with_writer(move || sender.clone())
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // An internal error would be printed to standard error, which panics if that cannot be written.
        .log_internal_errors(false);
    let events = match format {
        LogFormat::Text => events.boxed(),
        LogFormat::Json => events.event_format(JsonLines).boxed(),
    };
    tracing_subscriber::registry().with(events).with(RepeatLayer(repeats)).with(filter).init();
    Ok(ProcessLog { lines })
}

impl ProcessLog {
    /// Waits until the lines so far are written, for at most a second.
    pub fn flush(&self) {
        self.lines.flush();
    }

    /// The number of lines that could not be written, since the start.
    pub fn dropped_lines(&self) -> Arc<AtomicU64> {
        self.lines.dropped_lines()
    }
}

impl LogFormat {
    /// A line that is no event.
    fn line(self, level: Level, target: &str, message: &str) -> String {
        match self {
            Self::Text => format!("{} {level:>5} {message}\n", json_lines::timestamp()),
            Self::Json => json_lines::line(level, target, message, ""),
        }
    }
}
