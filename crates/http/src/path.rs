//! The path of a request, in the form in which it is matched and passed on.

use crate::fault::Fault;
use http::uri::PathAndQuery;
use http::{Method, Request, Uri};
use std::borrow::Cow;
use tollgate_core::path::canonical;

/// Brings the path of a request into its canonical form and leaves the query alone. What stands behind the
/// limiter then sees the path that the rules were matched against. A fault is a path that has no such form.
#[inline]
pub fn canonicalize<B>(request: &mut Request<B>) -> Result<(), Fault> {
    match canonical(request.uri().path()) {
        Ok(Cow::Borrowed(_)) => Ok(()),
        Ok(Cow::Owned(path)) => replace(request.uri_mut(), &path),
        Err(fault) if has_path(request) => Err(Fault::bad_request(fault.to_string())),
        Err(_) => Ok(()),
    }
}

/// All requests have one but `OPTIONS *` and `CONNECT host:port`.
fn has_path<B>(request: &Request<B>) -> bool {
    match request.uri().path() {
        "*" => request.method() != Method::OPTIONS,
        "" => request.method() != Method::CONNECT,
        _ => true,
    }
}

#[cold]
fn replace(uri: &mut Uri, path: &str) -> Result<(), Fault> {
    let path_and_query = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    let wrong = |_| Fault::bad_request("the path is not one of a URI");
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(path_and_query.map_err(wrong)?);
    *uri = Uri::from_parts(parts).map_err(|_| Fault::bad_request("the path is not one of a URI"))?;
    Ok(())
}
