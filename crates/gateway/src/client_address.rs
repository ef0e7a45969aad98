//! The client address of a request, as the limits see it.

use http::HeaderMap;
use std::net::IpAddr;
use std::sync::Arc;
use tollgate_http::RateLimitLayer;
use tollgate_http::identity::IdentityExtractor;
use tollgate_listen::address_prefix;

/// The client addresses of one connection: its peer, or what a trusted proxy says.
#[derive(Clone, Debug)]
pub(crate) struct ClientAddresses {
    peer: IpAddr,
    /// Set if the peer is a trusted proxy.
    proxied: Option<Arc<IdentityExtractor>>,
}

impl ClientAddresses {
    pub(crate) fn of_peer(peer: IpAddr, limits: &RateLimitLayer) -> Self {
        let identities = limits.identity_extractor();
        let proxied = identities.client_ip().trusts(peer).then(|| Arc::clone(identities));
        Self { peer, proxied }
    }

    /// The client of a request with these headers: its address, or its network where only networks tell clients apart.
    pub(crate) fn client(&self, headers: &HeaderMap) -> IpAddr {
        address_prefix(self.address(headers))
    }

    /// The address of the client of a request with these headers.
    pub(crate) fn address(&self, headers: &HeaderMap) -> IpAddr {
        match &self.proxied {
            None => self.peer,
            Some(identities) => identities.client_ip().client(self.peer, headers),
        }
    }
}
