//! Random secrets, and the digests by which they are compared and stored.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use std::fmt;

const RANDOM_BYTES: usize = 32;

/// A secret as text. It is not shown in `Debug` output.
#[derive(Clone)]
pub(crate) struct SecretText(String);

/// The SHA-256 of a secret. Secrets have 256 random bits, so that no slower hash is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SecretDigest([u8; 32]);

impl SecretText {
    /// A new one; none if the system has no random numbers.
    pub(crate) fn random() -> Option<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        aws_lc_rs::rand::fill(&mut bytes).ok()?;
        Some(Self(hex(&bytes)))
    }

    /// A token that programs which search for leaked secrets recognise.
    pub(crate) fn random_token() -> Option<Self> {
        Self::random().map(|Self(text)| Self(format!("tollgate_{text}")))
    }

    /// One that was read from a file.
    pub(crate) fn read(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn digest(&self) -> SecretDigest {
        SecretDigest::of(&self.0)
    }
}

impl SecretDigest {
    pub(crate) fn of(secret: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
        Self(bytes)
    }

    /// In hexadecimal digits, as it is stored.
    pub(crate) fn to_hex(self) -> String {
        hex(&self.0)
    }

    /// Whether `stored`, in hexadecimal digits, is this digest. The time does not depend on where they differ.
    pub(crate) fn matches_hex(self, stored: &str) -> bool {
        verify_slices_are_equal(self.to_hex().as_bytes(), stored.as_bytes()).is_ok()
    }

    /// The same for a digest.
    pub(crate) fn matches(self, stored: Self) -> bool {
        verify_slices_are_equal(&self.0, &stored.0).is_ok()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(***)")
    }
}

impl fmt::Debug for SecretDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretDigest(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_random_and_not_shown() {
        let (one, other) = (SecretText::random_token().unwrap(), SecretText::random_token().unwrap());
        assert_ne!(one.as_str(), other.as_str());
        assert_eq!(one.as_str().len(), "tollgate_".len() + 64);
        assert!(one.digest().matches_hex(&one.digest().to_hex()) && one.digest().matches(one.digest()));
        assert!(!one.digest().matches_hex(&other.digest().to_hex()) && !one.digest().matches(other.digest()));
        assert!(!one.digest().matches_hex(""));
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(SecretDigest::of("abc").to_hex(), abc);
        assert!(!format!("{one:?}{:?}", one.digest()).contains(&one.as_str()[9..12]));
    }
}
