//! The identities of a client by kind and value, as operators name them and as nodes tell each other.

use std::net::IpAddr;
use tollgate_core::request::{NamedIdentity, Request};

/// More identities than this are not kept.
const MOST_IDENTITIES: usize = 16;

/// Kinds and values: `api_key`, `user`, `tenant`, `ip`, or a custom identity.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientIdentities(pub Vec<(String, String)>);

impl ClientIdentities {
    /// One identity.
    pub fn one(kind: &str, value: &str) -> Self {
        Self(vec![(kind.to_owned(), value.to_owned())])
    }

    /// Those of `request`.
    pub fn of(request: &Request<'_>) -> Self {
        let named =
            NamedIdentity::ALL.into_iter().filter_map(|kind| Some((kind.name(), request.named(kind)?)));
        let custom = request.ids.iter().map(|(name, value)| (*name, *value));
        let texts = named.chain(custom).map(|(kind, value)| (kind.to_owned(), value.to_owned()));
        let ip = request.ip.map(|ip| ("ip".to_owned(), ip.to_canonical().to_string()));
        Self(texts.chain(ip).take(MOST_IDENTITIES).collect())
    }

    /// Calls `with` with a request that has these identities. An address that cannot be read is left out.
    pub fn with_request<T>(&self, with: impl FnOnce(&Request<'_>) -> T) -> T {
        let mut request = Request::default();
        let mut ids = Vec::new();
        for (kind, value) in self.0.iter().take(MOST_IDENTITIES) {
            match NamedIdentity::ALL.into_iter().find(|named| named.name() == kind) {
                Some(named) => *request.named_mut(named) = Some(value),
                None if kind == "ip" => request.ip = value.parse::<IpAddr>().ok(),
                None => ids.push((kind.as_str(), value.as_str())),
            }
        }
        with(&Request { ids: &ids, ..request })
    }
}

/// The kinds alone: a value may be an API key.
impl std::fmt::Debug for ClientIdentities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(kind, _)| kind)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_same_identities_again() {
        let request = Request {
            api_key: Some("k"),
            tenant: Some("t"),
            ip: Some([192, 0, 2, 1].into()),
            ids: &[("invoice", "EU-1")],
            ..Request::default()
        };
        let identities = ClientIdentities::of(&request);
        identities.with_request(|again| {
            assert_eq!((again.api_key, again.user, again.tenant), (Some("k"), None, Some("t")));
            assert_eq!((again.ip, again.ids), (request.ip, request.ids));
        });
        assert!(!format!("{identities:?}").contains("EU-1"));
        ClientIdentities::one("ip", "not an address").with_request(|none| assert!(!none.has_identity()));
    }
}
