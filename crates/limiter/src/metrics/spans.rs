//! Spans: operations with a beginning and an end, for tracing backends.

use std::borrow::Cow;
use tollgate_core::time::UnixTime;

/// Receives spans. Called where the operation ends, so it must neither block nor wait.
pub trait SpanSink: Send + Sync + std::fmt::Debug {
    /// Whether the next operation should be recorded. Asked once before each operation; most are not.
    fn samples_next(&self) -> bool;

    /// Records an operation that has ended.
    fn record(&self, span: SpanRecord);
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanRecord {
    /// The kind of operation, such as `store call`. Not a value that differs from call to call.
    pub name: &'static str,
    /// When it began.
    pub start: UnixTime,
    /// When it ended.
    pub end: UnixTime,
    /// Its details, such as the shard and the number of clients. No identities of clients.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Why it failed; `None` if it succeeded.
    pub error: Option<Cow<'static, str>>,
}

/// The value of a detail.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A text.
    Text(Cow<'static, str>),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// Yes or no.
    Boolean(bool),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Integer(i64::from(number))
    }
}

impl From<u64> for AttributeValue {
    /// Numbers beyond the range of the protocols become the largest one.
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for AttributeValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}
