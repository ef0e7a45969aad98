//! `POST /v1/check`: one check, one decision.

use crate::check_request::CheckRequest;
use crate::check_response::CheckResponse;
use crate::http_door::HttpDoor;
use http::HeaderMap;
use tollgate_http::{FullResponse, HttpError, response};

/// The size limit of a request body.
pub const MOST_BYTES: usize = 64 * 1024;
/// The size of a response with a rule name of ordinary length.
pub(crate) const RESPONSE_BYTES: usize = 192;

/// Responds to the check in `body`, which came with the headers `headers`.
pub async fn respond(door: &HttpDoor, headers: &HeaderMap, body: &[u8]) -> FullResponse {
    decide(door, headers, body).await.unwrap_or_else(|error| error.response())
}

async fn decide(door: &HttpDoor, headers: &HeaderMap, body: &[u8]) -> Result<FullResponse, HttpError> {
    let check = CheckRequest::parse(body)?.check(&door.limiter)?;
    let decision = check.decision().await;
    if let Some(refusal) = response::refusal(&decision, &door.headers, headers) {
        return Ok(refusal);
    }
    let mut json = Vec::with_capacity(RESPONSE_BYTES);
    CheckResponse::of(&decision).write(&mut json);
    let mut response = response::ok(json);
    door.headers.write(&decision, response.headers_mut());
    Ok(response)
}
