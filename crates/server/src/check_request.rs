//! The JSON of one check.
//!
//! It is parsed without copying: strings point into the body unless they contain escapes.

mod fields;

use crate::json_error::{FieldNames, end_of, json_error};
pub use fields::MOST_IDS;
use fields::{CostField, CustomIds, JsonText, NonEmptyText, PriorityField};
use serde::Deserialize;
use smallvec::SmallVec;
use std::net::IpAddr;
use tollgate_core::path;
use tollgate_core::request::LONGEST_ENDPOINT;
use tollgate_http::HttpError;
use tollgate_limiter::{Check, Door, InvalidRequest, Limiter, Method, Request};

const EXAMPLE: &str = r#"a check is a JSON object such as {"key":"sk_1","endpoint":"/v1/orders"}"#;

const FIELDS: FieldNames = FieldNames {
    known: &[
        "key", "user", "tenant", "ip", "tier", "ids", "domain", "endpoint", "method", "cost", "priority",
    ],
    // As in rule files and in Envoy descriptors.
    aliases: &[("api_key", "key"), ("remote_address", "ip"), ("path", "endpoint"), ("route", "endpoint")],
};

/// One check. Every field may be absent or null, but at least one identity is required. Only the endpoint may be the
/// empty string: an empty identity is probably an unset variable, and all callers with that mistake would share one
/// limit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a check: a JSON object")]
pub struct CheckRequest<'a> {
    #[serde(borrow)]
    key: Option<NonEmptyText<'a>>,
    #[serde(borrow)]
    user: Option<NonEmptyText<'a>>,
    #[serde(borrow)]
    tenant: Option<NonEmptyText<'a>>,
    ip: Option<IpAddr>,
    #[serde(borrow)]
    tier: Option<NonEmptyText<'a>>,
    #[serde(borrow)]
    ids: Option<CustomIds<'a>>,
    #[serde(borrow)]
    domain: Option<NonEmptyText<'a>>,
    #[serde(borrow)]
    endpoint: Option<JsonText<'a>>,
    #[serde(borrow)]
    method: Option<NonEmptyText<'a>>,
    cost: Option<CostField>,
    priority: Option<PriorityField>,
}

impl<'a> CheckRequest<'a> {
    /// Parses the JSON of one check.
    pub fn parse(json: &'a [u8]) -> Result<Self, HttpError> {
        // Serde would also read the struct from an array, field by field.
        match json.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => Err(not_an_object(json)),
            _ => parse_object(json).map_err(|error| json_error::<Self>(json, &error, &FIELDS, EXAMPLE)),
        }
    }

    /// Starts the check.
    pub fn check<'l>(&self, limiter: &'l Limiter) -> Result<Check<'l>, HttpError> {
        let ids = self.ids.iter().flat_map(|ids| &ids.0);
        let ids: SmallVec<[(&str, &str); 4]> = ids.map(|(name, value)| (&*name.0, &*value.0)).collect();
        let endpoint = self.endpoint.as_ref().map_or("", |text| &*text.0);
        if endpoint.len() > LONGEST_ENDPOINT {
            return Err(InvalidRequest::EndpointTooLong.into());
        }
        // Every door uses this form, so that another spelling is not another quota.
        let endpoint = path::endpoint(endpoint)
            .map_err(|error| HttpError::bad_request(error.to_string()).in_field("endpoint"))?;
        Ok(limiter.check(&self.request(&endpoint, &ids))?)
    }

    fn request<'q>(&'q self, endpoint: &'q str, ids: &'q [(&'q str, &'q str)]) -> Request<'q> {
        let name = |name: &'q Option<NonEmptyText<'a>>| name.as_ref().map(|name| &*name.0);
        Request {
            api_key: name(&self.key),
            user: name(&self.user),
            tenant: name(&self.tenant),
            ip: self.ip.map(|ip| ip.to_canonical()),
            tier: name(&self.tier),
            ids,
            domain: name(&self.domain),
            endpoint,
            method: name(&self.method).map(Method::from_name),
            cost: self.cost.as_ref().map_or(1, |cost| cost.0),
            priority: self.priority.as_ref().map(|priority| priority.0),
            door: Door::Check,
        }
    }
}

/// Validates the encoding once rather than for each string.
fn parse_object(json: &[u8]) -> Result<CheckRequest<'_>, serde_json::Error> {
    match std::str::from_utf8(json) {
        Ok(json) => serde_json::from_str(json),
        // This fails as well, with the position of the error.
        Err(_) => serde_json::from_slice(json),
    }
}

#[cold]
fn not_an_object(json: &[u8]) -> HttpError {
    let before = json.iter().take_while(|byte| byte.is_ascii_whitespace());
    let (line, column) = end_of(&json[..before.count()]);
    HttpError::bad_request("a check is a JSON object, not an array")
        .at(line, column)
        .with_hint("send several checks to POST /v1/check/batch")
}
