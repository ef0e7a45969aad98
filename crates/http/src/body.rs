//! The JSON bodies of refusals.

use crate::headers::{ACCEPT, Seconds};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use std::borrow::Cow;
use tollgate_core::rate::{SECOND_US, rfc3339};
use tollgate_limiter::Terms;

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// What programs tell refusals apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// Over a limit.
    RateLimitExceeded,
    /// On the deny list.
    Denied,
    /// The request makes no sense.
    BadRequest,
    /// It can never pass.
    CostAboveLimit,
    /// The body is longer than allowed.
    BodyTooLarge,
    /// The body did not arrive in time.
    RequestTimeout,
    /// Nothing is served there.
    NotFound,
    /// Something is served there, but not by this method.
    MethodNotAllowed,
    /// The server behind the gateway gave no proper answer.
    BadGateway,
    /// No server behind the gateway is well.
    UpstreamUnavailable,
    /// The server behind the gateway took too long.
    UpstreamTimeout,
}

impl Code {
    /// The status that goes with it.
    pub fn status(self) -> StatusCode {
        match self {
            Self::RateLimitExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::BadRequest | Self::CostAboveLimit => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::UpstreamUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// A refusal about which there is no more to say.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Refusal<'a> {
    /// For programs.
    pub code: Code,
    /// For people.
    pub message: &'a str,
}

/// The refusal of a request that is on the deny list. It tells no reason: that is for operators.
pub const DENIED: Refusal<'static> =
    Refusal { code: Code::Denied, message: "This client is on the deny list" };

/// `{"error": …}`
pub fn error(error: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct Envelope<'a, E> {
        error: &'a E,
    }
    serde_json::to_vec(&Envelope { error }).expect("texts and numbers can be written as JSON")
}

/// The body of a request over its limit. Only numbers vary, so nothing needs escaping; a client that
/// hammers gets it again and again, so it is put together by hand.
pub(crate) fn limited(terms: &Terms, seconds: &Seconds) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    let mut digits = itoa::Buffer::new();
    body.extend_from_slice(br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":""#);
    push_exceeded(&mut body, terms);
    let numbers: [(&[u8], u64); 3] = [
        (br#"","details":{"limit":"#, terms.quota.into()),
        (br#","window_seconds":"#, terms.window_seconds.into()),
        (br#","retry_after_seconds":"#, seconds.retry_after),
    ];
    for (name, number) in numbers {
        body.extend_from_slice(name);
        body.extend_from_slice(digits.format(number).as_bytes());
    }
    body.extend_from_slice(br#","reset_at":""#);
    body.extend_from_slice(rfc3339(seconds.reset_at.saturating_mul(SECOND_US)).as_bytes());
    body.extend_from_slice(br#""}}}"#);
    body
}

/// The same by RFC 9457, with the type that the IETF draft registers.
pub(crate) fn problem(terms: &Terms, seconds: &Seconds) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Problem<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: Cow<'a, str>,
        violated_policies: [&'a str; 1],
        #[serde(rename = "retry_after_seconds")]
        retry_after_seconds: u64,
    }
    let mut detail = Vec::new();
    push_exceeded(&mut detail, terms);
    let problem = Problem {
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        status: Code::RateLimitExceeded.status().as_u16(),
        detail: String::from_utf8_lossy(&detail),
        violated_policies: [&terms.names.policy],
        retry_after_seconds: seconds.retry_after,
    };
    serde_json::to_vec(&problem).expect("texts and numbers can be written as JSON")
}

/// "Rate limit of 100 requests per 60 seconds exceeded"
fn push_exceeded(text: &mut Vec<u8>, terms: &Terms) {
    let mut digits = itoa::Buffer::new();
    if terms.window_seconds == 0 {
        text.extend_from_slice(b"Limit of ");
        text.extend_from_slice(digits.format(terms.quota).as_bytes());
        text.extend_from_slice(if terms.quota == 1 { b" request" } else { b" requests" });
        return text.extend_from_slice(b" in flight exceeded");
    }
    text.extend_from_slice(b"Rate limit of ");
    text.extend_from_slice(digits.format(terms.quota).as_bytes());
    text.extend_from_slice(if terms.quota == 1 { b" request per " } else { b" requests per " });
    text.extend_from_slice(digits.format(terms.window_seconds).as_bytes());
    text.extend_from_slice(if terms.window_seconds == 1 {
        b" second exceeded"
    } else {
        b" seconds exceeded"
    });
}

/// Whether the sender asks for problem details: it names them, and does not like plain JSON better.
pub(crate) fn prefers_problem(headers: &HeaderMap) -> bool {
    // In a hot loop nobody asks, and most clients send one short line.
    let quality = |media_type: &str| {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let ranges = lines.flat_map(|line| line.split(','));
        ranges.filter_map(|range| quality_of(range, media_type)).max()
    };
    match quality(PROBLEM_JSON) {
        Some(problem) if problem > 0 => quality(JSON).is_none_or(|json| json <= problem),
        _ => false,
    }
}

/// The weight of a media range in thousandths, if it is exactly this type.
fn quality_of(range: &str, media_type: &str) -> Option<u32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(media_type) {
        return None;
    }
    let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    // A weight that cannot be read is no reason to refuse what was named.
    let weight = weight.and_then(|weight| weight.trim().parse::<f32>().ok()).unwrap_or(1.0);
    Some((weight.clamp(0.0, 1.0) * 1000.0) as u32)
}
