//! Claims of tokens (JWT) that are proven.
//!
//! The algorithm is the one that the settings name; what the token says about it only has to agree. A token
//! that is forged, expired, not yet valid, meant for somebody else, has no `exp`, or must not be used without an
//! extension (`crit`) proves nothing: it counts as no token at all.

#[cfg(any(test, not(feature = "jwt")))]
#[cfg_attr(feature = "jwt", allow(dead_code, reason = "compiled for its tests only"))]
mod disabled;
#[cfg(feature = "jwt")]
mod token_cache;
#[cfg(feature = "jwt")]
mod verifier;

use super::source::IdentitySource;
use serde::Deserialize;
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
    /// The algorithm; a token with any other proves nothing.
    pub algorithm: JwtAlgorithm,
    /// A file with the public key (PEM).
    pub key_file: Option<PathBuf>,
    /// A file with the secret, for HS256 and the like.
    pub secret_file: Option<PathBuf>,
    /// A file with a set of keys (JWKS), of which a token names one by `kid`.
    pub jwks_file: Option<PathBuf>,
    /// Who must have issued it.
    pub issuer: Option<OneOrMany<String>>,
    /// For whom it must be meant.
    pub audience: Option<OneOrMany<String>>,
    /// By how much clocks may differ; 60 s by default.
    pub leeway: Option<DurationText>,
    /// Where the token stands; the bearer token by default.
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

/// The claims that were asked for, in that order.
#[derive(Debug)]
pub(super) struct VerifiedClaims(Vec<Option<Box<str>>>);

impl VerifiedClaims {
    pub(super) fn get(&self, index: usize) -> Option<&str> {
        self.0.get(index)?.as_deref()
    }
}

/// Whether a token that looks like a JWT is spelled as only one is: in base64url without padding, its unused bits zero.
/// Many libraries accept other spellings. Such a token would prove its user to a server, and nobody to us.
pub(super) fn has_one_spelling(token: &str) -> bool {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let is_canonical = |part: &str| {
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
    !is_jwt || token.split('.').all(is_canonical)
}

#[cfg(test)]
mod spelling {
    use super::has_one_spelling;

    #[test]
    fn a_token_has_one_spelling() {
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
            assert_eq!(has_one_spelling(token), expected, "{token}");
        }
    }
}
