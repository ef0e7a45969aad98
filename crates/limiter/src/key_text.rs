//! What logs show of a key: a keyed hash, or names and the beginnings of credentials.

use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::line_log::is_hidden;
use crate::metrics::KeyPart;
use crate::observe;
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use tollgate_core::key::{Dimension, Identity, Ipv6Prefix, identity};
use tollgate_core::request::{NamedIdentity, Request};
use tollgate_core::rules::Rule;

/// The most characters of a credential that are shown; never more than half of them.
const SHOWN_OF_CREDENTIAL: usize = 8;
/// The most characters of other values that are shown.
const MOST_SHOWN: usize = 128;

/// What logs show of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDisplay {
    /// A keyed hash: equal keys have equal hashes, and a hash tells nothing else.
    #[default]
    Hashed,
    /// The value; of a credential only the beginning.
    Shown,
}

/// The secret of hashed keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySecret(pub [u8; 16]);

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

/// Writes keys as text.
#[derive(Clone, Debug)]
pub struct KeyText {
    display: KeyDisplay,
    secret: KeySecret,
}

impl KeyText {
    /// With the secret of the hashes. Nodes and restarts with the same secret write the same hashes; without one, the
    /// secret is random.
    pub fn new(display: KeyDisplay, secret: Option<KeySecret>) -> Self {
        let random = || {
            let random = RandomState::new();
            let bits = u128::from(random.hash_one(1)) << 64 | u128::from(random.hash_one(2));
            KeySecret(bits.to_ne_bytes())
        };
        Self { display, secret: secret.unwrap_or_else(random) }
    }

    /// The part as `kind:text`.
    pub fn part(&self, part: &KeyPart) -> String {
        let KeyPart { kind, value, is_credential } = part;
        match self.display {
            KeyDisplay::Hashed => {
                let mut hasher = SipHasher24::new_with_key(&self.secret.0);
                hasher.write(kind.as_bytes());
                // No kind contains this byte, so no two parts have the same text.
                hasher.write_u8(0xff);
                hasher.write(value.as_bytes());
                format!("{kind}:{:016x}", hasher.finish())
            }
            KeyDisplay::Shown if *is_credential => format!("{kind}:{}", printable(abbreviated(value))),
            KeyDisplay::Shown => format!("{kind}:{}", printable(shortened(value))),
        }
    }
}

/// The beginning of a credential, at most half of it.
pub(crate) fn abbreviated(credential: &str) -> impl Iterator<Item = char> {
    let shown = (credential.chars().count() / 2).min(SHOWN_OF_CREDENTIAL);
    credential.chars().take(shown).chain(['…'])
}

fn shortened(value: &str) -> impl Iterator<Item = char> {
    let is_cut = value.chars().nth(MOST_SHOWN).is_some();
    value.chars().take(MOST_SHOWN).chain(is_cut.then_some('…'))
}

fn printable(letters: impl Iterator<Item = char>) -> String {
    letters.map(|letter| if is_hidden(letter) { '?' } else { letter }).collect()
}

/// The key by which `rule` counts `request`, without the route; without a rule, the client.
pub(crate) fn key_parts(rule: Option<&Rule>, request: &Request<'_>) -> Vec<KeyPart> {
    let client = || {
        let user = Dimension::Named(NamedIdentity::User);
        SmallVec::from_iter([identity(&user, Ipv6Prefix::default(), request, 0)])
    };
    let identities = rule.map_or_else(client, |rule| observe::identities(rule, request));
    identities.iter().filter_map(KeyPart::of).collect()
}

impl KeyPart {
    /// The part of a key that this identity is; none for a route, and for a request without an identity.
    fn of(identity: &Identity<'_>) -> Option<Self> {
        let (kind, value, is_credential) = match *identity {
            Identity::Named(kind, value) => (kind.name(), value.to_owned(), kind.is_credential()),
            Identity::Ip(bits) => ("ip", IpAddr::from(bits.to_be_bytes()).to_canonical().to_string(), false),
            Identity::Custom(name, value) => (name, value.to_owned(), false),
            Identity::Route(_) | Identity::Anonymous => return None,
        };
        Some(Self { kind: kind.to_owned(), value, is_credential })
    }
}

impl Limiter {
    /// The key by which the rule that made `decision` counts `request`, without the route; if no rule did, the client.
    pub fn key_of(&self, request: &Request<'_>, decision: &Decision) -> Vec<KeyPart> {
        self.with_snapshot(|snapshot, _| {
            let standing = decision.standing();
            let rule =
                standing.and_then(|(terms, standing)| snapshot.rules.rule_named(standing.limit, terms.names));
            key_parts(rule, request)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, ManualClock, MemoryStore};

    fn part(kind: &str, value: &str, is_credential: bool) -> KeyPart {
        KeyPart { kind: kind.to_owned(), value: value.to_owned(), is_credential }
    }

    #[test]
    fn hashes_are_stable_within_a_process_and_by_secret() {
        let (user, key) = (part("user", "ann", false), part("api_key", "ann", true));
        let text = KeyText::new(KeyDisplay::Hashed, None);
        assert_eq!(text.part(&user), text.clone().part(&user));
        assert_ne!(text.part(&user).split_once(':'), text.part(&key).split_once(':'));
        assert!(!text.part(&user).contains("ann"));
        assert_ne!(text.part(&user), KeyText::new(KeyDisplay::Hashed, None).part(&user), "random");
        let with_secret =
            |secret| KeyText::new(KeyDisplay::Hashed, Some(KeySecret([secret; 16]))).part(&user);
        assert_eq!(with_secret(1), with_secret(1));
        assert_ne!(with_secret(1), with_secret(2));
        let (kind, hash) =
            text.part(&user).split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert!(kind == "user" && hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn credentials_are_never_shown_whole() {
        let text = KeyText::new(KeyDisplay::Shown, None);
        let long = "ü".repeat(200);
        for (kind, value, is_credential, expected) in [
            ("api_key", "sk_live_0123456789abcdef", true, "api_key:sk_live_…".to_owned()),
            ("api_key", "secret", true, "api_key:sec…".to_owned()),
            ("api_key", "x", true, "api_key:…".to_owned()),
            ("user", "ann\r\n\"", false, "user:ann??\"".to_owned()),
            ("user", "\u{9b}31m\u{202e}ann", false, "user:?31m?ann".to_owned()),
            ("user", &long, false, format!("user:{}…", &long[..256])),
        ] {
            assert_eq!(text.part(&part(kind, value, is_credential)), expected);
        }
        assert!(!format!("{:?}", KeyText::new(KeyDisplay::Hashed, Some(KeySecret([77; 16])))).contains("77"));
    }

    #[test]
    fn the_key_is_that_of_the_rule_or_the_client() {
        let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::Manual(ManualClock::new(1)));
        let key_of = |rules: &str| {
            let loaded = tollgate_core::rules::load("rules.yaml", rules).unwrap();
            limiter.install(loaded.rules, loaded.lists).unwrap();
            let request = Request {
                api_key: Some("k"),
                tenant: Some("t"),
                ip: Some([192, 0, 2, 1].into()),
                endpoint: "/a",
                ..Request::default()
            };
            let decision = limiter.check(&request).unwrap().now().unwrap();
            let parts = limiter.key_of(&request, &decision);
            let text = |part: KeyPart| format!("{}:{}", part.kind, part.value);
            parts.into_iter().map(text).collect::<Vec<_>>().join(",")
        };
        for (rules, expected) in [
            ("rules: [{ id: a, key: ip, limit: 1/h }]", "ip:192.0.2.1"),
            ("rules: [{ id: a, key: [tenant, api_key], limit: 1/h }]", "tenant:t,api_key:k"),
            ("rules: [{ id: a, key: [ip, route], limit: 1/h }]", "ip:192.0.2.1"),
            ("rules: [{ id: a, key: [user, api_key], limit: 1/h }]", "api_key:k"),
            ("allow_empty: true", "api_key:k"),
        ] {
            assert_eq!(key_of(rules), expected, "{rules}");
        }
    }
}
