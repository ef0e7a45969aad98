//! Tokens with generated keys.

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::{KeyPair as RsaKey, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING};
use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use std::path::Path;

pub const SECRET: &[u8] = b"a secret of thirty-two bytes, at least";

/// A signing key and its public part.
pub struct Signer {
    pub algorithm: Algorithm,
    pub name: &'static str,
    key: EncodingKey,
    /// The public key as a file for `key_file`, or the secret for `secret_file`.
    pub file: Vec<u8>,
    jwk: Value,
}

impl Signer {
    pub fn hs256() -> Self {
        Self {
            algorithm: Algorithm::HS256,
            name: "HS256",
            key: EncodingKey::from_secret(SECRET),
            file: [SECRET, b"\n"].concat(),
            jwk: json!({"kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET)}),
        }
    }

    pub fn rs256() -> Self {
        let key = RsaKey::generate(KeySize::Rsa2048).unwrap();
        let public: Vec<u8> = AsDer::<aws_lc_rs::encoding::PublicKeyX509Der<'_>>::as_der(key.public_key())
            .unwrap()
            .as_ref()
            .to_vec();
        let (n, e) = (key.public_key().modulus(), key.public_key().exponent());
        let big_endian = |number: &[u8]| {
            URL_SAFE_NO_PAD.encode(&number[number.iter().position(|byte| *byte != 0).unwrap_or(0)..])
        };
        let jwk = json!({
            "kty": "RSA",
            "n": big_endian(n.big_endian_without_leading_zero()),
            "e": big_endian(e.big_endian_without_leading_zero()),
        });
        let private: Vec<u8> =
            AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&key).unwrap().as_ref().to_vec();
        let key = EncodingKey::from_rsa_pem(pem("PRIVATE KEY", &private).as_bytes()).unwrap();
        Self { algorithm: Algorithm::RS256, name: "RS256", key, file: pem("PUBLIC KEY", &public).into(), jwk }
    }

    pub fn es(algorithm: Algorithm) -> Self {
        let (scheme, name, curve) = match algorithm {
            Algorithm::ES384 => (&ECDSA_P384_SHA384_FIXED_SIGNING, "ES384", "P-384"),
            _ => (&ECDSA_P256_SHA256_FIXED_SIGNING, "ES256", "P-256"),
        };
        let pair = EcdsaKeyPair::generate(scheme).unwrap();
        let private = pair.to_pkcs8v1().unwrap();
        let point = pair.public_key().as_ref();
        let (x, y) = point[1..].split_at(point.len() / 2);
        let jwk = json!({
            "kty": "EC", "crv": curve,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        });
        let public: Vec<u8> = AsDer::<aws_lc_rs::encoding::PublicKeyX509Der<'_>>::as_der(pair.public_key())
            .unwrap()
            .as_ref()
            .to_vec();
        let key = EncodingKey::from_ec_der(private.as_ref());
        Self { algorithm, name, key, file: pem("PUBLIC KEY", &public).into(), jwk }
    }

    pub fn eddsa() -> Self {
        let pair = Ed25519KeyPair::generate().unwrap();
        let private = pair.to_pkcs8v1().unwrap();
        let jwk = json!({
            "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(pair.public_key()),
        });
        let public: Vec<u8> = AsDer::<aws_lc_rs::encoding::PublicKeyX509Der<'_>>::as_der(pair.public_key())
            .unwrap()
            .as_ref()
            .to_vec();
        let key = EncodingKey::from_ed_der(private.as_ref());
        Self { algorithm: Algorithm::EdDSA, name: "EdDSA", key, file: pem("PUBLIC KEY", &public).into(), jwk }
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(None, claims)
    }

    pub fn sign_as(&self, kid: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: kid.map(str::to_owned), ..Header::new(self.algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }

    /// Validly signed, but with extensions that a verifier must support.
    pub fn sign_critical(&self, extension: &[&str], claims: &Value) -> String {
        let crit = Some(extension.iter().map(|name| (*name).to_owned()).collect());
        encode(&Header { crit, ..Header::new(self.algorithm) }, claims, &self.key).unwrap()
    }

    /// Its entry in a key set.
    pub fn jwk(&self, kid: &str) -> Value {
        let mut jwk = self.jwk.clone();
        jwk["kid"] = kid.into();
        jwk["alg"] = self.name.into();
        jwk
    }

    /// Writes the key file, and returns the setting that names it.
    pub fn publish(&self, folder: &Path) -> String {
        std::fs::write(folder.join("key"), &self.file).unwrap();
        let field = if self.algorithm == Algorithm::HS256 { "secret_file" } else { "key_file" };
        format!("{{ algorithm: {}, {field}: key", self.name)
    }
}

/// A token without a signature.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.", part(header), part(claims))
}

/// A token signed with any bytes as an HS256 secret.
pub fn hs256_with(secret: &[u8], claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(secret)).unwrap()
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
