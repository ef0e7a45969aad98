//! Keys: the identities of a request, hashed to 64 bits.
//!
//! A key is a chain of keyed hashes (PolymurHash under a random seed) over the identities in a rule's `key:`. The strings
//! are not stored. Without the seed, a client can neither find two identities with the same key nor fill one part of a
//! table.

use crate::request::{Method, NamedIdentity, Request};
use crate::rules::ClientTraits;
use polymur_hash::PolymurHash;
use std::net::IpAddr;

/// The prefix length by which IPv6 addresses are counted. A household has a /64 or a larger network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    /// A prefix of `bits` bits: from 16, the network of a provider, to 128, a single address.
    pub fn new(bits: u8) -> Option<Self> {
        (16..=128).contains(&bits).then_some(Self(bits))
    }

    /// The length in bits.
    pub fn bits(self) -> u8 {
        self.0
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

/// A component of a rule's `key:`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// An identity with its own field.
    Named(NamedIdentity),
    /// The client's address.
    Ip,
    /// The most specific template that matches the path.
    Route,
    /// The path of the request, or the name that stands in for it.
    Endpoint,
    /// The HTTP method.
    Method,
    /// The domain: an Envoy domain, or the requested host.
    Domain,
    /// Nothing: all requests share one state.
    All,
    /// A custom identity.
    Custom(String),
}

/// The dimensions that have a name and no value.
const PLAIN_DIMENSIONS: [Dimension; 6] = [
    Dimension::Ip,
    Dimension::Route,
    Dimension::Endpoint,
    Dimension::Method,
    Dimension::Domain,
    Dimension::All,
];

impl Dimension {
    /// The dimension with this name in `key:`.
    pub fn from_name(name: &str) -> Self {
        match NamedIdentity::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Self::Named(kind),
            None => {
                let plain = PLAIN_DIMENSIONS.into_iter().find(|dimension| dimension.name() == name);
                plain.unwrap_or_else(|| Self::Custom(name.to_owned()))
            }
        }
    }

    /// Whether it is an identity of the client, and not a property of the request.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Named(_) | Self::Ip | Self::Custom(_))
    }

    /// Its name in `key:`.
    pub fn name(&self) -> &str {
        match self {
            Self::Named(kind) => kind.name(),
            Self::Ip => "ip",
            Self::Route => "route",
            Self::Endpoint => "endpoint",
            Self::Method => "method",
            Self::Domain => "domain",
            Self::All => "all",
            Self::Custom(name) => name,
        }
    }
}

/// An identity of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity<'a> {
    /// An identity with its own field.
    Named(NamedIdentity, &'a str),
    /// An address, or the network by which it is counted.
    Ip(u128),
    /// A route, by its hash.
    Route(u64),
    /// A custom identity, by name and value.
    Custom(&'a str, &'a str),
    /// No identity: all such requests share one state.
    Anonymous,
}

/// The identity of `request` in `dimension`; if it has none, the next in the chain user → API key → address, then any
/// other identity. A missing identity never means no limit.
#[inline]
pub fn identity<'a>(
    dimension: &Dimension,
    ipv6_prefix: Ipv6Prefix,
    request: &Request<'a>,
    route: u64,
) -> Identity<'a> {
    let named = |kind| request.named(kind).map(|value| Identity::Named(kind, value));
    let (user, api_key) = (|| named(NamedIdentity::User), || named(NamedIdentity::ApiKey));
    let ip = || request.ip.map(|ip| Identity::Ip(ip_bits(ip, ipv6_prefix)));
    let found = match dimension {
        // Without a key, the address comes before the user.
        Dimension::Named(NamedIdentity::ApiKey) => api_key().or_else(ip),
        Dimension::Named(kind) => named(*kind),
        Dimension::Ip => ip(),
        Dimension::Route => Some(Identity::Route(route)),
        // Requests without one share a count. No custom identity has these names: they are dimensions.
        Dimension::Endpoint => Some(Identity::Custom("endpoint", request.path())),
        Dimension::Method => Some(Identity::Custom("method", request.method.map_or("", Method::name))),
        Dimension::Domain => Some(Identity::Custom("domain", request.domain.unwrap_or_default())),
        Dimension::All => Some(Identity::Anonymous),
        Dimension::Custom(name) => request
            .ids
            .iter()
            .find_map(|(known, value)| (known == name).then_some(Identity::Custom(known, value))),
    };
    found.or_else(user).or_else(api_key).or_else(ip).unwrap_or_else(|| last_resort(request))
}

#[cold]
fn last_resort<'a>(request: &Request<'a>) -> Identity<'a> {
    let named = |kind| request.named(kind).map(|value| Identity::Named(kind, value));
    let custom = || request.ids.first().map(|(name, value)| Identity::Custom(name, value));
    NamedIdentity::ALL.into_iter().find_map(named).or_else(custom).unwrap_or(Identity::Anonymous)
}

/// An address as it is counted: IPv4 in full, also when mapped into IPv6; IPv6 by its prefix.
#[inline]
pub fn ip_bits(ip: IpAddr, ipv6_prefix: Ipv6Prefix) -> u128 {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits() & (u128::MAX << (128 - ipv6_prefix.0)),
    }
}

/// The secret seed of all keys.
#[derive(Clone)]
pub struct KeySeed(PolymurHash);

impl std::fmt::Debug for KeySeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySeed(…)")
    }
}

impl KeySeed {
    /// The seed from 128 random bits.
    pub fn new(random: [u64; 2]) -> Self {
        Self(PolymurHash::from_u64x2_seed(random[0], random[1]))
    }

    /// The hasher of one request.
    #[inline]
    pub fn hasher(&self, request: &Request<'_>) -> RequestHasher<'_> {
        let hash = |key| self.chain(0, &Identity::Named(NamedIdentity::ApiKey, key));
        RequestHasher { seed: self, api_key: request.api_key.map(hash) }
    }

    /// Extends `chain`, the hash so far (0 at first), by one identity.
    #[inline]
    pub fn chain(&self, chain: u64, identity: &Identity<'_>) -> u64 {
        match *identity {
            Identity::Named(kind, value) => self.hash(chain, kind.hash_tag().into(), value.as_bytes()),
            Identity::Ip(bits) => self.hash(chain, 4, &bits.to_le_bytes()),
            Identity::Route(route) => self.hash(chain, 5, &route.to_le_bytes()),
            Identity::Custom(name, value) => {
                self.hash(self.hash(chain, 6, name.as_bytes()), 7, value.as_bytes())
            }
            Identity::Anonymous => self.hash(chain, 8, b""),
        }
    }

    /// The overflow cell, of `cells`, for clients of one IPv4 /16 or IPv6 /32 that have no cell of their own.
    pub fn overflow_cell(&self, ip: Option<IpAddr>, cells: u64) -> u64 {
        let network = match ip.map(|ip| ip.to_canonical()) {
            None => 0,
            Some(IpAddr::V4(v4)) => u64::from(v4.to_bits() >> 16) | 1 << 32,
            Some(IpAddr::V6(v6)) => (v6.to_bits() >> 96) as u64 | 2 << 32,
        };
        self.hash(0, 9, &network.to_le_bytes()) % cells
    }

    #[inline]
    fn hash(&self, chain: u64, tag: u64, bytes: &[u8]) -> u64 {
        // The library adds the tweak to a number of up to 63 bits without an overflow check: keep it below 62 bits.
        self.0.hash_with_tweak(bytes, (chain >> 2) ^ tag)
    }
}

/// The hashes of a request's key under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHashes {
    /// Without the route: the same on every route.
    pub client: u64,
    /// With the route, if the rule counts by route.
    pub with_route: u64,
}

/// Names the state of one key under one limit in the embedded store and in the lease table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct StateKey(u64);

impl StateKey {
    /// The key of the state of `identity_hash` under the limit with this [`Limit::state_id`](crate::limit::Limit).
    #[inline]
    pub const fn new(identity_hash: u64, state_id: u64) -> Self {
        // The hash is unpredictable, so the fixed `state_id` is enough to distinguish limits.
        Self(identity_hash ^ state_id)
    }

    /// The key with these 64 bits.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The 64 bits.
    #[inline]
    pub const fn as_bits(self) -> u64 {
        self.0
    }

    /// The hash of the identities; `state_id` is that of the key's limit.
    #[inline]
    pub const fn identity_hash(self, state_id: u64) -> u64 {
        self.0 ^ state_id
    }
}

/// Hashes the identities of one request. The API key, which most rules count by, is hashed once.
#[derive(Clone, Copy, Debug)]
pub struct RequestHasher<'s> {
    seed: &'s KeySeed,
    api_key: Option<u64>,
}

impl RequestHasher<'_> {
    /// The hash of the API key, if there is one.
    #[inline]
    pub fn api_key(&self) -> Option<u64> {
        self.api_key
    }

    /// The key of `request` under a rule that counts by `dimensions`.
    #[inline(never)]
    pub fn hash_key(
        &self,
        dimensions: &[Dimension],
        ipv6_prefix: Ipv6Prefix,
        request: &Request<'_>,
        route: u64,
    ) -> KeyHashes {
        let client = dimensions
            .iter()
            .filter(|dimension| **dimension != Dimension::Route)
            .map(|dimension| identity(dimension, ipv6_prefix, request, route))
            .fold(0, |chain, identity| self.seed.chain(chain, &identity));
        let by_route = dimensions.contains(&Dimension::Route);
        let with_route = if by_route { self.seed.chain(client, &Identity::Route(route)) } else { client };
        KeyHashes { client, with_route }
    }

    /// A hash of the given traits of `request`.
    #[inline(never)]
    pub fn hash_traits(&self, traits: ClientTraits, request: &Request<'_>) -> u64 {
        let mut hash = self.api_key.filter(|_| traits.named[NamedIdentity::ApiKey]).unwrap_or(0);
        // With a tag of its own: a custom identity named `tier` is not a stated tier.
        if let Some(tier) = request.tier.filter(|_| traits.tier) {
            hash = self.seed.hash(hash, 10, tier.as_bytes());
        }
        let mut add = |identity: Option<Identity<'_>>| {
            if let Some(identity) = identity {
                hash = self.seed.chain(hash, &identity);
            }
        };
        for (kind, is_used) in traits.named.iter() {
            if *is_used && kind != NamedIdentity::ApiKey {
                add(request.named(kind).map(|value| Identity::Named(kind, value)));
            }
        }
        // The full address: a condition may name a network that is smaller than the prefix.
        add(request.ip.filter(|_| traits.ip).map(|ip| Identity::Ip(full_ip_bits(ip))));
        if traits.ids {
            for (name, value) in request.ids {
                add(Some(Identity::Custom(name, value)));
            }
        }
        hash
    }
}

fn full_ip_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn lengths_tags_and_chains_give_different_hashes() {
        for half in [0, 1, u64::MAX] {
            let seed = KeySeed::new([half, !half]);
            let mut seen = HashSet::new();
            for length in 0..300 {
                for byte in [0, b'x', u8::MAX] {
                    for (chain, tag) in [(0, 1), (0, 2), (1 << 40, 1), (u64::MAX, 10)] {
                        seen.insert(seed.hash(chain, tag, &vec![byte; length]));
                    }
                }
            }
            // The empty name is counted once for all three bytes.
            assert_eq!(seen.len(), (299 * 3 + 1) * 4);
        }
    }
}
