//! The JSON of one check, as asked.
//!
//! It is read without copying: texts point into the body unless they hold escapes. A body that cannot be
//! read is read a second time, slowly, to say which field is wrong.

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use tollgate_core::path;
use tollgate_core::problem::nearest;
use tollgate_core::request::LONGEST_ENDPOINT;
use tollgate_http::Fault;
use tollgate_limiter::{Check, Invalid, Limiter, Method, Request};

/// Custom identities in one check. A rule names one or two; each is searched for by name.
pub const MOST_IDS: usize = 32;
/// Error messages repeat what was sent, but not all of it.
const LONGEST_MESSAGE: usize = 300;

const EXAMPLE: &str = r#"a check is a JSON object such as {"key":"sk_1","endpoint":"/v1/orders"}"#;

const FIELDS: [&str; 11] =
    ["key", "user", "tenant", "ip", "tier", "ids", "domain", "endpoint", "method", "cost", "priority"];

/// What the fields are called in rule files and in Envoy descriptors.
const ELSEWHERE: [(&str, &str); 4] =
    [("api_key", "key"), ("remote_address", "ip"), ("path", "endpoint"), ("route", "endpoint")];

/// One check. Every field may be left out or be null, but somebody has to be named. Only the endpoint may
/// be empty: an empty name is more likely a variable that was not set than somebody's name, and everybody
/// with that mistake would share one limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a check: a JSON object")]
pub struct Question<'a> {
    #[serde(borrow)]
    key: Option<Name<'a>>,
    #[serde(borrow)]
    user: Option<Name<'a>>,
    #[serde(borrow)]
    tenant: Option<Name<'a>>,
    ip: Option<IpAddr>,
    #[serde(borrow)]
    tier: Option<Name<'a>>,
    #[serde(borrow)]
    ids: Option<Ids<'a>>,
    #[serde(borrow)]
    domain: Option<Name<'a>>,
    #[serde(borrow)]
    endpoint: Option<Text<'a>>,
    #[serde(borrow)]
    method: Option<Name<'a>>,
    cost: Option<Cost>,
    priority: Option<Priority>,
}

impl<'a> Question<'a> {
    /// Reads one check.
    pub fn parse(json: &'a [u8]) -> Result<Self, Fault> {
        // A struct could also be read from an array, field by field; nobody means that.
        match json.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => Err(not_an_object(json)),
            _ => read(json).map_err(|error| fault::<Self>(json, &error, EXAMPLE)),
        }
    }

    /// Puts it to the limiter.
    pub fn check<'l>(&self, limiter: &'l Limiter) -> Result<Check<'l>, Fault> {
        let ids = self.ids.iter().flat_map(|ids| &ids.0);
        let ids: SmallVec<[(&str, &str); 4]> = ids.map(|(name, value)| (&*name.0, &*value.0)).collect();
        let endpoint = self.endpoint.as_ref().map_or("", |text| &*text.0);
        if endpoint.len() > LONGEST_ENDPOINT {
            return Err(Invalid::EndpointTooLong.into());
        }
        // In the form that every door has it in: another spelling must not be another quota.
        let endpoint = path::endpoint(endpoint)
            .map_err(|fault| Fault::bad_request(fault.to_string()).in_field("endpoint"))?;
        Ok(limiter.check(&self.request(&endpoint, &ids))?)
    }

    fn request<'q>(&'q self, endpoint: &'q str, ids: &'q [(&'q str, &'q str)]) -> Request<'q> {
        let name = |name: &'q Option<Name<'a>>| name.as_ref().map(|name| &*name.0);
        Request {
            api_key: name(&self.key),
            user: name(&self.user),
            tenant: name(&self.tenant),
            ip: self.ip.map(|ip| ip.to_canonical()),
            tier: name(&self.tier),
            ids,
            domain: name(&self.domain),
            endpoint,
            method: name(&self.method).map(Method::from_name),
            cost: self.cost.as_ref().map_or(1, |cost| cost.0),
            priority: self.priority.as_ref().map(|priority| priority.0),
        }
    }
}

/// Looks at the encoding once rather than for each text.
fn read(json: &[u8]) -> Result<Question<'_>, serde_json::Error> {
    match std::str::from_utf8(json) {
        Ok(json) => serde_json::from_str(json),
        // It is wrong, and this says where.
        Err(_) => serde_json::from_slice(json),
    }
}

/// Why `json` is not a `T`: what, where, in which field, and what was perhaps meant.
#[cold]
pub(crate) fn fault<'a, T: Deserialize<'a>>(
    json: &'a [u8],
    error: &serde_json::Error,
    example: &'static str,
) -> Fault {
    let (line, column) = (error.line().max(1), error.column().max(1));
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    let shown: String = message.chars().take(LONGEST_MESSAGE).collect();
    let mut fault = Fault::bad_request(shown).at(line, column);
    let mut slowly = serde_json::Deserializer::from_slice(json);
    if let Err(again) = serde_path_to_error::deserialize::<_, T>(&mut slowly) {
        let field: String = again.path().to_string().chars().take(LONGEST_MESSAGE).collect();
        if field != "." && field != "?" {
            fault = fault.in_field(field);
        }
    }
    if let Some(unknown) = message.strip_prefix("unknown field `") {
        let unknown = unknown.split('`').next().unwrap_or_default();
        let known = ELSEWHERE.iter().find(|(there, _)| *there == unknown).map(|(_, here)| *here);
        fault = fault.with_hint(match known.or_else(|| nearest(unknown, FIELDS)) {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("the fields are {}", FIELDS.join(", ")),
        });
    } else if error.is_syntax() || error.is_eof() {
        fault = fault.with_hint(example);
    }
    fault
}

#[cold]
fn not_an_object(json: &[u8]) -> Fault {
    let before = json.iter().take_while(|byte| byte.is_ascii_whitespace());
    let (line, column) = end_of(&json[..before.count()]);
    Fault::bad_request("a check is a JSON object, not an array")
        .at(line, column)
        .with_hint("several checks go to POST /v1/check/batch")
}

/// The place just after `text`.
pub(crate) fn end_of(text: &[u8]) -> (usize, usize) {
    let line = 1 + text.iter().filter(|byte| **byte == b'\n').count();
    let column = 1 + text.iter().rev().take_while(|byte| **byte != b'\n').count();
    (line, column)
}

/// A text that is not empty.
#[derive(Debug)]
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        if text.is_empty() {
            return Err(de::Error::custom("it must not be empty: leave it out if there is none"));
        }
        Ok(Self(text))
    }
}

/// Any text. Unlike a plain `Cow` in an option, it is borrowed when it can be.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyText;

        impl<'de> Visitor<'de> for AnyText {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(AnyText)
    }
}

/// Custom identities: an object of texts.
#[derive(Debug)]
struct Ids<'a>(Vec<(Name<'a>, Name<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Ids<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Ids<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of names and texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut ids = Vec::<(Name<'de>, Name<'de>)>::new();
                while let Some((name, value)) = map.next_entry::<Name<'de>, Name<'de>>()? {
                    if ids.iter().any(|(known, _)| known.0 == name.0) {
                        return Err(de::Error::custom(format_args!("`{}` stands there twice", name.0)));
                    }
                    if ids.len() == MOST_IDS {
                        return Err(de::Error::custom(format_args!("there are more than {MOST_IDS} ids")));
                    }
                    ids.push((name, value));
                }
                Ok(Ids(ids))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// What a request costs: at least 1.
#[derive(Debug)]
struct Cost(u64);

/// How much a request matters.
#[derive(Debug)]
struct Priority(u8);

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        whole_number(deserializer, "a whole number from 1", |number| (number >= 1).then_some(Self(number)))
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a whole number from 0 to 255";
        whole_number(deserializer, expected, |number| u8::try_from(number).ok().map(Self))
    }
}

/// Reads a number that `accept` takes; `expected` says which those are.
fn whole_number<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    accept: impl Fn(u64) -> Option<T>,
) -> Result<T, D::Error> {
    struct WholeNumber<F>(&'static str, F);

    impl<T, F: Fn(u64) -> Option<T>> Visitor<'_> for WholeNumber<F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            (self.1)(number).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
        }
    }

    deserializer.deserialize_u64(WholeNumber(expected, accept))
}
