//! A copy of a request, for a retry.

use crate::body::UploadBody;
use http::{HeaderName, HeaderValue, Method, Request, Uri};

/// A copy of a request without a body. It is rarely used, so the headers are kept as bytes: that is cheaper to build
/// and to drop than a header map.
#[derive(Debug)]
pub(super) struct RequestCopy {
    method: Method,
    uri: Uri,
    /// For each header the lengths of name and value, then both.
    headers: Vec<u8>,
}

/// More than most headers need, so that one allocation is enough.
const USUAL_BYTES: usize = 64;

impl RequestCopy {
    pub(super) fn of(request: &Request<UploadBody>) -> Self {
        let mut headers = Vec::with_capacity(request.headers().len() * USUAL_BYTES);
        for (name, value) in request.headers() {
            let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
            let lengths = (name.len() as u64) << 32 | value.len() as u64;
            headers.extend_from_slice(&lengths.to_le_bytes());
            headers.extend_from_slice(name);
            headers.extend_from_slice(value);
        }
        Self { method: request.method().clone(), uri: request.uri().clone(), headers }
    }

    pub(super) fn into_request(self) -> Request<UploadBody> {
        let mut request = Request::new(UploadBody::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        let mut rest = self.headers.as_slice();
        while let Some((lengths, more)) = rest.split_first_chunk() {
            let lengths = u64::from_le_bytes(*lengths);
            let (name, more) = more.split_at((lengths >> 32) as usize);
            let (value, more) = more.split_at(lengths as u32 as usize);
            let (name, value) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
            request.headers_mut().append(
                name.expect("it was the name of a header"),
                value.expect("it was the value of a header"),
            );
            rest = more;
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_equals_the_request() {
        let build = || {
            let long = "x".repeat(70_000);
            let request = Request::builder().method("DELETE").uri("/orders/17?all=yes");
            let request =
                request.header("host", "api.example.com").header("x-empty", "").header("x-long", long);
            let request = request.header("accept", "a/b").header("Accept", "c/d");
            request
                .header("x-odd", HeaderValue::from_bytes(b"\xff\tk\xc3\xa4se").unwrap())
                .body(UploadBody::empty())
        };
        let again = RequestCopy::of(&build().unwrap()).into_request();
        let request = build().unwrap();
        assert_eq!((again.method(), again.uri()), (request.method(), request.uri()));
        assert_eq!(again.headers(), request.headers());
        assert!(again.headers().iter().eq(request.headers().iter()), "the order is kept");
        let bare = RequestCopy::of(&Request::new(UploadBody::empty())).into_request();
        assert!(bare.headers().is_empty());
    }
}
