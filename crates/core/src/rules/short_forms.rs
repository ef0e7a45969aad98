//! The short forms in a rule file: `100/min`, `90s`, one text or several, a key or a key with an expiry.

use super::written::WrittenListEntry;
use crate::rate::{LimitShorthand, LimitShorthandError, Rate, parse_duration_us};
use crate::time::UnixTime;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

const TEXTS_FORM: &str = "a text or a list of texts";
const LIST_ENTRY_FORM: &str = "a key, a glob or a network, or { key: …, expires: …, reason: … }";
/// The forms that take a text which may look like a number: a hint is to quote it.
pub(crate) const TEXT_FORMS: [&str; 2] = [TEXTS_FORM, LIST_ENTRY_FORM];

/// One value, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany<T>(pub Vec<T>);

/// A count, or a count with its period: `100` or `100/min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAmount {
    /// A count; the window is given elsewhere.
    Count(u64),
    /// A count per period.
    Quota(LimitShorthand),
}

/// A limit in a list of limits: `10/s`, or with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortLimit {
    /// The count and its period.
    pub limit: LimitShorthand,
    /// The most tokens that can be spent at once.
    pub burst: Option<u64>,
}

/// A rate: a number per second, or `100/min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateText(pub Rate);

/// A duration: a number of seconds, or `90s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationText {
    /// Its length.
    pub us: u64,
}

/// A time, written as `2026-12-31T23:59:59Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// The time.
    pub time: UnixTime,
}

/// Cooldowns for clients that ignore `Retry-After`: `true`, or the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenPenalty {
    /// `penalty: false` disables the penalty of `defaults`.
    pub is_off: bool,
    /// The number of early requests that starts a cooldown.
    pub after: Option<u64>,
    /// The length of the first cooldown.
    pub first: Option<DurationText>,
    /// The longest cooldown.
    pub longest: Option<DurationText>,
    /// The time after which early requests and cooldowns are forgotten.
    pub forget: Option<DurationText>,
}

/// The address of a client in a rule test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressText(pub IpAddr);

/// Why a text is none of the short forms. `Display` is a message and a hint with `; ` between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShortFormError {
    /// Not a count and a period.
    Shorthand(LimitShorthandError),
    /// Neither a count nor a count and a period.
    Limit(String),
    /// Not a positive rate.
    Rate(String),
    /// Not an instant.
    Timestamp(String),
    /// Not an address.
    Address,
    /// Not a percentage from 0 to 100.
    Percent(String),
}

impl fmt::Display for ShortFormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shorthand(error) => error.fmt(f),
            Self::Limit(text) => write!(f, "`{text}` is not a limit; write it like 100/min"),
            Self::Rate(text) => {
                write!(f, "`{text}` is not a rate; write tokens per second, such as 1.67, or 100/min")
            }
            Self::Timestamp(text) => {
                write!(f, "`{text}` is not an instant; write it like 2026-12-31T23:59:59Z")
            }
            Self::Address => f.write_str("this is not an address; write it like 203.0.113.9 or 2001:db8::1"),
            Self::Percent(text) => {
                write!(f, "`{text}` is not a percentage; write whole percent, such as 80%")
            }
        }
    }
}

impl std::error::Error for ShortFormError {}

/// Decodes a text or a number from its text.
struct ScalarVisitor<P, T, E> {
    parse: P,
    expecting: &'static str,
    output: PhantomData<(T, E)>,
}

impl<P: Fn(&str) -> Result<T, F>, T, F: fmt::Display> Visitor<'_> for ScalarVisitor<P, T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

fn scalar<'de, D: Deserializer<'de>, T, E: fmt::Display>(
    deserializer: D,
    expecting: &'static str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(ScalarVisitor { parse, expecting, output: PhantomData })
}

fn shorthand(text: &str) -> Result<LimitShorthand, ShortFormError> {
    LimitShorthand::parse(text).map_err(ShortFormError::Shorthand)
}

impl<'de> Deserialize<'de> for LimitAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a limit such as 100/min", |text| {
            if text.contains('/') {
                return shorthand(text).map(Self::Quota);
            }
            let count = text.replace('_', "").parse().map(Self::Count);
            count.map_err(|_| ShortFormError::Limit(text.to_owned()))
        })
    }
}

impl<'de> Deserialize<'de> for RateText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a rate such as 1.67 (per second) or 100/min", |text| {
            let rate = if text.contains('/') {
                let quota = shorthand(text)?;
                Rate::per(quota.amount, quota.period_us)
            } else {
                Rate::from_decimal(text)
            };
            rate.map(Self).ok_or_else(|| ShortFormError::Rate(text.to_owned()))
        })
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a duration such as 60 (seconds) or 90s", |text| {
            parse_duration_us(text).map(|us| Self { us })
        })
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "an instant such as 2026-12-31T23:59:59Z", |text| {
            let whole = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
            let time = humantime::parse_rfc3339_weak(&whole).ok();
            let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            let since = since.ok_or_else(|| ShortFormError::Timestamp(text.to_owned()));
            since.map(|since| Self { time: UnixTime::from_us(since.as_micros() as u64) })
        })
    }
}

impl<'de> Deserialize<'de> for AddressText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| de::Error::custom(ShortFormError::Address))
    }
}

impl<'de> Deserialize<'de> for ShortLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct ShortLimitMap {
            limit: ShortQuota,
            burst: Option<u64>,
        }
        text_or_map(
            deserializer,
            "a limit such as 10/s, or { limit: 10/s, burst: 20 }",
            |text| shorthand(text).map(|limit| Self { limit, burst: None }),
            |long: ShortLimitMap| Self { limit: long.limit.0, burst: long.burst },
        )
    }
}

struct ShortQuota(LimitShorthand);

impl<'de> Deserialize<'de> for ShortQuota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a limit such as 100/min", |text| shorthand(text).map(Self))
    }
}

impl<'de> Deserialize<'de> for WrittenListEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct ListEntryMap {
            key: String,
            expires: Option<Timestamp>,
            reason: Option<String>,
            by: Option<String>,
        }
        text_or_map(
            deserializer,
            LIST_ENTRY_FORM,
            |text| {
                let key = text.to_owned();
                Ok::<_, ShortFormError>(Self { key, expires: None, reason: None, by: None })
            },
            |ListEntryMap { key, expires, reason, by }: ListEntryMap| Self { key, expires, reason, by },
        )
    }
}

impl<'de> Deserialize<'de> for WrittenPenalty {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct PenaltyMap {
            after: Option<u64>,
            first: Option<DurationText>,
            longest: Option<DurationText>,
            forget: Option<DurationText>,
        }
        struct PenaltyVisitor;

        impl<'de> Visitor<'de> for PenaltyVisitor {
            type Value = WrittenPenalty;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true`, or { after: 5, first: 10s, longest: 10m, forget: 1h }")
            }

            fn visit_bool<E: de::Error>(self, on: bool) -> Result<WrittenPenalty, E> {
                Ok(WrittenPenalty { is_off: !on, ..WrittenPenalty::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WrittenPenalty, A::Error> {
                let PenaltyMap { after, first, longest, forget } =
                    PenaltyMap::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(WrittenPenalty { is_off: false, after, first, longest, forget })
            }
        }

        deserializer.deserialize_any(PenaltyVisitor)
    }
}

/// Decodes a text or a mapping. Unlike an untagged enum, it keeps the position of an error.
pub(super) fn text_or_map<'de, D, T, M, E>(
    deserializer: D,
    expecting: &'static str,
    from_text: impl Fn(&str) -> Result<T, E>,
    from_map: impl Fn(M) -> T,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    M: Deserialize<'de>,
    E: fmt::Display,
{
    deserializer.deserialize_any(TextOrMapVisitor { from_text, from_map, expecting, output: PhantomData })
}

struct TextOrMapVisitor<P, F, T, M, E> {
    from_text: P,
    from_map: F,
    expecting: &'static str,
    output: PhantomData<(T, M, E)>,
}

impl<'de, P, F, T, M, X> Visitor<'de> for TextOrMapVisitor<P, F, T, M, X>
where
    P: Fn(&str) -> Result<T, X>,
    F: Fn(M) -> T,
    M: Deserialize<'de>,
    X: fmt::Display,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.from_text)(text).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        M::deserialize(de::value::MapAccessDeserializer::new(map)).map(self.from_map)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(TEXTS_FORM)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(de::value::StrDeserializer::new(text)).map(|one| OneOrMany(vec![one]))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(OneOrMany(items))
            }
        }

        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

/// Implements `JsonSchema` with a literal schema.
macro_rules! text_schema {
    ($type:ty, $name:literal, $($schema:tt)+) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($($schema)+)
            }
        }
    };
}

text_schema!(LimitAmount, "Amount", {
    "description": "A count, or a count per period such as 100/min.",
    "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string", "pattern": "^[0-9_]+( */.+)?$" }],
});
text_schema!(RateText, "Rate", {
    "description": "A number per second, or a count per period such as 100/min.",
    "anyOf": [{ "type": "number", "exclusiveMinimum": 0 }, { "type": "string", "pattern": "^[0-9_.]+( */.+)?$" }],
});
text_schema!(DurationText, "Duration", {
    "description": "A number of seconds, or a duration such as 90s, 5min, 1h.",
    "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
});
text_schema!(Timestamp, "Timestamp", {
    "description": "An instant such as 2026-12-31T23:59:59Z.",
    "type": "string",
});
text_schema!(ShortLimit, "ShortLimit", {
    "description": "A count per period such as 10/s, or with a burst.",
    "anyOf": [
        { "type": "string", "pattern": "^[0-9_]+ */.+$" },
        {
            "type": "object",
            "required": ["limit"],
            "additionalProperties": false,
            "properties": {
                "limit": { "type": "string", "pattern": "^[0-9_]+ */.+$" },
                "burst": { "type": "integer", "minimum": 0 },
            },
        },
    ],
});
text_schema!(WrittenPenalty, "Penalty", {
    "description": "Cooldowns for clients that ignore Retry-After: true, or the numbers.",
    "anyOf": [
        { "type": "boolean" },
        {
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "after": {
                    "description": "The number of early requests that starts a cooldown; 5 by default.",
                    "type": "integer", "minimum": 1, "maximum": 1000,
                },
                "first": {
                    "description": "The length of the first cooldown, 10s by default; each further one is twice as long.",
                    "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
                },
                "longest": {
                    "description": "The longest cooldown; 10m by default.",
                    "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
                },
                "forget": {
                    "description": "The time without an early request after which all is forgotten; 1h by default.",
                    "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
                },
            },
        },
    ],
});
text_schema!(WrittenListEntry, "ListEntry", {
    "description": "An exact key, a glob, an address or a network; or with an expiry and a reason.",
    "anyOf": [
        { "type": "string" },
        {
            "type": "object",
            "required": ["key"],
            "additionalProperties": false,
            "properties": {
                "key": { "type": "string" },
                "expires": { "type": "string" },
                "reason": { "type": "string" },
                "by": {
                    "description": "The operator that added it at run time; the tests of the rules do not see it.",
                    "type": "string",
                },
            },
        },
    ],
});

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
    }
}
