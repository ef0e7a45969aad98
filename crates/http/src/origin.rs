//! Refuses cross-origin requests of web pages.
//!
//! A browser lets any page post a text or a form to any address, also to this host, and sends a preflight request only before it
//! posts JSON. The check API answers no preflight, and refuses everything that a page can post without one: otherwise any page
//! could spend the limits of any client.

use crate::error::HttpError;
use crate::headers::{CONTENT_TYPE, ORIGIN};
use http::HeaderMap;

/// Refuses a body that a page of another origin may have sent without a preflight. Programs send no `Origin`, and may use any
/// content type or none.
#[inline]
pub fn verify(headers: &HeaderMap) -> Result<(), HttpError> {
    if !headers.contains_key(ORIGIN) || is_json(headers) { Ok(()) } else { Err(cross_origin()) }
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(&CONTENT_TYPE).iter();
    let (Some(media_type), None) = (types.next(), types.next()) else { return false };
    let Ok(media_type) = media_type.to_str() else { return false };
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let suffixed = essence.strip_prefix("application/").and_then(|subtype| subtype.strip_suffix("+json"));
    essence == "application/json" || suffixed.is_some_and(|name| !name.is_empty())
}

#[cold]
fn cross_origin() -> HttpError {
    HttpError::unsupported_type(
        "a request with an `Origin` header must have the content type application/json",
    )
    .with_hint("send `Content-Type: application/json`; browsers cannot call this API from other origins")
}
