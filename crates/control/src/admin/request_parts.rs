//! What handlers take from requests: bodies, JSON, paths and queries, all bounded. Errors are problems.

use super::problem::Problem;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::time::Duration;
use tollgate_http::body::ErrorCode;
use tollgate_limiter::file;

/// How long a body may be, and how long it may take.
#[derive(Clone, Copy, Debug)]
struct BodyBounds {
    bytes: usize,
    time: Duration,
}

const BODY: BodyBounds = BodyBounds { bytes: 1 << 20, time: Duration::from_secs(10) };
/// Rules are as long as a rule file may be.
const RULES: BodyBounds = BodyBounds { bytes: file::MOST_BYTES as usize, time: Duration::from_secs(30) };

/// The body of a request as JSON.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// The body of a request as JSON; the default if it is empty.
#[derive(Debug)]
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

/// Rules in the body of a request: YAML, JSON with the same fields, or the JSON object `{"yaml": "…"}`.
#[derive(Debug)]
pub(crate) struct RuleTextBody(pub(crate) String);

/// The variable parts of a path.
#[derive(Debug)]
pub(crate) struct PathParts<T>(pub(crate) T);

/// The query of a request.
#[derive(Debug)]
pub(crate) struct QueryParts<T>(pub(crate) T);

/// Reads the whole body.
async fn read(body: Body, bounds: BodyBounds) -> Result<Bytes, Problem> {
    let BodyBounds { bytes, time } = bounds;
    let too_large =
        || Problem::new(ErrorCode::BodyTooLarge, format!("the body is longer than {bytes} bytes"));
    if body.size_hint().lower() > bytes as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(time, axum::body::to_bytes(body, bytes)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_length_limit(&error) => Err(too_large()),
        Ok(Err(error)) => Err(Problem::malformed(format!("the body cannot be read: {error}"))),
        Err(_) => Err(Problem::new(ErrorCode::RequestTimeout, "the body did not arrive in time")),
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    error.source().is_some_and(|source| source.is::<http_body_util::LengthLimitError>())
}

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        parse(&read(request.into_body(), BODY).await?).map(Self)
    }
}

impl<S: Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let body = read(request.into_body(), BODY).await?;
        if body.iter().all(u8::is_ascii_whitespace) { Ok(Self(T::default())) } else { parse(&body).map(Self) }
    }
}

/// Parses a JSON object. Serde would also read a struct from an array, field by field.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, Problem> {
    if json.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Problem::malformed("the body must be a JSON object"));
    }
    serde_json::from_slice(json).map_err(|error| Problem::json(&error))
}

impl<S: Sync> FromRequest<S> for RuleTextBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let body = read(request.into_body(), RULES).await?;
        let text = std::str::from_utf8(&body)
            .map_err(|error| Problem::malformed(format!("the rules are not UTF-8 text: {error}")))?;
        if is_json {
            return json_rules(text).map(Self);
        }
        Ok(Self(text.to_owned()))
    }
}

/// The rules in a JSON body. JSON is YAML too, so rules as JSON are used as they are, and positions refer to the body.
fn json_rules(text: &str) -> Result<String, Problem> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| Problem::json(&error))?;
    let serde_json::Value::Object(fields) = value else {
        return Err(Problem::malformed("the body must be a JSON object"));
    };
    match fields.get("yaml") {
        Some(serde_json::Value::String(yaml)) if fields.len() == 1 => Ok(yaml.clone()),
        Some(_) => {
            Err(Problem::malformed(r#"rules in YAML are written as {"yaml": "…"}, without other fields"#))
        }
        None => Ok(text.to_owned()),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParts<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|error| Problem::malformed(error.body_text()))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParts<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|error| Problem::malformed(error.body_text()))
    }
}
