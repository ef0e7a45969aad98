//! Servers that are as good as each other: which one is next, and which are left alone.

pub(crate) mod budget;
pub(crate) mod connect;
pub(crate) mod health;
pub(crate) mod pool;
mod stream;

use crate::settings::{self, Balance};
use budget::Budget;
use health::Health;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// A place in the list of all servers, of whatever upstream.
pub(crate) type MemberIndex = usize;

/// As good as for ever, and yet an instant that clocks can name.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// One upstream; shared by all threads.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) settings: settings::Upstream,
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) budget: Budget,
    /// Where the search for the next one begins.
    turn: AtomicUsize,
}

/// One server of an upstream.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) index: MemberIndex,
    pub(crate) address: settings::Address,
    pub(crate) health: Health,
    in_flight: AtomicU32,
}

impl Upstream {
    /// The first of its members has index `first`.
    pub(crate) fn new(mut settings: settings::Upstream, first: MemberIndex) -> Self {
        settings.response_time = settings.response_time.min(LONGEST_WAIT);
        let member = |(offset, address): (usize, &settings::Address)| {
            Arc::new(Member {
                index: first + offset,
                address: address.clone(),
                health: Health::default(),
                in_flight: AtomicU32::new(0),
            })
        };
        let members = settings.addresses.iter().enumerate().map(member).collect();
        Self { settings, members, budget: Budget::default(), turn: AtomicUsize::new(0) }
    }

    /// The server that is next, other than those that were `tried`. None if all of them are left alone.
    pub(crate) fn pick(&self, tried: &Tried) -> Option<Load> {
        if let [only] = self.members.as_slice() {
            // An only server is asked again: its failure may have been the connection's.
            return (only.health.is_up() || only.health.is_last_resort()).then(|| Load::on(only));
        }
        let count = self.members.len();
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..count).map(|step| &self.members[(start.wrapping_add(step)) % count]);
        let usable = in_turn.filter(|member| member.health.is_up());
        let mut fresh = usable.clone().filter(|member| !tried.0.contains(&member.index));
        let picked = match self.settings.balance {
            Balance::RoundRobin => fresh.next(),
            // Of equals the first in turn, so that idle servers share.
            Balance::LeastLoaded => fresh.min_by_key(|member| member.in_flight.load(Ordering::Relaxed)),
        };
        let picked = picked.or_else(|| usable.clone().next());
        picked.or_else(|| self.members.iter().find(|member| member.health.is_last_resort())).map(Load::on)
    }

    /// Whether a server other than `member` is up.
    pub(crate) fn has_other(&self, member: &Member) -> bool {
        self.members.iter().any(|other| other.index != member.index && other.health.is_up())
    }
}

/// The servers that a request was already sent to.
#[derive(Debug, Default)]
pub(crate) struct Tried(SmallVec<[MemberIndex; 4]>);

impl Tried {
    pub(crate) fn add(&mut self, member: &Member) {
        self.0.push(member.index);
    }
}

/// A request in flight at a server, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Load(Arc<Member>);

impl Load {
    fn on(member: &Arc<Member>) -> Self {
        member.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(member))
    }

    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.0
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::health::Failure;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn servers_that_can_be_reached_are_the_last_resort() {
        let upstream = upstream(Balance::LeastLoaded, 2);
        let [first, second] = [0, 1].map(|index| &upstream.members[index]);
        for number in 0..5 {
            let failure = Failure::NotAnswered([192, 0, 2, number].into());
            first.health.failed(failure, &upstream.settings, || upstream.has_other(first));
        }
        for _ in 0..4 {
            assert_eq!(upstream.pick(&Tried::default()).unwrap().member().index, second.index);
        }
        for _ in 0..5 {
            second.health.failed(Failure::Unreachable, &upstream.settings, || upstream.has_other(second));
        }
        assert_eq!(upstream.pick(&Tried::default()).unwrap().member().index, first.index);
        first.health.checked(false);
        assert!(upstream.pick(&Tried::default()).is_none());
    }

    fn upstream(balance: Balance, count: u16) -> Upstream {
        let addresses = (1..=count).map(|port| format!("127.0.0.1:{port}").parse().unwrap()).collect();
        Upstream::new(settings::Upstream { balance, ..settings::Upstream::new("u", addresses) }, 10)
    }

    #[test]
    fn round_robin_takes_turns_and_skips_those_tried() {
        let upstream = upstream(Balance::RoundRobin, 3);
        let picks: Vec<usize> =
            (0..6).map(|_| upstream.pick(&Tried::default()).unwrap().member().index).collect();
        assert_eq!(picks, [10, 11, 12, 10, 11, 12]);
        let mut tried = Tried::default();
        tried.add(&upstream.members[0]);
        assert_eq!(upstream.pick(&tried).unwrap().member().index, 11);
    }

    #[test]
    fn the_least_loaded_is_next() {
        let upstream = upstream(Balance::LeastLoaded, 3);
        let none = Tried::default();
        let held: Vec<Load> = (0..3).map(|_| upstream.pick(&none).unwrap()).collect();
        let mut indexes: Vec<usize> = held.iter().map(|load| load.member().index).collect();
        indexes.sort_unstable();
        assert_eq!(indexes, [10, 11, 12]);
        let freed = held.into_iter().find(|load| load.member().index == 11);
        let _others: Vec<Load> = [10, 12].map(|index| Load::on(&upstream.members[index - 10])).into();
        drop(freed);
        assert_eq!(upstream.pick(&none).unwrap().member().index, 11);
    }
}
