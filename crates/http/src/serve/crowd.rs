//! What one address may hold: connections at once, and rejections in a row.
//!
//! An address is counted while it has connections, and for as long as it was rejected last. IPv6 clients
//! have a whole /64 each, so that is what counts as an address. Proxies that are trusted stand for many
//! clients and are not counted.

use ipnet::IpNet;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// More addresses than connections can be open at once; those beyond are only remembered, and forgotten
/// together when this many are known.
const MOST_ADDRESSES: usize = 1 << 17;

/// The bounds.
#[derive(Clone, Debug)]
pub struct CrowdOptions {
    /// Connections at once from one address.
    pub most_connections: u32,
    /// Rejections in a row from one address, after which each further one ends its connection.
    pub most_rejections: u32,
    /// Who is not counted.
    pub trusted: Vec<IpNet>,
}

impl Default for CrowdOptions {
    fn default() -> Self {
        Self { most_connections: 1_000, most_rejections: 1_000, trusted: Vec::new() }
    }
}

/// All addresses with connections, of one or several servers.
#[derive(Debug)]
pub struct Crowd {
    options: CrowdOptions,
    known: Mutex<HashMap<IpAddr, Arc<Count>>>,
    turned_away: AtomicU64,
}

#[derive(Debug, Default)]
struct Count {
    open: AtomicU32,
    rejections: AtomicU32,
}

/// The address has as many connections as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

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
        Arc::new(Self { options, known: Mutex::default(), turned_away: AtomicU64::new(0) })
    }

    /// A place for one more connection; none for those who are not counted.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Option<Seat>, Full> {
        let address = address.to_canonical();
        if self.options.trusted.iter().any(|net| net.contains(&address)) {
            return Ok(None);
        }
        let address = prefix(address);
        let mut known = self.known.lock();
        if known.len() >= MOST_ADDRESSES {
            known.retain(|_, count| count.open.load(Ordering::Relaxed) > 0);
        }
        let count = known.entry(address).or_default();
        // Under the lock, so nobody else enters meanwhile; to leave takes no lock.
        if count.open.load(Ordering::Relaxed) >= self.options.most_connections {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return Err(Full);
        }
        count.open.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Seat { address, count: Arc::clone(count), crowd: Arc::clone(self) }))
    }

    /// Connections that were closed at once, because their address had too many.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }
}

impl Seat {
    /// A request was rejected. Says whether it was one too many in a row.
    pub fn rejected(&self) -> bool {
        let before = self.count.rejections.load(Ordering::Relaxed);
        if before >= self.crowd.options.most_rejections {
            return true;
        }
        self.count.rejections.fetch_add(1, Ordering::Relaxed) + 1 >= self.crowd.options.most_rejections
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
            // Somebody may have entered since.
            if known.get(&self.address).is_some_and(|count| count.open.load(Ordering::Relaxed) == 0) {
                known.remove(&self.address);
            }
        }
    }
}

fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd() -> Arc<Crowd> {
        let trusted = vec!["10.0.0.0/8".parse().unwrap()];
        Crowd::new(CrowdOptions { most_connections: 2, most_rejections: 3, trusted })
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
            assert_eq!(crowd.enter(ip(third)).unwrap_err(), Full);
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

    #[test]
    fn rejections_count_in_a_row_over_all_connections() {
        let crowd = crowd();
        let enter = || crowd.enter(ip("192.0.2.1")).unwrap().unwrap();
        let (a, b) = (enter(), enter());
        assert_eq!([a.rejected(), b.rejected()], [false, false]);
        a.passed();
        assert_eq!([a.rejected(), b.rejected(), a.rejected(), b.rejected()], [false, false, true, true]);
        drop((a, b));
        let back = enter();
        assert!(back.rejected(), "that one reconnects changes nothing");
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
