//! The canonical form of a path, which is matched and passed on.

use crate::error::HttpError;
use http::uri::PathAndQuery;
use http::{Method, Request, Uri};
use std::borrow::Cow;
use tollgate_core::path::canonical;

/// Replaces the path of a request with its canonical form; the query stays as it is. The service behind the limiter then sees the
/// path that the rules were matched against. A path without a canonical form is an error.
///
/// [`Uri`] has already dropped a fragment. What remains of `http://a#x` is an empty path, which is `/`, as in `http://a` and
/// `http://a?x`.
#[inline]
pub fn canonicalize<B>(request: &mut Request<B>) -> Result<(), HttpError> {
    match canonical(request.uri().path()) {
        Ok(Cow::Borrowed(_)) if has_text(request.uri()) => Ok(()),
        Ok(Cow::Borrowed(_)) => replace(request.uri_mut(), "/"),
        Ok(Cow::Owned(path)) => replace(request.uri_mut(), &path),
        Err(fault) if has_path(request) => Err(HttpError::bad_request(fault.to_string())),
        Err(_) => Ok(()),
    }
}

/// Whether the URI has the text of its path. False also for `/` behind a host, which cannot be told from an empty path.
#[inline]
fn has_text(uri: &Uri) -> bool {
    let text = uri.path_and_query().map_or("", PathAndQuery::as_str);
    text.starts_with('/') && (text.len() > 1 || uri.authority().is_none())
}

/// False for `OPTIONS *` and `CONNECT host:port`.
fn has_path<B>(request: &Request<B>) -> bool {
    match request.uri().path() {
        "*" => request.method() != Method::OPTIONS,
        "" => request.method() != Method::CONNECT,
        _ => true,
    }
}

#[cold]
fn replace(uri: &mut Uri, path: &str) -> Result<(), HttpError> {
    let path_and_query = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None if path == "/" => Ok(PathAndQuery::from_static("/")),
        None => PathAndQuery::try_from(path),
    };
    let wrong = |_| HttpError::bad_request("the path is not valid in a URI");
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(path_and_query.map_err(wrong)?);
    *uri = Uri::from_parts(parts).map_err(|_| HttpError::bad_request("the path is not valid in a URI"))?;
    Ok(())
}
