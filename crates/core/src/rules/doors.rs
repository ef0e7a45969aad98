//! What the open doors can do for rules. A rule that asks more of a door than it can do is valid, and gets a warning
//! where the doors are known: at the start, when rules change, and in `rules check --config`.

use std::collections::BTreeSet;

/// Something that a rule may ask of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoorCapability {
    /// It holds back requests and answers: `queue`, `tarpit`.
    Wait,
    /// It knows when a request has ended: `shed`, `concurrency`.
    Completion,
    /// Its requests have a `domain`.
    Domain,
    /// Its requests may state a tier.
    Tier,
    /// Its requests may have a priority.
    Priority,
}

/// A door that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDoor {
    /// In warnings, such as `the check API`.
    pub name: &'static str,
    /// What it can do.
    pub capabilities: BTreeSet<DoorCapability>,
    /// The identities that it finds in requests, addresses aside, by the names that `key:` has for them; none if the
    /// caller names them.
    pub identities: Option<BTreeSet<String>>,
}

impl OpenDoor {
    /// Whether it can do this.
    pub fn can(&self, capability: DoorCapability) -> bool {
        self.capabilities.contains(&capability)
    }

    /// Whether a request that comes through it may have the identity `name`.
    pub fn finds(&self, name: &str) -> bool {
        self.identities.as_ref().is_none_or(|identities| identities.contains(name))
    }
}
