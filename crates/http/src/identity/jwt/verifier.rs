//! Verifies tokens by the keys in a file.

use super::token_cache::TokenCache;
use super::{JwtAlgorithm, JwtOptions, VerifiedClaims};
use crate::identity::options::IdentityError;
use arc_swap::ArcSwap;
use jsonwebtoken::jwk::{JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_core::rate::SECOND_US;
use tollgate_core::rules::short_forms::OneOrMany;
use tollgate_limiter::file;

/// No honest token is longer, and a longer one is not worth a signature check.
const LONGEST_TOKEN: usize = 8 * 1024;
/// How long a token that proves nothing is remembered.
const INVALID_US: u64 = 10 * SECOND_US;
const DEFAULT_LEEWAY_US: u64 = 60 * SECOND_US;
/// A shorter secret can be guessed (RFC 7518 asks for as much as the hash has).
const SHORTEST_SECRET: usize = 32;

/// Verifies tokens.
#[derive(Debug)]
pub(in crate::identity) struct TokenVerifier {
    key_file: JwtKeyFile,
    validation: Validation,
    leeway_us: u64,
    claims: Vec<String>,
    keyring: ArcSwap<JwtKeyring>,
}

/// Keys, and what is known of tokens by them: with new keys, all tokens are verified again.
#[derive(Debug)]
struct JwtKeyring {
    keys: NamedKeys,
    valid: TokenCache<Arc<VerifiedClaims>>,
    /// Apart from the others: made-up tokens must not push out those of busy clients.
    invalid: TokenCache<()>,
}

/// By the names that tokens call them by.
type NamedKeys = Vec<(Option<String>, DecodingKey)>;

impl JwtKeyring {
    fn new(keys: NamedKeys) -> Self {
        Self { keys, valid: TokenCache::new(), invalid: TokenCache::new() }
    }
}

/// Where the keys stand.
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
    /// A set of keys (JWKS).
    Set,
}

impl TokenVerifier {
    /// Reads the keys, from `folder` on, and verifies tokens for these claims.
    pub(in crate::identity) fn open(
        options: &JwtOptions,
        folder: &Path,
        claims: Vec<String>,
    ) -> Result<Self, IdentityError> {
        let algorithm = options.algorithm.algorithm();
        let mut validation = Validation::new(algorithm);
        // Times are checked here, by the clock that decisions are made by.
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

    /// The file that the keys are read from.
    pub(in crate::identity) fn key_file(&self) -> &Path {
        &self.key_file.path
    }

    /// Replaces the keys with what stands in their file now. On an error they stay.
    pub(in crate::identity) fn replace_keys(
        &self,
        content: io::Result<Vec<u8>>,
    ) -> Result<(), IdentityError> {
        let keys = self.key_file.keys(content)?;
        self.keyring.store(Arc::new(JwtKeyring::new(keys)));
        Ok(())
    }

    /// What `token` proves at `now_us`; none if nothing.
    pub(in crate::identity) fn claims(&self, token: &str, now_us: u64) -> Option<Arc<VerifiedClaims>> {
        let keyring = self.keyring.load();
        if let Some(known) = keyring.valid.get(token, now_us) {
            return Some(known);
        }
        if token.len() > LONGEST_TOKEN || keyring.invalid.get(token, now_us).is_some() {
            return None;
        }
        match self.verify(&keyring.keys, token, now_us) {
            Some((claims, until_us)) => {
                keyring.valid.put(token, Arc::clone(&claims), now_us, until_us);
                Some(claims)
            }
            None => {
                keyring.invalid.put(token, (), now_us, now_us.saturating_add(INVALID_US));
                None
            }
        }
    }

    /// The claims, and until when they hold.
    fn verify(&self, keys: &NamedKeys, token: &str, now_us: u64) -> Option<(Arc<VerifiedClaims>, u64)> {
        let key = match keys.as_slice() {
            // A file with one key and no name for it is the key of every token.
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
        // What must be understood to verify a token (RFC 7515, 4.1.11); no such extension is known here.
        if token.header.crit.is_some() {
            return None;
        }
        let found = token.claims;
        let until_us = instant_us(found.get("exp")?)?.saturating_add(self.leeway_us);
        let from_us = match found.get("nbf") {
            Some(nbf) => instant_us(nbf)?.saturating_sub(self.leeway_us),
            None => 0,
        };
        if !(from_us..until_us).contains(&now_us) {
            return None;
        }
        let claims = self.claims.iter().map(|name| claim(&found, name)).collect();
        Some((Arc::new(VerifiedClaims(claims)), until_us))
    }
}

/// Seconds since the epoch, which may have a fraction.
fn instant_us(value: &Value) -> Option<u64> {
    let seconds = value.as_f64()?;
    (seconds >= 0.0).then_some((seconds * SECOND_US as f64) as u64)
}

/// A claim by its name, else by the path that its dots make; none unless it is a text or a number.
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
    /// The one that the options name.
    fn named(options: &JwtOptions, folder: &Path) -> Result<Self, IdentityError> {
        let wrong = |field: &str, message: &str| Err(IdentityError::new(field, message));
        let is_secret = options.algorithm.is_secret();
        let (file, kind) = match (&options.key_file, &options.secret_file, &options.jwks_file) {
            (Some(file), None, None) if !is_secret => (file, JwtKeyKind::Public),
            (None, Some(file), None) if is_secret => (file, JwtKeyKind::Secret),
            (None, None, Some(file)) => (file, JwtKeyKind::Set),
            (Some(_), None, None) => {
                return wrong("jwt.key_file", "this algorithm takes a `secret_file` or a `jwks_file`");
            }
            (None, Some(_), None) => {
                return wrong("jwt.secret_file", "this algorithm takes a `key_file` or a `jwks_file`");
            }
            _ => return wrong("jwt", "name one of `key_file`, `secret_file` and `jwks_file`"),
        };
        Ok(Self { path: folder.join(file), kind, algorithm: options.algorithm })
    }

    fn wrong(&self, message: impl Into<String>) -> IdentityError {
        let field = match self.kind {
            JwtKeyKind::Public => "jwt.key_file",
            JwtKeyKind::Secret => "jwt.secret_file",
            JwtKeyKind::Set => "jwt.jwks_file",
        };
        IdentityError::new(field, message)
    }

    /// The keys in the file's content.
    fn keys(&self, content: io::Result<Vec<u8>>) -> Result<NamedKeys, IdentityError> {
        let path = self.path.display();
        let bytes = content.map_err(|error| self.wrong(format!("cannot read {path}: {error}")))?;
        match self.kind {
            JwtKeyKind::Public => {
                let key = match self.algorithm {
                    JwtAlgorithm::Es256 | JwtAlgorithm::Es384 => DecodingKey::from_ec_pem(&bytes),
                    JwtAlgorithm::EdDsa => DecodingKey::from_ed_pem(&bytes),
                    _ => DecodingKey::from_rsa_pem(&bytes),
                };
                let key =
                    key.map_err(|error| self.wrong(format!("{path} has no such public key: {error}")))?;
                Ok(vec![(None, key)])
            }
            JwtKeyKind::Secret => {
                let secret = bytes.trim_ascii();
                if secret.starts_with(b"-----BEGIN") {
                    return Err(self.wrong("a public key is no secret; everybody has it"));
                }
                if secret.len() < SHORTEST_SECRET {
                    return Err(self.wrong(format!("a secret has at least {SHORTEST_SECRET} bytes")));
                }
                Ok(vec![(None, DecodingKey::from_secret(secret))])
            }
            JwtKeyKind::Set => self.key_set(&bytes),
        }
    }

    /// The keys of a set that fit the algorithm.
    fn key_set(&self, json: &[u8]) -> Result<NamedKeys, IdentityError> {
        let set: JwkSet = serde_json::from_slice(json)
            .map_err(|error| self.wrong(format!("this is no set of keys: {error}")))?;
        let algorithm = self.algorithm.algorithm();
        let mut keys = Vec::new();
        for jwk in &set.keys {
            let signs = !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
            let named = jwk.common.key_algorithm;
            if !signs || named.is_some_and(|named| named.to_string() != format!("{algorithm:?}")) {
                continue;
            }
            // A set may well hold keys of kinds that are of no use here.
            let Ok(key) = DecodingKey::from_jwk(jwk) else { continue };
            let is_weak = algorithm.family() == AlgorithmFamily::Hmac
                && key.try_get_as_bytes().is_ok_and(|secret| secret.len() < SHORTEST_SECRET);
            if key.family() == algorithm.family() && !is_weak {
                keys.push((jwk.common.key_id.clone(), key));
            }
        }
        if keys.is_empty() { Err(self.wrong(format!("it has no key for {algorithm:?}"))) } else { Ok(keys) }
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
