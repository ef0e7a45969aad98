//! The configuration format of envoyproxy/ratelimit.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;

/// One file.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimitConfig {
    pub(super) domain: Option<ScalarText>,
    #[serde(default)]
    pub(super) descriptors: Vec<DescriptorConfig>,
}

/// A node of the tree of descriptors.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DescriptorConfig {
    pub(super) key: Option<ScalarText>,
    pub(super) value: Option<ScalarText>,
    pub(super) rate_limit: Option<LimitConfig>,
    #[serde(default)]
    pub(super) descriptors: Vec<Self>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    #[serde(default)]
    pub(super) detailed_metric: bool,
    #[serde(default)]
    pub(super) value_to_metric: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
    pub(super) metadata: Option<serde_json::Value>,
}

impl DescriptorConfig {
    pub(super) fn key(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.0)
    }

    /// An empty value is the same as none.
    pub(super) fn value(&self) -> Option<&str> {
        self.value.as_ref().map(|value| value.0.as_str()).filter(|value| !value.is_empty())
    }

    /// The key and the value, by which a level finds its nodes.
    pub(super) fn composite_key(&self) -> String {
        match self.value() {
            Some(value) => format!("{}_{value}", self.key()),
            None => self.key().to_owned(),
        }
    }
}

/// `rate_limit`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitConfig {
    pub(super) requests_per_unit: Option<u64>,
    pub(super) unit: Option<ScalarText>,
    pub(super) unit_multiplier: Option<u64>,
    #[serde(default)]
    pub(super) unlimited: bool,
    pub(super) name: Option<ScalarText>,
    #[serde(default)]
    pub(super) replaces: Vec<ReplacedLimit>,
}

/// A limit that is replaced, by its name.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplacedLimit {
    pub(super) name: ScalarText,
}

/// A text. Numbers and booleans are texts as they are written; of a fraction that is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScalarText(pub(super) String);

impl<'de> Deserialize<'de> for ScalarText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarTextVisitor;

        impl Visitor<'_> for ScalarTextVisitor {
            type Value = ScalarText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ScalarText, E> {
                Ok(ScalarText(text.to_owned()))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<ScalarText, E> {
                Ok(ScalarText(value.to_string()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<ScalarText, E> {
                Ok(ScalarText(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<ScalarText, E> {
                Ok(ScalarText(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<ScalarText, E> {
                Err(E::custom("a number with a fraction may be written in several ways; put it in quotes"))
            }
        }

        deserializer.deserialize_any(ScalarTextVisitor)
    }
}
