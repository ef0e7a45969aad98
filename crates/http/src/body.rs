//! The JSON bodies of refusals.

use crate::headers::{ACCEPT, LimitSeconds, phrases};
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
pub enum ErrorCode {
    /// Over a limit.
    RateLimitExceeded,
    /// The store is unavailable, and a rule says that requests are refused then.
    StoreUnavailable,
    /// On the deny list.
    Denied,
    /// The request makes no sense.
    BadRequest,
    /// It can never pass.
    CostAboveLimit,
    /// The body is longer than allowed.
    BodyTooLarge,
    /// The body is not of a type that is read here.
    UnsupportedMediaType,
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

impl ErrorCode {
    /// The status that goes with it.
    pub fn status(self) -> StatusCode {
        match self {
            Self::RateLimitExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::BadRequest | Self::CostAboveLimit => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::StoreUnavailable | Self::UpstreamUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// A refusal about which there is no more to say.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ErrorMessage<'a> {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: &'a str,
}

/// The refusal of a request that is on the deny list. It tells no reason: that is for operators.
pub const DENIED: ErrorMessage<'static> =
    ErrorMessage { code: ErrorCode::Denied, message: "This client is on the deny list" };

/// The refusal of a request that only the store could have decided. No limit is named: none is known to be exceeded.
pub const STORE_UNAVAILABLE: ErrorMessage<'static> = ErrorMessage {
    code: ErrorCode::StoreUnavailable,
    message: "The store of the rate limits is unavailable; try again later",
};

/// `{"error": …}`
pub fn error(error: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct ErrorEnvelope<'a, E> {
        error: &'a E,
    }
    serde_json::to_vec(&ErrorEnvelope { error }).expect("texts and numbers can be written as JSON")
}

/// The body of a request over its limit; what is not known is null. Only numbers vary, so nothing needs
/// escaping; a client that hammers gets it again and again, so it is put together by hand.
pub(crate) fn limited(terms: &Terms, seconds: &LimitSeconds) -> Vec<u8> {
    const TIME_BYTES: usize = 20;
    const NULL: &[u8] = b"null";
    let mut digits = itoa::Buffer::new();
    let wait = seconds.retry_after.map_or(NULL, |wait| digits.format(wait).as_bytes());
    let (before_time, end) = (br#","reset_at":"#, b"}}}");
    let time_bytes = seconds.reset.map_or(NULL.len(), |_| TIME_BYTES + 2);
    phrases::of(terms, |phrases| {
        let rest = wait.len() + before_time.len() + time_bytes + end.len();
        // With no room to spare the list becomes the body as it is.
        let mut body = Vec::with_capacity(phrases.refusal.len() + rest);
        body.extend_from_slice(&phrases.refusal);
        body.extend_from_slice(wait);
        body.extend_from_slice(before_time);
        match seconds.reset {
            Some(reset) => {
                body.push(b'"');
                push_time(&mut body, reset.at);
                body.push(b'"');
            }
            None => body.extend_from_slice(NULL),
        }
        body.extend_from_slice(end);
        body
    })
}

/// The body of a refusal, up to the wait.
pub(crate) fn beginning(terms: &Terms) -> Vec<u8> {
    let mut body = br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":""#.to_vec();
    push_exceeded(&mut body, terms);
    let (limit, window) = (terms.quota, terms.window_seconds);
    let details =
        format!(r#"","details":{{"limit":{limit},"window_seconds":{window},"retry_after_seconds":"#);
    body.extend_from_slice(details.as_bytes());
    body
}

/// A time as [`rfc3339`] writes it, without the machinery of formatting.
fn push_time(text: &mut Vec<u8>, unix_seconds: u64) {
    const DAY: u64 = 86_400;
    // From 1 March 2000 on leap days are at the end of years, and centuries begin anew after 400 years.
    const MARCH_2000: u64 = 951_868_800;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let Some(since) = unix_seconds.checked_sub(MARCH_2000).filter(|since| since / DAY < DAYS_IN_400_YEARS)
    else {
        return text.extend_from_slice(rfc3339(unix_seconds.saturating_mul(SECOND_US)).as_bytes());
    };
    let (days, second) = (since / DAY, since % DAY);
    let year = (days - days / 1_460 + days / 36_524 - days / 146_096) / 365;
    let day_of_year = days - (365 * year + year / 4 - year / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, twice and once more: 153 in each five.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (2000 + year, month + 3) } else { (2001 + year, month - 9) };
    let mut time = *b"0000-00-00T00:00:00Z";
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let places =
        [(0, year / 100), (2, year % 100), (5, month), (8, day), (11, hour), (14, minute), (17, second)];
    for (place, number) in places {
        time[place] += (number / 10) as u8;
        time[place + 1] += (number % 10) as u8;
    }
    text.extend_from_slice(&time);
}

/// The same by RFC 9457, with the type that the IETF draft registers.
pub(crate) fn problem(terms: &Terms, seconds: &LimitSeconds) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct QuotaProblem<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: Cow<'a, str>,
        violated_policies: [&'a str; 1],
        #[serde(rename = "retry_after_seconds")]
        retry_after_seconds: Option<u64>,
    }
    let mut detail = Vec::new();
    push_exceeded(&mut detail, terms);
    let problem = QuotaProblem {
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        status: ErrorCode::RateLimitExceeded.status().as_u16(),
        detail: String::from_utf8_lossy(&detail),
        violated_policies: [&terms.names.policy],
        retry_after_seconds: seconds.retry_after,
    };
    serde_json::to_vec(&problem).expect("texts and numbers can be written as JSON")
}

/// The body of a refusal because the store is unavailable.
pub(crate) fn unavailable(seconds: &LimitSeconds) -> Vec<u8> {
    #[derive(Serialize)]
    struct UnavailableBody {
        #[serde(flatten)]
        refusal: ErrorMessage<'static>,
        details: UnavailableDetails,
    }
    #[derive(Serialize)]
    struct UnavailableDetails {
        retry_after_seconds: Option<u64>,
    }
    let details = UnavailableDetails { retry_after_seconds: seconds.retry_after };
    error(&UnavailableBody { refusal: STORE_UNAVAILABLE, details })
}

/// The same by RFC 9457, with the code as a member of its own.
pub(crate) fn unavailable_problem(seconds: &LimitSeconds, status: StatusCode) -> Vec<u8> {
    #[derive(Serialize)]
    struct UnavailableProblem {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: &'static str,
        code: ErrorCode,
        retry_after_seconds: Option<u64>,
    }
    let problem = UnavailableProblem {
        kind: "about:blank",
        title: status.canonical_reason().unwrap_or_default(),
        status: status.as_u16(),
        detail: STORE_UNAVAILABLE.message,
        code: STORE_UNAVAILABLE.code,
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
    // Hardly anybody asks, and who hammers sends one short line, in which there is no room to.
    if !headers.get_all(ACCEPT).iter().any(|line| line.len() >= PROBLEM_JSON.len()) {
        return false;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_everywhere_else() {
        let days = (0..=200_000).map(|day| day * 86_400 + (day * 7_919) % 86_400);
        let edges = [
            0,
            951_782_399,
            951_868_799,
            951_868_800,
            4_107_542_399,
            13_574_563_199,
            13_574_563_200,
            u64::MAX,
        ];
        for seconds in days.chain(edges) {
            let mut text = Vec::new();
            push_time(&mut text, seconds);
            let expected = rfc3339(seconds.saturating_mul(SECOND_US));
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{seconds}");
        }
    }
}
