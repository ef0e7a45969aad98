//! `POST /v1/check/batch`: many questions in one request, each decided for itself and in order.
//!
//! The array as a whole must be JSON before the first item is decided. An item that makes no sense is an
//! error in its own place and does not touch the others.

use crate::check::VERDICT_BYTES;
use crate::door::Door;
use crate::question::{Question, end_of, fault};
use crate::verdict::Verdict;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use tollgate_http::{Answer, Fault, answer, body};
use tollgate_limiter::Check;

/// A body that is longer is not a batch.
pub const MOST_BYTES: usize = 1024 * 1024;
/// How many checks go into one.
pub const MOST_CHECKS: usize = 1_000;

const EXAMPLE: &str = r#"a batch is a JSON array such as [{"key":"sk_1"},{"key":"sk_2"}]"#;

/// Answers the checks in `json`.
pub async fn answer(door: &Door, json: &[u8]) -> Answer {
    decide_all(door, json).await.unwrap_or_else(|fault| fault.answer())
}

async fn decide_all(door: &Door, json: &[u8]) -> Result<Answer, Fault> {
    let Items(items) =
        serde_json::from_slice(json).map_err(|error| fault::<Items<'_>>(json, &error, EXAMPLE))?;
    // All are asked before the first is waited for: together they wait no longer than one.
    let checks: Vec<Result<Check<'_>, Fault>> = items
        .iter()
        .map(|item| {
            check(door, item).map_err(|fault| {
                let start = item.get().as_ptr() as usize - json.as_ptr() as usize;
                fault.moved_to(end_of(&json[..start]))
            })
        })
        .collect();
    let mut out = Vec::with_capacity(2 + items.len() * VERDICT_BYTES);
    out.push(b'[');
    for (index, check) in checks.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match check {
            Ok(check) => Verdict::of(&check.decision().await).write(&mut out),
            Err(fault) => out.extend(body::error(&fault)),
        }
    }
    out.push(b']');
    Ok(answer::ok(out))
}

fn check<'d>(door: &'d Door, item: &RawValue) -> Result<Check<'d>, Fault> {
    Question::parse(item.get().as_bytes())?.check(&door.limiter)
}

/// The items, not looked into yet.
struct Items<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AtMost;

        impl<'de> Visitor<'de> for AtMost {
            type Value = Items<'de>;

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
                Ok(Items(read))
            }
        }

        deserializer.deserialize_seq(AtMost)
    }
}
