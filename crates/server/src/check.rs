//! `POST /v1/check`: one question, one decision.

use crate::door::Door;
use crate::question::Question;
use crate::verdict::Verdict;
use http::HeaderMap;
use tollgate_http::{Answer, Fault, answer};

/// A body that is longer is not a check.
pub const MOST_BYTES: usize = 64 * 1024;
/// A verdict with a rule name of ordinary length.
pub(crate) const VERDICT_BYTES: usize = 192;

/// Answers the check in `body`; `asked` are the headers it came with.
pub async fn answer(door: &Door, asked: &HeaderMap, body: &[u8]) -> Answer {
    decide(door, asked, body).await.unwrap_or_else(|fault| fault.answer())
}

async fn decide(door: &Door, asked: &HeaderMap, body: &[u8]) -> Result<Answer, Fault> {
    let check = Question::parse(body)?.check(&door.limiter)?;
    let decision = check.decision().await;
    if let Some(refusal) = answer::refusal(&decision, &door.headers, asked) {
        return Ok(refusal);
    }
    let mut json = Vec::with_capacity(VERDICT_BYTES);
    Verdict::of(&decision).write(&mut json);
    let mut answer = answer::ok(json);
    door.headers.write(&decision, answer.headers_mut());
    Ok(answer)
}
