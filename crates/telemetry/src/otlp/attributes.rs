//! Names and values in OTLP's types.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tollgate_limiter::metrics::AttributeValue;

/// What the telemetry is about: this node.
pub(super) fn resource(instance_id: &str) -> Resource {
    let attributes = vec![
        text_attribute("service.name", "tollgate"),
        text_attribute("service.version", env!("CARGO_PKG_VERSION")),
        text_attribute("service.instance.id", instance_id),
    ];
    Resource { attributes, ..Resource::default() }
}

/// The program that made the telemetry.
pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "tollgate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

pub(super) fn text_attribute(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

pub(super) fn typed_attribute(key: &str, value: &AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => Value::StringValue(text.clone().into_owned()),
        AttributeValue::Integer(number) => Value::IntValue(*number),
        AttributeValue::Number(number) => Value::DoubleValue(*number),
        AttributeValue::Boolean(value) => Value::BoolValue(*value),
    };
    attribute(key, value)
}

pub(super) fn text_value(text: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text.to_owned())) }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
