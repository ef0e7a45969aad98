//! Whole answers: a status, its headers and one body.

pub(crate) mod wire;

use crate::body::{self, Code, JSON, PROBLEM_JSON, Refusal};
use crate::headers::{ALLOW, CONTENT_TYPE, HeaderOptions};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use tollgate_limiter::{Decision, Outcome};

/// An answer with its body in one piece.
pub type Answer = Response<Full<Bytes>>;

/// The headers of a 429 by default: the type of its body, the wait, and two families.
const MOST_HEADERS: usize = 7;

/// 200 with a text.
pub fn text(text: &'static str) -> Answer {
    plain(StatusCode::OK, text)
}

/// 200 with JSON.
pub fn ok(body: Vec<u8>) -> Answer {
    json(StatusCode::OK, body)
}

/// 503 with what is missing.
pub fn unavailable(missing: &'static str) -> Answer {
    plain(StatusCode::SERVICE_UNAVAILABLE, missing)
}

/// 405 with the methods that would be right.
pub fn method_not_allowed(allow: &'static str) -> Answer {
    let message = format!("only {allow} is answered here");
    let mut answer = refused(&Refusal { code: Code::MethodNotAllowed, message: &message });
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    answer
}

/// What a caller gets that is not let through, or none if it is: 429 with all that is known about the
/// limit, or 403. `asked` are the headers of its request.
pub fn refusal(decision: &Decision, options: &HeaderOptions, asked: &HeaderMap) -> Option<Answer> {
    match decision.outcome {
        Outcome::Unlimited | Outcome::Admitted(_) => None,
        Outcome::Denied => Some(refused(&body::DENIED)),
        // These are more headers than an empty map has room for; without this it would be built twice.
        Outcome::Limited(_) => {
            let room = HeaderMap::with_capacity(MOST_HEADERS);
            let content = Content::of(decision, options, body::prefers_problem(asked));
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
) -> Option<Answer> {
    match decision.outcome {
        Outcome::Limited(_) => {
            let content = Content::of(decision, options, body::prefers_problem(&asked));
            asked.clear();
            Some(content.answer(decision, options, asked))
        }
        Outcome::Unlimited | Outcome::Admitted(_) | Outcome::Denied => refusal(decision, options, &asked),
    }
}

/// Whether an answer says that a limit was exceeded.
pub fn is_limited<B>(answer: &Response<B>) -> bool {
    answer.status() == Code::RateLimitExceeded.status()
}

/// The body of a 429.
struct Content {
    media_type: &'static str,
    body: Bytes,
}

impl Content {
    fn of(decision: &Decision, options: &HeaderOptions, prefers_problem: bool) -> Self {
        let Some((terms, standing)) = decision.standing() else {
            return Self { media_type: JSON, body: Bytes::new() };
        };
        let seconds = options.seconds(&terms, &standing, decision.now_us);
        if prefers_problem {
            return Self { media_type: PROBLEM_JSON, body: body::problem(&terms, &seconds).into() };
        }
        Self { media_type: JSON, body: body::limited(&terms, &seconds).into() }
    }

    /// With headers where there is room for them.
    fn answer(self, decision: &Decision, options: &HeaderOptions, mut room: HeaderMap) -> Answer {
        options.write(decision, &mut room);
        with_type(room, Code::RateLimitExceeded.status(), self.media_type, self.body)
    }
}

fn plain(status: StatusCode, text: &'static str) -> Answer {
    with_type(HeaderMap::new(), status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn refused(refusal: &Refusal<'_>) -> Answer {
    json(refusal.code.status(), body::error(refusal))
}

pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    with_type(HeaderMap::new(), status, JSON, body.into())
}

fn with_type(headers: HeaderMap, status: StatusCode, media_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer.headers_mut().insert(&CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer
}
