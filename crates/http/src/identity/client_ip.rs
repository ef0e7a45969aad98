//! The client's address behind any number of proxies.
//!
//! A proxy appends the address of its client at the right end of a header. So the header is read from right to left, for as long
//! as the address is one of a trusted proxy. The first other address is the client: everything to the left of it may be forged.

use super::forwarded::hops;
use crate::headers::{FORWARDED, X_FORWARDED_FOR};
use http::HeaderMap;
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use std::borrow::Cow;
use std::net::IpAddr;
use tollgate_core::rules::pattern::network;

/// How the client's address is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientIpOptions {
    /// The networks of trusted proxies. Without any, the peer is the client.
    pub trusted: Vec<IpNetwork>,
    /// The header that these proxies write.
    pub header: ForwardedHeader,
}

/// The header to which proxies append the address of their client. Only one is read: a proxy that writes one passes the other on
/// as its client sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeader {
    /// `X-Forwarded-For: 203.0.113.9, 10.0.0.1`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.9, for="[2001:db8::1]:443"` (RFC 7239)
    Forwarded,
}

/// A network, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork(pub IpNet);

impl<'de> Deserialize<'de> for IpNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        network(&text).map(Self).ok_or_else(|| {
            de::Error::custom(format_args!(
                "`{text}` is not an address or a network; write it like 10.0.0.0/8 or 2001:db8::/32"
            ))
        })
    }
}

/// Whether `address` is in one of `networks`.
#[inline]
pub(crate) fn contains(networks: &[IpNetwork], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|IpNetwork(network)| network.contains(&address))
}

/// The last address in `X-Forwarded-For`: the peer of the proxy that wrote it. None if it does not end with an address.
pub(crate) fn last_hop(headers: &HeaderMap) -> Option<IpAddr> {
    for line in headers.get_all(&X_FORWARDED_FOR).iter().rev() {
        if let Some(hop) = hops(ForwardedHeader::XForwardedFor, line.to_str().ok()?).next() {
            return hop;
        }
    }
    None
}

impl ClientIpOptions {
    /// Whether `address` is one of a trusted proxy.
    #[inline]
    pub fn trusts(&self, address: IpAddr) -> bool {
        contains(&self.trusted, address)
    }

    /// The client of a request that came from `peer` with these headers.
    #[inline]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if self.trusts(peer) { self.walk(peer, headers) } else { peer }
    }

    /// Walks to the leftmost address that a trusted proxy has written. What is no address ends the walk: what is left of it cannot be
    /// trusted.
    fn walk(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let name = match self.header {
            ForwardedHeader::XForwardedFor => &X_FORWARDED_FOR,
            ForwardedHeader::Forwarded => &FORWARDED,
        };
        let mut client = peer;
        for line in headers.get_all(name).iter().rev() {
            let Ok(line) = line.to_str() else { return client };
            for hop in hops(self.header, line) {
                match hop {
                    Some(address) => client = address.to_canonical(),
                    None => return client,
                }
                if !self.trusts(client) {
                    return client;
                }
            }
        }
        client
    }
}
