//! The client's address, behind however many proxies.
//!
//! A proxy adds the address that it was reached from at the right end of a header, behind whatever stood
//! there already. So the header is read from right to left, for as long as the address just read is one of
//! our own proxies. The first that is not is the client: everything left of it was written by strangers.

use super::forwarded::hops;
use crate::headers::{FORWARDED, X_FORWARDED_FOR};
use http::HeaderMap;
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use std::borrow::Cow;
use std::net::IpAddr;
use tollgate_core::rules::pattern::network;

/// Whose word is taken for a client's address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientIpOptions {
    /// The networks of our own proxies. If there are none, the peer is the client.
    pub trusted: Vec<IpNetwork>,
    /// The header that they write.
    pub header: ForwardedHeader,
}

/// The header in which proxies tell whom they were reached from. Only one is read: a proxy that writes one
/// passes the other on as strangers wrote it.
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

impl ClientIpOptions {
    /// Whether `address` is one of our own proxies.
    #[inline]
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|IpNetwork(network)| network.contains(&address))
    }

    /// The client of a request that came from `peer` with these headers.
    #[inline]
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if self.trusts(peer) { self.walk(peer, headers) } else { peer }
    }

    /// The last address of which a proxy of ours said that it was reached from there. What cannot be read
    /// ends the walk: whoever stands left of it is nobody's word.
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
