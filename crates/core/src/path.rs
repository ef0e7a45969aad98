//! The one form of a path in which it is forwarded, and what rules read in it.
//!
//! `/login`, `//login`, `/./login`, `/;x/login` and `/%6cogin` are the same resource to many servers. If they
//! were different paths to the rules, each would be a quota of its own, or none. So a path is brought into one
//! form before any rule sees it, and it is forwarded in that form: escapes of unreserved characters are decoded,
//! other escapes are in upper case, what may not stand there plainly is escaped, dot segments are removed, and so
//! are segments that are empty, or empty but for parameters.
//!
//! Some paths have no such form, because servers disagree about what they mean: an escaped slash, backslash or
//! semicolon, an escaped control character, bytes that are not UTF-8, `..` above the root. These are refused.
//!
//! What is left for servers to disagree about is whether `;x` is a part of a segment or a parameter beside it.
//! A path with parameters therefore has two [`PathReadings`], both decoded: with them and without. A rule is about a
//! path if it is about either of the two.

use std::borrow::Cow;
use std::fmt;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// It does not begin with a slash.
    NoSlash,
    /// A `%` without two hexadecimal digits after it.
    BrokenEscape,
    /// An escape of this byte, about which servers disagree.
    Escape(u8),
    /// This character may not stand in a path.
    Character(u8),
    /// `..` leads above the root.
    AboveRoot,
    /// A dot segment with parameters, such as `..;x`, which only some servers resolve.
    DotWithParameters,
    /// Escapes that make no UTF-8 text.
    NotUtf8,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlash => f.write_str("the path does not begin with a slash"),
            Self::BrokenEscape => f.write_str("the path has a `%` without two hexadecimal digits after it"),
            Self::Escape(byte) => write!(f, "the path has a `%{byte:02X}`, which servers read differently"),
            Self::Character(b'\\') => f.write_str("the path has a backslash, which servers read differently"),
            Self::Character(_) => f.write_str("the path has a control character"),
            Self::AboveRoot => f.write_str("the path leads above its root with `..`"),
            Self::DotWithParameters => {
                f.write_str("the path has a dot segment with parameters, which servers read differently")
            }
            Self::NotUtf8 => {
                f.write_str("the path has escapes that are not UTF-8, which servers read differently")
            }
        }
    }
}

impl std::error::Error for PathError {}

/// The canonical form of `path`, which has no query. Borrowed if it has that form already.
#[inline]
pub fn canonical(path: &str) -> Result<Cow<'_, str>, PathError> {
    if is_canonical(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let made = rewrite(path)?;
    Ok(if made == path { Cow::Borrowed(path) } else { Cow::Owned(made) })
}

/// An endpoint as callers name it: a path, whose query is dropped, in its canonical form. What does not
/// begin with a slash is not a path but a name, and stays as it is.
#[inline]
pub fn endpoint(text: &str) -> Result<Cow<'_, str>, PathError> {
    if !text.starts_with('/') {
        return Ok(Cow::Borrowed(text));
    }
    let end = text.bytes().position(|byte| matches!(byte, b'?' | b'#'));
    canonical(&text[..end.unwrap_or(text.len())])
}

/// What servers may read in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReadings<'p> {
    /// All of it, decoded: as servers read it that know no parameters.
    pub whole: Cow<'p, str>,
    /// The same without the parameters of its segments; none if it has none.
    pub plain: Option<String>,
}

impl<'p> PathReadings<'p> {
    /// The readings of an endpoint, which every door has brought into its canonical form. One that has no such
    /// form, and one that is a name, is read as it is.
    pub fn of(endpoint: &'p str) -> Self {
        let whole = match canonical(endpoint) {
            Ok(Cow::Borrowed(path)) => decoded(path),
            Ok(Cow::Owned(path)) => Cow::Owned(decoded(&path).into_owned()),
            Err(_) => return Self { whole: Cow::Borrowed(endpoint), plain: None },
        };
        let plain = whole.contains(';').then(|| without_parameters(&whole));
        Self { whole, plain }
    }

    /// Without parameters.
    pub fn plain(&self) -> &str {
        self.plain.as_deref().unwrap_or(&self.whole)
    }
}

/// A canonical path with all its escapes decoded. Borrowed if it has none.
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

/// A decoded canonical path without what follows a `;` in each of its segments. None of these is empty but for
/// parameters, so none is empty now.
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

/// What a byte is to a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    /// It stands for itself, escaped or not.
    Unreserved,
    /// It stands for itself; escaped it might mean something else.
    Reserved,
    Slash,
    Dot,
    /// Begins the parameters of a segment. Escaped, it is refused.
    Semicolon,
    Percent,
    /// It has to be escaped.
    Foreign,
    /// It is refused, escaped or not.
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

/// Says yes only if [`rewrite`] would answer the same path. It may say no to a few rare ones of these.
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
            // `/.well-known` is fine.
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

/// Whether an escape with these digits surely stays as it is.
fn keeps_escape(high: Option<&u8>, low: Option<&u8>) -> bool {
    let is_upper = |digit: Option<&u8>| digit.is_some_and(|digit| !digit.is_ascii_lowercase());
    let (true, true, Some(high_value), Some(low_value)) =
        (is_upper(high), is_upper(low), hex(high), hex(low))
    else {
        return false;
    };
    let byte = high_value << 4 | low_value;
    // Whether other bytes make a text is seen from their neighbours only.
    byte.is_ascii() && matches!(class(byte), ByteClass::Reserved | ByteClass::Foreign | ByteClass::Percent)
}

/// The canonical form, made anew.
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
            made if made.is_empty() || made.starts_with(';') => out.truncate(start + usize::from(is_last)),
            "." => out.truncate(start + usize::from(is_last)),
            ".." => {
                let parent = out[..start].rfind('/').ok_or(PathError::AboveRoot)?;
                out.truncate(parent + usize::from(is_last));
            }
            made if made.starts_with(".;") || made.starts_with("..;") => {
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

/// One segment, its escapes and characters in canonical form.
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
    // Careless decoders read a slash from `%C0%AF`, others a letter from `%E9`.
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
