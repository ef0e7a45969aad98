//! The short forms in a rule file: `100/min`, `90s`, one text or several, a key or a key with an expiry.
//!
//! A wrong text is an error message of the form "what is wrong; what would be right".

use super::written::WrittenListEntry;
use crate::rate::{LimitShorthand, Rate, parse_duration_us};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// One value, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany<T>(pub Vec<T>);

/// A count, or a count with its period: `100` or `100/min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAmount {
    /// A count; the window stands elsewhere.
    Count(u64),
    /// A count per period.
    Quota(LimitShorthand),
}

/// A limit in a list of limits: `10/s`, or with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortLimit {
    /// The count and its period.
    pub limit: LimitShorthand,
    /// How many may come at once.
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

/// An instant, written as `2026-12-31T23:59:59Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// Microseconds since the epoch.
    pub unix_us: u64,
}

/// Whether clients that ignore `Retry-After` get cooldowns, and which: `true`, or the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WrittenPenalty {
    /// `penalty: false` takes back what `defaults` says.
    pub is_off: bool,
    /// How many requests that come too early make a cooldown.
    pub after: Option<u64>,
    /// How long the first cooldown is.
    pub first: Option<DurationText>,
    /// How long one is at most.
    pub longest: Option<DurationText>,
    /// After how long all is forgotten.
    pub forget: Option<DurationText>,
}

/// Reads a value that is a text or a number from either.
struct ScalarVisitor<T, F>(F, &'static str, PhantomData<T>);

impl<T, F: Fn(&str) -> Result<T, String>> Visitor<'_> for ScalarVisitor<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
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

fn scalar<'de, D, T>(
    deserializer: D,
    expecting: &'static str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(ScalarVisitor(read, expecting, PhantomData))
}

impl<'de> Deserialize<'de> for LimitAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a limit such as 100/min", |text| {
            if text.contains('/') {
                return LimitShorthand::parse(text).map(Self::Quota);
            }
            let count = text.replace('_', "").parse().map(Self::Count);
            count.map_err(|_| format!("`{text}` is not a limit; write it like 100/min"))
        })
    }
}

impl<'de> Deserialize<'de> for RateText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a rate such as 1.67 (per second) or 100/min", |text| {
            let rate = if text.contains('/') {
                let quota = LimitShorthand::parse(text)?;
                Rate::per(quota.amount, quota.period_us)
            } else {
                Rate::from_decimal(text)
            };
            rate.map(Self).ok_or_else(|| {
                format!("`{text}` cannot be a rate; write tokens per second, such as 1.67, or 100/min")
            })
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
            let since = since
                .ok_or_else(|| format!("`{text}` is not an instant; write it like 2026-12-31T23:59:59Z"))?;
            Ok(Self { unix_us: since.as_micros() as u64 })
        })
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
            |text| LimitShorthand::parse(text).map(|limit| Self { limit, burst: None }),
            |long: ShortLimitMap| Self { limit: long.limit.0, burst: long.burst },
        )
    }
}

struct ShortQuota(LimitShorthand);

impl<'de> Deserialize<'de> for ShortQuota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a limit such as 100/min", |text| LimitShorthand::parse(text).map(Self))
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
        }
        text_or_map(
            deserializer,
            "a key, a glob or a network, or { key: …, expires: …, reason: … }",
            |text| Ok(Self { key: text.to_owned(), expires: None, reason: None }),
            |long: ListEntryMap| Self { key: long.key, expires: long.expires, reason: long.reason },
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

/// Reads a value that is a text or a mapping. Unlike an untagged enum, it keeps the place of an error.
pub(super) fn text_or_map<'de, D, T, M>(
    deserializer: D,
    expecting: &'static str,
    short: impl Fn(&str) -> Result<T, String>,
    long: impl Fn(M) -> T,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    M: Deserialize<'de>,
{
    struct TextOrMapVisitor<S, F, T, M>(S, F, &'static str, PhantomData<(T, M)>);

    impl<'de, S, F, T, M> Visitor<'de> for TextOrMapVisitor<S, F, T, M>
    where
        S: Fn(&str) -> Result<T, String>,
        F: Fn(M) -> T,
        M: Deserialize<'de>,
    {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.2)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            (self.0)(text).map_err(E::custom)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            M::deserialize(de::value::MapAccessDeserializer::new(map)).map(self.1)
        }
    }

    deserializer.deserialize_any(TextOrMapVisitor(short, long, expecting, PhantomData))
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
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

/// A schema that takes a text of this pattern or a number.
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
                    "description": "How many requests that come too early make a cooldown; 5 by default.",
                    "type": "integer", "minimum": 1, "maximum": 1000,
                },
                "first": {
                    "description": "How long the first cooldown is, 10s by default; each further one is twice as long.",
                    "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
                },
                "longest": {
                    "description": "How long a cooldown is at most; 10m by default.",
                    "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string" }],
                },
                "forget": {
                    "description": "After how long without such a request all is forgotten; 1h by default.",
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
