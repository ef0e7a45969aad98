//! `TOLLGATE.CHECK key endpoint [cost]`: a check by the rules, as `POST /v1/check` makes it.
//!
//! The reply is that of `CL.THROTTLE` and the name of the rule that decided. Where no limit applies, limit and remaining are
//! −1 and there is no rule; the same if the client is on the deny list, which is limited without a wait. Seconds are
//! rounded up.
//!
//! A cost of 0 takes nothing: the reply says how a cost of 1 would stand. A negative one gives tokens back.

use super::encode::{self, RespVersion};
use tollgate_core::path;
use tollgate_core::rate::SECOND_US;
use tollgate_core::request::LONGEST_ENDPOINT;
use tollgate_limiter::{
    Decision, Door, InvalidRequest, Limiter, Outcome, PartsCheck, Request, RequestPart, TokenOperation,
};

/// Starts the check of these arguments, without the name. The error is that of the reply.
pub fn check<'l>(limiter: &'l Limiter, arguments: &[&[u8]]) -> Result<PartsCheck<'l>, String> {
    let (key, endpoint, cost) = match arguments {
        [key, endpoint] => (*key, *endpoint, 1),
        [key, endpoint, cost] => {
            let cost = std::str::from_utf8(cost).ok().and_then(|cost| cost.parse::<i64>().ok());
            (*key, *endpoint, cost.ok_or("ERR the cost is not an integer or out of range")?)
        }
        _ => return Err("ERR usage: TOLLGATE.CHECK key endpoint [cost]".to_owned()),
    };
    let text =
        |bytes, name| std::str::from_utf8(bytes).map_err(|_| format!("ERR the {name} is not valid UTF-8"));
    let (key, endpoint) = (text(key, "key")?, text(endpoint, "endpoint")?);
    if key.is_empty() {
        return Err("ERR the key is empty".to_owned());
    }
    if endpoint.len() > LONGEST_ENDPOINT {
        return Err(invalid(&InvalidRequest::EndpointTooLong));
    }
    // Every door uses this form, so that another spelling is not another quota.
    let endpoint = path::endpoint(endpoint).map_err(|error| format!("ERR {error}"))?;
    let (operation, cost) = match cost {
        1.. => (TokenOperation::Take, cost.unsigned_abs()),
        0 => (TokenOperation::Look, 1),
        _ => (TokenOperation::Refund, cost.unsigned_abs()),
    };
    let request =
        Request { api_key: Some(key), endpoint: &endpoint, cost, door: Door::Resp, ..Request::default() };
    let part = RequestPart { request, operation, limit: None };
    limiter.check_parts(&[part]).map_err(|error| invalid(&error.error))
}

/// The error of a request that cannot be decided.
pub fn invalid(error: &InvalidRequest) -> String {
    format!("ERR {error}")
}

/// Appends the reply to a check with this decision.
pub fn reply(decision: &Decision, version: RespVersion, out: &mut Vec<u8>) {
    if decision.store_unavailable {
        return encode::error(out, super::STORE_UNAVAILABLE);
    }
    let standing = decision.standing();
    let limit = standing.map_or(-1, |(terms, _)| terms.quota.into());
    let remaining = standing.filter(|_| !decision.degraded).map_or(-1, |(_, status)| status.remaining.into());
    let wait_us = match decision.outcome {
        Outcome::Limited(status) => status.wait_us(),
        Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => None,
    };
    let reset_after_us = standing.map_or(0, |(_, status)| status.reset_after_us);
    let seconds = |us: u64| us.div_ceil(SECOND_US) as i64;
    encode::array(out, 6);
    encode::integer(out, (!decision.allowed()).into());
    encode::integer(out, limit);
    encode::integer(out, remaining);
    encode::integer(out, wait_us.map_or(-1, seconds));
    encode::integer(out, seconds(reset_after_us));
    match decision.terms {
        Some(terms) => encode::bulk(out, terms.names.rule.as_bytes()),
        None => encode::null(out, version),
    }
}
