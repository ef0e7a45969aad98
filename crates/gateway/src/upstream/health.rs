//! Whether a server is healthy: by what happens to requests, and by asking.
//!
//! Some failures in a row, and the server is ejected for a while; the next request after that is the probe, and if it
//! fails too, the while is twice as long. A health check that fails keeps the server out until one succeeds.
//!
//! Connections that do not come about are no client's doing. What happens to a request that was sent may be: its client
//! chose it. So such failures count once for each client, and those of one client never eject a server. They also never
//! eject the last one: an upstream that answers some requests badly still answers the others.

use crate::settings;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const LONGEST_EJECTION: Duration = Duration::from_secs(60);
/// Clients that are told apart; more failures in a row than this never eject a server that can be reached.
const MOST_CLIENTS: usize = 1_000;
/// Failures of fewer clients say nothing about the server.
const FEWEST_CLIENTS: u32 = 2;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no connection.
    Unreachable,
    /// The request of this client was sent, and not answered, or badly.
    NotAnswered(IpAddr),
}

/// What is known about one server.
#[derive(Debug)]
pub(crate) struct Health {
    /// Anything below is not as at the start, but for what checks say.
    is_troubled: AtomicBool,
    /// Connections in a row that did not come about.
    unreachable: AtomicU32,
    /// Clients whose requests were not answered since one was.
    clients: Mutex<SmallVec<[IpAddr; 4]>>,
    /// How often it was ejected since it was last healthy.
    ejections: AtomicU32,
    /// Milliseconds after `start` until which it is ejected; 0 if it is not.
    until_ms: AtomicU64,
    /// It was ejected, but it can be reached.
    is_reachable: AtomicBool,
    /// What the last health check said.
    checked_down: AtomicBool,
    start: Instant,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            is_troubled: AtomicBool::new(false),
            unreachable: AtomicU32::new(0),
            clients: Mutex::default(),
            ejections: AtomicU32::new(0),
            until_ms: AtomicU64::new(0),
            is_reachable: AtomicBool::new(true),
            checked_down: AtomicBool::new(false),
            start: Instant::now(),
        }
    }
}

impl Health {
    /// Whether requests may go there.
    pub(crate) fn is_up(&self) -> bool {
        if self.checked_down.load(Ordering::Relaxed) {
            return false;
        }
        // No clock is read for a server that is healthy.
        let until = self.until_ms.load(Ordering::Relaxed);
        until == 0 || self.now_ms() >= until
    }

    /// Whether requests may go there if no server of its upstream is up.
    pub(crate) fn is_last_resort(&self) -> bool {
        self.is_reachable.load(Ordering::Relaxed) && !self.checked_down.load(Ordering::Relaxed)
    }

    /// A request was answered.
    pub(crate) fn succeeded(&self) {
        if self.is_troubled.load(Ordering::Relaxed) {
            self.is_troubled.store(false, Ordering::Relaxed);
            self.clients.lock().clear();
            for count in [&self.unreachable, &self.ejections] {
                count.store(0, Ordering::Relaxed);
            }
            self.is_reachable.store(true, Ordering::Relaxed);
            self.until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Notes a failure. Says whether that ejected the server. `has_other` says whether another one is up.
    pub(crate) fn failed(
        &self,
        failure: Failure,
        settings: &settings::Upstream,
        has_other: impl FnOnce() -> bool,
    ) -> bool {
        self.is_troubled.store(true, Ordering::Relaxed);
        let ejects = match failure {
            Failure::Unreachable => {
                let failures = self.unreachable.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                failures >= settings.most_failures && self.is_up()
            }
            Failure::NotAnswered(client) => {
                let mut clients = self.clients.lock();
                if clients.len() < MOST_CLIENTS && !clients.contains(&client) {
                    clients.push(client);
                }
                let is_enough = clients.len() >= settings.most_failures.max(FEWEST_CLIENTS) as usize;
                let ejects = is_enough && self.is_up() && has_other();
                if ejects {
                    // The probe after the ejection says no more than any other request of one client.
                    clients.clear();
                }
                ejects
            }
        };
        if ejects {
            self.is_reachable.store(failure != Failure::Unreachable, Ordering::Relaxed);
            let ejections = self.ejections.fetch_add(1, Ordering::Relaxed).min(16);
            let length = settings.first_ejection.saturating_mul(1 << ejections).min(LONGEST_EJECTION);
            self.until_ms.store(self.now_ms() + length.as_millis().max(1) as u64, Ordering::Relaxed);
        }
        ejects
    }

    /// A health check was answered, or not. Says whether that changed anything.
    pub(crate) fn checked(&self, well: bool) -> bool {
        if well {
            self.succeeded();
        }
        self.checked_down.swap(!well, Ordering::Relaxed) == well
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> Failure {
        Failure::NotAnswered([192, 0, 2, number].into())
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_eject_for_a_growing_while() {
        let settings = settings::Upstream::new("u", Vec::new());
        let health = Health::default();
        let failed = || health.failed(Failure::Unreachable, &settings, || false);
        for _ in 0..4 {
            assert!(!failed());
        }
        health.succeeded();
        for _ in 0..4 {
            assert!(!failed());
        }
        assert!(health.is_up());
        assert!(failed());
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!health.is_up() && !health.is_last_resort(), "{seconds}");
            tokio::time::advance(Duration::from_millis(seconds * 1_000 - 1)).await;
            assert!(!health.is_up(), "{seconds}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(health.is_up(), "the next request is the probe");
            assert!(failed(), "{seconds}");
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        health.succeeded();
        assert!(health.is_up());
        assert!(!failed(), "all is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn what_clients_provoke_counts_once_for_each() {
        for (most_failures, clients) in
            [(0, 2), (1, 2), (2, 2), (5, 5), (1_000, u8::MAX), (u32::MAX, u8::MAX)]
        {
            let settings = settings::Upstream { most_failures, ..settings::Upstream::new("u", Vec::new()) };
            let health = Health::default();
            for number in 1..clients {
                for _ in 0..10 {
                    assert!(!health.failed(client(number), &settings, || true), "{most_failures} {number}");
                }
            }
            assert!(!health.failed(client(clients), &settings, || false), "the last one is not ejected");
            let ejects = health.failed(client(clients), &settings, || true);
            assert_eq!(ejects, clients < u8::MAX, "{most_failures}");
            if ejects {
                assert!(!health.is_up() && health.is_last_resort());
                tokio::time::advance(settings.first_ejection).await;
                assert!(!health.failed(client(1), &settings, || true), "one client is not enough again");
                assert!(health.is_up());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clients_that_are_known_are_bounded() {
        let settings =
            settings::Upstream { most_failures: u32::MAX, ..settings::Upstream::new("u", Vec::new()) };
        let health = Health::default();
        for number in 0..2 * MOST_CLIENTS as u32 {
            let failure = Failure::NotAnswered(std::net::Ipv4Addr::from(number).into());
            assert!(!health.failed(failure, &settings, || true));
        }
        assert_eq!(health.clients.lock().len(), MOST_CLIENTS);
        health.succeeded();
        assert!(health.clients.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_check_keeps_it_out_until_one_succeeds() {
        let health = Health::default();
        assert!(!health.checked(true));
        assert!(health.checked(false));
        assert!(!health.checked(false));
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(!health.is_up() && !health.is_last_resort());
        assert!(health.checked(true));
        assert!(health.is_up());
    }
}
