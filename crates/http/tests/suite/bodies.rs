//! The bodies of refusals and errors, byte for byte.

use crate::decisions::TestLimiter;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use std::task::{Context, Poll, Waker};
use tollgate_http::{FullResponse, HeaderOptions, HttpError, response};
use tollgate_limiter::{Decision, InvalidRequest};

fn refusal(decision: &Decision, accept: &[&'static str]) -> Option<FullResponse> {
    let mut asked = HeaderMap::new();
    for line in accept {
        asked.append("accept", HeaderValue::from_static(line));
    }
    response::refusal(decision, &HeaderOptions::default(), &asked)
}

/// Status, content type and body.
fn content(answer: FullResponse) -> (u16, String, String) {
    let status = answer.status().as_u16();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let mut collected = Box::pin(answer.into_body().collect());
    let Poll::Ready(Ok(body)) = collected.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the body is in one piece")
    };
    let body: Bytes = body.to_bytes();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn over_the_limit() {
    let limiter = TestLimiter::orders();
    limiter.check("sk_1", 100);
    let (status, kind, body) = content(refusal(&limiter.check("sk_1", 60), &[]).unwrap());
    assert_eq!((status, kind.as_str()), (429, "application/json"));
    assert_eq!(
        body,
        r#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit of 100 requests per 60 seconds exceeded","details":{"limit":100,"window_seconds":60,"retry_after_seconds":36,"reset_at":"2027-01-15T08:01:00Z"}}}"#
    );
}

#[test]
fn one_is_singular() {
    let limiter = TestLimiter::new("rules: [{ id: once, algorithm: fixed_window, limit: 1/s }]");
    limiter.check("sk_1", 1);
    let (_, _, body) = content(refusal(&limiter.check("sk_1", 1), &[]).unwrap());
    assert!(body.contains(r#""message":"Rate limit of 1 request per 1 second exceeded""#), "{body}");
}

#[test]
fn over_the_limit_as_problem_details() {
    let limiter = TestLimiter::orders();
    limiter.check("sk_1", 100);
    let answer = refusal(&limiter.check("sk_1", 60), &["application/problem+json"]).unwrap();
    assert_eq!(answer.headers()["retry-after"], "36");
    let (status, kind, body) = content(answer);
    assert_eq!((status, kind.as_str()), (429, "application/problem+json"));
    assert_eq!(
        body,
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Rate limit of 100 requests per 60 seconds exceeded","violated-policies":["orders"],"retry_after_seconds":36}"#
    );
}

#[test]
fn problem_details_are_sent_to_clients_that_accept_them() {
    let limiter = TestLimiter::orders();
    limiter.check("sk_1", 100);
    let decision = limiter.check("sk_1", 1);
    let table: [(&[&str], bool); 11] = [
        (&[], false),
        (&["*/*"], false),
        (&["application/json"], false),
        (&["application/*"], false),
        (&["Application/Problem+JSON"], true),
        (&["text/html, application/problem+json;q=0.9, */*"], true),
        (&["application/json, application/problem+json"], true),
        (&["application/json", "application/problem+json"], true),
        (&["application/json, application/problem+json;q=0.5"], false),
        (&["application/problem+json;q=0"], false),
        (&["application/problem+json;q=nonsense"], true),
    ];
    for (accept, problem) in table {
        let (_, kind, _) = content(refusal(&decision, accept).unwrap());
        assert_eq!(kind == "application/problem+json", problem, "{accept:?}");
    }
}

#[test]
fn on_the_deny_list() {
    let answer = refusal(&TestLimiter::orders().check("sk_bad", 1), &["application/problem+json"]).unwrap();
    let expected = r#"{"error":{"code":"DENIED","message":"This client is on the deny list"}}"#;
    assert_eq!(content(answer), (403, "application/json".to_owned(), expected.to_owned()));
}

#[test]
fn admitted_requests_have_no_refusal() {
    let limiter = TestLimiter::orders();
    assert!(refusal(&limiter.check("sk_1", 1), &[]).is_none());
    assert!(refusal(&limiter.check("sk_internal_1", 1), &[]).is_none());
}

#[test]
fn errors() {
    let cost = InvalidRequest::CostAboveLimit { rule: "orders".to_owned(), limit: 100, cost: 101 };
    let table: [(HttpError, u16, &str); 7] = [
        (
            HttpError::bad_request("what\u{7}is \"this\"").at(2, 7).in_field("ids.a").with_hint("that"),
            400,
            r#"{"error":{"code":"BAD_REQUEST","message":"what\u0007is \"this\" at line 2 column 7","details":{"line":2,"column":7,"field":"ids.a","hint":"that"}}}"#,
        ),
        (
            HttpError::bad_request("bad").at(1, 7).moved_to((3, 10)),
            400,
            r#"{"error":{"code":"BAD_REQUEST","message":"bad at line 3 column 16","details":{"line":3,"column":16}}}"#,
        ),
        (
            HttpError::bad_request("bad").at(2, 7).moved_to((3, 10)),
            400,
            r#"{"error":{"code":"BAD_REQUEST","message":"bad at line 4 column 7","details":{"line":4,"column":7}}}"#,
        ),
        (
            cost.into(),
            400,
            r#"{"error":{"code":"COST_ABOVE_LIMIT","message":"a cost of 101 can never pass: rule `orders` holds at most 100","details":{"rule":"orders","limit":100,"cost":101}}}"#,
        ),
        (
            InvalidRequest::ZeroCost.into(),
            400,
            r#"{"error":{"code":"BAD_REQUEST","message":"the cost must be at least 1","details":{"field":"cost"}}}"#,
        ),
        (
            HttpError::too_large(10),
            413,
            r#"{"error":{"code":"BODY_TOO_LARGE","message":"the body is longer than 10 bytes"}}"#,
        ),
        (
            HttpError::too_slow(),
            408,
            r#"{"error":{"code":"REQUEST_TIMEOUT","message":"the body did not arrive in time"}}"#,
        ),
    ];
    for (error, status, body) in table {
        let answer = error.response();
        assert!(answer.headers().get("retry-after").is_none(), "a retry would not help");
        assert_eq!(content(answer), (status, "application/json".to_owned(), body.to_owned()));
    }
}
