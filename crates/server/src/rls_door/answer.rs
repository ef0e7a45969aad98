//! Decisions as a response: a status for each descriptor, and headers, body and metadata of the decision that matters most.

use super::descriptors::{MONTH_S, RefusedDescriptor, YEAR_S};
use super::proto::{Code, CurrentLimit, DescriptorStatus, HeaderText, RateLimitResponse, Unit};
use bytes::Bytes;
use http::HeaderMap;
use prost_types::value::Kind;
use prost_types::{Duration, Struct, Value};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tollgate_core::rate::SECOND_US;
use tollgate_http::body::STORE_UNAVAILABLE;
use tollgate_http::{FullResponse, HeaderOptions, HttpError, UnavailableStatus, response};
use tollgate_limiter::metrics::DecisionOutcome;
use tollgate_limiter::{Decision, LimitTerms, Outcome};
use tonic::Status;

/// What remains where no limit applies, or where it is not known.
const UNLIMITED: u32 = u32::MAX;

/// What became of a descriptor.
#[derive(Clone, Debug)]
pub enum DescriptorVerdict {
    /// The limiter has decided.
    Decided(Decision),
    /// It cannot be decided, and is refused.
    Refused(RefusedDescriptor),
    /// Another one is refused without a check, so this one was not checked either.
    Unchecked,
}

/// The verdicts of all descriptors, in their order.
pub type Verdicts = SmallVec<[DescriptorVerdict; 2]>;

impl DescriptorVerdict {
    fn allowed(&self) -> bool {
        match self {
            Self::Decided(decision) => decision.allowed(),
            Self::Refused(_) => false,
            Self::Unchecked => true,
        }
    }

    fn status(&self) -> DescriptorStatus {
        let code = if self.allowed() { Code::Ok } else { Code::OverLimit };
        let Self::Decided(decision) = self else { return without_limit(code) };
        // What remains of a limit is not known without the store, and a proxy would show a wrong number.
        let standing = decision.standing().filter(|_| !(decision.degraded && decision.allowed()));
        let Some((terms, standing)) = standing else { return without_limit(code) };
        let has_reset = !terms.counts_in_flight() && !decision.store_unavailable;
        let reset = has_reset.then(|| standing.reset_after_us.div_ceil(SECOND_US).max(1));
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(current_limit(&terms)),
            limit_remaining: standing.remaining,
            duration_until_reset: reset.map(|seconds| Duration { seconds: seconds as i64, nanos: 0 }),
        }
    }
}

fn without_limit(code: Code) -> DescriptorStatus {
    let limit_remaining = if code == Code::Ok { UNLIMITED } else { 0 };
    DescriptorStatus { code: code.into(), limit_remaining, ..DescriptorStatus::default() }
}

fn current_limit(terms: &LimitTerms) -> CurrentLimit {
    let unit = match u64::from(terms.window_seconds) {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        MONTH_S => Unit::Month,
        YEAR_S => Unit::Year,
        _ => Unit::Unknown,
    };
    let name = terms.names.policy.clone();
    CurrentLimit { requests_per_unit: terms.quota, unit: unit.into(), name }
}

/// The response to a request whose descriptors have these verdicts. An error if it is refused because the store is
/// unavailable, and the settings say that this is no exceeded limit.
pub fn answer(verdicts: &[DescriptorVerdict], options: &HeaderOptions) -> Result<RateLimitResponse, Status> {
    let deciding = Deciding::among(verdicts);
    let is_refused = !matches!(deciding, Deciding::Admission(_));
    let mut answer = RateLimitResponse {
        overall_code: if is_refused { Code::OverLimit } else { Code::Ok }.into(),
        statuses: verdicts.iter().map(DescriptorVerdict::status).collect(),
        ..RateLimitResponse::default()
    };
    match deciding {
        Deciding::Admission(None) => {}
        Deciding::Admission(Some(decision)) => {
            answer.response_headers_to_add = headers_of(decision, options);
            answer.request_headers_to_add = flags(verdicts);
            answer.dynamic_metadata = Some(metadata(decision));
        }
        Deciding::Refusal(decision) => {
            let is_unavailable = options.store_unavailable == UnavailableStatus::ServiceUnavailable;
            if decision.store_unavailable && is_unavailable {
                return Err(Status::unavailable(STORE_UNAVAILABLE.message));
            }
            if let Some(refusal) = response::refusal(decision, options, &HeaderMap::new()) {
                (answer.response_headers_to_add, answer.raw_body) = message(refusal);
            }
            answer.dynamic_metadata = Some(metadata(decision));
        }
        Deciding::Undecidable(refused) => {
            tracing::debug!(%refused, "descriptor refused");
            (answer.response_headers_to_add, answer.raw_body) = message(error_of(refused).response());
        }
    }
    Ok(answer)
}

/// What the headers, the body and the metadata of a response are about.
enum Deciding<'v> {
    /// None if no limit applies.
    Admission(Option<&'v Decision>),
    Refusal(&'v Decision),
    Undecidable(&'v RefusedDescriptor),
}

impl<'v> Deciding<'v> {
    /// Of several refusals the one that no wait ends, else the one with the longest wait. Of several admissions the one
    /// with the fewest tokens left.
    fn among(verdicts: &'v [DescriptorVerdict]) -> Self {
        let mut found = Self::Admission(None);
        for verdict in verdicts {
            found = match (verdict, found) {
                (DescriptorVerdict::Unchecked, found) => found,
                (DescriptorVerdict::Refused(refused), Self::Admission(_) | Self::Refusal(_)) => {
                    Self::Undecidable(refused)
                }
                (_, found @ Self::Undecidable(_)) => found,
                (DescriptorVerdict::Decided(decision), found) if decision.allowed() => match found {
                    Self::Admission(known)
                        if known.is_none_or(|known| tightness(decision) < tightness(known)) =>
                    {
                        let says_something = decision.terms.is_some() || decision.shadowed_by.is_some();
                        Self::Admission(Some(decision).filter(|_| says_something).or(known))
                    }
                    found => found,
                },
                (DescriptorVerdict::Decided(decision), Self::Refusal(known))
                    if weight(known) >= weight(decision) =>
                {
                    Self::Refusal(known)
                }
                (DescriptorVerdict::Decided(decision), _) => Self::Refusal(decision),
            };
        }
        found
    }
}

/// Decisions without the store come last: what remains is not known.
fn tightness(decision: &Decision) -> (bool, u32) {
    (decision.degraded, decision.standing().map_or(UNLIMITED, |(_, standing)| standing.remaining))
}

/// The order of refusals: by an exceeded limit before an unavailable store, by a list first.
fn weight(decision: &Decision) -> (bool, bool, Option<u64>) {
    let wait_us = decision.standing().and_then(|(_, standing)| standing.wait_us());
    (decision.outcome == Outcome::Denied, !decision.store_unavailable, wait_us)
}

fn error_of(refused: &RefusedDescriptor) -> HttpError {
    match refused {
        RefusedDescriptor::Invalid(invalid) => HttpError::from(invalid.clone()),
        other => HttpError::bad_request(other.to_string()),
    }
}

/// The headers of an admitted request. They are written to a map that the thread keeps: most answers have the same ones.
fn headers_of(decision: &Decision, options: &HeaderOptions) -> Vec<HeaderText> {
    thread_local! {
        static HEADERS: RefCell<HeaderMap> = RefCell::default();
    }
    HEADERS.with_borrow_mut(|headers| {
        headers.clear();
        options.write(decision, headers);
        header_list(headers)
    })
}

/// A response as parts of a message.
fn message(response: FullResponse) -> (Vec<HeaderText>, Bytes) {
    let (headers, body) = response::into_message(response);
    (header_list(&headers), body)
}

fn header_list(headers: &HeaderMap) -> Vec<HeaderText> {
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderText {
        key: name.as_str().to_owned(),
        // They are made of names and numbers.
        value: value.to_str().unwrap_or_default().to_owned(),
        raw_value: Vec::new(),
    };
    let mut list = Vec::with_capacity(headers.len());
    list.extend(headers.iter().map(header));
    list
}

/// The flags of all descriptors, for the upstream.
fn flags(verdicts: &[DescriptorVerdict]) -> Vec<HeaderText> {
    let mut headers: Vec<HeaderText> = Vec::new();
    for verdict in verdicts {
        let DescriptorVerdict::Decided(decision) = verdict else { continue };
        if decision.flagged_by.is_none() && decision.soft.is_none() {
            continue;
        }
        for flag in decision.flags() {
            if headers.iter().all(|known| known.key != flag.header) {
                let (key, value) = (flag.header.to_owned(), flag.value().into_owned());
                headers.push(HeaderText { key, value, raw_value: Vec::new() });
            }
        }
    }
    headers
}

/// Which rule decided, and how, for other filters and the access log of the proxy.
fn metadata(decision: &Decision) -> Struct {
    let mut fields = BTreeMap::new();
    let mut put = |name: &str, text: &str| {
        fields.insert(name.to_owned(), Value { kind: Some(Kind::StringValue(text.to_owned())) });
    };
    put("outcome", DecisionOutcome::of(decision).name());
    if let Some(terms) = decision.terms {
        put("rule", &terms.names.rule);
    }
    if let Some(names) = decision.shadowed_by {
        put("shadowed_by", &names.rule);
    }
    Struct { fields }
}
