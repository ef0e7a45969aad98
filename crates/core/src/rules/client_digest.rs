//! A digest of a client: clients with equal digests match the same rules, so their [`super::ClientMatch`] can be cached.
//!
//! If only a few patterns depend on the client, the digest is a bit set of the patterns that match, and there are few
//! digests. If rules have overrides of single keys, or conditions on addresses or custom identities, the digest is a keyed
//! hash of the relevant traits.

use super::pattern::Glob;
use super::ruleset::{Rule, Tier};
use crate::key::RequestHasher;
use crate::request::{NamedIdentity, PerIdentity, Request};

/// More patterns than this cost more to match than a hash.
const MOST_PATTERNS: usize = 16;

/// Computes digests under one rule set.
#[derive(Clone, Debug)]
pub(super) enum ClientDigester {
    /// All clients match the same rules.
    Constant,
    /// The patterns that match, and the stated tier.
    Patterns(NamePatterns),
    /// A hash of these traits.
    Traits(ClientTraits),
}

/// The digest of a client. Under one rule set, clients with equal digests match the same rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientDigest {
    /// One of a few classes.
    Class(u64),
    /// A keyed hash, of which there are as many as clients.
    Hash(u64),
}

/// The patterns of a rule set over the identities of a client.
#[derive(Clone, Debug, Default)]
pub(super) struct NamePatterns(PerIdentity<Vec<Glob>>);

/// The traits of a client that rules can depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTraits {
    /// Identities with their own field.
    pub named: PerIdentity<bool>,
    /// The address.
    pub ip: bool,
    /// The tier that the caller states.
    pub tier: bool,
    /// Custom identities.
    pub ids: bool,
}

impl ClientTraits {
    /// All identities with their own field, and nothing else.
    pub const ALL_NAMED: Self = Self { named: PerIdentity::all(true), ip: false, tier: false, ids: false };
}

impl ClientDigester {
    pub(super) fn new(rules: &[Rule], tiers: &[Tier]) -> Self {
        let traits = traits(rules, tiers);
        if traits == ClientTraits::default() {
            return Self::Constant;
        }
        let single_keys = rules.iter().any(|rule| !rule.sizes.by_key.is_empty())
            || traits.tier && tiers.iter().any(|tier| !tier.keys.is_empty());
        let patterns = NamePatterns::new(rules, tiers);
        if single_keys || traits.ip || traits.ids || patterns.count() > MOST_PATTERNS {
            Self::Traits(traits)
        } else {
            Self::Patterns(patterns)
        }
    }

    #[inline]
    pub(super) fn digest(
        &self,
        request: &Request<'_>,
        tiers: &[Tier],
        hashes: &RequestHasher<'_>,
    ) -> ClientDigest {
        match self {
            Self::Constant => ClientDigest::Class(0),
            Self::Patterns(patterns) => {
                let tier = match request.tier {
                    None => 0,
                    Some(stated) => {
                        1 + tiers.iter().position(|tier| tier.name == stated).map_or(0, |at| at as u64 + 1)
                    }
                };
                let globs = patterns.0.iter();
                let bits = globs.fold(tier, |bits, (kind, globs)| add_bits(bits, globs, request.named(kind)));
                ClientDigest::Class(bits)
            }
            Self::Traits(traits) => ClientDigest::Hash(hashes.hash_traits(*traits, request)),
        }
    }
}

impl NamePatterns {
    /// Every pattern once.
    fn new(rules: &[Rule], tiers: &[Tier]) -> Self {
        let mut patterns = Self::default();
        for client in rules.iter().flat_map(|rule| [&rule.client, &rule.except.client]) {
            for (kind, globs) in client.named.iter() {
                add(&mut patterns.0[kind], globs.iter().flatten());
            }
        }
        add(&mut patterns.0[NamedIdentity::ApiKey], tiers.iter().flat_map(|tier| &tier.api_key));
        patterns
    }

    fn count(&self) -> usize {
        self.0.iter().map(|(_, globs)| globs.len()).sum()
    }
}

fn add<'g>(known: &mut Vec<Glob>, globs: impl Iterator<Item = &'g Glob>) {
    for glob in globs {
        if !known.contains(glob) {
            known.push(glob.clone());
        }
    }
}

/// Appends to `bits` one bit for each pattern: whether it matches.
#[inline]
fn add_bits(bits: u64, patterns: &[Glob], name: Option<&str>) -> u64 {
    let Some(name) = name else { return bits << patterns.len() };
    patterns.iter().fold(bits, |bits, glob| bits << 1 | u64::from(glob.matches(name)))
}

/// The traits that any rule or tier depends on.
fn traits(rules: &[Rule], tiers: &[Tier]) -> ClientTraits {
    let mut traits = ClientTraits::default();
    for rule in rules {
        let overrides = !rule.sizes.by_key.is_empty();
        let by_address = rule.sizes.by_key.keys().any(|key| key.parse::<std::net::IpAddr>().is_ok());
        let by_tier = rule.depends_on_tiers();
        for condition in [&rule.client, &rule.except.client] {
            for (kind, globs) in condition.named.iter() {
                traits.named[kind] |= globs.is_some() || overrides;
            }
            traits.ip |= condition.ip.is_some();
            traits.ids |= !condition.ids.is_empty();
        }
        traits.ip |= by_address;
        traits.ids |= overrides && rule.custom_names().next().is_some();
        traits.tier |= by_tier;
        if by_tier {
            traits.named[NamedIdentity::User] |= tiers.iter().any(|tier| !tier.keys.is_empty());
            traits.named[NamedIdentity::ApiKey] |=
                tiers.iter().any(|tier| !tier.keys.is_empty() || !tier.api_key.is_empty());
        }
    }
    traits
}
