//! The capabilities of doors. A rule that needs more than a door can do is valid, and gets a warning where the doors are
//! known: at the start, when rules change, and in `rules check --config`.

use std::collections::BTreeSet;

/// A capability of a door that rules may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoorCapability {
    /// Requests and responses can be delayed: `queue`, `tarpit`.
    Delay,
    /// The end of a request is known: `shed`, `concurrency`.
    Completion,
    /// Requests have a `domain`.
    Domain,
    /// Requests may state a tier.
    Tier,
    /// Requests may have a priority.
    Priority,
}

/// A door that is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDoor {
    /// The name in warnings, such as `the check API`.
    pub name: &'static str,
    /// Its capabilities.
    pub capabilities: BTreeSet<DoorCapability>,
    /// The identities of its requests, except addresses, by their names in `key:`; `None` if callers name them.
    pub identities: Option<BTreeSet<String>>,
}

impl OpenDoor {
    /// Whether it has this capability.
    pub fn can(&self, capability: DoorCapability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Whether its requests may have the identity `name`.
    pub fn provides(&self, name: &str) -> bool {
        self.identities.as_ref().is_none_or(|identities| identities.contains(name))
    }
}
