//! The JSON of one decision.

use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tollgate_http::body::{DENIED, ErrorMessage, STORE_UNAVAILABLE};
use tollgate_limiter::{Decision, Outcome};

/// The decision of one check. Times are in milliseconds, rounded up. `limit`, `remaining` and `rule` are null if no
/// limit applies, `remaining` also if the store is unavailable, and `retry_after_ms` if a refusal has no retry time.
#[derive(Clone, Debug, Serialize)]
pub struct CheckResponse<'a> {
    allowed: bool,
    limit: Option<u32>,
    remaining: Option<u32>,
    reset_after_ms: u64,
    retry_after_ms: Option<u64>,
    rule: Option<&'a str>,
    degraded: bool,
    /// It is over the limit, and admitted with tokens of a grant.
    #[serde(skip_serializing_if = "is_false")]
    granted: bool,
    /// The shadow rule that would have refused the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadowed_by: Option<&'a str>,
    /// Flags for the upstream, by header name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    flags: BTreeMap<&'a str, Cow<'a, str>>,
    /// Why the request is refused although no limit is exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorMessage<'static>>,
}

impl<'a> CheckResponse<'a> {
    /// The response to a check that ended with `decision`.
    pub fn of(decision: &'a Decision) -> Self {
        let (limit, standing) = decision.standing().unzip();
        let ms = |us: u64| us.div_ceil(1_000);
        let retry_after_ms = match decision.outcome {
            Outcome::Limited(standing) => standing.wait_us().map(ms),
            Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => Some(0),
        };
        Self {
            allowed: decision.allowed(),
            limit: limit.map(|limit| limit.quota),
            remaining: standing.filter(|_| !decision.degraded).map(|standing| standing.remaining),
            reset_after_ms: standing.map_or(0, |standing| ms(standing.reset_after_us)),
            retry_after_ms,
            rule: decision.terms.map(|terms| terms.names.rule.as_str()),
            degraded: decision.degraded,
            granted: decision.granted,
            shadowed_by: decision.shadowed_by.map(|names| names.rule.as_str()),
            flags: decision.flags().map(|flag| (flag.header, flag.value())).collect(),
            error: match decision.outcome {
                Outcome::Denied => Some(DENIED),
                _ => decision.store_unavailable.then_some(STORE_UNAVAILABLE),
            },
        }
    }

    /// Appends the JSON to `out`. The common form, which nearly every check gets, is written by hand; a test compares it
    /// with the derived one.
    pub fn write(&self, out: &mut Vec<u8>) {
        let is_rare =
            self.error.is_some() || self.granted || self.shadowed_by.is_some() || !self.flags.is_empty();
        if is_rare || !self.rule.unwrap_or_default().bytes().all(is_plain) {
            return serde_json::to_writer(out, self).expect("strings and numbers are valid JSON values");
        }
        let mut digits = itoa::Buffer::new();
        let mut put = |name: &str, number: Option<u64>| {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(number.map_or("null", |number| digits.format(number)).as_bytes());
        };
        let allowed =
            if self.allowed { r#"{"allowed":true,"limit":"# } else { r#"{"allowed":false,"limit":"# };
        put(allowed, self.limit.map(u64::from));
        put(r#","remaining":"#, self.remaining.map(u64::from));
        put(r#","reset_after_ms":"#, Some(self.reset_after_ms));
        put(r#","retry_after_ms":"#, self.retry_after_ms);
        match self.rule {
            Some(rule) => {
                out.extend_from_slice(br#","rule":""#);
                out.extend_from_slice(rule.as_bytes());
                out.push(b'"');
            }
            None => out.extend_from_slice(br#","rule":null"#),
        }
        let end: &[u8] = if self.degraded { br#","degraded":true}"# } else { br#","degraded":false}"# };
        out.extend_from_slice(end);
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Whether a byte needs no escape in a JSON string.
fn is_plain(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handwritten_json_equals_derived_json() {
        for rule in
            [None, Some("orders"), Some("a/b.c:d-e_f"), Some("\"quoted\""), Some("back\\slash"), Some("µ")]
        {
            for (count, flag) in [(None, true), (Some(0), false), (Some(u32::MAX), true)] {
                for error in [None, Some(DENIED)] {
                    let response = CheckResponse {
                        allowed: flag,
                        limit: count,
                        remaining: count,
                        reset_after_ms: u64::MAX,
                        retry_after_ms: count.map(|_| 7),
                        rule,
                        degraded: !flag,
                        granted: flag && count.is_none(),
                        shadowed_by: None,
                        flags: BTreeMap::new(),
                        error,
                    };
                    let mut written = Vec::new();
                    response.write(&mut written);
                    assert_eq!(written, serde_json::to_vec(&response).unwrap());
                }
            }
        }
    }
}
