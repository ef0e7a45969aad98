//! The access log: one line per request, in Apache's combined format or in JSON.
//!
//! A request never waits for a disk: a thread formats and writes the lines (`tollgate_limiter::line_log`), and lines that
//! cannot be written in time are dropped and counted.

mod combined;
mod entry;
mod request_trace;

use crate::settings::{AccessLogFormat, AccessLogSettings};
pub(crate) use entry::{AccessLogEntry, PendingLogEntry};
use http::{HeaderMap, HeaderValue, Method, Uri, Version};
pub(crate) use request_trace::RequestTrace;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::time::Instant;
use tollgate_limiter::line_log::LineLog;
use tollgate_limiter::{Clock, KeyText};

/// A handle to the access log. Clones share the writer.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: LineLog,
    clock: Clock,
    style: Arc<LineStyle>,
}

/// How lines are written.
#[derive(Debug)]
struct LineStyle {
    format: AccessLogFormat,
    keys: KeyText,
    /// The query parameters whose values are not written.
    hidden: Vec<String>,
}

/// What is logged of a request.
#[derive(Debug)]
pub(crate) struct LoggedRequest<'r> {
    pub(crate) client: IpAddr,
    pub(crate) method: &'r Method,
    pub(crate) target: &'r Uri,
    pub(crate) version: Version,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) request_id: Option<HeaderValue>,
}

impl AccessLog {
    /// Opens the log. The values of the query parameters `hidden` are not written: they are identities, and may be secret.
    pub fn open(settings: &AccessLogSettings, clock: Clock, hidden: Vec<String>) -> io::Result<Self> {
        let lines = LineLog::open("access", &settings.destination, settings.rotation)?;
        Ok(Self::with(lines, settings, clock, hidden))
    }

    /// Writes to `stream` instead of the destination in `settings`.
    pub fn to_stream(
        stream: impl Write + Send + 'static,
        settings: &AccessLogSettings,
        clock: Clock,
        hidden: Vec<String>,
    ) -> io::Result<Self> {
        Ok(Self::with(LineLog::to_stream("access", stream)?, settings, clock, hidden))
    }

    fn with(lines: LineLog, settings: &AccessLogSettings, clock: Clock, hidden: Vec<String>) -> Self {
        let keys = KeyText::new(settings.keys, settings.key_secret);
        Self { lines, clock, style: Arc::new(LineStyle { format: settings.format, keys, hidden }) }
    }

    /// The log of lines: for reopening, and for the number of dropped lines.
    pub fn lines(&self) -> &LineLog {
        &self.lines
    }

    /// Starts the entry of a request that began at `start`.
    pub(crate) fn start_entry(&self, request: LoggedRequest<'_>, start: Instant) -> PendingLogEntry {
        let entry = AccessLogEntry::new(self.clock.now(), request, Arc::clone(&self.style));
        PendingLogEntry::new(self.lines.clone(), entry, start)
    }
}
