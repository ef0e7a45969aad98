//! A client summed up in one number: clients with the same number meet the same rules, so what they meet
//! has to be worked out only once.
//!
//! Where a handful of patterns is all that matters about a client, the number says which of them match, and
//! there are only a few such numbers. Where single keys have numbers of their own, or addresses and custom
//! identities matter, the number is a keyed hash of all that matters.

use super::pattern::Glob;
use super::ruleset::{Rule, Tier};
use crate::key::RequestHasher;
use crate::request::Request;

/// More patterns than this cost more to match than to remember.
const MOST_PATTERNS: usize = 16;

/// What about a client decides which rules it meets.
#[derive(Clone, Debug)]
pub(super) enum ClientDigester {
    /// Nothing: all clients meet the same.
    Nothing,
    /// Which of these patterns match, and the tier if the caller states one.
    Patterns(NamePatterns),
    /// All of these.
    Traits(ClientTraits),
}

/// What a client is summed up as. Under one rule set, clients with the same number meet the same rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientDigest {
    /// One of a few classes.
    Class(u64),
    /// A keyed hash of the client, of which there are as many as clients.
    Hash(u64),
}

/// Patterns over the names that a client goes by.
#[derive(Clone, Debug, Default)]
pub(super) struct NamePatterns {
    api_key: Vec<Glob>,
    user: Vec<Glob>,
    tenant: Vec<Glob>,
}

/// What may matter about a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTraits {
    /// The API key.
    pub api_key: bool,
    /// The user.
    pub user: bool,
    /// The tenant.
    pub tenant: bool,
    /// The address.
    pub ip: bool,
    /// The tier as stated by the caller.
    pub tier: bool,
    /// Custom identities.
    pub ids: bool,
}

impl ClientDigester {
    pub(super) fn new(rules: &[Rule], tiers: &[Tier]) -> Self {
        let traits = traits(rules, tiers);
        if traits == ClientTraits::default() {
            return Self::Nothing;
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

    /// The number of the client.
    #[inline]
    pub(super) fn of(
        &self,
        request: &Request<'_>,
        tiers: &[Tier],
        hashes: &RequestHasher<'_>,
    ) -> ClientDigest {
        match self {
            Self::Nothing => ClientDigest::Class(0),
            Self::Patterns(patterns) => {
                let tier = match request.tier {
                    None => 0,
                    Some(stated) => {
                        1 + tiers.iter().position(|tier| tier.name == stated).map_or(0, |at| at as u64 + 1)
                    }
                };
                let number = add_bits(tier, &patterns.api_key, request.api_key);
                let number = add_bits(number, &patterns.user, request.user);
                ClientDigest::Class(add_bits(number, &patterns.tenant, request.tenant))
            }
            Self::Traits(traits) => ClientDigest::Hash(hashes.of_traits(*traits, request)),
        }
    }
}

impl NamePatterns {
    /// Every pattern over a client's names, once.
    fn new(rules: &[Rule], tiers: &[Tier]) -> Self {
        let mut patterns = Self::default();
        for client in rules.iter().map(|rule| &rule.client) {
            add(&mut patterns.api_key, client.api_key.iter().flatten());
            add(&mut patterns.user, client.user.iter().flatten());
            add(&mut patterns.tenant, client.tenant.iter().flatten());
        }
        add(&mut patterns.api_key, tiers.iter().flat_map(|tier| &tier.api_key));
        patterns
    }

    fn count(&self) -> usize {
        self.api_key.len() + self.user.len() + self.tenant.len()
    }
}

fn add<'g>(known: &mut Vec<Glob>, globs: impl Iterator<Item = &'g Glob>) {
    for glob in globs {
        if !known.contains(glob) {
            known.push(glob.clone());
        }
    }
}

/// Goes on with `number` by a bit for each pattern: whether it matches.
#[inline]
fn add_bits(number: u64, patterns: &[Glob], name: Option<&str>) -> u64 {
    let Some(name) = name else { return number << patterns.len() };
    patterns.iter().fold(number, |number, glob| number << 1 | u64::from(glob.matches(name)))
}

/// Which traits of a client any rule or tier looks at.
fn traits(rules: &[Rule], tiers: &[Tier]) -> ClientTraits {
    let mut traits = ClientTraits::default();
    for rule in rules {
        let condition = &rule.client;
        let overrides = !rule.sizes.by_key.is_empty();
        let by_address = rule.sizes.by_key.keys().any(|key| key.parse::<std::net::IpAddr>().is_ok());
        let by_tier = rule.tier.is_some() || !rule.sizes.everybody.tiers.is_empty();
        traits.api_key |= condition.api_key.is_some() || overrides;
        traits.user |= condition.user.is_some() || overrides;
        traits.tenant |= condition.tenant.is_some() || overrides;
        traits.ip |= condition.ip.is_some() || by_address;
        traits.ids |= !condition.ids.is_empty() || overrides && rule.custom_names().next().is_some();
        traits.tier |= by_tier;
        if by_tier {
            traits.user |= tiers.iter().any(|tier| !tier.keys.is_empty());
            traits.api_key |= tiers.iter().any(|tier| !tier.keys.is_empty() || !tier.api_key.is_empty());
        }
    }
    traits
}
