//! A client summed up in one number: clients with the same number meet the same rules, so what they meet
//! has to be worked out only once.
//!
//! Where a handful of patterns is all that matters about a client, the number says which of them match, and
//! there are only a few such numbers. Where single keys have numbers of their own, or addresses and custom
//! identities matter, the number is a keyed hash of all that matters.

use super::pattern::Glob;
use super::ruleset::{Rule, Tier};
use crate::key::Hashes;
use crate::request::Request;

/// More patterns than this cost more to match than to remember.
const MOST_PATTERNS: usize = 16;

/// What about a client decides which rules it meets.
#[derive(Clone, Debug)]
pub(super) enum Summary {
    /// Nothing: all clients meet the same.
    Nothing,
    /// Which of these patterns match, and the tier if the caller states one.
    Patterns(Vec<(Name, Glob)>),
    /// All of these.
    Traits(ClientTraits),
}

/// What a client is summed up as. Under one rule set, clients with the same number meet the same rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientNumber {
    /// One of a few classes.
    Class(u64),
    /// A keyed hash of the client, of which there are as many as clients.
    Hash(u64),
}

/// A name that a client goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    ApiKey,
    User,
    Tenant,
}

impl Name {
    fn of<'a>(self, request: &Request<'a>) -> Option<&'a str> {
        match self {
            Self::ApiKey => request.api_key,
            Self::User => request.user,
            Self::Tenant => request.tenant,
        }
    }
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

impl Summary {
    pub(super) fn new(rules: &[Rule], tiers: &[Tier]) -> Self {
        let traits = traits(rules, tiers);
        if traits == ClientTraits::default() {
            return Self::Nothing;
        }
        let single_keys = rules.iter().any(|rule| !rule.sizes.by_key.is_empty())
            || traits.tier && tiers.iter().any(|tier| !tier.keys.is_empty());
        let patterns = patterns(rules, tiers);
        if single_keys || traits.ip || traits.ids || patterns.len() > MOST_PATTERNS {
            Self::Traits(traits)
        } else {
            Self::Patterns(patterns)
        }
    }

    /// The number of the client.
    #[inline]
    pub(super) fn of(&self, request: &Request<'_>, tiers: &[Tier], hashes: &Hashes<'_>) -> ClientNumber {
        match self {
            Self::Nothing => ClientNumber::Class(0),
            Self::Patterns(patterns) => {
                let mut number = match request.tier {
                    None => 0,
                    Some(stated) => {
                        1 + tiers.iter().position(|tier| tier.name == stated).map_or(0, |at| at as u64 + 1)
                    }
                };
                for (name, glob) in patterns {
                    let matches = name.of(request).is_some_and(|text| glob.matches(text));
                    number = number << 1 | u64::from(matches);
                }
                ClientNumber::Class(number)
            }
            Self::Traits(traits) => ClientNumber::Hash(hashes.of_traits(*traits, request)),
        }
    }
}

/// Every pattern over a client's names, once.
fn patterns(rules: &[Rule], tiers: &[Tier]) -> Vec<(Name, Glob)> {
    let of_rules = rules.iter().flat_map(|rule| {
        let client = &rule.client;
        [(Name::ApiKey, &client.api_key), (Name::User, &client.user), (Name::Tenant, &client.tenant)]
    });
    let of_rules = of_rules.flat_map(|(name, globs)| globs.iter().flatten().map(move |glob| (name, glob)));
    let of_tiers = tiers.iter().flat_map(|tier| &tier.api_key).map(|glob| (Name::ApiKey, glob));
    let mut patterns: Vec<(Name, Glob)> = Vec::new();
    for (name, glob) in of_rules.chain(of_tiers) {
        if !patterns.iter().any(|(known, other)| *known == name && other == glob) {
            patterns.push((name, glob.clone()));
        }
    }
    patterns
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
