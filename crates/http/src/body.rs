//! The JSON bodies of refusals and errors.

use crate::headers::{ACCEPT, LimitSeconds, limit_text};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use std::borrow::Cow;
use tollgate_core::rate::{SECOND_US, rfc3339};
use tollgate_core::time::UnixTime;
use tollgate_limiter::LimitTerms;

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// The code by which programs tell errors apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// A limit is exceeded.
    RateLimitExceeded,
    /// The store is unavailable, and the rule refuses requests then.
    StoreUnavailable,
    /// The client is on the deny list.
    Denied,
    /// The request is malformed.
    BadRequest,
    /// The cost is above the limit: the request can never be admitted.
    CostAboveLimit,
    /// The body is longer than allowed.
    BodyTooLarge,
    /// The content type is not supported.
    UnsupportedMediaType,
    /// The body did not arrive in time.
    RequestTimeout,
    /// Nothing is served there.
    NotFound,
    /// The method is not allowed there.
    MethodNotAllowed,
    /// The caller is not authenticated.
    Unauthorized,
    /// The caller is authenticated, but may not do this.
    Forbidden,
    /// The state of the server does not allow this.
    Conflict,
    /// What the request is based on has changed since.
    PreconditionFailed,
    /// The request must say what it is based on.
    PreconditionRequired,
    /// The request is well-formed, and its content is invalid.
    Invalid,
    /// Too many attempts.
    TooManyAttempts,
    /// Something that is needed to answer is unavailable.
    Unavailable,
    /// The upstream could not be reached, or its response is invalid.
    BadGateway,
    /// No upstream is healthy.
    UpstreamUnavailable,
    /// The upstream did not respond in time.
    UpstreamTimeout,
}

impl ErrorCode {
    /// The status of a response with this code.
    pub fn status(self) -> StatusCode {
        match self {
            Self::RateLimitExceeded | Self::TooManyAttempts => StatusCode::TOO_MANY_REQUESTS,
            Self::Denied | Self::Forbidden => StatusCode::FORBIDDEN,
            Self::BadRequest | Self::CostAboveLimit => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Conflict => StatusCode::CONFLICT,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::PreconditionRequired => StatusCode::PRECONDITION_REQUIRED,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::StoreUnavailable | Self::UpstreamUnavailable | Self::Unavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// An error without details.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ErrorMessage<'a> {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: &'a str,
}

/// The refusal by the deny list. The reason is for operators only.
pub const DENIED: ErrorMessage<'static> =
    ErrorMessage { code: ErrorCode::Denied, message: "This client is on the deny list" };

/// The refusal because the store is unavailable. No limit is named: none is known to be exceeded.
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
    serde_json::to_vec(&ErrorEnvelope { error }).expect("strings and numbers can be written as JSON")
}

/// The body of a 429; what is not known is null. It is the most frequent body, so it is written by hand: only numbers vary, and
/// nothing needs escaping.
pub(crate) fn limited(terms: &LimitTerms, seconds: &LimitSeconds) -> Vec<u8> {
    const TIME_BYTES: usize = 20;
    const NULL: &[u8] = b"null";
    let mut digits = itoa::Buffer::new();
    let wait = seconds.retry_after.map_or(NULL, |wait| digits.format(wait).as_bytes());
    let (before_time, end) = (br#","reset_at":"#, b"}}}");
    let time_bytes = seconds.reset.map_or(NULL.len(), |_| TIME_BYTES + 2);
    limit_text::with(terms, |text| {
        let rest = wait.len() + before_time.len() + time_bytes + end.len();
        // With the exact capacity, `Bytes` takes the list over without a copy.
        let mut body = Vec::with_capacity(text.refusal_prefix.len() + rest);
        body.extend_from_slice(&text.refusal_prefix);
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

/// The body of a 429 up to the retry time.
pub(crate) fn limited_prefix(terms: &LimitTerms) -> Vec<u8> {
    let mut body = br#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":""#.to_vec();
    push_exceeded(&mut body, terms);
    let (limit, window) = (terms.quota, terms.window_seconds);
    let details =
        format!(r#"","details":{{"limit":{limit},"window_seconds":{window},"retry_after_seconds":"#);
    body.extend_from_slice(details.as_bytes());
    body
}

/// Appends a time as [`rfc3339`] formats it, faster.
fn push_time(text: &mut Vec<u8>, unix_seconds: u64) {
    const DAY: u64 = 86_400;
    // Years that start on 1 March have their leap day at the end, and the calendar repeats every 400 years.
    const MARCH_2000: u64 = 951_868_800;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let Some(since) = unix_seconds.checked_sub(MARCH_2000).filter(|since| since / DAY < DAYS_IN_400_YEARS)
    else {
        return text.extend_from_slice(
            rfc3339(UnixTime::from_us(unix_seconds.saturating_mul(SECOND_US))).as_bytes(),
        );
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

/// The body of a 429 by RFC 9457, with the type that the IETF draft registers.
pub(crate) fn problem(terms: &LimitTerms, seconds: &LimitSeconds) -> Vec<u8> {
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
    serde_json::to_vec(&problem).expect("strings and numbers can be written as JSON")
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

/// The same by RFC 9457, with the code as an extension member.
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
    serde_json::to_vec(&problem).expect("strings and numbers can be written as JSON")
}

/// Appends "Rate limit of 100 requests per 60 seconds exceeded".
fn push_exceeded(text: &mut Vec<u8>, terms: &LimitTerms) {
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

/// The format of an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Json,
    /// Problem details (RFC 9457).
    ProblemJson,
}

impl BodyFormat {
    /// The format for the client that sent `headers`: problem details if it accepts them by name, and not plain JSON with a higher
    /// weight.
    pub(crate) fn preferred(headers: &HeaderMap) -> Self {
        // Most `Accept` lines are too short to name problem details.
        if !headers.get_all(ACCEPT).iter().any(|line| line.len() >= PROBLEM_JSON.len()) {
            return Self::Json;
        }
        let weight = |media_type: &str| {
            let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
            let ranges = lines.flat_map(|line| line.split(','));
            ranges.filter_map(|range| weight_of(range, media_type)).max()
        };
        match weight(PROBLEM_JSON) {
            Some(problem) if problem > 0 && weight(JSON).is_none_or(|json| json <= problem) => {
                Self::ProblemJson
            }
            _ => Self::Json,
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::ProblemJson => PROBLEM_JSON,
        }
    }
}

/// The weight of a media range in thousandths, if it is exactly this type.
fn weight_of(range: &str, media_type: &str) -> Option<u32> {
    let mut parts = range.split(';').map(str::trim);
    if !parts.next()?.eq_ignore_ascii_case(media_type) {
        return None;
    }
    let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    // An invalid weight counts as none.
    let weight = weight.and_then(|weight| weight.trim().parse::<f32>().ok()).unwrap_or(1.0);
    Some((weight.clamp(0.0, 1.0) * 1000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_by_rfc3339() {
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
            let expected = rfc3339(UnixTime::from_us(seconds.saturating_mul(SECOND_US)));
            assert_eq!(String::from_utf8(text).unwrap(), expected, "{seconds}");
        }
    }
}
