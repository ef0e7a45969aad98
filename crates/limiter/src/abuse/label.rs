//! The label of a client in logs: enough to identify it, and never a secret.

use crate::key_text::abbreviated;
use crate::line_log::is_hidden;
use std::fmt::{self, Write};
use std::net::IpAddr;
use tollgate_core::key::Identity;

const LONGEST: usize = 46;

/// A name in fixed memory.
#[derive(Clone, Copy)]
pub(crate) struct Label {
    kind: &'static str,
    text: [u8; LONGEST],
    length: u8,
    /// A hash of the identities that all nodes of a fleet have in common; 0 if there is none.
    mark: u32,
}

impl Default for Label {
    fn default() -> Self {
        Self::new(&Identity::Anonymous)
    }
}

impl Label {
    /// API keys are secrets: only the beginning is shown, at most half. Other identities are names.
    pub(crate) fn new(identity: &Identity<'_>) -> Self {
        let kind = match identity {
            Identity::Named(kind, _) => kind.name(),
            Identity::Ip(_) => "ip",
            Identity::Custom(..) => "custom",
            Identity::Route(_) | Identity::Anonymous => "anonymous",
        };
        let mut label = Self { kind, text: [0; LONGEST], length: 0, mark: 0 };
        let written = match identity {
            Identity::Named(kind, key) if kind.is_credential() => {
                abbreviated(key).try_for_each(|letter| label.write_char(letter))
            }
            Identity::Named(_, name) => label.write_str(name),
            Identity::Ip(bits) => write!(label, "{}", IpAddr::from(bits.to_be_bytes()).to_canonical()),
            Identity::Custom(name, value) => write!(label, "{name}={value}"),
            Identity::Route(_) | Identity::Anonymous => Ok(()),
        };
        // A label that does not fit is cut.
        let _ = written;
        label
    }

    /// The label of a key of several identities.
    pub(crate) fn joined(identities: &[Identity<'_>]) -> Self {
        let mut label = Self { kind: "composite", text: [0; LONGEST], length: 0, mark: 0 };
        for (index, part) in identities.iter().map(Self::new).enumerate() {
            let separator = if index > 0 { " " } else { "" };
            if write!(label, "{separator}{}={}", part.kind, part.text()).is_err() {
                break;
            }
        }
        label
    }

    /// The same label with a mark.
    pub(crate) fn marked(self, mark: u32) -> Self {
        Self { mark, ..self }
    }

    pub(crate) fn mark(&self) -> u32 {
        self.mark
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.text[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl Write for Label {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            // Labels are written to logs and shown to operators.
            let letter = if is_hidden(letter) { '?' } else { letter };
            let start = usize::from(self.length);
            let Some(room) = self.text.get_mut(start..start + letter.len_utf8()) else {
                return Err(fmt::Error);
            };
            letter.encode_utf8(room);
            self.length += letter.len_utf8() as u8;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::key::{Ipv6Prefix, ip_bits};
    use tollgate_core::request::NamedIdentity;

    #[test]
    fn names_are_shown_and_secrets_are_not() {
        let ip = |text: &str| Identity::Ip(ip_bits(text.parse().unwrap(), Ipv6Prefix::default()));
        let long = "ü".repeat(100);
        for (identity, kind, text) in [
            (Identity::Named(NamedIdentity::ApiKey, "sk_live_0123456789abcdef"), "api_key", "sk_live_…"),
            (Identity::Named(NamedIdentity::ApiKey, "secret"), "api_key", "sec…"),
            (Identity::Named(NamedIdentity::ApiKey, ""), "api_key", "…"),
            (Identity::Named(NamedIdentity::User, "ann\r\nadmin"), "user", "ann??admin"),
            (Identity::Named(NamedIdentity::User, "\u{202e}nna\u{9b}"), "user", "?nna?"),
            (Identity::Named(NamedIdentity::User, &long), "user", &long[..46]),
            (ip("203.0.113.9"), "ip", "203.0.113.9"),
            (ip("2001:db8::1"), "ip", "2001:db8::"),
            (Identity::Custom("invoice", "7"), "custom", "invoice=7"),
            (Identity::Anonymous, "anonymous", ""),
        ] {
            let label = Label::new(&identity);
            assert_eq!((label.kind(), label.text()), (kind, text));
        }
    }
}
