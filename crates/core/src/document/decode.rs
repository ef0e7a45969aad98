//! Decodes a tree into types that derive `Deserialize`.
//!
//! The errors keep what was found and what was expected as values, so that messages are built from them and not from
//! serde's texts.

use super::yaml_tree::{YamlContent, YamlEntry, YamlNode, YamlScalar};
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess};
use serde::de::{Unexpected, Visitor};
use std::fmt;

/// Why a value cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DecodeError {
    UnknownField {
        name: String,
        known: &'static [&'static str],
    },
    UnknownWord {
        word: String,
        known: &'static [&'static str],
    },
    MissingField(&'static str),
    Mismatch {
        found: FoundValue,
        expected: ExpectedValue,
    },
    /// A `Deserialize` implementation refused the value. Its text is a message, or a message and a hint with `; `
    /// between them: serde passes nothing but a text.
    Refused {
        message: String,
        hint: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum FoundValue {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List,
    Mapping,
    /// In serde's words.
    Other(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ExpectedValue {
    Bool,
    WholeNumber,
    Number,
    Text,
    List,
    Mapping,
    /// One of several words.
    Word,
    /// In the words of a visitor.
    Form(String),
}

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(text: T) -> Self {
        let text = text.to_string();
        match text.rsplit_once("; ") {
            Some((message, hint)) => {
                Self::Refused { message: message.to_owned(), hint: Some(hint.to_owned()) }
            }
            None => Self::Refused { message: text, hint: None },
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Mismatch { found: found.into(), expected: ExpectedValue::Form(expected.to_string()) }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::invalid_type(Unexpected::Seq, expected)
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownWord { word: word.to_owned(), known }
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownField { name: name.to_owned(), known }
    }

    fn missing_field(name: &'static str) -> Self {
        Self::MissingField(name)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::decode_messages::message(self, None))
    }
}

impl std::error::Error for DecodeError {}

impl From<Unexpected<'_>> for FoundValue {
    fn from(found: Unexpected<'_>) -> Self {
        match found {
            Unexpected::Bool(value) => Self::Bool(value),
            Unexpected::Unsigned(number) => Self::Unsigned(number),
            Unexpected::Signed(number) => Self::Signed(number),
            Unexpected::Float(number) => Self::Float(number),
            Unexpected::Str(text) => Self::Text(text.to_owned()),
            Unexpected::Unit => Self::Null,
            Unexpected::Seq => Self::List,
            Unexpected::Map => Self::Mapping,
            other => Self::Other(other.to_string()),
        }
    }
}

/// A node as a source of values for serde.
#[derive(Clone, Copy)]
pub(super) struct NodeDeserializer<'t>(pub(super) &'t YamlNode);

impl<'t> NodeDeserializer<'t> {
    fn mismatch(self, expected: ExpectedValue) -> DecodeError {
        let found = match &self.0.content {
            YamlContent::Scalar(YamlScalar::Null) => FoundValue::Null,
            YamlContent::Scalar(YamlScalar::Bool(value)) => FoundValue::Bool(*value),
            YamlContent::Scalar(YamlScalar::Unsigned(number)) => FoundValue::Unsigned(*number),
            YamlContent::Scalar(YamlScalar::Signed(number)) => FoundValue::Signed(*number),
            YamlContent::Scalar(YamlScalar::Float(number)) => FoundValue::Float(*number),
            YamlContent::Scalar(YamlScalar::Text(text)) => FoundValue::Text(text.clone()),
            YamlContent::Sequence(_) => FoundValue::List,
            YamlContent::Mapping(_) => FoundValue::Mapping,
        };
        DecodeError::Mismatch { found, expected }
    }

    /// An integer type knows its range, but not that it is a whole number to users.
    fn whole_number<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let decoded = match self.0.content {
            YamlContent::Scalar(YamlScalar::Unsigned(number)) => visitor.visit_u64(number),
            YamlContent::Scalar(YamlScalar::Signed(number)) => visitor.visit_i64(number),
            _ => return Err(self.mismatch(ExpectedValue::WholeNumber)),
        };
        decoded.map_err(|error| match error {
            DecodeError::Mismatch { .. } => self.mismatch(ExpectedValue::WholeNumber),
            other => other,
        })
    }

    fn number<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.content {
            YamlContent::Scalar(YamlScalar::Unsigned(number)) => visitor.visit_u64(number),
            YamlContent::Scalar(YamlScalar::Signed(number)) => visitor.visit_i64(number),
            YamlContent::Scalar(YamlScalar::Float(number)) => visitor.visit_f64(number),
            _ => Err(self.mismatch(ExpectedValue::Number)),
        }
    }

    fn text<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.content {
            YamlContent::Scalar(YamlScalar::Text(text)) => visitor.visit_borrowed_str(text),
            _ => Err(self.mismatch(ExpectedValue::Text)),
        }
    }

    fn list<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.content {
            YamlContent::Sequence(items) => visitor.visit_seq(NodeItems(items.iter())),
            _ => Err(self.mismatch(ExpectedValue::List)),
        }
    }

    fn mapping<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.content {
            YamlContent::Mapping(entries) => {
                visitor.visit_map(NodeEntries { entries: entries.iter(), value: None })
            }
            _ => Err(self.mismatch(ExpectedValue::Mapping)),
        }
    }
}

/// Forwards several methods of `Deserializer` to one of the above.
macro_rules! forward {
    ($($method:ident)* => $to:ident) => {
        $(fn $method<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.$to(visitor)
        })*
    };
}

impl<'t> Deserializer<'t> for NodeDeserializer<'t> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.0.content {
            YamlContent::Scalar(YamlScalar::Null) => visitor.visit_unit(),
            YamlContent::Scalar(YamlScalar::Bool(value)) => visitor.visit_bool(*value),
            YamlContent::Scalar(YamlScalar::Text(_)) => self.text(visitor),
            YamlContent::Scalar(_) => self.number(visitor),
            YamlContent::Sequence(_) => self.list(visitor),
            YamlContent::Mapping(_) => self.mapping(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.content {
            YamlContent::Scalar(YamlScalar::Bool(value)) => visitor.visit_bool(value),
            _ => Err(self.mismatch(ExpectedValue::Bool)),
        }
    }

    fn deserialize_option<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_enum<V: Visitor<'t>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.0.content {
            YamlContent::Scalar(YamlScalar::Text(word)) => {
                visitor.visit_enum(word.as_str().into_deserializer())
            }
            _ => Err(self.mismatch(ExpectedValue::Word)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.mapping(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_any(visitor)
    }

    fn deserialize_tuple<V: Visitor<'t>>(self, _: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.list(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'t>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.list(visitor)
    }

    forward!(deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 => whole_number);
    forward!(deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 => whole_number);
    forward!(deserialize_f32 deserialize_f64 => number);
    forward!(deserialize_char deserialize_str deserialize_string deserialize_identifier => text);
    forward!(deserialize_seq => list);
    forward!(deserialize_map => mapping);
    forward!(deserialize_bytes deserialize_byte_buf => deserialize_any);
    forward!(deserialize_unit deserialize_ignored_any => deserialize_any);
}

struct NodeItems<'t>(std::slice::Iter<'t, YamlNode>);

impl<'t> SeqAccess<'t> for NodeItems<'t> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'t>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        self.0.next().map(|item| seed.deserialize(NodeDeserializer(item))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct NodeEntries<'t> {
    entries: std::slice::Iter<'t, YamlEntry>,
    value: Option<&'t YamlNode>,
}

impl<'t> MapAccess<'t> for NodeEntries<'t> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'t>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.value = Some(&entry.value);
        let name: StrDeserializer<'_, DecodeError> = entry.name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'t>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let value = self.value.take().expect("serde asks for a value after its key");
        seed.deserialize(NodeDeserializer(value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}
