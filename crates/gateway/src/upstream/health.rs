//! The health of a server, from the outcome of requests and from health checks.
//!
//! After some consecutive failures a server is ejected for a while. The next request after that is the probe; if it fails
//! too, the next ejection takes twice as long. After a failed health check the server is unhealthy until one succeeds.
//!
//! A failed connection is not caused by a client. A failure after the request was sent may be: the client chose the
//! request. So these failures count once per client, and those of one client never eject a server. They also never eject
//! the last healthy server: an upstream that fails some requests still serves the others.

use crate::settings::UpstreamSettings;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const LONGEST_EJECTION: Duration = Duration::from_secs(60);
/// The most clients that are remembered. A reachable server is never ejected if `most_failures` is above this.
const MOST_CLIENTS: usize = 1_000;
/// Failures of fewer clients never eject a reachable server.
const FEWEST_CLIENTS: u32 = 2;

/// A failure that counts against a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFailure {
    /// No connection could be made.
    Unreachable,
    /// The request of this client was sent, and the response was missing, late or invalid.
    BadResponse(IpAddr),
}

/// The outcome of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthCheckResult {
    Passed,
    Failed,
}

/// The beginning of an ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ejection {
    /// The consecutive failures; of those after a connection was made, one per client.
    pub(crate) failures: u32,
    pub(crate) duration: Duration,
}

/// The health of one server; shared by all threads.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    /// A failure was recorded since the last success, so the fields below need a reset.
    has_failures: AtomicBool,
    /// Consecutive failed connections.
    unreachable: AtomicU32,
    /// Clients whose requests failed since the last success.
    clients: Mutex<SmallVec<[IpAddr; 4]>>,
    /// Ejections since the last success.
    ejections: AtomicU32,
    /// The end of the ejection in milliseconds after `start`; 0 if there is none.
    ejected_until_ms: AtomicU64,
    /// False if failed connections caused the ejection.
    is_reachable: AtomicBool,
    /// The last health check failed.
    is_check_failing: AtomicBool,
    start: Instant,
}

impl Default for ServerHealth {
    fn default() -> Self {
        Self {
            has_failures: AtomicBool::new(false),
            unreachable: AtomicU32::new(0),
            clients: Mutex::default(),
            ejections: AtomicU32::new(0),
            ejected_until_ms: AtomicU64::new(0),
            is_reachable: AtomicBool::new(true),
            is_check_failing: AtomicBool::new(false),
            start: Instant::now(),
        }
    }
}

impl ServerHealth {
    /// Whether the server is neither ejected nor failing its health checks.
    pub(crate) fn is_healthy(&self) -> bool {
        if self.is_check_failing.load(Ordering::Relaxed) {
            return false;
        }
        // No clock is read for a server that is not ejected.
        let until = self.ejected_until_ms.load(Ordering::Relaxed);
        until == 0 || self.now_ms() >= until
    }

    /// Whether the server may be used if no server of its upstream is healthy.
    pub(crate) fn is_last_resort(&self) -> bool {
        self.is_reachable.load(Ordering::Relaxed) && !self.is_check_failing.load(Ordering::Relaxed)
    }

    /// Records that a request got a response.
    pub(crate) fn record_success(&self) {
        if self.has_failures.load(Ordering::Relaxed) {
            self.has_failures.store(false, Ordering::Relaxed);
            self.clients.lock().clear();
            for count in [&self.unreachable, &self.ejections] {
                count.store(0, Ordering::Relaxed);
            }
            self.is_reachable.store(true, Ordering::Relaxed);
            self.ejected_until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure. Returns the ejection if it caused one. `has_other_healthy` is called if it matters whether
    /// another server of the upstream is healthy.
    pub(crate) fn record_failure(
        &self,
        failure: ServerFailure,
        settings: &UpstreamSettings,
        has_other_healthy: impl FnOnce() -> bool,
    ) -> Option<Ejection> {
        self.has_failures.store(true, Ordering::Relaxed);
        let (failures, ejects) = match failure {
            ServerFailure::Unreachable => {
                let failures = self.unreachable.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                (failures, failures >= settings.most_failures && self.is_healthy())
            }
            ServerFailure::BadResponse(client) => {
                let mut clients = self.clients.lock();
                if clients.len() < MOST_CLIENTS && !clients.contains(&client) {
                    clients.push(client);
                }
                let failures = clients.len() as u32;
                let is_enough = failures >= settings.most_failures.max(FEWEST_CLIENTS);
                let ejects = is_enough && self.is_healthy() && has_other_healthy();
                if ejects {
                    // A failed probe counts no more than any other request of one client.
                    clients.clear();
                }
                (failures, ejects)
            }
        };
        if !ejects {
            return None;
        }
        self.is_reachable.store(failure != ServerFailure::Unreachable, Ordering::Relaxed);
        let ejections = self.ejections.fetch_add(1, Ordering::Relaxed).min(16);
        let duration = settings.first_ejection.saturating_mul(1 << ejections).min(LONGEST_EJECTION);
        let duration_ms = duration.as_millis().max(1) as u64;
        self.ejected_until_ms.store(self.now_ms() + duration_ms, Ordering::Relaxed);
        Some(Ejection { failures, duration })
    }

    /// Records the result of a health check. Returns whether it differs from the previous one.
    pub(crate) fn record_check(&self, result: HealthCheckResult) -> bool {
        let is_failing = result == HealthCheckResult::Failed;
        if !is_failing {
            self.record_success();
        }
        self.is_check_failing.swap(is_failing, Ordering::Relaxed) != is_failing
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::HealthCheckResult::{Failed, Passed};
    use super::*;

    fn client(number: u8) -> ServerFailure {
        ServerFailure::BadResponse([192, 0, 2, number].into())
    }

    fn settings(most_failures: u32) -> UpstreamSettings {
        UpstreamSettings { most_failures, ..UpstreamSettings::new("u", Vec::new()) }
    }

    #[tokio::test(start_paused = true)]
    async fn consecutive_failures_eject_for_growing_durations() {
        let settings = settings(5);
        let health = ServerHealth::default();
        let fail = || health.record_failure(ServerFailure::Unreachable, &settings, || false);
        for _ in 0..4 {
            assert!(fail().is_none());
        }
        health.record_success();
        for _ in 0..4 {
            assert!(fail().is_none());
        }
        assert!(health.is_healthy());
        assert_eq!(fail(), Some(Ejection { failures: 5, duration: Duration::from_secs(1) }));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!health.is_healthy() && !health.is_last_resort(), "{seconds}");
            tokio::time::advance(Duration::from_millis(seconds * 1_000 - 1)).await;
            assert!(!health.is_healthy(), "{seconds}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(health.is_healthy(), "the next request is the probe");
            assert!(fail().is_some(), "{seconds}");
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        health.record_success();
        assert!(health.is_healthy());
        assert!(fail().is_none(), "a success resets all counts");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_after_connecting_count_once_per_client() {
        for (most_failures, clients) in
            [(0, 2), (1, 2), (2, 2), (5, 5), (1_000, u8::MAX), (u32::MAX, u8::MAX)]
        {
            let settings = settings(most_failures);
            let health = ServerHealth::default();
            for number in 1..clients {
                for _ in 0..10 {
                    let ejection = health.record_failure(client(number), &settings, || true);
                    assert!(ejection.is_none(), "{most_failures} {number}");
                }
            }
            let ejection = health.record_failure(client(clients), &settings, || false);
            assert!(ejection.is_none(), "the last server is not ejected");
            let ejection = health.record_failure(client(clients), &settings, || true);
            assert_eq!(ejection.is_some(), clients < u8::MAX, "{most_failures}");
            if ejection.is_some() {
                assert!(!health.is_healthy() && health.is_last_resort());
                tokio::time::advance(settings.first_ejection).await;
                let ejection = health.record_failure(client(1), &settings, || true);
                assert!(ejection.is_none(), "one client is not enough again");
                assert!(health.is_healthy());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_clients_are_bounded() {
        let settings = settings(u32::MAX);
        let health = ServerHealth::default();
        for number in 0..2 * MOST_CLIENTS as u32 {
            let failure = ServerFailure::BadResponse(std::net::Ipv4Addr::from(number).into());
            assert!(health.record_failure(failure, &settings, || true).is_none());
        }
        assert_eq!(health.clients.lock().len(), MOST_CLIENTS);
        health.record_success();
        assert!(health.clients.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_check_excludes_a_server_until_one_passes() {
        let health = ServerHealth::default();
        assert!(!health.record_check(Passed));
        assert!(health.record_check(Failed));
        assert!(!health.record_check(Failed));
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(!health.is_healthy() && !health.is_last_resort());
        assert!(health.record_check(Passed));
        assert!(health.is_healthy());
    }
}
