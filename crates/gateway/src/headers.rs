//! What a proxy does with headers: hop-by-hop headers are removed, and the server is told about the client.

mod hop_by_hop;
mod origin;

use http::header::{CONNECTION, COOKIE, EXPECT, TE, VIA};
use http::{HeaderMap, HeaderValue, Version};

pub(crate) use hop_by_hop::{HeaderKinds, put_upgrade, remove_hop_by_hop};
pub(crate) use origin::ClientOrigin;

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// Announces that the connection ends after this response.
pub(crate) fn put_close(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
}

/// Adds the gateway to `Via`.
pub(crate) fn put_via(headers: &mut HeaderMap, version: Version) {
    let via = if version == Version::HTTP_2 { "2 tollgate" } else { "1.1 tollgate" };
    headers.append(VIA, HeaderValue::from_static(via));
}

/// Rewrites the request headers whose meaning depends on the client's connection.
pub(crate) fn prepare_request(headers: &mut HeaderMap, version: Version) {
    // The gateway itself asks the client for the body.
    headers.remove(EXPECT);
    if let Some(te) = headers.get(TE) {
        let trailers = te
            .to_str()
            .is_ok_and(|te| te.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers")));
        headers.remove(TE);
        if trailers {
            headers.insert(TE, TRAILERS);
        }
    }
    // HTTP/2 may split cookies over several lines; HTTP/1.1 has one line.
    if version == Version::HTTP_2 && headers.get_all(COOKIE).iter().nth(1).is_some() {
        let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}
