//! The access tokens and revocations that a node knows, and what the store has lost of them.
//!
//! Ids are never used twice, and each revocation is recorded beside the tokens. So two versions of the set are merged
//! without asking which one is newer: a token is valid if one of them has it and none has revoked it. A store that lost
//! its last changes can so neither lose a token nor bring a revoked one back, while a node that knows of it runs.

use crate::access_token::StoredToken;
use std::collections::BTreeMap;
use tollgate_core::time::UnixTime;

/// The most revocations that are kept; the oldest are forgotten.
pub(super) const MOST_REVOKED: usize = 10_000;

/// Tokens and revocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenSet {
    /// Another one after each change in the store; empty if it has to be read.
    pub(super) version: String,
    /// By id.
    pub(super) tokens: BTreeMap<String, StoredToken>,
    /// The ids of revoked tokens, and when they were revoked, in milliseconds since the epoch.
    pub(super) revoked: BTreeMap<String, u64>,
}

/// What the store does not have any more, or has again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LostTokens {
    pub(super) tokens: Vec<StoredToken>,
    pub(super) revoked: Vec<(String, u64)>,
}

impl LostTokens {
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.revoked.is_empty()
    }
}

impl TokenSet {
    /// Takes in what the store has, and returns what it has lost.
    pub(super) fn merge(&mut self, stored: TokenSet, now: UnixTime) -> LostTokens {
        // The store forgets the oldest revocations; these are not lost.
        let kept_since = match stored.revoked.len() >= MOST_REVOKED {
            true => stored.revoked.values().min().copied().unwrap_or_default(),
            false => 0,
        };
        let is_lost = |id: &str, revoked: u64| {
            !stored.revoked.contains_key(id) && (revoked >= kept_since || stored.tokens.contains_key(id))
        };
        let revocations = self.revoked.iter().filter(|(id, revoked)| is_lost(id, **revoked));
        let revoked = revocations.map(|(id, revoked)| (id.clone(), *revoked)).collect();

        self.revoked.extend(stored.revoked);
        let known = std::mem::replace(&mut self.tokens, stored.tokens);
        self.tokens.retain(|id, _| !self.revoked.contains_key(id));
        let mut tokens = Vec::new();
        for (id, token) in known {
            let is_expired = token.expires.is_some_and(|expires| expires <= now);
            if !self.tokens.contains_key(&id) && !self.revoked.contains_key(&id) && !is_expired {
                tokens.push(token.clone());
                self.tokens.insert(id, token);
            }
        }
        while self.revoked.len() > MOST_REVOKED {
            let oldest = self.revoked.iter().min_by_key(|(_, revoked)| **revoked);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            self.revoked.remove(&oldest);
        }

        let lost = LostTokens { tokens, revoked };
        // What is stored again has another version, and storing may fail.
        self.version = if lost.is_empty() { stored.version } else { String::new() };
        lost
    }

    /// Takes in a token that was stored.
    pub(super) fn add(&mut self, token: StoredToken) {
        self.tokens.insert(token.id.clone(), token);
        self.version.clear();
    }

    /// Takes in a revocation that was stored.
    pub(super) fn revoke(&mut self, id: &str, revoked: u64) {
        self.tokens.remove(id);
        self.revoked.insert(id.to_owned(), revoked);
        self.version.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_token::TokenRole;

    const NOW: UnixTime = UnixTime::from_us(1_000_000);

    fn token(id: &str) -> StoredToken {
        StoredToken {
            id: id.to_owned(),
            name: "ci".to_owned(),
            role: TokenRole::Read,
            hash: String::new(),
            created: UnixTime::from_us(1),
            expires: None,
        }
    }

    fn set(version: &str, tokens: &[&str], revoked: &[(&str, u64)]) -> TokenSet {
        TokenSet {
            version: version.to_owned(),
            tokens: tokens.iter().map(|id| ((*id).to_owned(), token(id))).collect(),
            revoked: revoked.iter().map(|(id, time)| ((*id).to_owned(), *time)).collect(),
        }
    }

    fn ids(set: &TokenSet) -> Vec<&str> {
        set.tokens.keys().map(String::as_str).collect()
    }

    #[test]
    fn tokens_and_revocations_of_both_sides_count() {
        for (name, known, stored, expected, lost_tokens, lost_revoked) in [
            (
                "nothing is known",
                set("", &[], &[]),
                set("1", &["a"], &[("b", 1)]),
                &["a"][..],
                &[][..],
                &[][..],
            ),
            ("nothing new", set("1", &["a"], &[]), set("1", &["a"], &[]), &["a"], &[], &[]),
            ("created elsewhere", set("1", &["a"], &[]), set("2", &["a", "b"], &[]), &["a", "b"], &[], &[]),
            (
                "revoked elsewhere",
                set("1", &["a", "b"], &[]),
                set("2", &["b"], &[("a", 1)]),
                &["b"],
                &[],
                &[],
            ),
            ("a token is lost", set("2", &["a", "b"], &[]), set("1", &["a"], &[]), &["a", "b"], &["b"], &[]),
            (
                "a revocation is lost",
                set("2", &["b"], &[("a", 1)]),
                set("1", &["a", "b"], &[]),
                &["b"],
                &[],
                &["a"],
            ),
            ("everything is lost", set("2", &["b"], &[("a", 1)]), set("", &[], &[]), &["b"], &["b"], &["a"]),
            (
                "the store was changed after the loss",
                set("2", &["b"], &[("a", 1)]),
                set("2x", &["a", "c"], &[("d", 2)]),
                &["b", "c"],
                &["b"],
                &["a"],
            ),
        ] {
            let mut merged = known;
            let version = stored.version.clone();
            let lost = merged.merge(stored, NOW);
            assert_eq!(ids(&merged), expected, "{name}");
            let tokens: Vec<&str> = lost.tokens.iter().map(|token| token.id.as_str()).collect();
            let revoked: Vec<&str> = lost.revoked.iter().map(|(id, _)| id.as_str()).collect();
            assert_eq!((&*tokens, &*revoked), (lost_tokens, lost_revoked), "{name}");
            // It is read again until nothing is missing.
            assert_eq!(merged.version, if lost.is_empty() { version } else { String::new() }, "{name}");
        }
    }

    #[test]
    fn an_expired_token_is_not_stored_again() {
        let mut known = set("1", &[], &[]);
        known.add(StoredToken { expires: Some(NOW), ..token("a") });
        assert_eq!(known.merge(set("2", &[], &[]), NOW), LostTokens::default());
        assert_eq!(ids(&known), [""; 0]);
    }

    #[test]
    fn the_oldest_revocations_are_forgotten_on_both_sides() {
        let stored: Vec<String> = (1..=MOST_REVOKED).map(|number| format!("{number:05}")).collect();
        let stored: Vec<(&str, u64)> =
            stored.iter().zip(1..).map(|(id, number)| (id.as_str(), number)).collect();
        let stored = set("2", &["00000"], &stored);
        // One that the store has forgotten is not stored again, unless the token is there.
        let mut known = set("1", &[], &[("older", 0)]);
        assert_eq!(
            known.merge(TokenSet { tokens: BTreeMap::new(), ..stored.clone() }, NOW),
            LostTokens::default()
        );
        assert_eq!((known.revoked.len(), known.revoked.contains_key("older")), (MOST_REVOKED, false));
        let mut known = set("1", &[], &[("00000", 0)]);
        assert_eq!(known.merge(stored, NOW).revoked, [("00000".to_owned(), 0)]);
        assert_eq!(ids(&known), [""; 0]);
    }
}
