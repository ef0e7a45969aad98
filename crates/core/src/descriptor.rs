//! Envoy descriptors as requests: what each entry of a descriptor means.
//!
//! A descriptor is a list of entries such as `("user", "ann"), ("path", "/v1/orders")`. Some keys name an identity or a
//! property that rules know; every other entry is a custom identity of that name.

use crate::path::{self, PathError};
use crate::request::{Method, NamedIdentity, Request};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::net::IpAddr;

/// What an entry of a descriptor means, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryMeaning {
    /// An identity with its own field: `api_key`, `user`, `tenant`.
    Named(NamedIdentity),
    /// The client's address: `remote_address` or `ip`.
    Address,
    /// The path: `path`, `endpoint` or `route`.
    Endpoint,
    /// The method: `method`.
    Method,
    /// A custom identity.
    Custom,
}

impl EntryMeaning {
    /// The meaning of entries with this key.
    pub fn of(key: &str) -> Self {
        match key {
            "remote_address" | "ip" => Self::Address,
            "path" | "endpoint" | "route" => Self::Endpoint,
            "method" => Self::Method,
            _ => match NamedIdentity::ALL.into_iter().find(|kind| kind.name() == key) {
                Some(kind) => Self::Named(kind),
                None => Self::Custom,
            },
        }
    }
}

/// A descriptor, decoded. [`Self::request`] borrows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorFields<'a> {
    named: SmallVec<[(NamedIdentity, &'a str); 2]>,
    ip: Option<IpAddr>,
    endpoint: Option<Cow<'a, str>>,
    method: Option<Method>,
    ids: SmallVec<[(&'a str, &'a str); 2]>,
}

/// Why a descriptor cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// The path is refused at every door.
    Path(PathError),
}

impl std::fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(error) => write!(f, "the path of the descriptor is refused: {error}"),
        }
    }
}

impl std::error::Error for DescriptorError {}

impl<'a> DescriptorFields<'a> {
    /// Decodes the entries of a descriptor, as (key, value). Of two entries with the same meaning, or the same key, the
    /// first counts. An address that cannot be parsed is a custom identity.
    pub fn decode(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, DescriptorError> {
        let mut fields = Self::default();
        // Kept for a descriptor that has no identity.
        let mut spare = None;
        for (key, value) in entries {
            let meaning = EntryMeaning::of(key);
            let ip = if meaning == EntryMeaning::Address { value.parse::<IpAddr>().ok() } else { None };
            match (meaning, ip) {
                (EntryMeaning::Named(kind), _) => {
                    if fields.named.iter().all(|(known, _)| *known != kind) {
                        fields.named.push((kind, value));
                    }
                }
                (EntryMeaning::Address, Some(ip)) => fields.ip = fields.ip.or(Some(ip)),
                (EntryMeaning::Endpoint, _) => {
                    if fields.endpoint.is_none() {
                        fields.endpoint = Some(path::endpoint(value).map_err(DescriptorError::Path)?);
                    }
                    spare = spare.or(Some((key, value)));
                }
                (EntryMeaning::Method, _) => {
                    fields.method = fields.method.or(Some(Method::from_name(value)));
                    spare = spare.or(Some((key, value)));
                }
                (EntryMeaning::Address | EntryMeaning::Custom, _) => {
                    if fields.ids.iter().all(|(known, _)| *known != key) {
                        fields.ids.push((key, value));
                    }
                }
            }
        }
        // A request needs an identity, and `("path", "/login")` alone is a valid descriptor.
        if fields.named.is_empty() && fields.ip.is_none() && fields.ids.is_empty() {
            fields.ids.extend(spare);
        }
        Ok(fields)
    }

    /// As a request of `domain` with this cost.
    pub fn request<'r>(&'r self, domain: &'r str, cost: u64) -> Request<'r> {
        let mut request = Request {
            ip: self.ip,
            ids: &self.ids,
            domain: Some(domain),
            endpoint: self.endpoint.as_deref().unwrap_or_default(),
            method: self.method,
            cost,
            ..Request::default()
        };
        for (kind, value) in &self.named {
            *request.named_mut(*kind) = Some(value);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_identities_and_properties() {
        let entries = [
            ("api_key", "k"),
            ("user", "ann"),
            ("remote_address", "203.0.113.9"),
            ("path", "//v1/./orders"),
            ("method", "post"),
            ("generic_key", "checkout"),
            ("user", "ben"),
        ];
        let fields = DescriptorFields::decode(entries).unwrap();
        let request = fields.request("edge", 3);
        assert_eq!((request.api_key, request.user, request.tenant), (Some("k"), Some("ann"), None));
        assert_eq!(request.ip, Some([203, 0, 113, 9].into()));
        assert_eq!((request.endpoint, request.method), ("/v1/orders", Some(Method::Post)));
        assert_eq!(request.ids, [("generic_key", "checkout")]);
        assert_eq!((request.domain, request.cost), (Some("edge"), 3));
    }

    #[test]
    fn every_descriptor_has_an_identity() {
        for entries in [[("path", "/login")], [("method", "GET")], [("ip", "not an address")]] {
            let fields = DescriptorFields::decode(entries).unwrap();
            assert!(fields.request("edge", 1).has_identity(), "{entries:?}");
        }
        assert!(DescriptorFields::decode([("path", "/a%2fb")]).is_err());
    }
}
