//! The values of a check's JSON fields, borrowed from the body where possible.

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// The most custom identities in one check. A rule names one or two; each is searched for by name.
pub const MOST_IDS: usize = 32;

/// A string that is not empty.
#[derive(Debug)]
pub(super) struct NonEmptyText<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for NonEmptyText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let JsonText(text) = JsonText::deserialize(deserializer)?;
        if text.is_empty() {
            return Err(de::Error::custom("must not be empty; omit the field instead"));
        }
        Ok(Self(text))
    }
}

/// A string. Unlike a plain `Cow` in an `Option`, it is borrowed if it has no escapes.
#[derive(Debug)]
pub(super) struct JsonText<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonTextVisitor;

        impl<'de> Visitor<'de> for JsonTextVisitor {
            type Value = JsonText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(JsonText(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(JsonText(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(JsonTextVisitor)
    }
}

/// Custom identities: an object of strings.
#[derive(Debug)]
pub(super) struct CustomIds<'a>(pub(super) Vec<(NonEmptyText<'a>, NonEmptyText<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for CustomIds<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CustomIdsVisitor;

        impl<'de> Visitor<'de> for CustomIdsVisitor {
            type Value = CustomIds<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut ids = Vec::<(NonEmptyText<'de>, NonEmptyText<'de>)>::new();
                while let Some((name, value)) = map.next_entry::<NonEmptyText<'de>, NonEmptyText<'de>>()? {
                    if ids.iter().any(|(known, _)| known.0 == name.0) {
                        return Err(de::Error::custom(format_args!("duplicate id `{}`", name.0)));
                    }
                    if ids.len() == MOST_IDS {
                        return Err(de::Error::custom(format_args!("more than {MOST_IDS} ids")));
                    }
                    ids.push((name, value));
                }
                Ok(CustomIds(ids))
            }
        }

        deserializer.deserialize_map(CustomIdsVisitor)
    }
}

/// The cost of a request: at least 1.
#[derive(Debug)]
pub(super) struct CostField(pub(super) u64);

/// The priority of a request.
#[derive(Debug)]
pub(super) struct PriorityField(pub(super) u8);

impl<'de> Deserialize<'de> for CostField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        integer(deserializer, "an integer of at least 1", |number| (number >= 1).then_some(Self(number)))
    }
}

impl<'de> Deserialize<'de> for PriorityField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "an integer from 0 to 255";
        integer(deserializer, expected, |number| u8::try_from(number).ok().map(Self))
    }
}

/// Parses an integer that `accept` converts; `expected` describes those in error messages.
fn integer<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    accept: impl Fn(u64) -> Option<T>,
) -> Result<T, D::Error> {
    struct IntegerVisitor<F>(&'static str, F);

    impl<T, F: Fn(u64) -> Option<T>> Visitor<'_> for IntegerVisitor<F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            (self.1)(number).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
        }
    }

    deserializer.deserialize_u64(IntegerVisitor(expected, accept))
}
