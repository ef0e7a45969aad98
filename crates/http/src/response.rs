//! Whole responses: a status, its headers and one body.

use crate::body::{self, BodyFormat, ErrorCode, ErrorMessage, JSON, PROBLEM_JSON};
use crate::headers::{ALLOW, CONTENT_TYPE, HeaderOptions, write_flag};
use bytes::Bytes;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tollgate_limiter::{Decision, Outcome};

/// A response whose body is in one piece.
pub type FullResponse = Response<Full<Bytes>>;

/// The headers of a 429 by default: the content type, `Retry-After`, and two families.
const MOST_HEADERS: usize = 7;

/// 200 with a text.
pub fn text(text: &'static str) -> FullResponse {
    plain(StatusCode::OK, text)
}

/// 200 with JSON.
pub fn ok(body: Vec<u8>) -> FullResponse {
    json(StatusCode::OK, body)
}

/// 200 with a body of any type.
pub fn content(media_type: &'static str, body: impl Into<Bytes>) -> FullResponse {
    with_type(HeaderMap::new(), StatusCode::OK, media_type, body.into())
}

/// 503 with a text that says what is missing.
pub fn unavailable(missing: &'static str) -> FullResponse {
    plain(StatusCode::SERVICE_UNAVAILABLE, missing)
}

/// 304: the client has the current content. `etag` is its entity tag.
pub fn not_modified(etag: HeaderValue) -> FullResponse {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response.headers_mut().insert(ETAG, etag);
    response
}

/// An error with a body in the format of problem details (RFC 9457).
pub fn problem(code: ErrorCode, body: Vec<u8>) -> FullResponse {
    with_type(HeaderMap::new(), code.status(), PROBLEM_JSON, body.into())
}

/// 405 with the methods that are allowed.
pub fn method_not_allowed(allow: &'static str) -> FullResponse {
    let message = format!("only {allow} is answered here");
    let mut response = error_message(&ErrorMessage { code: ErrorCode::MethodNotAllowed, message: &message });
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// The response to a refused request, or none if it is admitted: 429 with what is known of the limit, 503 if the store is
/// unavailable, or 403 by the deny list. `headers` are those of the request.
pub fn refusal(decision: &Decision, options: &HeaderOptions, headers: &HeaderMap) -> Option<FullResponse> {
    match decision.outcome {
        Outcome::Unlimited | Outcome::Admitted(_) => None,
        Outcome::Denied => Some(error_message(&body::DENIED)),
        Outcome::Limited(_) => {
            let content = RefusalContent::new(decision, options, BodyFormat::preferred(headers));
            // More headers than a new map has room for: without the capacity it would be built twice.
            Some(content.response(decision, options, HeaderMap::with_capacity(MOST_HEADERS)))
        }
    }
}

/// The same, but the headers of the response reuse the map of the request's. A client that is refused again and again causes no
/// allocation of a map.
pub(crate) fn refusal_reusing(
    decision: &Decision,
    options: &HeaderOptions,
    mut headers: HeaderMap,
) -> Option<FullResponse> {
    match decision.outcome {
        Outcome::Limited(_) => {
            let content = RefusalContent::new(decision, options, BodyFormat::preferred(&headers));
            headers.clear();
            Some(content.response(decision, options, headers))
        }
        Outcome::Unlimited | Outcome::Admitted(_) | Outcome::Denied => refusal(decision, options, &headers),
    }
}

/// The response about an admitted request to a proxy that asked: 200 without a body, with the headers of `decision` and its flags for
/// the upstream. `headers` is a map that is reused.
pub fn admission(decision: &Decision, options: &HeaderOptions, mut headers: HeaderMap) -> FullResponse {
    headers.clear();
    options.write(decision, &mut headers);
    for flag in decision.flags() {
        write_flag(&flag, &mut headers);
    }
    let mut response = Response::new(Full::default());
    *response.headers_mut() = headers;
    response
}

/// The headers and the body of a response, for protocols that carry both in a message of their own.
pub fn into_message(response: FullResponse) -> (HeaderMap, Bytes) {
    let (head, body) = response.into_parts();
    let mut context = Context::from_waker(Waker::noop());
    let body = match pin!(body).poll_frame(&mut context) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        Poll::Ready(Some(Err(_)) | None) | Poll::Pending => Bytes::new(),
    };
    (head.headers, body)
}

/// Whether a response says that a limit was exceeded (429).
pub fn is_limited<B>(response: &Response<B>) -> bool {
    response.status() == ErrorCode::RateLimitExceeded.status()
}

/// Whether a response switches to another protocol (101).
pub fn switches_protocols<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// Whether the response to a health check says that its server is healthy: any status below 400.
pub fn is_healthy<B>(response: &Response<B>) -> bool {
    response.status() < StatusCode::BAD_REQUEST
}

/// An extension of responses to requests that were refused because the store is unavailable, not because of their client.
#[derive(Clone, Copy, Debug)]
pub struct StoreUnavailableRefusal;

/// The status and the body of a refusal.
struct RefusalContent {
    status: StatusCode,
    format: BodyFormat,
    body: Bytes,
}

impl RefusalContent {
    fn new(decision: &Decision, options: &HeaderOptions, format: BodyFormat) -> Self {
        let status = ErrorCode::RateLimitExceeded.status();
        let Some((terms, standing)) = decision.standing() else {
            return Self { status, format: BodyFormat::Json, body: Bytes::new() };
        };
        let seconds = options.seconds(decision, &terms, &standing);
        if decision.store_unavailable {
            let status = options.store_unavailable.status();
            let body = match format {
                BodyFormat::Json => body::unavailable(&seconds),
                BodyFormat::ProblemJson => body::unavailable_problem(&seconds, status),
            };
            return Self { status, format, body: body.into() };
        }
        let body = match format {
            BodyFormat::Json => body::limited(&terms, &seconds),
            BodyFormat::ProblemJson => body::problem(&terms, &seconds),
        };
        Self { status, format, body: body.into() }
    }

    /// With its headers in the map `headers`.
    fn response(self, decision: &Decision, options: &HeaderOptions, mut headers: HeaderMap) -> FullResponse {
        options.write(decision, &mut headers);
        let mut response = with_type(headers, self.status, self.format.media_type(), self.body);
        if decision.store_unavailable {
            response.extensions_mut().insert(StoreUnavailableRefusal);
        }
        response
    }
}

fn plain(status: StatusCode, text: &'static str) -> FullResponse {
    with_type(HeaderMap::new(), status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn error_message(error: &ErrorMessage<'_>) -> FullResponse {
    json(error.code.status(), body::error(error))
}

pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> FullResponse {
    with_type(HeaderMap::new(), status, JSON, body.into())
}

fn with_type(headers: HeaderMap, status: StatusCode, media_type: &'static str, body: Bytes) -> FullResponse {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().insert(&CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
