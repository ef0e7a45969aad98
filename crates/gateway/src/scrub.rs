//! What is taken out of a request before anything else is done with it.
//!
//! It has to come first. A header that belongs to one connection must be gone before Tollgate writes its own, or a
//! client could name one of ours in `Connection` and have it removed. And the limits have to be decided by what the
//! server will see: by a header that does not reach it, a client would be counted as another.

#[cfg(test)]
mod fuzz;

use crate::headers::{self, Noticed, Origin};
use crate::settings::Doubles;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Version};
use std::sync::Arc;
use tollgate_http::reserved_headers::{is_forwarding, remove_all};
use tollgate_http::{HeaderNameKind, ReservedHeaders};
use tollgate_listen::parse_content_length;

/// Scrubs the requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Scrubber {
    reserved: Arc<ReservedHeaders>,
    doubles: Doubles,
    /// Then the peer may say where a request came from, and set headers that count from trusted peers only.
    is_trusted: bool,
}

/// What the forwarder has to know of a request that was scrubbed; an extension of the few of which there is anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scrubbed {
    /// The protocol that the client wants to change to.
    pub(crate) upgrade: Option<HeaderValue>,
    /// It is not certain where the body ends.
    pub(crate) is_ambiguous: bool,
}

impl Scrubber {
    /// For a connection from `origin`.
    pub(crate) fn new(reserved: &Arc<ReservedHeaders>, doubles: Doubles, origin: &Origin) -> Self {
        Self { reserved: Arc::clone(reserved), doubles, is_trusted: origin.is_trusted() }
    }

    pub(crate) fn scrub<B>(&self, request: &mut Request<B>) {
        let version = request.version();
        let scrubbed = self.scrub_headers(request.headers_mut(), version);
        if scrubbed != Scrubbed::default() {
            request.extensions_mut().insert(scrubbed);
        }
    }

    fn scrub_headers(&self, headers: &mut HeaderMap, version: Version) -> Scrubbed {
        let (mut noticed, mut is_suspect) = (Noticed::default(), false);
        for name in headers.keys() {
            noticed.look_at(name);
            is_suspect |= self.is_suspect(name);
        }
        let upgrade =
            if noticed.hop_by_hop { headers::remove_hop_by_hop(headers, &self.reserved) } else { None };
        let mut is_ambiguous = false;
        if noticed.framing || version == Version::HTTP_2 {
            headers::prepare_request(headers, version);
            is_ambiguous = has_ambiguous_end(headers, version);
        }
        if is_suspect {
            remove_all(headers, |name| self.is_out(name));
        }
        if !self.is_trusted {
            for name in self.reserved.trusted() {
                headers.remove(name);
            }
        }
        Scrubbed { upgrade, is_ambiguous }
    }

    /// Whether a header may have to go. Of most it can be seen at once that it stays.
    #[inline]
    fn is_suspect(&self, name: &HeaderName) -> bool {
        self.reserved.may_be_double(name) || (!self.is_trusted && is_forwarding(name))
    }

    #[cold]
    fn is_out(&self, name: &HeaderName) -> bool {
        let is_double =
            || self.doubles == Doubles::Drop && self.reserved.kind(name) == HeaderNameKind::Double;
        (!self.is_trusted && is_forwarding(name)) || is_double()
    }
}

/// Whether a server could find another end of the body than we do. The lengths of HTTP/1 have been looked at byte by
/// byte before; those of HTTP/2 become one of HTTP/1 as they are.
fn has_ambiguous_end(headers: &HeaderMap, version: Version) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let mut is_length_plain = || match (lengths.next(), lengths.next()) {
        (None, _) => true,
        (Some(length), None) => parse_content_length(length.as_bytes()).is_some(),
        (Some(_), Some(_)) => false,
    };
    codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        || (version == Version::HTTP_2 && !is_length_plain())
}
