//! The `identity:` section of the settings.

use super::client_ip::ClientIpOptions;
use super::jwt::JwtOptions;
use super::source::IdentitySource;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Where identities are taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdentityOptions {
    /// The API key. By default `X-Api-Key`, else the bearer token; if there is a `jwt`, bearer tokens are
    /// tokens and no keys, and it is `X-Api-Key` alone.
    pub api_key: Option<IdentitySources>,
    /// The user.
    pub user: IdentitySources,
    /// The tenant.
    pub tenant: IdentitySources,
    /// The tier. Callers do not choose their own: except for a claim, it counts from trusted peers only.
    pub tier: IdentitySources,
    /// Custom identities by name.
    pub ids: BTreeMap<String, IdentitySources>,
    /// How tokens are verified, for sources that are claims.
    pub jwt: Option<JwtOptions>,
    /// How the client's address is found.
    pub client_ip: ClientIpOptions,
    /// A header with the cost of a request; counts from trusted peers only.
    pub cost: Option<TrustedHeader>,
    /// A header with the priority of a request, 0 to 255; counts from trusted peers only.
    pub priority: Option<TrustedHeader>,
}

/// A header that counts from trusted peers only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedHeader {
    /// Its name.
    pub header: super::source::ConfiguredHeader,
}

/// Where one identity is taken from: the first source that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentitySources(pub Vec<IdentitySource>);

impl<'de> Deserialize<'de> for IdentitySources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SourcesVisitor;

        impl<'de> Visitor<'de> for SourcesVisitor {
            type Value = IdentitySources;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a source such as `header: X-User` or `bearer`, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<IdentitySources, E> {
                IdentitySource::plain(text).map(|source| IdentitySources(vec![source]))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<IdentitySources, A::Error> {
                Ok(IdentitySources(IdentitySource::named(map)?.into_iter().collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<IdentitySources, A::Error> {
                let mut sources = Vec::new();
                while let Some(source) = items.next_element()? {
                    sources.push(source);
                }
                Ok(IdentitySources(sources))
            }
        }

        deserializer.deserialize_any(SourcesVisitor)
    }
}

/// Why identities cannot be taken as the settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityError {
    /// The entry of the section that it is about, such as `jwt.key_file`.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl IdentityError {
    pub(super) fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into() }
    }
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "identity.{}: {}", self.field, self.message)
    }
}

impl std::error::Error for IdentityError {}
