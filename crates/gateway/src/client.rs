//! The client of a request, as the limits know it.

use http::HeaderMap;
use std::net::IpAddr;
use std::sync::Arc;
use tollgate_http::RateLimitLayer;
use tollgate_http::identity::IdentityExtractor;
use tollgate_listen::address_prefix;

/// The clients of one connection: its peer, or those that a trusted proxy names.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    peer: IpAddr,
    /// The peer is a trusted proxy.
    behind: Option<Arc<IdentityExtractor>>,
}

impl Clients {
    pub(crate) fn of_peer(peer: IpAddr, limits: &RateLimitLayer) -> Self {
        let identities = limits.identity_extractor();
        let behind = identities.client_ip().trusts(peer).then(|| Arc::clone(identities));
        Self { peer, behind }
    }

    /// The client of a request with these headers: its address, or its network if that is all that tells clients apart.
    pub(crate) fn client(&self, headers: &HeaderMap) -> IpAddr {
        match &self.behind {
            None => address_prefix(self.peer),
            Some(identities) => address_prefix(identities.client_ip().client(self.peer, headers)),
        }
    }
}
