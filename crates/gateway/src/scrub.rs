//! Removal of request headers that must not reach anything behind.
//!
//! It comes first. Hop-by-hop headers must be gone before Tollgate writes its own, or a client could name one of those in
//! `Connection` and have it removed. And the limits have to be decided by what the server will see: a header that does
//! not reach the server must not make one client count as another.

#[cfg(test)]
mod fuzz;

use crate::headers::{self, ClientOrigin, HeaderKinds};
use crate::settings::LookalikeHeaders;
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
    lookalikes: LookalikeHeaders,
    /// A trusted peer may send forwarding headers, and headers that count from trusted peers only.
    is_trusted: bool,
}

/// What the forwarder needs to know of a scrubbed request; an extension of requests for which it is not the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScrubFindings {
    /// The protocol that the client wants to upgrade to.
    pub(crate) upgrade: Option<HeaderValue>,
    pub(crate) has_ambiguous_length: bool,
}

impl Scrubber {
    /// For a connection from `origin`.
    pub(crate) fn new(
        reserved: &Arc<ReservedHeaders>,
        lookalikes: LookalikeHeaders,
        origin: &ClientOrigin,
    ) -> Self {
        Self { reserved: Arc::clone(reserved), lookalikes, is_trusted: origin.is_trusted() }
    }

    pub(crate) fn scrub<B>(&self, request: &mut Request<B>) {
        let version = request.version();
        let findings = self.scrub_headers(request.headers_mut(), version);
        if findings != ScrubFindings::default() {
            request.extensions_mut().insert(findings);
        }
    }

    fn scrub_headers(&self, headers: &mut HeaderMap, version: Version) -> ScrubFindings {
        let (mut kinds, mut has_suspect) = (HeaderKinds::default(), false);
        for name in headers.keys() {
            kinds.add(name);
            has_suspect |= self.is_suspect(name);
        }
        let upgrade =
            if kinds.hop_by_hop { headers::remove_hop_by_hop(headers, &self.reserved) } else { None };
        let mut has_ambiguous_length = false;
        if kinds.framing || version == Version::HTTP_2 {
            headers::prepare_request(headers, version);
            has_ambiguous_length = is_length_ambiguous(headers, version);
        }
        if has_suspect {
            remove_all(headers, |name| self.is_removed(name));
        }
        if !self.is_trusted {
            for name in self.reserved.trusted() {
                headers.remove(name);
            }
        }
        ScrubFindings { upgrade, has_ambiguous_length }
    }

    /// A cheap test that most headers pass: whether a header may have to be removed.
    #[inline]
    fn is_suspect(&self, name: &HeaderName) -> bool {
        self.reserved.may_be_double(name) || (!self.is_trusted && is_forwarding(name))
    }

    #[cold]
    fn is_removed(&self, name: &HeaderName) -> bool {
        let is_lookalike = || {
            self.lookalikes == LookalikeHeaders::Drop && self.reserved.kind(name) == HeaderNameKind::Double
        };
        (!self.is_trusted && is_forwarding(name)) || is_lookalike()
    }
}

/// Whether a server could find another end of the body than the gateway. The lengths of HTTP/1 requests were validated
/// byte by byte before; those of HTTP/2 requests are forwarded as they are.
fn is_length_ambiguous(headers: &HeaderMap, version: Version) -> bool {
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
