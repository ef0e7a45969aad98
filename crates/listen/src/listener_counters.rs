//! Counts of a listener: connections and TLS handshakes. They change with connections, not with requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a listener has counted since it started. Several listeners may share one.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    opened: AtomicU64,
    closed: AtomicU64,
    handshakes: AtomicU64,
    failed_handshakes: AtomicU64,
}

impl ListenerCounters {
    /// The connections that were accepted. Those that a limit refused are not among them.
    pub fn opened_connections(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// The connections that are open now.
    pub fn open_connections(&self) -> u64 {
        // Every connection that was closed is among those opened, so this order never makes a negative number.
        let closed = self.closed.load(Ordering::Acquire);
        self.opened.load(Ordering::Relaxed).saturating_sub(closed)
    }

    /// The TLS handshakes that succeeded.
    pub fn tls_handshakes(&self) -> u64 {
        self.handshakes.load(Ordering::Relaxed)
    }

    /// The TLS handshakes that failed or timed out.
    pub fn failed_tls_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Ordering::Relaxed)
    }

    pub(crate) fn record_handshake(&self) {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<ListenerCounters>);

impl OpenConnection {
    pub(crate) fn new(counters: &Arc<ListenerCounters>) -> Self {
        counters.opened.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counters))
    }

    pub(crate) fn counters(&self) -> &ListenerCounters {
        &self.0
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Ordering::Release);
    }
}
