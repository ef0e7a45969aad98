//! Whole answers: a status, its headers and one body.

use crate::body::{self, ErrorCode, ErrorMessage, JSON, PROBLEM_JSON};
use crate::headers::{ALLOW, CONTENT_TYPE, HeaderOptions, LimitSeconds};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use tollgate_limiter::{Decision, Outcome};

/// An answer with its body in one piece.
pub type FullResponse = Response<Full<Bytes>>;

/// The headers of a 429 by default: the type of its body, the wait, and two families.
const MOST_HEADERS: usize = 7;

/// 200 with a text.
pub fn text(text: &'static str) -> FullResponse {
    plain(StatusCode::OK, text)
}

/// 200 with JSON.
pub fn ok(body: Vec<u8>) -> FullResponse {
    json(StatusCode::OK, body)
}

/// 503 with what is missing.
pub fn unavailable(missing: &'static str) -> FullResponse {
    plain(StatusCode::SERVICE_UNAVAILABLE, missing)
}

/// 405 with the methods that would be right.
pub fn method_not_allowed(allow: &'static str) -> FullResponse {
    let message = format!("only {allow} is answered here");
    let mut answer = refused(&ErrorMessage { code: ErrorCode::MethodNotAllowed, message: &message });
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    answer
}

/// What a caller gets that is not let through, or none if it is: 429 with all that is known about the
/// limit, 503 if the store is unavailable, or 403. `asked` are the headers of its request.
pub fn refusal(decision: &Decision, options: &HeaderOptions, asked: &HeaderMap) -> Option<FullResponse> {
    match decision.outcome {
        Outcome::Unlimited | Outcome::Admitted(_) => None,
        Outcome::Denied => Some(refused(&body::DENIED)),
        // These are more headers than an empty map has room for; without this it would be built twice.
        Outcome::Limited(_) => {
            let room = HeaderMap::with_capacity(MOST_HEADERS);
            let content = RefusalContent::of(decision, options, body::prefers_problem(asked));
            Some(content.answer(decision, options, room))
        }
    }
}

/// The same, written where the headers of the request stood: the answer to somebody who hammers needs no map of
/// its own.
pub(crate) fn refusal_over(
    decision: &Decision,
    options: &HeaderOptions,
    mut asked: HeaderMap,
) -> Option<FullResponse> {
    match decision.outcome {
        Outcome::Limited(_) => {
            let content = RefusalContent::of(decision, options, body::prefers_problem(&asked));
            asked.clear();
            Some(content.answer(decision, options, asked))
        }
        Outcome::Unlimited | Outcome::Admitted(_) | Outcome::Denied => refusal(decision, options, &asked),
    }
}

/// Whether an answer says that a limit was exceeded.
pub fn is_limited<B>(answer: &Response<B>) -> bool {
    answer.status() == ErrorCode::RateLimitExceeded.status()
}

/// Whether a response switches to another protocol (101).
pub fn switches_protocols<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS
}

/// Whether the response to a health check says that its server is healthy: any status below 400.
pub fn is_healthy<B>(response: &Response<B>) -> bool {
    response.status() < StatusCode::BAD_REQUEST
}

/// Marks the answer to a request that was refused because the store is unavailable, which says nothing about its client.
#[derive(Clone, Copy, Debug)]
pub struct StoreUnavailable;

/// The status and the body of a refusal.
struct RefusalContent {
    status: StatusCode,
    media_type: &'static str,
    body: Bytes,
}

impl RefusalContent {
    fn of(decision: &Decision, options: &HeaderOptions, prefers_problem: bool) -> Self {
        let status = ErrorCode::RateLimitExceeded.status();
        let Some((terms, standing)) = decision.standing() else {
            return Self { status, media_type: JSON, body: Bytes::new() };
        };
        let seconds = options.seconds(decision, &terms, &standing);
        if decision.store_unavailable {
            return Self::unavailable(&seconds, options.store_unavailable.status(), prefers_problem);
        }
        if prefers_problem {
            return Self { status, media_type: PROBLEM_JSON, body: body::problem(&terms, &seconds).into() };
        }
        Self { status, media_type: JSON, body: body::limited(&terms, &seconds).into() }
    }

    #[cold]
    fn unavailable(seconds: &LimitSeconds, status: StatusCode, prefers_problem: bool) -> Self {
        let (media_type, body) = if prefers_problem {
            (PROBLEM_JSON, body::unavailable_problem(seconds, status))
        } else {
            (JSON, body::unavailable(seconds))
        };
        Self { status, media_type, body: body.into() }
    }

    /// With headers where there is room for them.
    fn answer(self, decision: &Decision, options: &HeaderOptions, mut room: HeaderMap) -> FullResponse {
        options.write(decision, &mut room);
        let mut answer = with_type(room, self.status, self.media_type, self.body);
        if decision.store_unavailable {
            answer.extensions_mut().insert(StoreUnavailable);
        }
        answer
    }
}

fn plain(status: StatusCode, text: &'static str) -> FullResponse {
    with_type(HeaderMap::new(), status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn refused(refusal: &ErrorMessage<'_>) -> FullResponse {
    json(refusal.code.status(), body::error(refusal))
}

pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> FullResponse {
    with_type(HeaderMap::new(), status, JSON, body.into())
}

fn with_type(headers: HeaderMap, status: StatusCode, media_type: &'static str, body: Bytes) -> FullResponse {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer.headers_mut().insert(&CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}
