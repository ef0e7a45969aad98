//! The canonical form of paths, in which they are matched and forwarded.
//!
//! `/login`, `//login`, `/./login`, `/;x/login` and `/%6cogin` are the same resource to many servers. If rules saw them as
//! different paths, each would have a quota of its own, or none. A path is therefore made canonical before it is matched,
//! and forwarded in that form: escapes of unreserved characters are decoded, other escapes are in upper case, characters
//! that must be escaped are, and dot segments, empty segments and segments with nothing but parameters are removed.
//!
//! Some paths have no canonical form because servers disagree about their meaning: an escaped slash, backslash or
//! semicolon, an escaped control character, bytes that are not UTF-8, `..` above the root. They are refused.
//!
//! Servers also disagree on whether `;x` is part of a segment or a parameter of it. A path with parameters therefore has
//! two [`PathReadings`], both decoded: with and without them. A rule matches a path if it matches either.

use std::borrow::Cow;
use std::fmt;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// It does not start with a slash.
    NoSlash,
    /// A `%` without two hexadecimal digits after it.
    BrokenEscape,
    /// An escape of this byte, which servers interpret differently.
    Escape(u8),
    /// A character that is not allowed in a path.
    Character(u8),
    /// `..` leads above the root.
    AboveRoot,
    /// A dot segment with parameters, such as `..;x`, which only some servers resolve.
    DotWithParameters,
    /// Escapes that are not UTF-8.
    NotUtf8,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlash => f.write_str("the path does not start with a slash"),
            Self::BrokenEscape => f.write_str("the path has a `%` without two hexadecimal digits after it"),
            Self::Escape(byte) => {
                write!(f, "the path has a `%{byte:02X}`, which servers interpret differently")
            }
            Self::Character(b'\\') => {
                f.write_str("the path has a backslash, which servers interpret differently")
            }
            Self::Character(_) => f.write_str("the path has a control character"),
            Self::AboveRoot => f.write_str("the path leads above its root with `..`"),
            Self::DotWithParameters => {
                f.write_str("the path has a dot segment with parameters, which servers interpret differently")
            }
            Self::NotUtf8 => {
                f.write_str("the path has escapes that are not UTF-8, which servers interpret differently")
            }
        }
    }
}

impl std::error::Error for PathError {}

/// The canonical form of `path`, which has no query. Borrowed if `path` is canonical.
#[inline]
pub fn canonical(path: &str) -> Result<Cow<'_, str>, PathError> {
    if is_canonical(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let rewritten = rewrite(path)?;
    Ok(if rewritten == path { Cow::Borrowed(path) } else { Cow::Owned(rewritten) })
}

/// The canonical form of an endpoint: a path without its query. A text that does not start with a slash is a name, not a
/// path, and is returned unchanged.
#[inline]
pub fn endpoint(text: &str) -> Result<Cow<'_, str>, PathError> {
    if !text.starts_with('/') {
        return Ok(Cow::Borrowed(text));
    }
    let end = text.bytes().position(|byte| matches!(byte, b'?' | b'#'));
    canonical(&text[..end.unwrap_or(text.len())])
}

/// The ways in which servers interpret a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReadings<'p> {
    /// The whole path, decoded: for servers without path parameters.
    pub whole: Cow<'p, str>,
    /// The decoded path without the parameters of its segments; `None` if it has none.
    pub plain: Option<String>,
}

impl<'p> PathReadings<'p> {
    /// The readings of an endpoint that a door has made canonical. A name, or a path without a canonical form, is its own
    /// only reading.
    pub fn of(endpoint: &'p str) -> Self {
        let whole = match canonical(endpoint) {
            Ok(Cow::Borrowed(path)) => decoded(path),
            Ok(Cow::Owned(path)) => Cow::Owned(decoded(&path).into_owned()),
            Err(_) => return Self { whole: Cow::Borrowed(endpoint), plain: None },
        };
        let plain = whole.contains(';').then(|| without_parameters(&whole));
        Self { whole, plain }
    }

    /// The reading without parameters.
    pub fn plain(&self) -> &str {
        self.plain.as_deref().unwrap_or(&self.whole)
    }
}

/// A canonical path with all escapes decoded. Borrowed if it has none.
fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let decoded = String::from_utf8(decoded_bytes(path));
    Cow::Owned(decoded.expect("escapes in a canonical path are UTF-8"))
}

fn decoded_bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        match (byte, hex(after.first()), hex(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                out.push(high << 4 | low);
                rest = &after[2..];
            }
            _ => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    out
}

/// A decoded canonical path without the parameters of its segments. No canonical segment has only parameters, so none
/// becomes empty.
fn without_parameters(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for (index, segment) in path.split('/').enumerate() {
        if index > 0 {
            out.push('/');
        }
        out.push_str(segment.split(';').next().unwrap_or_default());
    }
    out
}

/// The role of a byte in a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    /// Means the same escaped and unescaped.
    Unreserved,
    /// May mean something else when escaped.
    Reserved,
    Slash,
    Dot,
    /// Starts the parameters of a segment. Refused when escaped.
    Semicolon,
    Percent,
    /// Must be escaped.
    Foreign,
    /// Refused, escaped or not.
    Refused,
}

const CLASSES: [ByteClass; 256] = {
    let mut classes = [ByteClass::Foreign; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => ByteClass::Unreserved,
            b'.' => ByteClass::Dot,
            b'/' => ByteClass::Slash,
            b'%' => ByteClass::Percent,
            b';' => ByteClass::Semicolon,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@' => {
                ByteClass::Reserved
            }
            b'\\' | 0..=31 | 127 => ByteClass::Refused,
            _ => ByteClass::Foreign,
        };
        byte += 1;
    }
    classes
};

fn class(byte: u8) -> ByteClass {
    CLASSES[usize::from(byte)]
}

/// True only if [`rewrite`] would return the same path. May be false for a few rare canonical paths.
#[inline]
fn is_canonical(path: &[u8]) -> bool {
    if path.first() != Some(&b'/') {
        return false;
    }
    let mut at = 1;
    let mut after_slash = true;
    while let Some(byte) = path.get(at) {
        match class(*byte) {
            ByteClass::Unreserved | ByteClass::Reserved => {}
            ByteClass::Slash if after_slash => return false,
            ByteClass::Slash => {
                after_slash = true;
                at += 1;
                continue;
            }
            ByteClass::Semicolon if after_slash => return false,
            ByteClass::Semicolon => {}
            // `/.well-known` is canonical.
            ByteClass::Dot if after_slash && matches!(path.get(at + 1), None | Some(b'/' | b'.' | b';')) => {
                return false;
            }
            ByteClass::Dot => {}
            ByteClass::Percent if keeps_escape(path.get(at + 1), path.get(at + 2)) => at += 2,
            ByteClass::Percent => return false,
            ByteClass::Foreign | ByteClass::Refused => return false,
        }
        after_slash = false;
        at += 1;
    }
    true
}

/// Whether an escape with these digits is canonical. May be false for a canonical one.
fn keeps_escape(high: Option<&u8>, low: Option<&u8>) -> bool {
    let is_upper = |digit: Option<&u8>| digit.is_some_and(|digit| !digit.is_ascii_lowercase());
    let (true, true, Some(high_value), Some(low_value)) =
        (is_upper(high), is_upper(low), hex(high), hex(low))
    else {
        return false;
    };
    let byte = high_value << 4 | low_value;
    // Whether a byte above 127 is part of UTF-8 depends on its neighbours.
    byte.is_ascii() && matches!(class(byte), ByteClass::Reserved | ByteClass::Foreign | ByteClass::Percent)
}

/// Builds the canonical form.
#[cold]
fn rewrite(path: &str) -> Result<String, PathError> {
    let inner = path.strip_prefix('/').ok_or(PathError::NoSlash)?;
    let mut out = String::with_capacity(path.len() + 8);
    let mut segments = inner.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let start = out.len();
        out.push('/');
        push_segment(segment.as_bytes(), &mut out)?;
        match &out[start + 1..] {
            segment if segment.is_empty() || segment.starts_with(';') => {
                out.truncate(start + usize::from(is_last))
            }
            "." => out.truncate(start + usize::from(is_last)),
            ".." => {
                let parent = out[..start].rfind('/').ok_or(PathError::AboveRoot)?;
                out.truncate(parent + usize::from(is_last));
            }
            segment if segment.starts_with(".;") || segment.starts_with("..;") => {
                return Err(PathError::DotWithParameters);
            }
            _ => {}
        }
    }
    if out.is_empty() {
        out.push('/');
    }
    Ok(out)
}

/// Appends one segment with its escapes and characters in canonical form.
fn push_segment(segment: &[u8], out: &mut String) -> Result<(), PathError> {
    let start = out.len();
    let mut bytes = segment.iter();
    let mut is_ascii = true;
    while let Some(byte) = bytes.next() {
        match class(*byte) {
            ByteClass::Percent => {
                let (Some(high), Some(low)) = (hex(bytes.next()), hex(bytes.next())) else {
                    return Err(PathError::BrokenEscape);
                };
                let escaped = high << 4 | low;
                match class(escaped) {
                    ByteClass::Unreserved | ByteClass::Dot => out.push(char::from(escaped)),
                    ByteClass::Slash | ByteClass::Semicolon | ByteClass::Refused => {
                        return Err(PathError::Escape(escaped));
                    }
                    ByteClass::Foreign | ByteClass::Reserved | ByteClass::Percent => {
                        push_escape(escaped, out)
                    }
                }
                is_ascii &= escaped.is_ascii();
            }
            ByteClass::Foreign => push_escape(*byte, out),
            ByteClass::Refused => return Err(PathError::Character(*byte)),
            ByteClass::Unreserved
            | ByteClass::Reserved
            | ByteClass::Slash
            | ByteClass::Dot
            | ByteClass::Semicolon => {
                out.push(char::from(*byte));
            }
        }
    }
    // Lenient decoders read a slash from `%C0%AF`, others a letter from `%E9`.
    if !is_ascii && std::str::from_utf8(&decoded_bytes(&out[start..])).is_err() {
        return Err(PathError::NotUtf8);
    }
    Ok(())
}

fn hex(digit: Option<&u8>) -> Option<u8> {
    char::from(*digit?).to_digit(16).map(|digit| digit as u8)
}

fn push_escape(byte: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}
