//! The `identity:` section of the settings.

use super::client_ip::ClientIpOptions;
use super::jwt::{JwtAlgorithm, JwtOptions};
use super::source::IdentitySource;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::{fmt, io};
use tollgate_core::request::NamedIdentity;

/// Where identities are taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IdentityOptions {
    /// The API key. By default `X-Api-Key`, else the bearer token; with `jwt` it is `X-Api-Key` alone.
    pub api_key: Option<IdentitySources>,
    /// The user.
    pub user: IdentitySources,
    /// The tenant.
    pub tenant: IdentitySources,
    /// The tier. Except for a claim, it is read from trusted peers only.
    pub tier: IdentitySources,
    /// Custom identities by name.
    pub ids: BTreeMap<String, IdentitySources>,
    /// How tokens are verified, for sources that are claims.
    pub jwt: Option<JwtOptions>,
    /// How the client's address is found.
    pub client_ip: ClientIpOptions,
    /// The cost of a request; read from trusted peers only.
    pub cost: Option<TrustedHeader>,
    /// The priority of a request, 0 to 255; read from trusted peers only.
    pub priority: Option<TrustedHeader>,
}

impl IdentityOptions {
    /// The sources of the identity `kind`; none for its default.
    pub(super) fn sources(&self, kind: NamedIdentity) -> Option<&IdentitySources> {
        match kind {
            NamedIdentity::ApiKey => self.api_key.as_ref(),
            NamedIdentity::User => Some(&self.user),
            NamedIdentity::Tenant => Some(&self.tenant),
        }
    }
}

/// A header that is read from trusted peers only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedHeader {
    /// Its name.
    pub header: super::source::ConfiguredHeader,
}

/// The sources of one identity. The first one that has a value counts.
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

/// Why the `identity:` section cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("identity.{field}: {problem}")]
pub struct IdentityError {
    /// The field, such as `jwt.key_file`.
    pub field: String,
    /// What is wrong with it.
    pub problem: IdentityProblem,
}

impl IdentityError {
    pub(super) fn new(field: &str, problem: IdentityProblem) -> Self {
        Self { field: field.to_owned(), problem }
    }
}

/// What is wrong with a field of the `identity:` section.
#[derive(Debug, thiserror::Error)]
pub enum IdentityProblem {
    /// A claim without a `jwt:` section.
    #[error("a claim needs a `jwt:` section that says how tokens are verified")]
    NoJwtSection,
    /// The crate was built without the feature `jwt`.
    #[error("built without JWT support; enable the cargo feature `jwt` of `tollgate-http`")]
    NoJwtSupport,
    /// A source that is no token.
    #[error("a token comes from a header, a cookie or the query, or is the bearer token")]
    NoTokenSource,
    /// A tier that a client can choose.
    #[error("a tier comes from a claim, or from a header of a trusted peer")]
    UntrustedTier,
    /// A header of trusted peers, without any.
    #[error("this header counts from trusted peers only; name them in `client_ip.trusted`")]
    NoTrustedPeers,
    /// No key file, or several.
    #[error("name one of `key_file`, `secret_file` and `jwks_file`")]
    NotOneKeyFile,
    /// A public key for an algorithm with a secret.
    #[error("this algorithm takes a `secret_file` or a `jwks_file`")]
    NeedsSecret,
    /// A secret for an algorithm with public keys.
    #[error("this algorithm takes a `key_file` or a `jwks_file`")]
    NeedsPublicKey,
    /// The key file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    UnreadableKeyFile {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The key file has no public key for the algorithm.
    #[error("no public key for this algorithm in {}: {source}", path.display())]
    NoPublicKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The secret is a public key.
    #[error("a public key is not a secret")]
    PublicKeyAsSecret,
    /// The secret can be guessed.
    #[error("a secret has at least {least_bytes} bytes")]
    ShortSecret {
        /// The shortest that is accepted.
        least_bytes: usize,
    },
    /// The key set is malformed.
    #[error("not a JSON Web Key Set: {0}")]
    InvalidKeySet(#[source] serde_json::Error),
    /// The key set has no key for the algorithm.
    #[error("the key set has no key for {0}")]
    NoKeyInSet(JwtAlgorithm),
}
