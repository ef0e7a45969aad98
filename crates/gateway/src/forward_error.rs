//! Why a request was not forwarded, and the response that its client gets.

use crate::body::GatewayBody;
use crate::forward::GatewayResponse;
use crate::headers;
use tollgate_http::HttpError;

const FORWARDED_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Why there is no response of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ForwardError {
    /// A reverse proxy supports neither `CONNECT` nor `TRACE`.
    Method,
    /// The host is missing, invalid or not unique.
    Host,
    /// The length of the body is ambiguous.
    Framing,
    /// No route matches; with the path.
    NoRoute(String),
    /// No server of the upstream is healthy.
    NoHealthyServer,
    /// No connection to a server could be made.
    Unreachable,
    /// The server closed the connection before the response.
    NoResponse,
    /// The server's response is not a valid response to this request.
    InvalidResponse,
    /// The server did not respond in time.
    Timeout,
    /// The client's body is incomplete or malformed.
    InvalidBody,
    /// The client's body did not arrive in time.
    SlowBody,
}

impl ForwardError {
    pub(crate) fn response(&self) -> GatewayResponse {
        let error = match self {
            Self::Method => {
                let response = tollgate_http::response::method_not_allowed(FORWARDED_METHODS);
                return response.map(GatewayBody::InvalidRequest);
            }
            Self::Host => HttpError::bad_request("a request must name exactly one host"),
            Self::Framing => HttpError::bad_request("the length of the request body is ambiguous"),
            Self::InvalidBody => HttpError::bad_request("the request body is incomplete or malformed"),
            Self::SlowBody => HttpError::too_slow(),
            Self::NoRoute(path) => HttpError::not_found(path),
            Self::NoHealthyServer => HttpError::upstream_unavailable(),
            Self::Unreachable => HttpError::bad_gateway("the upstream is unreachable"),
            Self::NoResponse => {
                HttpError::bad_gateway("the upstream closed the connection without a response")
            }
            Self::InvalidResponse => HttpError::bad_gateway("the upstream sent an invalid response"),
            Self::Timeout => HttpError::upstream_timeout(),
        };
        let is_invalid_request = matches!(self, Self::NoRoute(_)) || self.ends_connection();
        let body = if is_invalid_request { GatewayBody::InvalidRequest } else { GatewayBody::Own };
        let mut response = error.response().map(body);
        if self.ends_connection() {
            headers::put_close(response.headers_mut());
        }
        response
    }

    /// Whether it is uncertain where the next request on the client's connection begins.
    fn ends_connection(&self) -> bool {
        matches!(self, Self::Host | Self::Framing | Self::InvalidBody | Self::SlowBody)
    }
}
