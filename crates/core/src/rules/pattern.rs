//! What names in a rule match: globs over identities, networks over addresses, templates over paths.

use crate::path::{PathReadings, canonical};
use ipnet::{IpNet, Ipv4Net};
use std::net::IpAddr;

/// A glob: `*` stands for any run of characters, `?` for one. Everything else is itself, case included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: String,
    /// The only wildcard is a star at the end, as in nearly all globs.
    is_prefix: bool,
    /// The first eight bytes of the prefix and which of their bits count: one comparison instead of a call.
    head: (u64, u64),
}

impl Glob {
    /// The glob written `pattern`.
    pub fn new(pattern: &str) -> Self {
        let first_wildcard = pattern.find(['*', '?']);
        let is_prefix = pattern.ends_with('*') && first_wildcard == Some(pattern.len() - 1);
        let mut head = [0; 8];
        let mut mask = [0; 8];
        for (index, byte) in pattern.bytes().take(first_wildcard.unwrap_or(pattern.len()).min(8)).enumerate()
        {
            (head[index], mask[index]) = (byte, u8::MAX);
        }
        let head = (u64::from_le_bytes(head), u64::from_le_bytes(mask));
        Self { pattern: pattern.to_owned(), is_prefix, head }
    }

    /// As written.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// Whether the pattern is just a word.
    pub fn is_exact(&self) -> bool {
        !self.pattern.contains(['*', '?'])
    }

    /// Whether it matches everything, or everything but the empty text.
    pub fn is_any(&self) -> bool {
        let one_or_more = self.pattern.bytes().filter(|byte| *byte == b'?').count() <= 1;
        self.pattern.contains('*')
            && self.pattern.bytes().all(|byte| matches!(byte, b'*' | b'?'))
            && one_or_more
    }

    /// How much of it is literal: of two globs that match a text, the one with more says more.
    pub fn exactness(&self) -> usize {
        self.pattern.bytes().filter(|byte| !matches!(byte, b'*' | b'?')).count()
    }

    /// Whether `text` matches. Linear for one star; a star never costs more than text × pattern.
    #[inline]
    pub fn matches(&self, text: &str) -> bool {
        if let Some(start) = text.as_bytes().first_chunk::<8>() {
            let (head, mask) = self.head;
            if u64::from_le_bytes(*start) & mask != head {
                return false;
            }
            if self.is_prefix && self.pattern.len() <= 9 {
                return true;
            }
        }
        self.matches_all(text)
    }

    #[inline(never)]
    fn matches_all(&self, text: &str) -> bool {
        let (pattern, text) = (self.pattern.as_bytes(), text.as_bytes());
        if self.is_prefix {
            return text.starts_with(&pattern[..pattern.len() - 1]);
        }
        let (mut p, mut t) = (0, 0);
        // Where to go on if a guess at the length of the last star's run was too short.
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    if p + 1 == pattern.len() {
                        return true;
                    }
                    retry = Some((p + 1, t));
                    p += 1;
                }
                Some(b'?') => {
                    p += 1;
                    t += char_len(text[t]);
                }
                Some(byte) if *byte == text[t] => {
                    p += 1;
                    t += 1;
                }
                _ => match retry {
                    Some((after_star, run_end)) => {
                        p = after_star;
                        t = run_end + char_len(text[run_end]);
                        retry = Some((after_star, t));
                    }
                    None => return false,
                },
            }
        }
        pattern[p.min(pattern.len())..].iter().all(|byte| *byte == b'*')
    }
}

/// How many bytes the character that begins with `byte` has.
fn char_len(byte: u8) -> usize {
    match byte {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

/// The network or address written `text`. What is mapped from IPv4 into IPv6 is IPv4, as clients' are.
pub fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()?;
    match network {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => {
            let mapped = v6.addr().to_ipv4_mapped();
            let v4 = mapped.and_then(|v4| Ipv4Net::new(v4, v6.prefix_len() - 96).ok());
            Some(v4.map_or(network, IpNet::V4))
        }
        _ => Some(network),
    }
}

/// How closely a path has to follow a template or a regular expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathStrictness {
    /// `;parameters` make no difference, and to a template neither do a trailing slash and the case: to most
    /// servers they are no other resource, so they must not be a way to a second quota.
    #[default]
    Folded,
    /// They do make a difference.
    Exact,
}

/// A route template such as `/v1/users/{id}` or `/files/{*rest}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTemplate {
    /// The regular expression, over what is read in a path (see [`PathReadings`]).
    pub regex: String,
    /// For each segment, 0 if it is literal, 1 if it is a name, 2 if it is the rest. Of two templates for
    /// one path, that with the smaller list is the more specific.
    pub generality: Vec<u8>,
}

impl RouteTemplate {
    /// Reads a template; the error says what is wrong with it.
    pub fn parse(text: &str, closeness: PathStrictness) -> Result<Self, String> {
        let (flags, end) = match closeness {
            PathStrictness::Folded => ("(?i)", "/?$"),
            PathStrictness::Exact => ("", "$"),
        };
        if !text.starts_with('/') {
            return Err(format!("`{text}` does not begin with a slash"));
        }
        if let Some(found) = text.chars().find(|c| matches!(c, '?' | '#' | ';')) {
            return Err(format!("a template has no `{found}`: what follows it in a path is not looked at"));
        }
        if text.contains("//") {
            return Err(format!("`{text}` has an empty segment"));
        }
        let path = text[1..].trim_end_matches('/');
        let mut template = Self { regex: format!("{flags}^"), generality: Vec::new() };
        if path.is_empty() {
            template.regex.push_str("/$");
            return Ok(template);
        }
        let mut segments = path.split('/').peekable();
        while let Some(segment) = segments.next() {
            template.regex.push('/');
            match segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
                Some(name) if name.starts_with('*') => {
                    if segments.peek().is_some() {
                        let message =
                            format!("`{segment}` stands for the whole rest, so nothing can follow it");
                        return Err(message);
                    }
                    template.regex.push_str(".*$");
                    template.generality.push(2);
                    return Ok(template);
                }
                Some(name) if name.is_empty() || name.contains(['{', '}', '*']) => {
                    return Err(format!("`{segment}` needs a plain name between its braces"));
                }
                Some(_) => {
                    template.regex.push_str("[^/]+");
                    template.generality.push(1);
                }
                None if segment.contains(['{', '}', '*']) => {
                    return Err(format!(
                        "`{segment}` mixes text and braces; a `{{name}}` takes a whole segment"
                    ));
                }
                None => {
                    push_literal(segment, &mut template.regex)?;
                    template.generality.push(0);
                }
            }
        }
        if closeness == PathStrictness::Exact && text.ends_with('/') {
            template.regex.push('/');
        }
        template.regex.push_str(end);
        Ok(template)
    }
}

/// A literal segment as it is read in a path: decoded, so that `@me` and `%40me` are the same.
fn push_literal(segment: &str, regex: &mut String) -> Result<(), String> {
    let rooted = format!("/{segment}");
    let canonical = canonical(&rooted).map_err(|fault| format!("`{segment}` matches nothing: {fault}"))?;
    if canonical.len() == 1 {
        return Err(format!("`{segment}` matches nothing: dot segments are removed from paths"));
    }
    regex.push_str(&regex::escape(&PathReadings::of(&canonical).whole[1..]));
    Ok(())
}
