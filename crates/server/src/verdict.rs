//! The JSON of one decision, as answered.

use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tollgate_http::body::{DENIED, Refusal, STORE_UNAVAILABLE};
use tollgate_limiter::{Decision, Outcome};

/// What became of one check. Times are in milliseconds, rounded up. Without a limit there is nothing to
/// say about limit, remaining and rule; without the store it is not known what remains; a refusal that promises no time
/// has no wait.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict<'a> {
    allowed: bool,
    limit: Option<u32>,
    remaining: Option<u32>,
    reset_after_ms: u64,
    retry_after_ms: Option<u64>,
    rule: Option<&'a str>,
    degraded: bool,
    /// A rule that only counts, and that would have refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadowed_by: Option<&'a str>,
    /// What the upstream is to be told, by header.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    flags: BTreeMap<&'a str, Cow<'a, str>>,
    /// Why it may not pass although no limit is exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Refusal<'static>>,
}

impl<'a> Verdict<'a> {
    /// The verdict of `decision`.
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
            shadowed_by: decision.shadowed_by.map(|names| names.rule.as_str()),
            flags: decision.flags().map(|flag| (flag.header, flag.value())).collect(),
            error: match decision.outcome {
                Outcome::Denied => Some(DENIED),
                _ => decision.store_unavailable.then_some(STORE_UNAVAILABLE),
            },
        }
    }

    /// Writes it at the end of `out`. This is the answer to nearly every check, so it is put together by
    /// hand; a test holds it against the derived form.
    pub fn write(&self, out: &mut Vec<u8>) {
        let is_rare = self.error.is_some() || self.shadowed_by.is_some() || !self.flags.is_empty();
        if is_rare || !self.rule.unwrap_or_default().bytes().all(is_plain) {
            return serde_json::to_writer(out, self).expect("texts and numbers can be written as JSON");
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

/// Whether a byte of a text stands for itself in JSON.
fn is_plain(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand_is_as_derived() {
        for rule in
            [None, Some("orders"), Some("a/b.c:d-e_f"), Some("\"quoted\""), Some("back\\slash"), Some("µ")]
        {
            for (count, flag) in [(None, true), (Some(0), false), (Some(u32::MAX), true)] {
                for error in [None, Some(DENIED)] {
                    let verdict = Verdict {
                        allowed: flag,
                        limit: count,
                        remaining: count,
                        reset_after_ms: u64::MAX,
                        retry_after_ms: count.map(|_| 7),
                        rule,
                        degraded: !flag,
                        shadowed_by: None,
                        flags: BTreeMap::new(),
                        error,
                    };
                    let mut written = Vec::new();
                    verdict.write(&mut written);
                    assert_eq!(written, serde_json::to_vec(&verdict).unwrap());
                }
            }
        }
    }
}
