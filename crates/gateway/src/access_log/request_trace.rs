//! What is known of a request only where it is forwarded, for its log entry.

use super::entry::AccessLogEntry;
use crate::upstream::UpstreamServer;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::line_log::LineLog;

/// The trace of a request: an extension of the request, shared with its log entry.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    start: Instant,
    bytes_received: AtomicU64,
    /// The bytes that a tunnel sent to the client.
    bytes_tunneled: AtomicU64,
    upstream: Mutex<Option<UpstreamUse>>,
    /// The entry of a tunnel, which is written when the tunnel ends: when the last handle to this is dropped.
    tunnel_entry: Mutex<Option<(LineLog, Box<AccessLogEntry>)>>,
}

/// The last server that a request was sent to.
#[derive(Clone, Debug)]
pub(super) struct UpstreamUse {
    pub(super) server: Arc<UpstreamServer>,
    /// The time until the head of the response, or until the attempt failed.
    pub(super) time_us: Option<u64>,
}

impl RequestTrace {
    pub(super) fn new(start: Instant) -> Arc<Self> {
        Arc::new(Self {
            start,
            bytes_received: AtomicU64::new(0),
            bytes_tunneled: AtomicU64::new(0),
            upstream: Mutex::new(None),
            tunnel_entry: Mutex::new(None),
        })
    }

    /// The request is about to be sent to `server`.
    pub(crate) fn record_server(&self, server: &Arc<UpstreamServer>) {
        let server = Arc::clone(server);
        *self.upstream.lock() = Some(UpstreamUse { server, time_us: None });
    }

    /// The head of the response has arrived, or the attempt has failed, `time` after its server was selected.
    pub(crate) fn record_attempt_end(&self, time: Duration) {
        if let Some(upstream) = &mut *self.upstream.lock() {
            upstream.time_us = Some(time.as_micros() as u64);
        }
    }

    /// The client has sent a part of its body.
    pub(crate) fn record_received(&self, bytes: u64) {
        self.bytes_received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A tunnel has sent bytes to the client.
    pub(crate) fn record_tunneled(&self, bytes: u64) {
        self.bytes_tunneled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Keeps the entry until the tunnel of the request ends.
    pub(super) fn keep_for_tunnel(&self, log: LineLog, entry: Box<AccessLogEntry>) {
        *self.tunnel_entry.lock() = Some((log, entry));
    }

    /// Completes the entry of the request.
    pub(super) fn write_to(&self, entry: &mut AccessLogEntry) {
        entry.duration_us = self.start.elapsed().as_micros() as u64;
        entry.bytes_received = self.bytes_received.load(Ordering::Relaxed);
        entry.bytes_sent += self.bytes_tunneled.load(Ordering::Relaxed);
        entry.upstream = self.upstream.lock().clone();
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        if let Some((log, mut entry)) = self.tunnel_entry.get_mut().take() {
            self.write_to(&mut entry);
            log.send(entry);
        }
    }
}
