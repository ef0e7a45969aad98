//! What happens to a request over a limit, as it is written: a word, or a word with settings.

use super::short_forms::{DurationText, ShortFormError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The longest that a request may be made to wait in a queue.
pub const LONGEST_WAIT_US: u64 = 600_000_000;
/// The longest that an answer may be delayed.
pub const LONGEST_DELAY_US: u64 = 60_000_000;
/// The most that may wait for one key on one node, or be delayed under one rule.
pub const MOST_WAITING: u64 = 100_000;
/// From this priority on, a request is critical unless the rule says otherwise.
const CRITICAL: u8 = 200;
/// A request without a priority is neither the least nor the most important.
pub const USUAL_PRIORITY: u8 = 100;

/// What happens to a request over the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnExceed {
    /// It is refused.
    #[default]
    Reject,
    /// It passes, and is counted and reported as one that would have been refused.
    Shadow,
    /// It waits for its turn.
    Queue(QueueSettings),
    /// It passes while this node has room, and the less important it is, the sooner it is refused.
    Shed(ShedSettings),
    /// It is refused, but only after a while.
    Tarpit(TarpitSettings),
    /// It passes, with a header for the upstream.
    Flag(FlagSettings),
}

/// How long a request waits for its turn, and how many may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Queue")]
pub struct QueueSettings {
    /// The longest that a request waits; 5s by default.
    pub max_wait: DurationText,
    /// How many wait for one key on one node; 100 by default.
    pub length: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { max_wait: DurationText { us: 5_000_000 }, length: 100 }
    }
}

/// When requests over the limit are given up. The load of a node is the number of requests under the rule that
/// are in flight there, against `in_flight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Shed")]
pub struct ShedSettings {
    /// How many requests in flight are a full load of one node; 100 by default.
    pub in_flight: u64,
    /// The load from which on requests of priority 0 are refused; 50% by default.
    pub from: Percent,
    /// The share of the full load that is kept for critical requests; 20% by default.
    pub reserve: Percent,
    /// From which priority on a request is critical; 200 by default.
    pub critical: u8,
}

impl Default for ShedSettings {
    fn default() -> Self {
        Self { in_flight: 100, from: Percent(50), reserve: Percent(20), critical: CRITICAL }
    }
}

impl ShedSettings {
    /// How many requests may be in flight for one of `priority` to pass over the limit: at `from` the least
    /// important are refused, then more and more, and in the reserve all but the critical.
    pub fn most_in_flight(&self, priority: u8) -> u64 {
        if priority >= self.critical {
            return self.in_flight;
        }
        let from = self.from.of(self.in_flight);
        let open = self.in_flight - self.reserve.of(self.in_flight);
        from + open.saturating_sub(from) * u64::from(priority) / u64::from(self.critical)
    }
}

/// How long an answer is delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Tarpit")]
pub struct TarpitSettings {
    /// The delay; 2s by default.
    pub delay: DurationText,
    /// How many are delayed at once on one node; others are answered at once. 1000 by default.
    pub most: u64,
}

impl Default for TarpitSettings {
    fn default() -> Self {
        Self { delay: DurationText { us: 2_000_000 }, most: 1_000 }
    }
}

/// How the upstream is told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Flag")]
pub struct FlagSettings {
    /// The header; X-RateLimit-Flag by default.
    pub header: String,
}

impl Default for FlagSettings {
    fn default() -> Self {
        Self { header: "X-RateLimit-Flag".to_owned() }
    }
}

/// What happens in the last part of a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SoftLimit {
    /// The share of the limit from which on it happens.
    pub at: Percent,
    /// What happens: a flag or a tarpit.
    pub then: OnExceed,
}

/// A share in whole percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl Percent {
    /// This share of `whole`, rounded down.
    pub fn of(self, whole: u64) -> u64 {
        whole * u64::from(self.0) / 100
    }
}

impl FromStr for Percent {
    type Err = ShortFormError;

    fn from_str(text: &str) -> Result<Self, ShortFormError> {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<u8>().ok());
        let percent = number.filter(|number| *number <= 100);
        percent.map(Self).ok_or_else(|| ShortFormError::Percent(text.to_owned()))
    }
}

impl OnExceed {
    const WORDS: [&'static str; 6] = ["reject", "shadow", "queue", "shed", "tarpit", "flag"];

    /// The word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Shadow => "shadow",
            Self::Queue(_) => "queue",
            Self::Shed(_) => "shed",
            Self::Tarpit(_) => "tarpit",
            Self::Flag(_) => "flag",
        }
    }

    /// Whether a request over the limit does not pass.
    pub fn is_enforced(&self) -> bool {
        !matches!(self, Self::Shadow | Self::Flag(_))
    }

    /// Whether a request over the limit may have to wait, or depends on what else is in flight.
    pub fn takes_time(&self) -> bool {
        matches!(self, Self::Queue(_) | Self::Shed(_) | Self::Tarpit(_))
    }

    fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "reject" => Self::Reject,
            "shadow" => Self::Shadow,
            "queue" => Self::Queue(QueueSettings::default()),
            "shed" => Self::Shed(ShedSettings::default()),
            "tarpit" => Self::Tarpit(TarpitSettings::default()),
            "flag" => Self::Flag(FlagSettings::default()),
            _ => return None,
        })
    }
}

impl<'de> Deserialize<'de> for OnExceed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnExceedVisitor;

        impl<'de> Visitor<'de> for OnExceedVisitor {
            type Value = OnExceed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("reject, shadow, queue, shed, tarpit or flag, or one of them with settings")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<OnExceed, E> {
                OnExceed::of_word(word).ok_or_else(|| E::unknown_variant(word, &OnExceed::WORDS))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OnExceed, A::Error> {
                let Some(word) = map.next_key::<String>()? else {
                    return Err(de::Error::custom(
                        "nothing is said; write it like { queue: { max_wait: 5s } }",
                    ));
                };
                let found = match word.as_str() {
                    "queue" => OnExceed::Queue(map.next_value()?),
                    "shed" => OnExceed::Shed(map.next_value()?),
                    "tarpit" => OnExceed::Tarpit(map.next_value()?),
                    "flag" => OnExceed::Flag(map.next_value()?),
                    other => {
                        return Err(match OnExceed::of_word(other) {
                            Some(_) => de::Error::custom(format!(
                                "`{other}` has no settings; write `on_exceed: {other}`"
                            )),
                            None => de::Error::unknown_variant(other, &OnExceed::WORDS),
                        });
                    }
                };
                match map.next_key::<String>()? {
                    None => Ok(found),
                    Some(second) => Err(de::Error::custom(format!(
                        "`{word}` and `{second}` exclude each other; keep one of them"
                    ))),
                }
            }
        }

        deserializer.deserialize_any(OnExceedVisitor)
    }
}

impl JsonSchema for OnExceed {
    fn schema_name() -> Cow<'static, str> {
        "OnExceed".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = |name: &str, schema: Schema| {
            json_schema!({
                "type": "object",
                "required": [name],
                "additionalProperties": false,
                "properties": { name: schema },
            })
        };
        let queue = one("queue", generator.subschema_for::<QueueSettings>());
        let shed = one("shed", generator.subschema_for::<ShedSettings>());
        let tarpit = one("tarpit", generator.subschema_for::<TarpitSettings>());
        let flag = one("flag", generator.subschema_for::<FlagSettings>());
        json_schema!({
            "description": "What happens to a request over the limit: a word, or a word with settings.",
            "anyOf": [{ "enum": Self::WORDS }, queue, shed, tarpit, flag],
        })
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PercentVisitor;

        impl Visitor<'_> for PercentVisitor {
            type Value = Percent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a share such as 80%")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Percent, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Percent, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Percent, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(PercentVisitor)
    }
}

impl JsonSchema for Percent {
    fn schema_name() -> Cow<'static, str> {
        "Percent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A share such as 80%.",
            "type": "string",
            "pattern": "^[0-9]{1,3} *%$",
        })
    }
}

impl<'de> Deserialize<'de> for SoftLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct SoftLimitMap {
            at: Percent,
            then: Option<OnExceed>,
        }
        let flag = || OnExceed::Flag(FlagSettings::default());
        super::short_forms::text_or_map(
            deserializer,
            "a share such as 80%, or { at: 80%, then: flag }",
            |text| text.parse().map(|at| Self { at, then: flag() }),
            |long: SoftLimitMap| Self { at: long.at, then: long.then.unwrap_or_else(flag) },
        )
    }
}

impl JsonSchema for SoftLimit {
    fn schema_name() -> Cow<'static, str> {
        "Soft".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (at, then) = (generator.subschema_for::<Percent>(), generator.subschema_for::<OnExceed>());
        json_schema!({
            "description": "From which share of the limit on requests are flagged or delayed.",
            "anyOf": [at, {
                "type": "object",
                "required": ["at"],
                "additionalProperties": false,
                "properties": { "at": at, "then": then },
            }],
        })
    }
}
