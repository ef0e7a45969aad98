//! State addresses: where the state of a charge is kept in a shared store.
//!
//! Each client has one hash, `tg:{…}`, with a small field for each limit and route. Between the braces is a keyed hash of
//! the client's identity: the identities themselves never reach the store, and in a cluster all keys of one client are
//! in one slot. Where a rule counts by several identities, the first is the tag and the others follow it: a tenant with a
//! million users is a million hashes in one slot, not one hash with a million fields. A route is part of the field,
//! because routes are few.

use crate::key::{Dimension, Identity, identity};
use crate::limit::Limit;
use crate::request::Request;
use crate::rules::Rule;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// The secret that all nodes of a fleet share. It keys the hashes in state addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FleetSecret(pub [u8; 16]);

impl FleetSecret {
    /// A key of its own for `purpose`.
    pub fn derived(&self, purpose: &str) -> [u8; 16] {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(purpose.as_bytes());
        hasher.finish128().as_u128().to_le_bytes()
    }
}

impl std::fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FleetSecret(…)")
    }
}

/// The longest of [`StateAddress::field`].
pub const LONGEST_FIELD: usize = 10;
/// The bytes of a field that name the limit.
pub(crate) const LIMIT_BYTES: usize = 5;

/// The address of one state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateAddress {
    /// The client's key.
    pub key: String,
    /// The limit within it, and the route if the rule counts by route.
    pub field: StateField,
}

/// A field of a client's hash: five bytes for the limit, and five for the route if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateField {
    bytes: [u8; LONGEST_FIELD],
    length: u8,
}

impl StateField {
    /// The field of the limit with this [`Limit::state_id`], for all routes or for one.
    pub fn new(limit_state_id: u64, route: Option<u64>) -> Self {
        let mut bytes = [0; LONGEST_FIELD];
        bytes[..LIMIT_BYTES].copy_from_slice(&limit_state_id.to_be_bytes()[..LIMIT_BYTES]);
        if let Some(route) = route {
            bytes[LIMIT_BYTES..].copy_from_slice(&route.to_be_bytes()[..LONGEST_FIELD - LIMIT_BYTES]);
        }
        Self { bytes, length: if route.is_some() { LONGEST_FIELD } else { LIMIT_BYTES } as u8 }
    }

    /// The field that routes share if a client has too many fields.
    pub fn without_route(&self) -> Self {
        let mut bytes = [0; LONGEST_FIELD];
        bytes[..LIMIT_BYTES].copy_from_slice(&self.bytes[..LIMIT_BYTES]);
        Self { bytes, length: LIMIT_BYTES as u8 }
    }

    /// The name of the field.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Locates states.
#[derive(Clone, Debug)]
pub struct StateAddresses {
    prefix: String,
    secret: FleetSecret,
}

impl StateAddresses {
    /// Addresses under `secret`, in keys that begin with `prefix`.
    pub fn new(prefix: &str, secret: FleetSecret) -> Self {
        Self { prefix: prefix.to_owned(), secret }
    }

    /// The secret.
    pub fn secret(&self) -> FleetSecret {
        self.secret
    }

    /// Whether this is the secret.
    pub fn uses_secret(&self, secret: &FleetSecret) -> bool {
        self.secret == *secret
    }

    /// The address of the state of `request` under a limit of `rule`; `route` is the hash of its route.
    pub fn locate(&self, rule: &Rule, limit: &Limit, request: &Request<'_>, route: u64) -> StateAddress {
        let mut identities = rule
            .key
            .iter()
            .filter(|dimension| **dimension != Dimension::Route)
            .map(|dimension| identity(dimension, rule.ipv6_prefix, request, route));
        let by_route = rule.key.contains(&Dimension::Route);
        // A rule that counts by route alone has one count for all clients.
        let first = identities.next().unwrap_or(Identity::Anonymous);
        let mut key = String::with_capacity(self.prefix.len() + 16);
        key.push_str(&self.prefix);
        key.push('{');
        push_letters(self.hash(&[first]), &mut key);
        key.push('}');
        let others: Vec<Identity<'_>> = identities.collect();
        if !others.is_empty() {
            push_letters(self.hash(&others), &mut key);
        }
        StateAddress { key, field: StateField::new(limit.state_id, by_route.then_some(route)) }
    }

    fn hash(&self, identities: &[Identity<'_>]) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.secret.0);
        for identity in identities {
            let mut part = |kind: u8, bytes: &[u8]| {
                hasher.write_u8(kind);
                hasher.write(&(bytes.len() as u64).to_le_bytes());
                hasher.write(bytes);
            };
            match *identity {
                Identity::Named(kind, value) => part(kind.hash_tag(), value.as_bytes()),
                Identity::Ip(bits) => part(4, &bits.to_le_bytes()),
                Identity::Route(route) => part(5, &route.to_le_bytes()),
                Identity::Custom(name, value) => {
                    part(6, name.as_bytes());
                    part(7, value.as_bytes());
                }
                Identity::Anonymous => part(8, b""),
            }
        }
        hasher.finish128().as_u128()
    }
}

/// 84 bits as 14 letters: among a hundred million clients, the odds that two share a key are one in four billion.
fn push_letters(hash: u128, out: &mut String) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for index in 0..14 {
        out.push(char::from(LETTERS[(hash >> (6 * index)) as usize & 63]));
    }
}
