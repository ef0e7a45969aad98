//! Access tokens of the control plane, as they are stored: without the secret.

use crate::revision::{optional_unix_us, unix_us};
use serde::{Deserialize, Serialize};
use std::fmt;
use tollgate_core::time::UnixTime;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenRole {
    /// Reading.
    Read,
    /// What a node needs that follows this control plane: reading the rules, their changes and the control state, and
    /// posting its status.
    Follow,
    /// Everything.
    Operate,
}

impl TokenRole {
    /// Its name, as it is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Follow => "follow",
            Self::Operate => "operate",
        }
    }
}

impl fmt::Display for TokenRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A token as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    /// Its id, which is not secret.
    pub id: String,
    /// What it is called: the author of revisions, the actor in the audit log.
    pub name: String,
    /// What it allows.
    pub role: TokenRole,
    /// The hash of the secret, in hexadecimal.
    pub hash: String,
    /// When it was created.
    #[serde(rename = "created_us", with = "unix_us")]
    pub created: UnixTime,
    /// When it expires; none for never.
    #[serde(rename = "expires_us", with = "optional_unix_us", default)]
    pub expires: Option<UnixTime>,
}
