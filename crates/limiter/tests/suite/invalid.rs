//! Invalid requests are rejected and spend nothing.

use crate::setting::{Setting, decide, key};
use tollgate_limiter::{InvalidRequest, Outcome, Request};

const RULES: &str = "
rules:
  - { id: narrow, key: api_key, limit: 10/min }
  - { id: wide, key: tenant, limit: 100/min }
  - { id: login, endpoint: /login, algorithm: sliding_window_log, limit: 3/min }
  - { id: watched, on_exceed: shadow, limit: 2/min }
deny: [sk_bad]
allow: [sk_good]
";

#[test]
fn is_refused_and_spends_nothing() {
    let setting = Setting::new(RULES);
    let (longest, too_long) = ("/".repeat(4096), "/".repeat(4097));
    let good = Request { tenant: Some("north"), ..key("a") };
    let above =
        |rule: &str, limit, cost| InvalidRequest::CostAboveLimit { rule: rule.to_owned(), limit, cost };
    let table = [
        (Request { cost: 0, ..good }, InvalidRequest::ZeroCost),
        (Request { endpoint: &too_long, ..good }, InvalidRequest::EndpointTooLong),
        (Request { endpoint: "/", ..Request::default() }, InvalidRequest::NoIdentity),
        (Request { tier: Some("gold"), domain: Some("d"), ..Request::default() }, InvalidRequest::NoIdentity),
        (Request { cost: 11, ..good }, above("narrow", 10, 11)),
        (Request { cost: u64::from(u32::MAX) + 2, ..good }, above("narrow", 10, 4_294_967_297)),
        (Request { cost: u64::MAX, ..good }, above("narrow", 10, u64::MAX)),
        (Request { cost: 4, endpoint: "/login", ..good }, above("login", 3, 4)),
        // Also on a list: it is an error of the caller.
        (Request { cost: 0, ..key("sk_good") }, InvalidRequest::ZeroCost),
        (Request { cost: 0, ..key("sk_bad") }, InvalidRequest::ZeroCost),
    ];
    for (request, expected) in table {
        assert_eq!(decide(&setting.limiter, &request).err(), Some(expected), "{request:?}");
    }
    assert_eq!(setting.limiter.store().usage().states, 0, "nothing was spent");
    let longest = Request { endpoint: &longest, ..good };
    assert_eq!(setting.remaining(&longest), 9, "the longest endpoint is valid");
    assert_eq!(
        setting.remaining(&Request { cost: 9, ..good }),
        0,
        "the whole of a limit may be taken at once"
    );
}

#[test]
fn a_cost_above_a_limit_in_shadow_mode_is_valid() {
    let setting = Setting::new(RULES);
    let request = Request { cost: 3, ..key("a") };
    assert_eq!(setting.remaining(&request), 7, "`watched` holds 2 and does not matter");
}

#[test]
fn no_cost_is_too_high_for_a_client_on_a_list() {
    let setting = Setting::new(RULES);
    let costly = |name| Request { cost: u64::MAX, ..key(name) };
    assert_eq!(setting.check(&costly("sk_good")).outcome, Outcome::Unlimited);
    assert_eq!(setting.check(&costly("sk_bad")).outcome, Outcome::Denied);
}
