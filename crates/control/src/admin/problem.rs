//! Errors of the admin API, as problem details (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use tollgate_core::diagnostic::{Diagnostic, DiagnosticReport, Severity};
use tollgate_http::body::ErrorCode;
use tollgate_http::response;
use utoipa::ToSchema;

/// Why a request is not answered as it was meant.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    code: ErrorCode,
    detail: String,
    errors: Vec<PositionedProblem>,
    current: Option<u64>,
    retry_after_seconds: Option<u64>,
}

/// The body of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemBody<'a> {
    /// Always `about:blank`: `code` tells errors apart.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// For programs, such as `PRECONDITION_FAILED`.
    #[schema(value_type = String)]
    code: ErrorCode,
    /// For people: what is wrong, and what to do.
    detail: &'a str,
    /// What is wrong with the rules or the JSON of the request, by position.
    errors: &'a [PositionedProblem],
    /// The newest revision, if the request was based on another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<u64>,
}

/// Something wrong in a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PositionedProblem {
    /// From 1.
    pub(crate) line: usize,
    /// From 1, in characters.
    pub(crate) column: usize,
    /// In characters.
    pub(crate) length: usize,
    /// What is wrong.
    pub(crate) message: String,
    /// What to write instead.
    pub(crate) hint: Option<String>,
}

impl Problem {
    pub(crate) fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), errors: Vec::new(), current: None, retry_after_seconds: None }
    }

    /// 400: the request is malformed.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, detail)
    }

    /// 400: a body that is not the JSON that is expected.
    pub(crate) fn json(error: &serde_json::Error) -> Self {
        let position = PositionedProblem {
            line: error.line().max(1),
            column: error.column().max(1),
            length: 1,
            message: error.to_string(),
            hint: None,
        };
        let detail = format!("the JSON of the request cannot be used: {error}");
        Self { errors: vec![position], ..Self::malformed(detail) }
    }

    /// 401: a token is missing or not valid.
    pub(crate) fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unauthorized, detail)
    }

    /// 403: not with this token, host or origin.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Forbidden, detail)
    }

    /// 404: there is no such thing.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, detail)
    }

    /// 409: the settings or the state of the node do not allow it.
    pub(crate) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, detail)
    }

    /// 422: well-formed, and not valid.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Invalid, detail)
    }

    /// 503: the request cannot be answered now.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unavailable, detail)
    }

    /// 429: too many attempts; how long to wait.
    pub(crate) fn too_many_attempts(retry_after_seconds: u64) -> Self {
        let detail = format!("too many attempts from this address; try again in {retry_after_seconds} s");
        let problem = Self::new(ErrorCode::TooManyAttempts, detail);
        Self { retry_after_seconds: Some(retry_after_seconds), ..problem }
    }

    /// With what is wrong, by position.
    pub(crate) fn with_errors(self, errors: Vec<PositionedProblem>) -> Self {
        Self { errors, ..self }
    }

    /// With the newest revision.
    pub(crate) fn with_current(self, current: Option<u64>) -> Self {
        Self { current, ..self }
    }
}

impl PositionedProblem {
    /// The errors or the warnings of a report, in the order of the text.
    pub(crate) fn of_severity(report: &DiagnosticReport, severity: Severity) -> Vec<Self> {
        let found = report.diagnostics().iter().filter(|found| found.severity == severity);
        found.map(Self::of).collect()
    }

    fn of(diagnostic: &Diagnostic) -> Self {
        Self {
            line: diagnostic.position.line,
            column: diagnostic.position.column,
            length: diagnostic.position.width,
            message: diagnostic.message.clone(),
            hint: diagnostic.hint.clone(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let body = ProblemBody {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            code: self.code,
            detail: &self.detail,
            errors: &self.errors,
            current: self.current,
        };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = response::problem(self.code, body).map(axum::body::Body::new);
        if self.code == ErrorCode::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer realm=\"tollgate\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        }
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
