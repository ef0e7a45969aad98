//! Who shares a count: from a request's identities to one 64-bit key.
//!
//! The key is a chain of keyed hashes (PolymurHash under a seed that is drawn once) over the identities
//! that a rule names: the strings are not kept, and who does not know the seed can neither find two
//! clients that share a key nor crowd one part of a table.

use crate::request::Request;
use crate::rules::ClientTraits;
use polymur_hash::PolymurHash;
use std::net::IpAddr;

/// By networks of how many bits IPv6 addresses count. A household has at least 64, and may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    /// Networks of `bits` bits, if that is sensible: from 16, a provider, to 128, a single address.
    pub fn new(bits: u8) -> Option<Self> {
        (16..=128).contains(&bits).then_some(Self(bits))
    }

    /// How many.
    pub fn bits(self) -> u8 {
        self.0
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

/// What a rule can count by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// The API key.
    ApiKey,
    /// The user.
    User,
    /// The tenant.
    Tenant,
    /// The client's address.
    Ip,
    /// The template that the path falls under.
    Route,
    /// A custom identity.
    Custom(String),
}

impl Dimension {
    /// The dimension called `name`.
    pub fn from_name(name: &str) -> Self {
        match name {
            "api_key" => Self::ApiKey,
            "user" => Self::User,
            "tenant" => Self::Tenant,
            "ip" => Self::Ip,
            "route" => Self::Route,
            other => Self::Custom(other.to_owned()),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::ApiKey => "api_key",
            Self::User => "user",
            Self::Tenant => "tenant",
            Self::Ip => "ip",
            Self::Route => "route",
            Self::Custom(name) => name,
        }
    }
}

/// An identity that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity<'a> {
    /// An API key.
    ApiKey(&'a str),
    /// A user.
    User(&'a str),
    /// A tenant.
    Tenant(&'a str),
    /// An address, or the network that it counts by.
    Ip(u128),
    /// A route, by its hash.
    Route(u64),
    /// A custom identity, by name and value.
    Custom(&'a str, &'a str),
    /// Nobody in particular: all such requests share one count.
    Anonymous,
}

/// The identity of `request` in `dimension`, or if it has none, the next in the chain user → API key →
/// address. A request with none of these counts by whatever it names: never is there no limit.
#[inline]
pub fn identity<'a>(
    dimension: &Dimension,
    ipv6_prefix: Ipv6Prefix,
    request: &Request<'a>,
    route: u64,
) -> Identity<'a> {
    let user = || request.user.map(Identity::User);
    let api_key = || request.api_key.map(Identity::ApiKey);
    let ip = || request.ip.map(|ip| Identity::Ip(ip_bits(ip, ipv6_prefix)));
    let found = match dimension {
        Dimension::ApiKey => api_key().or_else(ip),
        Dimension::User => user().or_else(api_key).or_else(ip),
        Dimension::Ip => ip(),
        Dimension::Route => Some(Identity::Route(route)),
        Dimension::Tenant => request.tenant.map(Identity::Tenant),
        Dimension::Custom(name) => request
            .ids
            .iter()
            .find_map(|(known, value)| (known == name).then_some(Identity::Custom(known, value))),
    };
    found.or_else(user).or_else(api_key).or_else(ip).unwrap_or_else(|| last_resort(request))
}

#[cold]
fn last_resort<'a>(request: &Request<'a>) -> Identity<'a> {
    match (request.tenant, request.ids.first()) {
        (Some(tenant), _) => Identity::Tenant(tenant),
        (None, Some((name, value))) => Identity::Custom(name, value),
        (None, None) => Identity::Anonymous,
    }
}

/// An address as it is counted: IPv4 whole (also when mapped into IPv6), IPv6 by its network.
#[inline]
pub fn ip_bits(ip: IpAddr, ipv6_prefix: Ipv6Prefix) -> u128 {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits() & (u128::MAX << (128 - ipv6_prefix.0)),
    }
}

/// The secret under which keys are made.
#[derive(Clone)]
pub struct KeySeed(PolymurHash);

impl std::fmt::Debug for KeySeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(…)")
    }
}

impl KeySeed {
    /// The secret that follows from `random`.
    pub fn new(random: [u64; 2]) -> Self {
        Self(PolymurHash::from_u64x2_seed(random[0], random[1]))
    }

    /// The hashes of one request under this seed.
    #[inline]
    pub fn hashes(&self, request: &Request<'_>) -> RequestHasher<'_> {
        RequestHasher { seed: self, api_key: request.api_key.map(|key| self.hash(0, 1, key.as_bytes())) }
    }

    /// Goes on with `chain`, the hash so far (0 at first), by one identity.
    #[inline]
    pub fn chain(&self, chain: u64, identity: &Identity<'_>) -> u64 {
        match *identity {
            Identity::ApiKey(key) => self.hash(chain, 1, key.as_bytes()),
            Identity::User(user) => self.hash(chain, 2, user.as_bytes()),
            Identity::Tenant(tenant) => self.hash(chain, 3, tenant.as_bytes()),
            Identity::Ip(bits) => self.hash(chain, 4, &bits.to_le_bytes()),
            Identity::Route(route) => self.hash(chain, 5, &route.to_le_bytes()),
            Identity::Custom(name, value) => {
                self.hash(self.hash(chain, 6, name.as_bytes()), 7, value.as_bytes())
            }
            Identity::Anonymous => self.hash(chain, 8, b""),
        }
    }

    /// A key shared by many: the newcomers from one neighbourhood when there is no room for their own.
    pub fn crowd(&self, ip: Option<IpAddr>, crowds: u64) -> u64 {
        let neighbourhood = match ip.map(|ip| ip.to_canonical()) {
            None => 0,
            Some(IpAddr::V4(v4)) => u64::from(v4.to_bits() >> 16) | 1 << 32,
            Some(IpAddr::V6(v6)) => (v6.to_bits() >> 96) as u64 | 2 << 32,
        };
        self.hash(0, 9, &neighbourhood.to_le_bytes()) % crowds
    }

    #[inline]
    fn hash(&self, chain: u64, tag: u64, bytes: &[u8]) -> u64 {
        // The tweak is added to a number of up to 63 bits without a look at overflow: it has 62.
        self.0.hash_with_tweak(bytes, (chain >> 2) ^ tag)
    }
}

/// Whom a request counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHashes {
    /// On whatever route.
    pub client: u64,
    /// On this route, if the rule counts by route.
    pub all: u64,
}

/// The hashes of one request. Nearly every rule counts by the API key, so that one is made once.
#[derive(Clone, Copy, Debug)]
pub struct RequestHasher<'s> {
    seed: &'s KeySeed,
    api_key: Option<u64>,
}

impl RequestHasher<'_> {
    /// Whom a request counts with under a rule that counts by its API key; none if it has none.
    #[inline]
    pub fn api_key(&self) -> Option<u64> {
        self.api_key
    }

    /// Whom `request` counts with under a rule that counts by `dimensions`.
    #[inline(never)]
    pub fn of_key(
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
        let all = if by_route { self.seed.chain(client, &Identity::Route(route)) } else { client };
        KeyHashes { client, all }
    }

    /// What `request` is in the traits that matter.
    #[inline(never)]
    pub fn of_traits(&self, traits: ClientTraits, request: &Request<'_>) -> u64 {
        let mut hash = self.api_key.filter(|_| traits.api_key).unwrap_or(0);
        // Under a tag of its own: a custom identity that happens to be called `tier` states none.
        if let Some(tier) = request.tier.filter(|_| traits.tier) {
            hash = self.seed.hash(hash, 10, tier.as_bytes());
        }
        let mut add = |identity: Option<Identity<'_>>| {
            if let Some(identity) = identity {
                hash = self.seed.chain(hash, &identity);
            }
        };
        add(request.user.filter(|_| traits.user).map(Identity::User));
        add(request.tenant.filter(|_| traits.tenant).map(Identity::Tenant));
        // The whole address: networks may be narrower than what addresses are counted by.
        add(request.ip.filter(|_| traits.ip).map(|ip| Identity::Ip(whole_ip_bits(ip))));
        if traits.ids {
            for (name, value) in request.ids {
                add(Some(Identity::Custom(name, value)));
            }
        }
        hash
    }
}

fn whole_ip_bits(ip: IpAddr) -> u128 {
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
    fn no_length_tag_or_chain_is_taken_for_another() {
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
            // The empty name is the same, whatever byte it is made of.
            assert_eq!(seen.len(), (299 * 3 + 1) * 4);
        }
    }
}
