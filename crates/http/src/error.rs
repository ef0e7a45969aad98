//! What is wrong with a request, in the words that its sender gets.

use crate::body::{self, ErrorCode};
use crate::response::{self, FullResponse};
use serde::Serialize;
use tollgate_limiter::InvalidRequest;

/// Begins the place at the end of a message.
const PLACE: &str = " at line ";

/// One fault: what is wrong and, as far as that is known, where and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HttpError {
    code: ErrorCode,
    message: String,
    /// Boxed, because most results of which it is the error are fine.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Box<HttpErrorDetails>>,
}

/// Only what is known is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// A request that makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::BadRequest, message: message.into(), details: None }
    }

    /// A body that is longer than `most_bytes`.
    pub fn too_large(most_bytes: usize) -> Self {
        let message = format!("the body is longer than {most_bytes} bytes");
        Self { code: ErrorCode::BodyTooLarge, ..Self::bad_request(message) }
    }

    /// A body of another type than is read here.
    pub fn unsupported_type(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::UnsupportedMediaType, ..Self::bad_request(message) }
    }

    /// A body that did not arrive in time.
    pub fn too_slow() -> Self {
        Self { code: ErrorCode::RequestTimeout, ..Self::bad_request("the body did not arrive in time") }
    }

    /// Nothing is served at `path`.
    pub fn not_found(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self { code: ErrorCode::NotFound, ..Self::bad_request(format!("there is nothing at `{shown}`")) }
    }

    /// A server that could not be reached, or that gave no proper answer.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::BadGateway, ..Self::bad_request(message) }
    }

    /// Every server is left alone for now.
    pub fn upstream_unavailable() -> Self {
        Self {
            code: ErrorCode::UpstreamUnavailable,
            ..Self::bad_request("no upstream is well; try again later")
        }
    }

    /// A server that did not answer in time.
    pub fn upstream_timeout() -> Self {
        Self { code: ErrorCode::UpstreamTimeout, ..Self::bad_request("the upstream did not answer in time") }
    }

    /// The place in the body, both from 1; the message says it too.
    pub fn at(mut self, line: usize, column: usize) -> Self {
        self.message.push_str(&format!("{PLACE}{line} column {column}"));
        let details = self.details_mut();
        (details.line, details.column) = (Some(line), Some(column));
        self
    }

    /// The same fault in a larger text, in which its own text begins at `start` (line and column).
    pub fn moved_to(mut self, start: (usize, usize)) -> Self {
        let HttpErrorDetails { line: Some(line), column: Some(column), .. } = *self.details_mut() else {
            return self;
        };
        // The message ends with the place.
        if let Some(end) = self.message.rfind(PLACE) {
            self.message.truncate(end);
        }
        self.at(start.0 + line - 1, if line == 1 { start.1 + column - 1 } else { column })
    }

    /// The field, as a path into the body.
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.details_mut().field = Some(field.into());
        self
    }

    /// What would be right.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.details_mut().hint = Some(hint.into());
        self
    }

    /// What is wrong, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    fn details_mut(&mut self) -> &mut HttpErrorDetails {
        self.details.get_or_insert_default()
    }

    /// The status that it is answered with, and the body `{"error":{…}}`.
    pub fn response(&self) -> FullResponse {
        response::json(self.code.status(), body::error(self))
    }
}

impl From<InvalidRequest> for HttpError {
    fn from(invalid: InvalidRequest) -> Self {
        let fault = Self::bad_request(invalid.to_string());
        match invalid {
            InvalidRequest::CostAboveLimit { rule, limit, cost } => Self {
                code: ErrorCode::CostAboveLimit,
                details: Some(Box::new(HttpErrorDetails {
                    rule: Some(rule),
                    limit: Some(limit),
                    cost: Some(cost),
                    ..HttpErrorDetails::default()
                })),
                ..fault
            },
            InvalidRequest::ZeroCost => fault.in_field("cost"),
            InvalidRequest::EndpointTooLong => fault.in_field("endpoint"),
            InvalidRequest::NeverEnds { rule } => Self {
                details: Some(Box::new(HttpErrorDetails {
                    rule: Some(rule),
                    hint: Some("such rules work in the gateway and the tower layer".to_owned()),
                    ..HttpErrorDetails::default()
                })),
                ..fault
            },
            InvalidRequest::NamesNobody => fault,
        }
    }
}
