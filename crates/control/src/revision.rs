//! Revisions: numbered versions of the rules, with author, time and message.
//!
//! A revision is identified by its number and the digest of its text: a failover of the store can lose the newest revision,
//! and its number may then be used twice.

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use std::fmt;
use tollgate_core::time::UnixTime;

/// Where the text of a revision came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevisionOrigin {
    /// The rule file of a node.
    File,
    /// The built-in example of a node without a rule file.
    Example,
    /// Published by an operator: with REST, the page, a command, or a rollback.
    Published,
}

impl RevisionOrigin {
    /// Its name, as it is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Example => "example",
            Self::Published => "published",
        }
    }
}

impl fmt::Display for RevisionOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A revision without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionSummary {
    /// Its number. A later revision has a higher one; there may be gaps.
    pub number: u64,
    /// The SHA-256 digest of the text, in hexadecimal.
    pub digest: String,
    /// The operator, or `file`.
    pub author: String,
    /// When it was stored.
    #[serde(rename = "time_us", with = "unix_us")]
    pub time: UnixTime,
    /// What the author says about it.
    pub message: String,
    /// Where the text came from.
    pub origin: RevisionOrigin,
}

impl RevisionSummary {
    /// What tells it from all others.
    pub fn id(&self) -> RevisionId {
        RevisionId { number: self.number, digest: self.digest.clone() }
    }
}

/// What tells a revision from all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionId {
    /// Its number.
    pub number: u64,
    /// The digest of its text.
    pub digest: String,
}

/// A revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRevision {
    /// Everything but the text.
    pub summary: RevisionSummary,
    /// The rules, in YAML.
    pub text: String,
}

/// What becomes a revision when it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionDraft {
    /// The rules, in YAML.
    pub text: String,
    /// The operator, or `file`.
    pub author: String,
    /// What the author says about it.
    pub message: String,
    /// Where the text came from.
    pub origin: RevisionOrigin,
}

impl RevisionDraft {
    /// The revision with this number, stored at `time`.
    pub(crate) fn numbered(self, number: u64, time: UnixTime) -> StoredRevision {
        let Self { text, author, message, origin } = self;
        let digest = text_digest(&text);
        StoredRevision { summary: RevisionSummary { number, digest, author, time, message, origin }, text }
    }
}

/// The digest of a rule text: SHA-256 in hexadecimal.
pub fn text_digest(text: &str) -> String {
    hexadecimal(digest(&SHA256, text.as_bytes()).as_ref())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Stored times are microseconds since the Unix epoch.
pub(crate) mod unix_us {
    use serde::{Deserialize, Deserializer, Serializer};
    use tollgate_core::time::UnixTime;

    pub(crate) fn serialize<S: Serializer>(time: &UnixTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(time.as_us())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixTime, D::Error> {
        u64::deserialize(deserializer).map(UnixTime::from_us)
    }
}

/// The same for times that may be missing.
pub(crate) mod optional_unix_us {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tollgate_core::time::UnixTime;

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<UnixTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(UnixTime::as_us).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<UnixTime>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(UnixTime::from_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha256_in_hexadecimal() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(text_digest("abc"), expected);
    }

    #[test]
    fn a_summary_is_stored_as_json() {
        let draft = RevisionDraft {
            text: "rules: []".to_owned(),
            author: "ana".to_owned(),
            message: "fewer \"logins\"\n".to_owned(),
            origin: RevisionOrigin::Published,
        };
        let revision = draft.numbered(7, UnixTime::from_us(1_700_000_000_000_001));
        let stored = serde_json::to_string(&revision.summary).unwrap();
        assert!(stored.contains(r#""origin":"published""#), "{stored}");
        assert_eq!(serde_json::from_str::<RevisionSummary>(&stored).unwrap(), revision.summary);
    }
}
