//! An upstream: selection of one of its servers, their health, and the retry budget.

pub(crate) mod connect;
pub(crate) mod health;
pub(crate) mod health_check;
pub(crate) mod pool;
mod retry_budget;
mod stream;

use crate::settings::{Balance, UpstreamAddress, UpstreamSettings};
use health::ServerHealth;
use retry_budget::RetryBudget;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// An index into the list of all servers of all upstreams.
pub(crate) type ServerIndex = usize;

/// A bound that keeps deadlines within the range of the clock.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// One upstream; shared by all threads.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) settings: UpstreamSettings,
    pub(crate) servers: Vec<Arc<UpstreamServer>>,
    pub(crate) retry_budget: RetryBudget,
    /// Where the search for the next server begins.
    turn: AtomicUsize,
}

/// One server of an upstream.
#[derive(Debug)]
pub(crate) struct UpstreamServer {
    pub(crate) index: ServerIndex,
    pub(crate) address: UpstreamAddress,
    pub(crate) health: ServerHealth,
    in_flight: AtomicU32,
}

impl Upstream {
    /// The first server gets the index `first`.
    pub(crate) fn new(mut settings: UpstreamSettings, first: ServerIndex) -> Self {
        settings.response_time = settings.response_time.min(LONGEST_WAIT);
        let server = |(offset, address): (usize, &UpstreamAddress)| {
            Arc::new(UpstreamServer {
                index: first + offset,
                address: address.clone(),
                health: ServerHealth::default(),
                in_flight: AtomicU32::new(0),
            })
        };
        let servers = settings.addresses.iter().enumerate().map(server).collect();
        Self { settings, servers, retry_budget: RetryBudget::default(), turn: AtomicUsize::new(0) }
    }

    /// Selects a server, if possible one that is not in `tried`. `None` if no server may be used.
    pub(crate) fn select(&self, tried: &TriedServers) -> Option<ActiveRequest> {
        if let [only] = self.servers.as_slice() {
            // An only server is tried again: the failure may have been that of the connection.
            return (only.health.is_healthy() || only.health.is_last_resort())
                .then(|| ActiveRequest::on(only));
        }
        let count = self.servers.len();
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..count).map(|step| &self.servers[(start.wrapping_add(step)) % count]);
        let healthy = in_turn.filter(|server| server.health.is_healthy());
        let mut untried = healthy.clone().filter(|server| !tried.0.contains(&server.index));
        let selected = match self.settings.balance {
            Balance::RoundRobin => untried.next(),
            // Of equal loads the first in turn wins, so that idle servers share.
            Balance::LeastLoaded => untried.min_by_key(|server| server.in_flight.load(Ordering::Relaxed)),
        };
        let selected = selected.or_else(|| healthy.clone().next());
        selected
            .or_else(|| self.servers.iter().find(|server| server.health.is_last_resort()))
            .map(ActiveRequest::on)
    }

    /// Whether a server other than `server` is healthy.
    pub(crate) fn has_other_healthy(&self, server: &UpstreamServer) -> bool {
        self.servers.iter().any(|other| other.index != server.index && other.health.is_healthy())
    }
}

/// The servers that a request was already sent to.
#[derive(Debug, Default)]
pub(crate) struct TriedServers(SmallVec<[ServerIndex; 4]>);

impl TriedServers {
    pub(crate) fn add(&mut self, server: &UpstreamServer) {
        self.0.push(server.index);
    }
}

/// A request that counts as in flight at a server until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<UpstreamServer>);

impl ActiveRequest {
    fn on(server: &Arc<UpstreamServer>) -> Self {
        server.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(server))
    }

    pub(crate) fn server(&self) -> &Arc<UpstreamServer> {
        &self.0
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::health::{HealthCheckResult, ServerFailure};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reachable_servers_are_the_last_resort() {
        let upstream = upstream(Balance::LeastLoaded, 2);
        let [first, second] = [0, 1].map(|index| &upstream.servers[index]);
        let fail = |server: &UpstreamServer, failure| {
            server.health.record_failure(failure, &upstream.settings, || upstream.has_other_healthy(server))
        };
        for number in 0..5 {
            fail(first, ServerFailure::BadResponse([192, 0, 2, number].into()));
        }
        for _ in 0..4 {
            assert_eq!(upstream.select(&TriedServers::default()).unwrap().server().index, second.index);
        }
        for _ in 0..5 {
            fail(second, ServerFailure::Unreachable);
        }
        assert_eq!(upstream.select(&TriedServers::default()).unwrap().server().index, first.index);
        first.health.record_check(HealthCheckResult::Failed);
        assert!(upstream.select(&TriedServers::default()).is_none());
    }

    fn upstream(balance: Balance, count: u16) -> Upstream {
        let addresses = (1..=count).map(|port| format!("127.0.0.1:{port}").parse().unwrap()).collect();
        Upstream::new(UpstreamSettings { balance, ..UpstreamSettings::new("u", addresses) }, 10)
    }

    #[test]
    fn round_robin_takes_turns_and_skips_tried_servers() {
        let upstream = upstream(Balance::RoundRobin, 3);
        let selected: Vec<usize> =
            (0..6).map(|_| upstream.select(&TriedServers::default()).unwrap().server().index).collect();
        assert_eq!(selected, [10, 11, 12, 10, 11, 12]);
        let mut tried = TriedServers::default();
        tried.add(&upstream.servers[0]);
        assert_eq!(upstream.select(&tried).unwrap().server().index, 11);
    }

    #[test]
    fn the_least_loaded_server_is_next() {
        let upstream = upstream(Balance::LeastLoaded, 3);
        let none = TriedServers::default();
        let active: Vec<ActiveRequest> = (0..3).map(|_| upstream.select(&none).unwrap()).collect();
        let mut indexes: Vec<usize> = active.iter().map(|request| request.server().index).collect();
        indexes.sort_unstable();
        assert_eq!(indexes, [10, 11, 12]);
        let freed = active.into_iter().find(|request| request.server().index == 11);
        let _others: Vec<ActiveRequest> =
            [10, 12].map(|index| ActiveRequest::on(&upstream.servers[index - 10])).into();
        drop(freed);
        assert_eq!(upstream.select(&none).unwrap().server().index, 11);
    }
}
