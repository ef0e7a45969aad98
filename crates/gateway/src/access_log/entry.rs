//! One line of the access log.

use super::AccessLog;
use http::{Method, Uri};
use std::io::{self, Write};
use std::net::IpAddr;
use tollgate_core::time::UnixTime;
use tollgate_http::body::ErrorCode;
use tollgate_http::identity::redacted;

/// A request and its response.
#[derive(Debug)]
pub(super) struct AccessLogEntry {
    pub(super) start: UnixTime,
    pub(super) duration_us: u64,
    pub(super) client: IpAddr,
    pub(super) method: Method,
    pub(super) target: Uri,
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) is_complete: bool,
}

impl AccessLogEntry {
    /// Writes the entry as a line of JSON, without the values of the query parameters `hidden`.
    pub(super) fn write(&self, out: &mut impl Write, hidden: &[String]) -> io::Result<()> {
        let Self { start, duration_us, client, method, target, status, bytes, is_complete } = self;
        let time = tollgate_core::rate::rfc3339(*start);
        // Hyper accepts quotes in a target, but no control characters; a method is a token.
        let target = redacted(target, hidden).replace('\\', "\\\\").replace('"', "\\\"");
        writeln!(
            out,
            r#"{{"time":"{time}","client":"{client}","method":"{method}","target":"{target}","status":{status},"bytes":{bytes},"duration_us":{duration_us},"complete":{is_complete}}}"#
        )
    }
}

/// The entry of a request that has not ended. It is sent to the writer when this is dropped.
#[derive(Debug)]
pub(crate) struct PendingLogEntry {
    log: AccessLog,
    entry: Option<AccessLogEntry>,
}

impl PendingLogEntry {
    pub(super) fn new(log: AccessLog, entry: AccessLogEntry) -> Self {
        Self { log, entry: Some(entry) }
    }

    pub(super) fn entry_mut(&mut self) -> Option<&mut AccessLogEntry> {
        self.entry.as_mut()
    }

    /// Ends the entry as refused by a limit, with a body of `bytes` bytes.
    pub(crate) fn end_as_refused(mut self, bytes: usize) {
        let status = ErrorCode::RateLimitExceeded.status();
        if let Some(entry) = &mut self.entry {
            (entry.status, entry.bytes, entry.is_complete) = (status.as_u16(), bytes as u64, true);
        }
    }
}

impl Drop for PendingLogEntry {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.log.send(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_line_of_json() {
        let entry = AccessLogEntry {
            start: UnixTime::from_us(1_000_000),
            duration_us: 250,
            client: "::1".parse().unwrap(),
            method: Method::GET,
            target: "/a?b=%22&key=secret".parse().unwrap(),
            status: 200,
            bytes: 5,
            is_complete: true,
        };
        let mut line = Vec::new();
        entry.write(&mut line, &["key".to_owned()]).unwrap();
        let expected = r#"{"time":"1970-01-01T00:00:01Z","client":"::1","method":"GET","target":"/a?b=%22&key=…","status":200,"bytes":5,"duration_us":250,"complete":true}"#;
        assert_eq!(String::from_utf8(line).unwrap().trim_end(), expected);
    }
}
