//! Responses to gRPC calls: a status in the headers of a response without a body ("trailers only"), with the retry time as
//! `google.rpc.RetryInfo`, which the retry policies of clients read.

use crate::body::{DENIED, ErrorCode, STORE_UNAVAILABLE};
use crate::error::HttpError;
use crate::headers::{CONTENT_TYPE, GRPC_MESSAGE, GRPC_STATUS, GRPC_STATUS_DETAILS, HeaderOptions};
use crate::response::{FullResponse, StoreUnavailableRefusal};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::Full;
use tollgate_core::rate::SECOND_US;
use tollgate_limiter::{Decision, Outcome};

const INVALID_ARGUMENT: u8 = 3;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNAVAILABLE: u8 = 14;

/// Whether these are the headers of a gRPC call.
#[inline]
pub fn is_call(headers: &HeaderMap) -> bool {
    headers.get(&CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The response to a refused call, or none if it is admitted.
pub fn refusal(decision: &Decision, options: &HeaderOptions) -> Option<FullResponse> {
    match decision.outcome {
        Outcome::Unlimited | Outcome::Admitted(_) => None,
        Outcome::Denied => Some(status(PERMISSION_DENIED, DENIED.message)),
        Outcome::Limited(standing) => {
            let (code, message) = if decision.store_unavailable {
                (unavailable(options), STORE_UNAVAILABLE.message)
            } else {
                (RESOURCE_EXHAUSTED, "Rate limit exceeded")
            };
            let mut response = status(code, message);
            options.write(decision, response.headers_mut());
            // Without a retry time there are no details: the client then backs off by its own policy.
            if let Some(wait_us) = options.wait_us(&standing, decision.now) {
                let details = STANDARD_NO_PAD.encode(retry_details(code, message, wait_us));
                let details = HeaderValue::try_from(details).expect("base64 is header text");
                response.headers_mut().insert(&GRPC_STATUS_DETAILS, details);
            }
            if decision.store_unavailable {
                response.extensions_mut().insert(StoreUnavailableRefusal);
            }
            Some(response)
        }
    }
}

/// The gRPC status for the HTTP status of the options.
fn unavailable(options: &HeaderOptions) -> u8 {
    let status = options.store_unavailable.status();
    if status == ErrorCode::RateLimitExceeded.status() { RESOURCE_EXHAUSTED } else { UNAVAILABLE }
}

/// The response to a malformed call.
pub fn invalid_argument(error: &HttpError) -> FullResponse {
    status(INVALID_ARGUMENT, &error.to_string())
}

fn status(code: u8, message: &str) -> FullResponse {
    let mut response = Response::new(Full::new(Bytes::new()));
    let headers = response.headers_mut();
    headers.insert(&CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(&GRPC_STATUS, HeaderValue::from(u16::from(code)));
    headers.insert(&GRPC_MESSAGE, percent_encoded(message));
    response
}

/// A message as the protocol requires it: everything but printable ASCII is escaped.
fn percent_encoded(message: &str) -> HeaderValue {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::try_from(text).expect("printable ASCII is header text")
}

/// `google.rpc.Status { code, message, details: [RetryInfo { retry_delay }] }` as protobuf.
fn retry_details(code: u8, message: &str, wait_us: u64) -> Vec<u8> {
    let mut delay = Vec::new();
    push_number(&mut delay, 1, wait_us / SECOND_US);
    push_number(&mut delay, 2, wait_us % SECOND_US * 1_000);
    let mut retry_info = Vec::new();
    push_bytes(&mut retry_info, 1, &delay);
    let mut any = Vec::new();
    push_bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    push_bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    push_number(&mut status, 1, code.into());
    push_bytes(&mut status, 2, message.as_bytes());
    push_bytes(&mut status, 3, &any);
    status
}

/// Appends a number under `field`; 0 is the default and is left out.
fn push_number(out: &mut Vec<u8>, field: u8, number: u64) {
    if number != 0 {
        out.push(field << 3);
        push_varint(out, number);
    }
}

/// Appends a string or an inner message under `field`.
fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
