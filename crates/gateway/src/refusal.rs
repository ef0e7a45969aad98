//! Why a request was not forwarded, in the words and the status that its sender gets.

use crate::body::AnswerBody;
use crate::forward::Answer;
use crate::headers;
use tollgate_http::HttpError;

/// Why there is no answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `CONNECT` and `TRACE` are not for a reverse proxy.
    Method,
    /// No host, several, or one that is none.
    Host,
    /// It is not certain where the body ends.
    Framing,
    /// No route leads anywhere.
    NoRoute(String),
    /// No server is healthy.
    NobodyUp,
    /// No server could be reached.
    NoConnection,
    /// The connection broke before the answer.
    NoAnswer,
    /// What came is no answer to this request.
    BadAnswer,
    /// The server took too long.
    Late,
    /// The client's body broke off or is malformed.
    ClientBody,
    /// The client's body stopped coming.
    ClientSlow,
}

impl Refused {
    pub(crate) fn answer(&self) -> Answer {
        let answer = match self {
            Self::Method => {
                return tollgate_http::response::method_not_allowed(METHODS).map(AnswerBody::ClientFault);
            }
            Self::Host => HttpError::bad_request("a request names exactly one host"),
            Self::Framing => HttpError::bad_request("it is not certain where the body ends"),
            Self::ClientBody => HttpError::bad_request("the body broke off or is malformed"),
            Self::ClientSlow => HttpError::too_slow(),
            Self::NoRoute(path) => HttpError::not_found(path),
            Self::NobodyUp => HttpError::upstream_unavailable(),
            Self::NoConnection => HttpError::bad_gateway("the upstream cannot be reached"),
            Self::NoAnswer => HttpError::bad_gateway("the upstream closed the connection without an answer"),
            Self::BadAnswer => HttpError::bad_gateway("the upstream's answer makes no sense"),
            Self::Late => HttpError::upstream_timeout(),
        };
        let is_clients = matches!(self, Self::NoRoute(_)) || self.makes_the_rest_doubtful();
        let body = if is_clients { AnswerBody::ClientFault } else { AnswerBody::Own };
        let mut answer = answer.response().map(body);
        if self.makes_the_rest_doubtful() {
            headers::put_close(answer.headers_mut());
        }
        answer
    }

    /// Whether what comes next on the client's connection may not be what it seems.
    fn makes_the_rest_doubtful(&self) -> bool {
        matches!(self, Self::Host | Self::Framing | Self::ClientBody | Self::ClientSlow)
    }
}

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
