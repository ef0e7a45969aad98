//! Errors that a client gets as a response: a status, a code for programs and a message for people.

use crate::body::{self, ErrorCode};
use crate::response::{self, FullResponse};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::borrow::Cow;
use std::fmt;
use tollgate_limiter::InvalidRequest;

/// What is wrong with a request, or with the upstream that should have answered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    code: ErrorCode,
    /// Without the position.
    message: Cow<'static, str>,
    /// Boxed: results are mostly `Ok`, and should be small.
    details: Option<Box<HttpErrorDetails>>,
}

/// What is known beside the message. Only that is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
struct HttpErrorDetails {
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
}

impl HttpError {
    fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), details: None }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// 413: the body is longer than `most_bytes`.
    pub fn too_large(most_bytes: usize) -> Self {
        Self::new(ErrorCode::BodyTooLarge, format!("the body is longer than {most_bytes} bytes"))
    }

    /// 415: the content type is not supported.
    pub fn unsupported_type(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::UnsupportedMediaType, message)
    }

    /// 408: the body did not arrive in time.
    pub fn too_slow() -> Self {
        Self::new(ErrorCode::RequestTimeout, "the body did not arrive in time")
    }

    /// 403: this peer may not ask.
    pub fn forbidden(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Forbidden, message)
    }

    /// 404: nothing is served at `path`.
    pub fn not_found(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self::new(ErrorCode::NotFound, format!("there is nothing at `{shown}`"))
    }

    /// 502: the upstream could not be reached, or its response is invalid.
    pub fn bad_gateway(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::BadGateway, message)
    }

    /// 503: no upstream is healthy.
    pub fn upstream_unavailable() -> Self {
        Self::new(ErrorCode::UpstreamUnavailable, "no healthy upstream; try again later")
    }

    /// 504: the upstream did not respond in time.
    pub fn upstream_timeout() -> Self {
        Self::new(ErrorCode::UpstreamTimeout, "the upstream did not respond in time")
    }

    /// Adds the position in the body, both numbers from 1. The message ends with it.
    #[must_use]
    pub fn at(mut self, line: usize, column: usize) -> Self {
        let details = self.details_mut();
        (details.line, details.column) = (Some(line), Some(column));
        self
    }

    /// Moves the position into a larger text, in which the text of this error starts at `start` (line and column).
    #[must_use]
    pub fn moved_to(self, start: (usize, usize)) -> Self {
        match self.position() {
            Some((1, column)) => self.at(start.0, start.1 + column - 1),
            Some((line, column)) => self.at(start.0 + line - 1, column),
            None => self,
        }
    }

    /// Adds the field, as a path into the body.
    #[must_use]
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.details_mut().field = Some(field.into());
        self
    }

    /// Adds what would be right.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.details_mut().hint = Some(hint.into());
        self
    }

    /// The response: its status, and the body `{"error":{…}}`.
    pub fn response(&self) -> FullResponse {
        response::json(self.code.status(), body::error(self))
    }

    fn position(&self) -> Option<(usize, usize)> {
        let details = self.details.as_ref()?;
        details.line.zip(details.column)
    }

    fn details_mut(&mut self) -> &mut HttpErrorDetails {
        self.details.get_or_insert_default()
    }
}

/// The message, with the position if there is one.
impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.position() {
            Some((line, column)) => write!(f, " at line {line} column {column}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for HttpError {}

impl Serialize for HttpError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("HttpError", 3)?;
        fields.serialize_field("code", &self.code)?;
        fields.serialize_field("message", &self.to_string())?;
        match &self.details {
            Some(details) => fields.serialize_field("details", details)?,
            None => fields.skip_field("details")?,
        }
        fields.end()
    }
}

impl From<InvalidRequest> for HttpError {
    fn from(invalid: InvalidRequest) -> Self {
        let error = Self::bad_request(invalid.to_string());
        match invalid {
            InvalidRequest::CostAboveLimit { rule, limit, cost } => Self {
                code: ErrorCode::CostAboveLimit,
                details: Some(Box::new(HttpErrorDetails {
                    rule: Some(rule),
                    limit: Some(limit),
                    cost: Some(cost),
                    ..HttpErrorDetails::default()
                })),
                ..error
            },
            InvalidRequest::ZeroCost => error.in_field("cost"),
            InvalidRequest::EndpointTooLong => error.in_field("endpoint"),
            InvalidRequest::EndUnknown { rule } => Self {
                details: Some(Box::new(HttpErrorDetails {
                    rule: Some(rule),
                    hint: Some("such rules work in the gateway and the tower layer".to_owned()),
                    ..HttpErrorDetails::default()
                })),
                ..error
            },
            InvalidRequest::NoIdentity | InvalidRequest::InvalidLimit(_) => error,
        }
    }
}
