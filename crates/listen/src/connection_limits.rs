//! Limits on one client address: open connections, and consecutive refused requests.
//!
//! An address is counted while it has connections, or if its last request was refused. After too many consecutive refusals the
//! address is refused for a while: new connections are closed when they are accepted, open ones before more is read from them.
//! An IPv6 client usually has a whole /64, so that counts as one address. Trusted proxies send the requests of many clients and
//! are not counted.

use ipnet::IpNet;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Above the number of connections that can be open at once. At this size the addresses without connections are removed.
const MOST_ADDRESSES: usize = 1 << 17;

/// The limits of each address.
#[derive(Clone, Debug)]
pub struct ConnectionLimitOptions {
    /// Open connections.
    pub most_connections: u32,
    /// Consecutive refused requests, after which the address is refused.
    pub most_rejections: u32,
    /// How long it is refused. After that, each refused request refuses it again, until one is admitted.
    pub refuse_time: Duration,
    /// Networks that are not counted.
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

/// The counts of all client addresses, of one or several listeners.
#[derive(Debug)]
pub struct ConnectionLimits {
    options: ConnectionLimitOptions,
    addresses: Mutex<HashMap<IpAddr, Arc<AddressCount>>>,
    refused_connections: AtomicU64,
    start: Instant,
}

#[derive(Debug, Default)]
struct AddressCount {
    open: AtomicU32,
    /// Consecutive refused requests.
    refusals: AtomicU32,
    /// In milliseconds since `ConnectionLimits::start`; 0 if the address is not refused.
    refused_until_ms: AtomicU64,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// Its address has as many connections as it may have.
    TooManyConnections,
    /// Its address is refused for a while.
    AddressRefused,
}

/// Whether requests are read from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressVerdict {
    /// They are.
    Accepted,
    /// Its connections are closed, and new ones refused for a while.
    Refused,
}

/// An open connection in the counts of its address. Dropping it ends the count.
#[derive(Debug)]
pub struct CountedConnection {
    address: IpAddr,
    count: Arc<AddressCount>,
    limits: Arc<ConnectionLimits>,
}

impl ConnectionLimits {
    /// Without connections yet.
    pub fn new(options: ConnectionLimitOptions) -> Arc<Self> {
        let (addresses, refused_connections) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { options, addresses, refused_connections, start: Instant::now() })
    }

    /// Counts one more connection of `address`; none if it is trusted and not counted.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Option<CountedConnection>, ConnectionRefusal> {
        let address = address.to_canonical();
        if self.options.trusted.iter().any(|net| net.contains(&address)) {
            return Ok(None);
        }
        let address = address_prefix(address);
        let mut addresses = self.addresses.lock();
        if addresses.len() >= MOST_ADDRESSES {
            addresses.retain(|_, count| count.open.load(Ordering::Relaxed) > 0);
        }
        let count = addresses.entry(address).or_default();
        // Connections are added under the lock, and removed without it.
        let refusal = if self.refuses(count) {
            Some(ConnectionRefusal::AddressRefused)
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

    /// The number of connections that were refused.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// Reads no clock for addresses that were not refused lately.
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
    /// Records that a request was refused. With one too many in a row, the address is refused for a while.
    pub fn record_refusal(&self) -> AddressVerdict {
        let ConnectionLimitOptions { most_rejections, refuse_time, .. } = self.limits.options;
        let before = self.count.refusals.load(Ordering::Relaxed);
        let is_too_many = before >= most_rejections
            || self.count.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= most_rejections;
        if !is_too_many {
            return AddressVerdict::Accepted;
        }
        let until_ms = self.limits.now_ms() + refuse_time.as_millis().max(1) as u64;
        self.count.refused_until_ms.store(until_ms, Ordering::Relaxed);
        AddressVerdict::Refused
    }

    /// Whether no more requests are read from this address for now.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.limits.refuses(&self.count)
    }

    /// Records that a request was admitted.
    pub fn record_admission(&self) {
        if self.count.refusals.load(Ordering::Relaxed) > 0 {
            self.count.refusals.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let last = self.count.open.fetch_sub(1, Ordering::Relaxed) == 1;
        if last && self.count.refusals.load(Ordering::Relaxed) == 0 {
            let mut addresses = self.limits.addresses.lock();
            // Another connection may have been added since.
            if addresses.get(&self.address).is_some_and(|count| count.open.load(Ordering::Relaxed) == 0) {
                addresses.remove(&self.address);
            }
        }
    }
}

/// What is counted as one client address: an IPv4 address, also a mapped one, or the /64 of an IPv6 address.
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
    fn connections_of_an_address_are_limited() {
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
            assert!(limits.addresses.lock().is_empty(), "addresses without connections are removed");
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
    async fn consecutive_refusals_refuse_the_address_for_a_while() {
        let limits = limits();
        let admit = |address| limits.admit(ip(address)).map(Option::unwrap);
        let (a, b) = (admit("2001:db8::1").unwrap(), admit("2001:db8::2").unwrap());
        assert_eq!([a.record_refusal(), b.record_refusal()], [AddressVerdict::Accepted; 2]);
        a.record_admission();
        assert_eq!([a.record_refusal(), b.record_refusal()], [AddressVerdict::Accepted; 2]);
        assert!(!a.is_refused() && !b.is_refused());
        assert_eq!(a.record_refusal(), AddressVerdict::Refused);
        assert!(a.is_refused() && b.is_refused(), "all connections of the address");
        drop((a, b));
        assert_eq!(admit("2001:db8::3").unwrap_err(), ConnectionRefusal::AddressRefused);
        assert!(admit("2001:db8:0:1::1").is_ok(), "another address");
        let time = ConnectionLimitOptions::default().refuse_time;
        tokio::time::advance(time - Duration::from_millis(1)).await;
        assert_eq!(admit("2001:db8::3").unwrap_err(), ConnectionRefusal::AddressRefused);
        tokio::time::advance(Duration::from_millis(1)).await;
        let back = admit("2001:db8::3").unwrap();
        assert!(!back.is_refused());
        assert!(back.record_refusal() == AddressVerdict::Refused && back.is_refused(), "the count is kept");
        tokio::time::advance(time).await;
        back.record_admission();
        assert_eq!(back.record_refusal(), AddressVerdict::Accepted);
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
        assert!(limits.addresses.lock().len() <= MOST_ADDRESSES);
    }
}
