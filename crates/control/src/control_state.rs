//! The control state: what operators set beside the rules, for all nodes of a repository. It is one small document with a
//! version of its own.

use crate::revision::unix_us;
use serde::{Deserialize, Serialize};
use tollgate_core::time::UnixTime;
use utoipa::ToSchema;

/// The most grants at one time.
pub const MOST_GRANTS: usize = 1_000;

/// What operators set beside the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ControlState {
    /// Counts the changes.
    pub version: u64,
    /// When each client address is limited; none for the setting of each node.
    pub emergency: Option<EmergencySwitch>,
    /// Extra tokens, at most [`MOST_GRANTS`] of them.
    pub grants: Vec<GrantRecord>,
}

/// When the emergency limit of each client address applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EmergencySwitch {
    /// Never.
    Off,
    /// While no shard of the store is available.
    OnOutage,
    /// Always.
    On,
}

/// Extra tokens for an identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantRecord {
    /// Its id, unique in the repository.
    pub id: String,
    /// The kind of the identity, such as `api_key`.
    pub kind: String,
    /// The identity.
    pub value: String,
    /// The only rule whose limits it extends; none for all rules.
    pub rule: Option<String>,
    /// How many tokens.
    pub tokens: u64,
    /// When it was given.
    #[serde(rename = "created_us", with = "unix_us")]
    #[schema(value_type = u64)]
    pub created: UnixTime,
    /// When the tokens that are left expire.
    #[serde(rename = "expires_us", with = "unix_us")]
    #[schema(value_type = u64)]
    pub expires: UnixTime,
    /// The operator.
    pub author: String,
    /// Why.
    pub reason: String,
}
