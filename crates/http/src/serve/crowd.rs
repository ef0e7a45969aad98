//! What one address may hold: connections at once, and rejections in a row.
//!
//! An address is counted while it has connections, and for as long as it was rejected last. After too many rejections
//! in a row it is refused for a while: new connections are closed when they are accepted, and those that it has before
//! more is read from them. IPv6 clients have a whole /64 each, so that is what counts as an address. Proxies that are
//! trusted stand for many clients and are not counted.

use ipnet::IpNet;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// More addresses than connections can be open at once; those beyond are only remembered, and forgotten
/// together when this many are known.
const MOST_ADDRESSES: usize = 1 << 17;

/// The bounds.
#[derive(Clone, Debug)]
pub struct CrowdOptions {
    /// Connections at once from one address.
    pub most_connections: u32,
    /// Rejections in a row from one address, after which it is refused for a while.
    pub most_rejections: u32,
    /// How long it is refused; each further rejection after that refuses it again.
    pub refuse_time: Duration,
    /// Who is not counted.
    pub trusted: Vec<IpNet>,
}

impl Default for CrowdOptions {
    fn default() -> Self {
        Self {
            most_connections: 1_000,
            most_rejections: 1_000,
            refuse_time: Duration::from_secs(10),
            trusted: Vec::new(),
        }
    }
}

/// All addresses with connections, of one or several servers.
#[derive(Debug)]
pub struct Crowd {
    options: CrowdOptions,
    known: Mutex<HashMap<IpAddr, Arc<Count>>>,
    turned_away: AtomicU64,
    start: Instant,
}

#[derive(Debug, Default)]
struct Count {
    open: AtomicU32,
    rejections: AtomicU32,
    /// Milliseconds after the start of the crowd until which the address is refused; 0 if it is not.
    refused_until_ms: AtomicU64,
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSeat {
    /// The address has as many connections as it may.
    Full,
    /// The address was rejected too often.
    Refused,
}

/// One connection's place.
#[derive(Debug)]
pub struct Seat {
    address: IpAddr,
    count: Arc<Count>,
    crowd: Arc<Crowd>,
}

impl Crowd {
    /// Nobody yet.
    pub fn new(options: CrowdOptions) -> Arc<Self> {
        let (known, turned_away, start) = (Mutex::default(), AtomicU64::new(0), Instant::now());
        Arc::new(Self { options, known, turned_away, start })
    }

    /// A place for one more connection; none for those who are not counted.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Option<Seat>, NoSeat> {
        let address = address.to_canonical();
        if self.options.trusted.iter().any(|net| net.contains(&address)) {
            return Ok(None);
        }
        let address = address_prefix(address);
        let mut known = self.known.lock();
        if known.len() >= MOST_ADDRESSES {
            known.retain(|_, count| count.open.load(Ordering::Relaxed) > 0);
        }
        let count = known.entry(address).or_default();
        // Under the lock, so no other connection enters meanwhile; to leave takes no lock.
        let no_seat = if self.refuses(count) {
            Some(NoSeat::Refused)
        } else {
            let is_full = count.open.load(Ordering::Relaxed) >= self.options.most_connections;
            is_full.then_some(NoSeat::Full)
        };
        if let Some(no_seat) = no_seat {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return Err(no_seat);
        }
        count.open.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Seat { address, count: Arc::clone(count), crowd: Arc::clone(self) }))
    }

    /// Connections that were closed at once, because their address had too many or was refused.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// No clock is read for addresses that were not refused lately.
    fn refuses(&self, count: &Count) -> bool {
        let until_ms = count.refused_until_ms.load(Ordering::Relaxed);
        if until_ms == 0 {
            return false;
        }
        let refuses = self.now_ms() < until_ms;
        if !refuses {
            count.refused_until_ms.store(0, Ordering::Relaxed);
        }
        refuses
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

impl Seat {
    /// A request was rejected. Says whether it was one too many in a row: then its address is refused for a while.
    pub fn rejected(&self) -> bool {
        let CrowdOptions { most_rejections, refuse_time, .. } = self.crowd.options;
        let before = self.count.rejections.load(Ordering::Relaxed);
        let is_too_many = before >= most_rejections
            || self.count.rejections.fetch_add(1, Ordering::Relaxed) + 1 >= most_rejections;
        if is_too_many {
            let until_ms = self.crowd.now_ms() + refuse_time.as_millis().max(1) as u64;
            self.count.refused_until_ms.store(until_ms, Ordering::Relaxed);
        }
        is_too_many
    }

    /// Whether nothing more is to be read from this address for now.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.crowd.refuses(&self.count)
    }

    /// A request passed.
    pub fn passed(&self) {
        if self.count.rejections.load(Ordering::Relaxed) > 0 {
            self.count.rejections.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let last = self.count.open.fetch_sub(1, Ordering::Relaxed) == 1;
        if last && self.count.rejections.load(Ordering::Relaxed) == 0 {
            let mut known = self.crowd.known.lock();
            // Another connection may have entered since.
            if known.get(&self.address).is_some_and(|count| count.open.load(Ordering::Relaxed) == 0) {
                known.remove(&self.address);
            }
        }
    }
}

/// What counts as one client address: an IPv4 address, also if it is mapped, or the /64 of an IPv6 address.
pub fn address_prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd() -> Arc<Crowd> {
        let trusted = vec!["10.0.0.0/8".parse().unwrap()];
        Crowd::new(CrowdOptions {
            most_connections: 2,
            most_rejections: 3,
            trusted,
            ..CrowdOptions::default()
        })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_so_many_connections() {
        for (first, second, third, other) in [
            ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.2"),
            ("2001:db8::1", "2001:db8::2", "2001:db8::ffff:3", "2001:db8:0:1::1"),
        ] {
            let crowd = crowd();
            let seats = [crowd.enter(ip(first)).unwrap(), crowd.enter(ip(second)).unwrap()];
            assert_eq!(crowd.enter(ip(third)).unwrap_err(), NoSeat::Full);
            assert_eq!(crowd.turned_away(), 1);
            drop(crowd.enter(ip(other)).unwrap().unwrap());
            drop(seats);
            assert!(crowd.known.lock().is_empty(), "who has gone is forgotten");
            assert!(crowd.enter(ip(third)).is_ok());
        }
    }

    #[test]
    fn trusted_proxies_are_not_counted() {
        let crowd = crowd();
        for address in ["10.1.2.3", "::ffff:10.1.2.3"] {
            assert!((0..10).all(|_| crowd.enter(ip(address)).unwrap().is_none()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_rejections_in_a_row_refuse_the_address_for_a_while() {
        let crowd = crowd();
        let enter = |address| crowd.enter(ip(address)).map(Option::unwrap);
        let (a, b) = (enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap());
        assert_eq!([a.rejected(), b.rejected()], [false, false]);
        a.passed();
        assert_eq!([a.rejected(), b.rejected()], [false, false]);
        assert!(!a.is_refused() && !b.is_refused());
        assert!(a.rejected());
        assert!(a.is_refused() && b.is_refused(), "all connections of the address");
        drop((a, b));
        assert_eq!(enter("2001:db8::3").unwrap_err(), NoSeat::Refused);
        assert!(enter("2001:db8:0:1::1").is_ok(), "another address");
        let time = CrowdOptions::default().refuse_time;
        tokio::time::advance(time - Duration::from_millis(1)).await;
        assert_eq!(enter("2001:db8::3").unwrap_err(), NoSeat::Refused);
        tokio::time::advance(Duration::from_millis(1)).await;
        let back = enter("2001:db8::3").unwrap();
        assert!(!back.is_refused());
        assert!(back.rejected() && back.is_refused(), "that one waited changes nothing");
        tokio::time::advance(time).await;
        back.passed();
        assert!(!back.rejected());
    }

    #[test]
    fn the_table_is_bounded() {
        let crowd = crowd();
        for number in 0..MOST_ADDRESSES as u32 + 10 {
            crowd.enter(std::net::Ipv4Addr::from(number + (11 << 24)).into()).unwrap().unwrap().rejected();
        }
        assert!(crowd.known.lock().len() <= MOST_ADDRESSES);
    }
}
