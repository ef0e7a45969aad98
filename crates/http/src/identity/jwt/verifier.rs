//! Verifies tokens with the keys of a file.

use super::token_cache::TokenCache;
use super::{JwtAlgorithm, JwtOptions, VerifiedClaims};
use crate::identity::options::{IdentityError, IdentityProblem};
use arc_swap::ArcSwap;
use jsonwebtoken::jwk::{JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_core::rate::SECOND_US;
use tollgate_core::rules::short_forms::OneOrMany;
use tollgate_core::time::UnixTime;
use tollgate_limiter::file;

/// Longer tokens are invalid without a check of their signature.
const LONGEST_TOKEN: usize = 8 * 1024;
/// How long an invalid token is cached.
const INVALID_US: u64 = 10 * SECOND_US;
const DEFAULT_LEEWAY_US: u64 = 60 * SECOND_US;
/// A shorter secret can be guessed (RFC 7518 requires the length of the hash).
const SHORTEST_SECRET: usize = 32;

/// Verifies tokens, and caches the results.
#[derive(Debug)]
pub(in crate::identity) struct TokenVerifier {
    key_file: JwtKeyFile,
    validation: Validation,
    leeway_us: u64,
    claims: Vec<String>,
    keyring: ArcSwap<JwtKeyring>,
}

/// The keys in force, and the tokens that were verified with them.
#[derive(Debug)]
struct JwtKeyring {
    keys: NamedKeys,
    valid: TokenCache<Arc<VerifiedClaims>>,
    /// In a cache of their own: invented tokens must not evict those of busy clients.
    invalid: TokenCache<()>,
}

/// Keys by the `kid` of their tokens.
type NamedKeys = Vec<(Option<String>, DecodingKey)>;

impl JwtKeyring {
    fn new(keys: NamedKeys) -> Self {
        Self { keys, valid: TokenCache::new(), invalid: TokenCache::new() }
    }
}

/// The file with the keys.
#[derive(Clone, Debug)]
struct JwtKeyFile {
    path: PathBuf,
    kind: JwtKeyKind,
    algorithm: JwtAlgorithm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JwtKeyKind {
    /// A public key (PEM).
    Public,
    Secret,
    /// A JSON Web Key Set.
    Set,
}

impl TokenVerifier {
    /// Reads the key file; relative paths start from `folder`. `claims` are those that [`Self::claims`] returns.
    pub(in crate::identity) fn open(
        options: &JwtOptions,
        folder: &Path,
        claims: Vec<String>,
    ) -> Result<Self, IdentityError> {
        let algorithm = options.algorithm.algorithm();
        let mut validation = Validation::new(algorithm);
        // Times are checked in `verify`, by the limiter's clock.
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        validation.required_spec_claims.clear();
        validation.validate_aud = options.audience.is_some();
        if let Some(OneOrMany(audience)) = &options.audience {
            validation.set_audience(audience);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        if let Some(OneOrMany(issuer)) = &options.issuer {
            validation.set_issuer(issuer);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        let key_file = JwtKeyFile::named(options, folder)?;
        let keys = key_file.keys(file::read(&key_file.path))?;
        Ok(Self {
            key_file,
            validation,
            leeway_us: options.leeway.map_or(DEFAULT_LEEWAY_US, |leeway| leeway.us),
            claims,
            keyring: ArcSwap::from_pointee(JwtKeyring::new(keys)),
        })
    }

    /// The key file.
    pub(in crate::identity) fn key_file(&self) -> &Path {
        &self.key_file.path
    }

    /// Replaces the keys with the content of their file. On an error the old keys stay in force.
    pub(in crate::identity) fn replace_keys(
        &self,
        content: io::Result<Vec<u8>>,
    ) -> Result<(), IdentityError> {
        let keys = self.key_file.keys(content)?;
        self.keyring.store(Arc::new(JwtKeyring::new(keys)));
        Ok(())
    }

    /// The claims of `token`; none if it is invalid at `now`.
    pub(in crate::identity) fn claims(&self, token: &str, now: UnixTime) -> Option<Arc<VerifiedClaims>> {
        let keyring = self.keyring.load();
        if let Some(claims) = keyring.valid.get(token, now) {
            return Some(claims);
        }
        if token.len() > LONGEST_TOKEN || keyring.invalid.get(token, now).is_some() {
            return None;
        }
        match self.verify(&keyring.keys, token, now) {
            Some((claims, until)) => {
                keyring.valid.put(token, Arc::clone(&claims), now, until);
                Some(claims)
            }
            None => {
                keyring.invalid.put(token, (), now, now + INVALID_US);
                None
            }
        }
    }

    /// The claims, and when they expire.
    fn verify(
        &self,
        keys: &NamedKeys,
        token: &str,
        now: UnixTime,
    ) -> Option<(Arc<VerifiedClaims>, UnixTime)> {
        let key = match keys.as_slice() {
            // A single key without a name is the key of every token.
            [(None, key)] => key,
            keys => {
                let kid = decode_header(token).ok()?.kid;
                match (&kid, keys) {
                    (None, [(_, key)]) => key,
                    _ => &keys.iter().find(|(name, _)| name.is_some() && *name == kid)?.1,
                }
            }
        };
        let token = decode::<Map<String, Value>>(token, key, &self.validation).ok()?;
        // Extensions that a verifier must understand (RFC 7515, 4.1.11); none is supported.
        if token.header.crit.is_some() {
            return None;
        }
        let found = token.claims;
        let until = UnixTime::from_us(instant_us(found.get("exp")?)?) + self.leeway_us;
        let from_us = match found.get("nbf") {
            Some(nbf) => instant_us(nbf)?.saturating_sub(self.leeway_us),
            None => 0,
        };
        if !(UnixTime::from_us(from_us)..until).contains(&now) {
            return None;
        }
        let claims = self.claims.iter().map(|name| claim(&found, name)).collect();
        Some((Arc::new(VerifiedClaims(claims)), until))
    }
}

/// Unix seconds, which may have a fraction.
fn instant_us(value: &Value) -> Option<u64> {
    let seconds = value.as_f64()?;
    (seconds >= 0.0).then_some((seconds * SECOND_US as f64) as u64)
}

/// A claim by its name, else by its name as a path with dots; none unless it is a string or a number.
fn claim(claims: &Map<String, Value>, name: &str) -> Option<Box<str>> {
    let nested = || {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
    };
    match claims.get(name).or_else(nested)? {
        Value::String(text) if !text.is_empty() => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

impl JwtKeyFile {
    /// The key file that the options name.
    fn named(options: &JwtOptions, folder: &Path) -> Result<Self, IdentityError> {
        let is_secret = options.algorithm.is_secret();
        let (file, kind) = match (&options.key_file, &options.secret_file, &options.jwks_file) {
            (Some(file), None, None) if !is_secret => (file, JwtKeyKind::Public),
            (None, Some(file), None) if is_secret => (file, JwtKeyKind::Secret),
            (None, None, Some(file)) => (file, JwtKeyKind::Set),
            (Some(_), None, None) => {
                return Err(IdentityError::new("jwt.key_file", IdentityProblem::NeedsSecret));
            }
            (None, Some(_), None) => {
                return Err(IdentityError::new("jwt.secret_file", IdentityProblem::NeedsPublicKey));
            }
            _ => return Err(IdentityError::new("jwt", IdentityProblem::NotOneKeyFile)),
        };
        Ok(Self { path: folder.join(file), kind, algorithm: options.algorithm })
    }

    fn error(&self, problem: IdentityProblem) -> IdentityError {
        let field = match self.kind {
            JwtKeyKind::Public => "jwt.key_file",
            JwtKeyKind::Secret => "jwt.secret_file",
            JwtKeyKind::Set => "jwt.jwks_file",
        };
        IdentityError::new(field, problem)
    }

    /// The keys in the content of the file.
    fn keys(&self, content: io::Result<Vec<u8>>) -> Result<NamedKeys, IdentityError> {
        self.parse(content).map_err(|problem| self.error(problem))
    }

    fn parse(&self, content: io::Result<Vec<u8>>) -> Result<NamedKeys, IdentityProblem> {
        let path = || self.path.clone();
        let bytes = content.map_err(|source| IdentityProblem::UnreadableKeyFile { path: path(), source })?;
        match self.kind {
            JwtKeyKind::Public => {
                let key = match self.algorithm {
                    JwtAlgorithm::Es256 | JwtAlgorithm::Es384 => DecodingKey::from_ec_pem(&bytes),
                    JwtAlgorithm::EdDsa => DecodingKey::from_ed_pem(&bytes),
                    _ => DecodingKey::from_rsa_pem(&bytes),
                };
                let key =
                    key.map_err(|error| IdentityProblem::NoPublicKey { path: path(), source: error.into() })?;
                Ok(vec![(None, key)])
            }
            JwtKeyKind::Secret => {
                let secret = bytes.trim_ascii();
                if secret.starts_with(b"-----BEGIN") {
                    return Err(IdentityProblem::PublicKeyAsSecret);
                }
                if secret.len() < SHORTEST_SECRET {
                    return Err(IdentityProblem::ShortSecret { least_bytes: SHORTEST_SECRET });
                }
                Ok(vec![(None, DecodingKey::from_secret(secret))])
            }
            JwtKeyKind::Set => self.parse_key_set(&bytes),
        }
    }

    /// The keys of the algorithm in a set.
    fn parse_key_set(&self, json: &[u8]) -> Result<NamedKeys, IdentityProblem> {
        let set: JwkSet = serde_json::from_slice(json).map_err(IdentityProblem::InvalidKeySet)?;
        let algorithm = self.algorithm.algorithm();
        let mut keys = Vec::new();
        for jwk in &set.keys {
            let signs = !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
            let named = jwk.common.key_algorithm;
            if !signs || named.is_some_and(|named| named.to_string() != self.algorithm.to_string()) {
                continue;
            }
            // A set may hold keys of other kinds.
            let Ok(key) = DecodingKey::from_jwk(jwk) else { continue };
            let is_weak = algorithm.family() == AlgorithmFamily::Hmac
                && key.try_get_as_bytes().is_ok_and(|secret| secret.len() < SHORTEST_SECRET);
            if key.family() == algorithm.family() && !is_weak {
                keys.push((jwk.common.key_id.clone(), key));
            }
        }
        if keys.is_empty() { Err(IdentityProblem::NoKeyInSet(self.algorithm)) } else { Ok(keys) }
    }
}

impl JwtAlgorithm {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::Hs256 => Algorithm::HS256,
            Self::Hs384 => Algorithm::HS384,
            Self::Hs512 => Algorithm::HS512,
            Self::Rs256 => Algorithm::RS256,
            Self::Rs384 => Algorithm::RS384,
            Self::Rs512 => Algorithm::RS512,
            Self::Ps256 => Algorithm::PS256,
            Self::Ps384 => Algorithm::PS384,
            Self::Ps512 => Algorithm::PS512,
            Self::Es256 => Algorithm::ES256,
            Self::Es384 => Algorithm::ES384,
            Self::EdDsa => Algorithm::EdDSA,
        }
    }

    fn is_secret(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}
