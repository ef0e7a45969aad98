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
pub struct ConnectionLimitOptions {
    /// Connections at once from one address.
    pub most_connections: u32,
    /// Rejections in a row from one address, after which it is refused for a while.
    pub most_rejections: u32,
    /// How long it is refused; each further rejection after that refuses it again.
    pub refuse_time: Duration,
    /// Who is not counted.
    pub trusted: Vec<IpNet>,
}

impl Default for ConnectionLimitOptions {
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
pub struct ConnectionLimits {
    options: ConnectionLimitOptions,
    known: Mutex<HashMap<IpAddr, Arc<AddressCount>>>,
    refused_connections: AtomicU64,
    start: Instant,
}

#[derive(Debug, Default)]
struct AddressCount {
    open: AtomicU32,
    rejections: AtomicU32,
    /// Milliseconds after the start of the limits until which the address is refused; 0 if it is not.
    refused_until_ms: AtomicU64,
}

/// Why there is no place for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// The address has as many connections as it may.
    TooManyConnections,
    /// The address was rejected too often.
    AddressBlocked,
}

/// One connection's place.
#[derive(Debug)]
pub struct CountedConnection {
    address: IpAddr,
    count: Arc<AddressCount>,
    limits: Arc<ConnectionLimits>,
}

impl ConnectionLimits {
    /// Nobody yet.
    pub fn new(options: ConnectionLimitOptions) -> Arc<Self> {
        let (known, refused_connections, start) = (Mutex::default(), AtomicU64::new(0), Instant::now());
        Arc::new(Self { options, known, refused_connections, start })
    }

    /// A place for one more connection; none for those who are not counted.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Option<CountedConnection>, ConnectionRefusal> {
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
        let refusal = if self.refuses(count) {
            Some(ConnectionRefusal::AddressBlocked)
        } else {
            let is_full = count.open.load(Ordering::Relaxed) >= self.options.most_connections;
            is_full.then_some(ConnectionRefusal::TooManyConnections)
        };
        if let Some(refusal) = refusal {
            self.refused_connections.fetch_add(1, Ordering::Relaxed);
            return Err(refusal);
        }
        count.open.fetch_add(1, Ordering::Relaxed);
        Ok(Some(CountedConnection { address, count: Arc::clone(count), limits: Arc::clone(self) }))
    }

    /// Connections that were closed at once, because their address had too many or was refused.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// No clock is read for addresses that were not refused lately.
    fn refuses(&self, count: &AddressCount) -> bool {
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

impl CountedConnection {
    /// A request was rejected. Says whether it was one too many in a row: then its address is refused for a while.
    pub fn record_refusal(&self) -> bool {
        let ConnectionLimitOptions { most_rejections, refuse_time, .. } = self.limits.options;
        let before = self.count.rejections.load(Ordering::Relaxed);
        let is_too_many = before >= most_rejections
            || self.count.rejections.fetch_add(1, Ordering::Relaxed) + 1 >= most_rejections;
        if is_too_many {
            let until_ms = self.limits.now_ms() + refuse_time.as_millis().max(1) as u64;
            self.count.refused_until_ms.store(until_ms, Ordering::Relaxed);
        }
        is_too_many
    }

    /// Whether nothing more is to be read from this address for now.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.limits.refuses(&self.count)
    }

    /// A request passed.
    pub fn record_admission(&self) {
        if self.count.rejections.load(Ordering::Relaxed) > 0 {
            self.count.rejections.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let last = self.count.open.fetch_sub(1, Ordering::Relaxed) == 1;
        if last && self.count.rejections.load(Ordering::Relaxed) == 0 {
            let mut known = self.limits.known.lock();
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

    fn limits() -> Arc<ConnectionLimits> {
        let trusted = vec!["10.0.0.0/8".parse().unwrap()];
        ConnectionLimits::new(ConnectionLimitOptions {
            most_connections: 2,
            most_rejections: 3,
            trusted,
            ..ConnectionLimitOptions::default()
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
            let limits = limits();
            let counted = [limits.admit(ip(first)).unwrap(), limits.admit(ip(second)).unwrap()];
            assert_eq!(limits.admit(ip(third)).unwrap_err(), ConnectionRefusal::TooManyConnections);
            assert_eq!(limits.refused_connections(), 1);
            drop(limits.admit(ip(other)).unwrap().unwrap());
            drop(counted);
            assert!(limits.known.lock().is_empty(), "who has gone is forgotten");
            assert!(limits.admit(ip(third)).is_ok());
        }
    }

    #[test]
    fn trusted_proxies_are_not_counted() {
        let limits = limits();
        for address in ["10.1.2.3", "::ffff:10.1.2.3"] {
            assert!((0..10).all(|_| limits.admit(ip(address)).unwrap().is_none()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_rejections_in_a_row_refuse_the_address_for_a_while() {
        let limits = limits();
        let admit = |address| limits.admit(ip(address)).map(Option::unwrap);
        let (a, b) = (admit("2001:db8::1").unwrap(), admit("2001:db8::2").unwrap());
        assert_eq!([a.record_refusal(), b.record_refusal()], [false, false]);
        a.record_admission();
        assert_eq!([a.record_refusal(), b.record_refusal()], [false, false]);
        assert!(!a.is_refused() && !b.is_refused());
        assert!(a.record_refusal());
        assert!(a.is_refused() && b.is_refused(), "all connections of the address");
        drop((a, b));
        assert_eq!(admit("2001:db8::3").unwrap_err(), ConnectionRefusal::AddressBlocked);
        assert!(admit("2001:db8:0:1::1").is_ok(), "another address");
        let time = ConnectionLimitOptions::default().refuse_time;
        tokio::time::advance(time - Duration::from_millis(1)).await;
        assert_eq!(admit("2001:db8::3").unwrap_err(), ConnectionRefusal::AddressBlocked);
        tokio::time::advance(Duration::from_millis(1)).await;
        let back = admit("2001:db8::3").unwrap();
        assert!(!back.is_refused());
        assert!(back.record_refusal() && back.is_refused(), "that one waited changes nothing");
        tokio::time::advance(time).await;
        back.record_admission();
        assert!(!back.record_refusal());
    }

    #[test]
    fn the_table_is_bounded() {
        let limits = limits();
        for number in 0..MOST_ADDRESSES as u32 + 10 {
            limits
                .admit(std::net::Ipv4Addr::from(number + (11 << 24)).into())
                .unwrap()
                .unwrap()
                .record_refusal();
        }
        assert!(limits.known.lock().len() <= MOST_ADDRESSES);
    }
}
