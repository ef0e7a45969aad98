//! `on_exceed` and `soft`: the action on requests over or near a limit, written as a word or a word with settings.

use super::doors::DoorCapability;
use super::selection::OverLimitEffect;
use super::short_forms::{DurationText, ShortFormError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The largest `max_wait` of a queue.
pub const LONGEST_WAIT_US: u64 = 600_000_000;
/// The largest `delay` of a tarpit.
pub const LONGEST_DELAY_US: u64 = 60_000_000;
/// The most requests that wait for one key on one node, or are delayed under one rule.
pub const MOST_WAITING: u64 = 100_000;
/// The default priority from which a request is critical.
const CRITICAL_PRIORITY: u8 = 200;
/// The priority of requests without one.
pub const DEFAULT_PRIORITY: u8 = 100;

/// The action on a request over the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnExceed {
    /// Refuse it.
    #[default]
    Reject,
    /// Admit it, and report it as a request that would have been refused.
    Shadow,
    /// Let it wait for its turn.
    Queue(QueueSettings),
    /// Admit it while the node has capacity; requests of low priority are refused first.
    Shed(ShedSettings),
    /// Refuse it after a delay.
    Tarpit(TarpitSettings),
    /// Admit it with a header for the upstream.
    Flag(FlagSettings),
}

/// The settings of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Queue")]
pub struct QueueSettings {
    /// The longest that a request waits; 5s by default.
    pub max_wait: DurationText,
    /// The most requests that wait for one key on one node; 100 by default.
    pub length: u64,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { max_wait: DurationText { us: 5_000_000 }, length: 100 }
    }
}

/// The settings of load shedding. The load of a node is the number of its requests in flight under the rule, relative to
/// `in_flight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Shed")]
pub struct ShedSettings {
    /// The requests in flight at full load of one node; 100 by default.
    pub in_flight: u64,
    /// The load from which requests of priority 0 are refused; 50% by default.
    pub from: Percent,
    /// The share of the full load that is reserved for critical requests; 20% by default.
    pub reserve: Percent,
    /// The priority from which a request is critical; 200 by default.
    pub critical: u8,
}

impl Default for ShedSettings {
    fn default() -> Self {
        Self { in_flight: 100, from: Percent(50), reserve: Percent(20), critical: CRITICAL_PRIORITY }
    }
}

impl ShedSettings {
    /// The most requests in flight at which a request of `priority` is admitted over the limit. It rises with the
    /// priority from `from` to the reserve; critical requests may use the reserve.
    pub fn most_in_flight(&self, priority: u8) -> u64 {
        if priority >= self.critical {
            return self.in_flight;
        }
        let from = self.from.of(self.in_flight);
        let open = self.in_flight - self.reserve.of(self.in_flight);
        from + open.saturating_sub(from) * u64::from(priority) / u64::from(self.critical)
    }
}

/// The settings of a tarpit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Tarpit")]
pub struct TarpitSettings {
    /// The delay of a refusal; 2s by default.
    pub delay: DurationText,
    /// The most requests delayed at once on one node, 1000 by default; further ones are refused at once.
    pub most: u64,
}

impl Default for TarpitSettings {
    fn default() -> Self {
        Self { delay: DurationText { us: 2_000_000 }, most: 1_000 }
    }
}

/// The settings of a flag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Flag")]
pub struct FlagSettings {
    /// The header for the upstream; X-RateLimit-Flag by default.
    pub header: String,
}

impl Default for FlagSettings {
    fn default() -> Self {
        Self { header: "X-RateLimit-Flag".to_owned() }
    }
}

/// The action on requests near the limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SoftLimit {
    /// The share of the limit above which it applies.
    pub at: Percent,
    /// The action: a flag or a tarpit.
    pub then: OnExceed,
}

/// A whole percentage from 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl Percent {
    /// This percentage of `whole`, rounded down.
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

/// The words of the actions, with the settings of those that have some.
macro_rules! action_words {
    ($($word:literal => $action:ident $(($settings:ident))?,)*) => {
        impl OnExceed {
            const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word in the rule file.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$action { .. } => $word,)*
                }
            }

            /// The action of a word, with default settings.
            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$action $(($settings::default()))?),)*
                    _ => None,
                }
            }

            /// The action of a word with settings, which are the next value of `map`. `None` if it has no settings.
            fn with_settings<'de, A: MapAccess<'de>>(word: &str, map: &mut A) -> Result<Option<Self>, A::Error> {
                match word {
                    $($($word => Ok(Some(Self::$action(map.next_value::<$settings>()?))),)?)*
                    _ => Ok(None),
                }
            }

            /// The schema of the settings of each word that has some.
            fn settings_schemas(generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
                vec![$($(($word, generator.subschema_for::<$settings>()),)?)*]
            }
        }
    };
}

action_words! {
    "reject" => Reject,
    "shadow" => Shadow,
    "queue" => Queue(QueueSettings),
    "shed" => Shed(ShedSettings),
    "tarpit" => Tarpit(TarpitSettings),
    "flag" => Flag(FlagSettings),
}

impl OnExceed {
    /// Whether a request over the limit can be refused.
    pub fn is_enforced(&self) -> bool {
        match self {
            Self::Reject | Self::Queue(_) | Self::Shed(_) | Self::Tarpit(_) => true,
            Self::Shadow | Self::Flag(_) => false,
        }
    }

    /// The effect on a request over the limit, if the action is not enforced.
    pub fn over_limit_effect(&self) -> OverLimitEffect {
        match self {
            Self::Flag(_) => OverLimitEffect::Flag,
            Self::Reject | Self::Shadow | Self::Queue(_) | Self::Shed(_) | Self::Tarpit(_) => {
                OverLimitEffect::Shadow
            }
        }
    }

    /// Whether a request over the limit may wait, or depends on other requests in flight.
    pub fn takes_time(&self) -> bool {
        match self {
            Self::Queue(_) | Self::Shed(_) | Self::Tarpit(_) => true,
            Self::Reject | Self::Shadow | Self::Flag(_) => false,
        }
    }

    /// Whether tokens of the limit may be leased. Queued requests are admitted in the order of the store: leased tokens
    /// would overtake them.
    pub fn allows_leases(&self) -> bool {
        match self {
            Self::Queue(_) => false,
            Self::Reject | Self::Shadow | Self::Shed(_) | Self::Tarpit(_) | Self::Flag(_) => true,
        }
    }

    /// Whether clients that ignore `Retry-After` can get a penalty. Other actions admit the request, or wait on behalf of
    /// the client.
    pub(super) fn allows_penalty(&self) -> bool {
        match self {
            Self::Reject | Self::Tarpit(_) => true,
            Self::Shadow | Self::Queue(_) | Self::Shed(_) | Self::Flag(_) => false,
        }
    }

    /// Whether it can be the action of `soft`, on requests that are admitted.
    pub(super) fn is_soft_action(&self) -> bool {
        match self {
            Self::Tarpit(_) | Self::Flag(_) => true,
            Self::Reject | Self::Shadow | Self::Queue(_) | Self::Shed(_) => false,
        }
    }

    /// The capability that a door needs for it.
    pub(super) fn needed_capability(&self) -> Option<DoorCapability> {
        match self {
            Self::Queue(_) | Self::Tarpit(_) => Some(DoorCapability::Delay),
            Self::Shed(_) => Some(DoorCapability::Completion),
            Self::Reject | Self::Shadow | Self::Flag(_) => None,
        }
    }
}

/// Why a mapping is no action. `Display` is a message and a hint with `; ` between them.
enum ActionError {
    Empty,
    NoSettings(String),
    Several(String, String),
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no action is given; write it like { queue: { max_wait: 5s } }"),
            Self::NoSettings(word) => write!(f, "`{word}` has no settings; write `on_exceed: {word}`"),
            Self::Several(word, second) => {
                write!(f, "`{word}` and `{second}` exclude each other; keep one of them")
            }
        }
    }
}

impl<'de> Deserialize<'de> for OnExceed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnExceedVisitor;

        impl<'de> Visitor<'de> for OnExceedVisitor {
            type Value = OnExceed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "one of {}, or one of them with settings", OnExceed::WORDS.join(", "))
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<OnExceed, E> {
                OnExceed::from_word(word).ok_or_else(|| E::unknown_variant(word, OnExceed::WORDS))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OnExceed, A::Error> {
                let Some(word) = map.next_key::<String>()? else {
                    return Err(de::Error::custom(ActionError::Empty));
                };
                let Some(action) = OnExceed::with_settings(&word, &mut map)? else {
                    return Err(match OnExceed::from_word(&word) {
                        Some(_) => de::Error::custom(ActionError::NoSettings(word)),
                        None => de::Error::unknown_variant(&word, OnExceed::WORDS),
                    });
                };
                match map.next_key::<String>()? {
                    None => Ok(action),
                    Some(second) => Err(de::Error::custom(ActionError::Several(word, second))),
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
        let mut forms = vec![json_schema!({ "enum": Self::WORDS })];
        forms.extend(Self::settings_schemas(generator).into_iter().map(|(word, settings)| {
            json_schema!({
                "type": "object",
                "required": [word],
                "additionalProperties": false,
                "properties": { word: settings },
            })
        }));
        json_schema!({
            "description": "The action on a request over the limit: a word, or a word with settings.",
            "anyOf": forms,
        })
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PercentVisitor;

        impl Visitor<'_> for PercentVisitor {
            type Value = Percent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a percentage such as 80%")
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
            "description": "A percentage such as 80%.",
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
            "a percentage such as 80%, or { at: 80%, then: flag }",
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
            "description": "The share of the limit above which requests are flagged or delayed.",
            "anyOf": [at, {
                "type": "object",
                "required": ["at"],
                "additionalProperties": false,
                "properties": { "at": at, "then": then },
            }],
        })
    }
}
