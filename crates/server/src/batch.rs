//! `POST /v1/check/batch`: many checks in one request, decided independently and in order.
//!
//! The array as a whole must be valid JSON before the first item is decided. An invalid item is an error at its own
//! index and does not affect the others.

use crate::check::RESPONSE_BYTES;
use crate::check_request::CheckRequest;
use crate::check_response::CheckResponse;
use crate::http_door::HttpDoor;
use crate::json_error::{FieldNames, end_of, json_error};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use tollgate_http::{FullResponse, HttpError, body, response};
use tollgate_limiter::Check;

/// The size limit of a request body.
pub const MOST_BYTES: usize = 1024 * 1024;
/// The most checks in one request.
pub const MOST_CHECKS: usize = 1_000;

const EXAMPLE: &str = r#"a batch is a JSON array such as [{"key":"sk_1"},{"key":"sk_2"}]"#;

/// Responds to the checks in `json`.
pub async fn respond(door: &HttpDoor, json: &[u8]) -> FullResponse {
    decide_all(door, json).await.unwrap_or_else(|error| error.response())
}

async fn decide_all(door: &HttpDoor, json: &[u8]) -> Result<FullResponse, HttpError> {
    let BatchItems(items) = serde_json::from_slice(json)
        .map_err(|error| json_error::<BatchItems<'_>>(json, &error, &FieldNames::default(), EXAMPLE))?;
    // All checks start before the first is awaited, so together they wait no longer than one.
    let checks: Vec<Result<Check<'_>, HttpError>> = items
        .iter()
        .map(|item| {
            check(door, item).map_err(|error| {
                let start = item.get().as_ptr() as usize - json.as_ptr() as usize;
                error.moved_to(end_of(&json[..start]))
            })
        })
        .collect();
    let mut out = Vec::with_capacity(2 + items.len() * RESPONSE_BYTES);
    out.push(b'[');
    for (index, check) in checks.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match check {
            Ok(check) => CheckResponse::of(&check.decision().await).write(&mut out),
            Err(error) => out.extend(body::error(&error)),
        }
    }
    out.push(b']');
    Ok(response::ok(out))
}

fn check<'d>(door: &'d HttpDoor, item: &RawValue) -> Result<Check<'d>, HttpError> {
    CheckRequest::parse(item.get().as_bytes())?.check(&door.limiter)
}

/// The items of a batch, not parsed yet.
struct BatchItems<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for BatchItems<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BatchVisitor;

        impl<'de> Visitor<'de> for BatchVisitor {
            type Value = BatchItems<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of checks")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut read = Vec::new();
                while let Some(item) = items.next_element()? {
                    if read.len() == MOST_CHECKS {
                        return Err(de::Error::custom(format_args!("more than {MOST_CHECKS} checks")));
                    }
                    read.push(item);
                }
                Ok(BatchItems(read))
            }
        }

        deserializer.deserialize_seq(BatchVisitor)
    }
}
