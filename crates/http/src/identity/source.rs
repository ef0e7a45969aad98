//! The sources of identities in a request.

use crate::error::HttpError;
use crate::headers::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, Uri};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// A source of an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentitySource {
    /// A header, of any peer.
    Header(ConfiguredHeader),
    /// A header that is read from trusted peers only.
    TrustedHeader(ConfiguredHeader),
    /// A query parameter.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// The bearer token, as it is.
    Bearer,
    /// A claim of the verified token; `a.b` is `b` within `a`.
    Jwt(String),
    /// The client's address.
    Ip,
}

/// The kinds of sources that have a name.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum SourceKind {
    Header,
    TrustedHeader,
    Query,
    Cookie,
    Jwt,
}

impl IdentitySource {
    /// `bearer` or `ip`.
    pub(super) fn plain<E: de::Error>(text: &str) -> Result<Self, E> {
        match text {
            "bearer" => Ok(Self::Bearer),
            "ip" => Ok(Self::Ip),
            other => Err(E::custom(format_args!(
                "`{other}` is not a source; write `bearer` or `ip`, or a named one such as `header: X-User`"
            ))),
        }
    }

    /// `header: X-User` and the like; none for an empty map.
    pub(super) fn named<'de, A: MapAccess<'de>>(mut map: A) -> Result<Option<Self>, A::Error> {
        let Some(kind) = map.next_key::<SourceKind>()? else { return Ok(None) };
        let source = match kind {
            SourceKind::Header => Self::Header(map.next_value()?),
            SourceKind::TrustedHeader => Self::TrustedHeader(map.next_value()?),
            SourceKind::Query => Self::Query(map.next_value()?),
            SourceKind::Cookie => Self::Cookie(map.next_value()?),
            SourceKind::Jwt => Self::Jwt(map.next_value()?),
        };
        match map.next_key::<SourceKind>()? {
            None => Ok(Some(source)),
            Some(_) => Err(de::Error::custom("a source has one field; write several sources as a list")),
        }
    }
}

impl<'de> Deserialize<'de> for IdentitySource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SourceVisitor;

        impl<'de> Visitor<'de> for SourceVisitor {
            type Value = IdentitySource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a source such as `header: X-User` or `bearer`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<IdentitySource, E> {
                IdentitySource::plain(text)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<IdentitySource, A::Error> {
                IdentitySource::named(map)?.ok_or_else(|| de::Error::custom("a source has one field"))
            }
        }

        deserializer.deserialize_any(SourceVisitor)
    }
}

/// The name of a header in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredHeader(pub HeaderName);

impl<'de> Deserialize<'de> for ConfiguredHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let name = HeaderName::try_from(&*text);
        name.map(Self).map_err(|_| de::Error::custom(format_args!("`{text}` is not a header name")))
    }
}

/// The value of the header `name`; none if it is absent or empty.
#[inline]
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, HttpError> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(twice("header", name.as_str()));
    }
    let text = std::str::from_utf8(line.as_bytes())
        .map_err(|_| HttpError::bad_request(format!("the header `{name}` is not UTF-8")))?;
    Ok(non_empty(text.trim()))
}

/// The bearer token. Any number of spaces and tabs may come before it: servers differ in what they skip, and none may find a token
/// where there is none here. So what begins with `Bearer` is a token, or nothing at all, or refused; and a token has no spaces,
/// because some servers read only the first part.
#[inline]
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, HttpError> {
    const SCHEME: &str = "bearer";
    let Some(credentials) = header(headers, &AUTHORIZATION)? else { return Ok(None) };
    let Some((scheme, rest)) = credentials.split_at_checked(SCHEME.len()) else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Ok(None);
    }
    let token = rest.trim_start_matches([' ', '\t']);
    if rest.is_empty() {
        Ok(None)
    } else if token.len() < rest.len() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(non_empty(token))
    } else {
        Err(HttpError::bad_request("the header `authorization` is not `Bearer`, a space and one token"))
    }
}

/// The query parameter `name`, decoded and trimmed.
///
/// Some servers accept other spellings of the name, or end values at a `;`. A parameter that may be this one to a server is refused:
/// the server would see another identity than the limiter.
pub(super) fn query<'a>(uri: &'a Uri, name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let Some(query) = uri.query() else { return Ok(None) };
    let mut found = None;
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match compare_names(decoded(key).as_deref().unwrap_or(key), name) {
            NameMatch::Same if found.replace(value).is_some() => return Err(twice("query parameter", name)),
            NameMatch::Similar => return Err(similar("query parameter", key, name)),
            NameMatch::Same | NameMatch::Different => {}
        }
        for key in pair.split(';').skip(1).map(|pair| pair.split('=').next().unwrap_or_default()) {
            if compare_names(decoded(key).as_deref().unwrap_or(key), name) != NameMatch::Different {
                return Err(similar("query parameter", key, name));
            }
        }
    }
    let Some(value) = found else { return Ok(None) };
    let value = decoded(value).filter(|text| !value.contains(';') && is_one_line(text)).ok_or_else(|| {
        HttpError::bad_request(format!(
            "the query parameter `{name}` cannot be decoded, or not in one way only"
        ))
    })?;
    Ok(match value {
        Cow::Borrowed(text) => non_empty(text.trim()).map(Cow::Borrowed),
        Cow::Owned(text) => non_empty(text.trim()).map(|text| Cow::Owned(text.to_owned())),
    })
}

/// The cookie `name`, without quotes and escapes: some servers remove them. Cookies may be in several lines.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<Cow<'a, str>>, HttpError> {
    let mut found = None;
    for line in headers.get_all(COOKIE) {
        let text = std::str::from_utf8(line.as_bytes())
            .map_err(|_| HttpError::bad_request("the header `cookie` is not UTF-8"))?;
        for pair in text.split(';') {
            let Some((key, value)) = pair.split_once('=') else { continue };
            match compare_names(key.trim(), name) {
                NameMatch::Same if found.replace(value.trim()).is_some() => {
                    return Err(twice("cookie", name));
                }
                NameMatch::Similar => return Err(similar("cookie", key.trim(), name)),
                NameMatch::Same | NameMatch::Different => {}
            }
            // To some servers a comma or a space starts the next cookie.
            let inner =
                value.split([',', ' ', '\t', '"']).skip(1).filter_map(|part| Some(part.split_once('=')?.0));
            if let Some(key) = inner.into_iter().find(|key| compare_names(key, name) != NameMatch::Different)
            {
                return Err(similar("cookie", key, name));
            }
        }
    }
    let Some(value) = found else { return Ok(None) };
    let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value).trim();
    // Some servers decode `\142` in quotes, and parse what begins with `j:` as JSON.
    let has_other_readings = |text: &str| text.contains('\\') || text.starts_with("j:");
    let refusal =
        || HttpError::bad_request(format!("the cookie `{name}` has a value that servers read differently"));
    if !value.contains('%') {
        if has_other_readings(value) {
            return Err(refusal());
        }
        return Ok(non_empty(value).map(Cow::Borrowed));
    }
    // Invalid escapes are no escapes, and `+` is a plus: it means a space in forms only.
    let text = decoded(&value.replace('+', "%2B"))
        .map_or(Cow::Borrowed(value), |text| Cow::Owned(text.trim().to_owned()));
    if has_other_readings(&text) {
        return Err(refusal());
    }
    if !is_one_line(&text) {
        return Err(HttpError::bad_request(format!("the cookie `{name}` has control characters in it")));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// How a name compares with the name of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameMatch {
    Same,
    /// Another name, but the same to some servers: they ignore case, or treat `.`, ` ` and `_` alike, or read `name[]` as a list.
    Similar,
    Different,
}

fn compare_names(key: &str, name: &str) -> NameMatch {
    if key == name {
        return NameMatch::Same;
    }
    let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'_' };
    let is_like = |key: &str| key.len() == name.len() && key.bytes().map(fold).eq(name.bytes().map(fold));
    // Some servers read `[name]` as `name`, and `name[]` as a list.
    let bare = key.trim_start_matches(['[', ' ']).split(['[', ']', '\0']).next().unwrap_or_default().trim();
    if is_like(key) || is_like(bare) { NameMatch::Similar } else { NameMatch::Different }
}

/// Whether a trimmed text has no control characters, at which some servers end it.
fn is_one_line(text: &str) -> bool {
    !text.trim().contains(char::is_control)
}

fn non_empty(text: &str) -> Option<&str> {
    if text.is_empty() { None } else { Some(text) }
}

#[cold]
fn similar(what: &str, key: &str, name: &str) -> HttpError {
    let shown: String = key.chars().take(100).collect();
    HttpError::bad_request(format!("the {what} `{shown}` could be read as `{name}`"))
}

#[cold]
fn twice(what: &str, name: &str) -> HttpError {
    HttpError::bad_request(format!("the {what} `{name}` occurs twice"))
}

/// Decodes a text of a query; none if an escape is malformed or the result is not UTF-8.
pub(super) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? << 4 | digit()?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}
