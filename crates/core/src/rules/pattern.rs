//! Patterns in rules: globs over identities, networks over addresses, templates over paths.

use crate::path::{PathError, PathReadings, canonical};
use ipnet::{IpNet, Ipv4Net};
use std::fmt;
use std::net::IpAddr;

/// A glob: `*` matches any run of characters, `?` one character. All other characters match themselves, case-sensitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: String,
    /// The only wildcard is a star at the end, as in nearly all globs.
    is_prefix: bool,
    /// The first eight bytes of the literal prefix, and a mask of the bits that count: one comparison rejects most texts.
    head: (u64, u64),
}

impl Glob {
    /// Parses a glob. Every text is one.
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

    /// The glob as written.
    pub fn as_str(&self) -> &str {
        &self.pattern
    }

    /// Whether it has no wildcard.
    pub fn is_exact(&self) -> bool {
        !self.pattern.contains(['*', '?'])
    }

    /// Whether it matches every text, or every text but the empty one.
    pub fn is_any(&self) -> bool {
        let one_or_more = self.pattern.bytes().filter(|byte| *byte == b'?').count() <= 1;
        self.pattern.contains('*')
            && self.pattern.bytes().all(|byte| matches!(byte, b'*' | b'?'))
            && one_or_more
    }

    /// The number of literal bytes: of two matching globs, the one with more is more specific.
    pub fn specificity(&self) -> usize {
        self.pattern.bytes().filter(|byte| !matches!(byte, b'*' | b'?')).count()
    }

    /// Whether `text` matches. Linear for one star, at most text × pattern for several.
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
        // Where to resume when the run of the last star was assumed too short.
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

/// The UTF-8 length of the character that starts with `byte`.
fn char_len(byte: u8) -> usize {
    match byte {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

/// Parses a network or an address. IPv4-mapped IPv6 becomes IPv4, as for client addresses.
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

/// How strictly a path must match a template or a regular expression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathStrictness {
    /// `;parameters` are ignored, and by templates also case and a trailing slash. Most servers ignore them, so they
    /// must not give a client a second quota.
    #[default]
    Folded,
    /// They distinguish paths.
    Exact,
}

impl PathStrictness {
    /// As `exact:` in a rule says.
    pub(super) fn from_exact(exact: bool) -> Self {
        if exact { Self::Exact } else { Self::Folded }
    }
}

/// Domains: a name, `*.suffix` or `prefix.*`, case-insensitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainPattern {
    /// One domain.
    Exact(String),
    /// Domains that end with this text, which begins with a dot.
    Suffix(String),
    /// Domains that begin with this text, which ends with a dot.
    Prefix(String),
}

impl DomainPattern {
    /// Parses a pattern; `None` if a star is anywhere else.
    pub fn parse(text: &str) -> Option<Self> {
        let pattern = match (text.strip_prefix('*'), text.strip_suffix('*')) {
            (Some(suffix), _) if suffix.starts_with('.') => Self::Suffix(suffix.to_owned()),
            (_, Some(prefix)) if prefix.ends_with('.') => Self::Prefix(prefix.to_owned()),
            _ => Self::Exact(text.to_owned()),
        };
        let (Self::Exact(literal) | Self::Suffix(literal) | Self::Prefix(literal)) = &pattern;
        (!literal.contains('*')).then_some(pattern)
    }

    /// Whether `domain` matches.
    pub fn matches(&self, domain: &str) -> bool {
        let is_same = |part: Option<&[u8]>, literal: &String| {
            part.is_some_and(|part| part.eq_ignore_ascii_case(literal.as_bytes()))
        };
        let bytes = domain.as_bytes();
        match self {
            Self::Exact(literal) => domain.eq_ignore_ascii_case(literal),
            // Something must precede the dot of the suffix, or follow that of the prefix.
            Self::Suffix(literal) if bytes.len() > literal.len() => {
                is_same(bytes.get(bytes.len() - literal.len()..), literal)
            }
            Self::Prefix(literal) if bytes.len() > literal.len() => {
                is_same(bytes.get(..literal.len()), literal)
            }
            Self::Suffix(_) | Self::Prefix(_) => false,
        }
    }
}

/// Why a template cannot be used. Each holds the text or the segment at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// It does not start with a slash.
    NoSlash(String),
    /// A character after which a path is not matched.
    Character(char),
    /// Two slashes in a row.
    EmptySegment(String),
    /// Something follows `{*rest}`.
    AfterRest(String),
    /// Braces without a plain name.
    Name(String),
    /// Braces in a part of a segment.
    MixedSegment(String),
    /// A segment that no canonical path has.
    Path(String, PathError),
    /// `.` or `..`.
    DotSegment(String),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlash(text) => write!(f, "`{text}` does not start with a slash"),
            Self::Character(c) => {
                write!(f, "a template cannot contain `{c}`: paths are matched only up to it")
            }
            Self::EmptySegment(text) => write!(f, "`{text}` has an empty segment"),
            Self::AfterRest(segment) => {
                write!(f, "`{segment}` matches the whole rest, so nothing can follow it")
            }
            Self::Name(segment) => write!(f, "`{segment}` needs a plain name between its braces"),
            Self::MixedSegment(segment) => {
                write!(f, "`{segment}` mixes text and braces; a `{{name}}` takes a whole segment")
            }
            Self::Path(segment, error) => write!(f, "`{segment}` matches no path: {error}"),
            Self::DotSegment(segment) => {
                write!(f, "`{segment}` matches no path: dot segments are removed from paths")
            }
        }
    }
}

impl std::error::Error for TemplateError {}

/// A route template such as `/v1/users/{id}` or `/files/{*rest}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTemplate {
    /// The regular expression over the readings of a path (see [`PathReadings`]).
    pub regex: String,
    /// For each segment 0 if it is literal, 1 for `{name}`, 2 for `{*rest}`. Of two templates that match a path, the one
    /// with the smaller list is more specific.
    pub generality: Vec<u8>,
}

impl RouteTemplate {
    /// Parses a template.
    pub fn parse(text: &str, strictness: PathStrictness) -> Result<Self, TemplateError> {
        let (flags, end) = match strictness {
            PathStrictness::Folded => ("(?i)", "/?$"),
            PathStrictness::Exact => ("", "$"),
        };
        if !text.starts_with('/') {
            return Err(TemplateError::NoSlash(text.to_owned()));
        }
        if let Some(found) = text.chars().find(|c| matches!(c, '?' | '#' | ';')) {
            return Err(TemplateError::Character(found));
        }
        if text.contains("//") {
            return Err(TemplateError::EmptySegment(text.to_owned()));
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
                        return Err(TemplateError::AfterRest(segment.to_owned()));
                    }
                    template.regex.push_str(".*$");
                    template.generality.push(2);
                    return Ok(template);
                }
                Some(name) if name.is_empty() || name.contains(['{', '}', '*']) => {
                    return Err(TemplateError::Name(segment.to_owned()));
                }
                Some(_) => {
                    template.regex.push_str("[^/]+");
                    template.generality.push(1);
                }
                None if segment.contains(['{', '}', '*']) => {
                    return Err(TemplateError::MixedSegment(segment.to_owned()));
                }
                None => {
                    push_literal(segment, &mut template.regex)?;
                    template.generality.push(0);
                }
            }
        }
        if strictness == PathStrictness::Exact && text.ends_with('/') {
            template.regex.push('/');
        }
        template.regex.push_str(end);
        Ok(template)
    }
}

/// Appends a literal segment, decoded as in the readings of a path, so that `@me` and `%40me` are the same.
fn push_literal(segment: &str, regex: &mut String) -> Result<(), TemplateError> {
    let rooted = format!("/{segment}");
    let canonical = canonical(&rooted).map_err(|error| TemplateError::Path(segment.to_owned(), error))?;
    if canonical.len() == 1 {
        return Err(TemplateError::DotSegment(segment.to_owned()));
    }
    regex.push_str(&regex::escape(&PathReadings::of(&canonical).whole[1..]));
    Ok(())
}
