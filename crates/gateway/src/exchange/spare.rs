//! A request to send again, if the first attempt comes to nothing.

use crate::body::Sent;
use http::{HeaderName, HeaderValue, Method, Request, Uri};

/// What it takes to send a request without a body again. Hardly ever it has to be, so its headers are kept as text:
/// that is cheaper to write down and to throw away than a list of them.
#[derive(Debug)]
pub(crate) struct Spare {
    method: Method,
    uri: Uri,
    /// Of each the two lengths, then its name and its value.
    headers: Vec<u8>,
}

/// More than most headers take, so that there is one allocation.
const USUAL_BYTES: usize = 64;

impl Spare {
    pub(crate) fn of(request: &Request<Sent>) -> Self {
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

    pub(crate) fn request(self) -> Request<Sent> {
        let mut request = Request::new(Sent::empty());
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
    fn it_is_the_same_request() {
        let build = || {
            let long = "x".repeat(70_000);
            let request = Request::builder().method("DELETE").uri("/orders/17?all=yes");
            let request =
                request.header("host", "api.example.com").header("x-empty", "").header("x-long", long);
            let request = request.header("accept", "a/b").header("Accept", "c/d");
            request
                .header("x-odd", HeaderValue::from_bytes(b"\xff\tk\xc3\xa4se").unwrap())
                .body(Sent::empty())
        };
        let again = Spare::of(&build().unwrap()).request();
        let request = build().unwrap();
        assert_eq!((again.method(), again.uri()), (request.method(), request.uri()));
        assert_eq!(again.headers(), request.headers());
        assert!(again.headers().iter().eq(request.headers().iter()), "in the same order");
        let bare = Spare::of(&Request::new(Sent::empty())).request();
        assert!(bare.headers().is_empty());
    }
}
