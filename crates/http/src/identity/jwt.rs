//! Claims of verified tokens (JWT).
//!
//! The settings name the algorithm, and the token's own has to be the same. A token that is forged, expired, not yet valid, for
//! another audience, without `exp`, or that requires an extension (`crit`) is invalid, and counts as no token.

#[cfg(any(test, not(feature = "jwt")))]
#[cfg_attr(feature = "jwt", allow(dead_code, reason = "compiled for its tests only"))]
mod disabled;
#[cfg(feature = "jwt")]
mod token_cache;
#[cfg(feature = "jwt")]
mod verifier;

use super::source::IdentitySource;
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;
use tollgate_core::rules::short_forms::{DurationText, OneOrMany};

#[cfg(not(feature = "jwt"))]
pub(super) use disabled::DisabledTokenVerifier as TokenVerifier;
#[cfg(feature = "jwt")]
pub(super) use verifier::TokenVerifier;

/// How tokens are verified.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtOptions {
    /// The algorithm; a token with any other is invalid.
    pub algorithm: JwtAlgorithm,
    /// A file with the public key (PEM).
    pub key_file: Option<PathBuf>,
    /// A file with the secret, for HS256 and the like.
    pub secret_file: Option<PathBuf>,
    /// A file with a JSON Web Key Set; a token names its key by `kid`.
    pub jwks_file: Option<PathBuf>,
    /// The accepted issuers.
    pub issuer: Option<OneOrMany<String>>,
    /// The accepted audiences.
    pub audience: Option<OneOrMany<String>>,
    /// The tolerated clock difference; 60 s by default.
    pub leeway: Option<DurationText>,
    /// The source of the token; the bearer token by default.
    #[serde(default = "bearer")]
    pub token: IdentitySource,
}

fn bearer() -> IdentitySource {
    IdentitySource::Bearer
}

/// A signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "these are the names of RFC 7518")]
pub enum JwtAlgorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// The name of RFC 7518.
impl fmt::Display for JwtAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        })
    }
}

/// The claims that are identities, in the order of their sources.
#[derive(Debug)]
pub(super) struct VerifiedClaims(Vec<Option<Box<str>>>);

impl VerifiedClaims {
    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.0.get(index)?.as_deref()
    }
}

/// Whether a token that looks like a JWT is in canonical form: base64url without padding, its unused bits zero. Many libraries
/// accept other forms. Such a token could be valid to an upstream, and is invalid here.
pub(super) fn is_canonical(token: &str) -> bool {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let is_canonical_part = |part: &str| {
        let digit = |byte: u8| DIGITS.iter().position(|digit| *digit == byte);
        let last = part.bytes().last().and_then(digit).unwrap_or_default();
        let unused = match part.len() % 4 {
            0 => 0,
            2 => 0b1111,
            3 => 0b11,
            _ => return false,
        };
        last & unused == 0 && part.bytes().all(|byte| DIGITS.contains(&byte))
    };
    let is_jwt = token.bytes().filter(|byte| *byte == b'.').count() >= 2;
    !is_jwt || token.split('.').all(is_canonical_part)
}

#[cfg(test)]
mod tests {
    use super::is_canonical;

    #[test]
    fn a_token_has_one_canonical_form() {
        for (token, expected) in [
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAAA", true),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAA", true),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAB", false),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AA", true),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AB", false),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAA=", false),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.A+/A", false),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.A", false),
            ("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", true),
            ("a.b", true),
            ("opaque=", true),
        ] {
            assert_eq!(is_canonical(token), expected, "{token}");
        }
    }
}
