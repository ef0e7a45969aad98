//! `POST /v1/check`: every kind of response.

use crate::fixture::DoorFixture;

const CHECK: &str = "/v1/check";
const ORDER: &str = r#"{"key":"sk_1","endpoint":"/v1/orders","method":"GET"}"#;

#[tokio::test]
async fn an_admitted_check() {
    let fixture = DoorFixture::start().await;
    let reply = fixture.client().await.post(CHECK, ORDER).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(
        reply.body,
        r#"{"allowed":true,"limit":100,"remaining":99,"reset_after_ms":599,"retry_after_ms":0,"rule":"orders","degraded":false}"#
    );
    let expected = [
        "ratelimit-policy: \"orders\";q=100;w=60",
        "ratelimit: \"orders\";r=99;t=1",
        "x-ratelimit-limit: 100",
        "x-ratelimit-remaining: 99",
        "x-ratelimit-reset: 1800000001",
    ];
    assert_eq!(reply.limit_headers(), expected);
}

#[tokio::test]
async fn a_limited_check_is_admitted_at_its_retry_time() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    client.post(CHECK, r#"{"key":"sk_1","endpoint":"/v1/orders","cost":100}"#).await;
    let reply = client.post(CHECK, ORDER).await;
    assert_eq!((reply.status, reply.header("content-type")), (429, "application/json"));
    assert_eq!(
        reply.body,
        r#"{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit of 100 requests per 60 seconds exceeded","details":{"limit":100,"window_seconds":60,"retry_after_seconds":1,"reset_at":"2027-01-15T08:01:00Z"}}}"#
    );
    let expected = [
        "ratelimit-policy: \"orders\";q=100;w=60",
        "ratelimit: \"orders\";r=0;t=60",
        "retry-after: 1",
        "x-ratelimit-limit: 100",
        "x-ratelimit-remaining: 0",
        "x-ratelimit-reset: 1800000060",
    ];
    assert_eq!(reply.limit_headers(), expected);

    // A token comes after 598,803 µs and not a microsecond before, however often the client asks.
    fixture.clock.advance_us(598_802);
    assert_eq!(client.post(CHECK, ORDER).await.status, 429);
    fixture.clock.advance_us(1);
    assert_eq!(client.post(CHECK, ORDER).await.status, 200);
}

#[tokio::test]
async fn a_limited_check_as_problem_details() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    client.post(CHECK, r#"{"key":"sk_1","endpoint":"/v1/orders","cost":100}"#).await;
    let reply = client.post_with(CHECK, "Accept: application/problem+json\r\n", ORDER).await;
    assert_eq!((reply.status, reply.header("content-type")), (429, "application/problem+json"));
    assert_eq!(reply.header("retry-after"), "1");
    let problem = reply.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], serde_json::json!(["orders"]));
}

#[tokio::test]
async fn unlimited_checks_carry_no_headers() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let table = [
        r#"{"key":"sk_internal_7","endpoint":"/v1/orders"}"#,
        r#"{"key":"sk_1","endpoint":"/v1/orders","ip":"192.0.2.200"}"#,
        r#"{"key":"sk_1","endpoint":"/v1/other"}"#,
        r#"{"key":"sk_1"}"#,
        r#"{"ip":"203.0.113.9","endpoint":"/v1/login","method":"GET"}"#,
    ];
    for body in table {
        let reply = client.post(CHECK, body).await;
        assert_eq!(reply.status, 200, "{body}");
        assert_eq!(reply.limit_headers(), [""; 0], "{body}");
        assert_eq!(
            reply.body,
            r#"{"allowed":true,"limit":null,"remaining":null,"reset_after_ms":0,"retry_after_ms":0,"rule":null,"degraded":false}"#
        );
    }
}

#[tokio::test]
async fn the_deny_list_refuses_with_403() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let table = [
        r#"{"key":"sk_bad","endpoint":"/v1/orders"}"#,
        r#"{"key":"sk_1","ip":"198.51.100.7"}"#,
        r#"{"key":"sk_1","ip":"::ffff:198.51.100.7"}"#,
        r#"{"key":"sk_internal_1","ip":"198.51.100.7"}"#,
    ];
    for body in table {
        let reply = client.post(CHECK, body).await;
        assert_eq!(reply.status, 403, "{body}");
        assert_eq!(reply.limit_headers(), [""; 0], "{body}");
        assert_eq!(reply.body, r#"{"error":{"code":"DENIED","message":"This client is on the deny list"}}"#);
    }
}

#[tokio::test]
async fn a_cost_that_can_never_pass() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    for cost in [101, u64::MAX] {
        let body = format!(r#"{{"key":"sk_1","endpoint":"/v1/orders","cost":{cost}}}"#);
        let reply = client.post(CHECK, body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.limit_headers(), [""; 0]);
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "COST_ABOVE_LIMIT");
        assert_eq!(error["details"], serde_json::json!({ "rule": "orders", "limit": 100, "cost": cost }));
    }
    assert_eq!(client.post(CHECK, ORDER).await.json()["remaining"], 99);
}

/// The first check with the field is admitted by the rule, the next is refused.
#[tokio::test]
async fn every_field_reaches_the_limiter() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let table = [
        ("invoices", r#"{"ids":{"other":"x","invoice":"A"},"endpoint":"/v1/invoices"}"#),
        ("people", r#"{"tenant":"t","user":"u","endpoint":"/v1/people"}"#),
        ("vip", r#"{"key":"sk_v","tier":"gold","endpoint":"/v1/vip"}"#),
        ("edge", r#"{"key":"sk_e","domain":"envoy","endpoint":"/v1/edge"}"#),
        ("orders", r#"{"key":"sk_2","endpoint":"/v1/orders?page=2","cost":51,"priority":7}"#),
        // Escapes and nulls read like anything else.
        ("invoices", r#"{"ids":{"in\u0076oice":"\u0042"},"endpoint":"\/v1\/invoices","key":null}"#),
    ];
    for (rule, body) in table {
        let first = client.post(CHECK, body).await;
        assert_eq!(first.json()["rule"], rule, "{body}");
        assert_eq!(first.status, 200, "{body}");
        assert_eq!(client.post(CHECK, body).await.status, 429, "{body}");
    }
    // In any case and, for the address, in any spelling.
    let statuses = [
        r#"{"ip":"203.0.113.9","endpoint":"/v1/login","method":"POST"}"#,
        r#"{"ip":"::ffff:203.0.113.9","endpoint":"/v1/login","method":"post"}"#,
        r#"{"ip":"203.0.113.9","endpoint":"/v1/login","method":"Post"}"#,
        r#"{"ip":"203.0.113.10","endpoint":"/v1/login","method":"POST"}"#,
    ];
    for (body, status) in statuses.into_iter().zip([200, 200, 429, 200]) {
        assert_eq!(client.post(CHECK, body).await.status, status, "{body}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let request = crate::client::post(CHECK, "", ORDER);
    client.send(request.repeat(120)).await;
    for index in 0..120_u64 {
        let reply = client.reply().await;
        if index < 100 {
            assert_eq!(reply.header("x-ratelimit-remaining"), (99 - index).to_string());
        } else {
            assert_eq!(reply.status, 429);
        }
    }
}

#[tokio::test]
async fn spellings_of_an_endpoint_share_a_limit() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let ask = |endpoint: &str| format!(r#"{{"ip":"203.0.113.9","method":"POST","endpoint":"{endpoint}"}}"#);
    for endpoint in ["/v1/login", "//v1/./login"] {
        assert_eq!(client.post(CHECK, ask(endpoint)).await.status, 200, "{endpoint}");
    }
    for endpoint in ["/v1/%6cogin", "/x/../v1/login?a=b", "/V1/Login/", "/v1;a/login;b"] {
        assert_eq!(client.post(CHECK, ask(endpoint)).await.status, 429, "{endpoint}");
    }
    for endpoint in ["/v1%2flogin", "/v1/%00", "/../login", "/v1/%zz"] {
        let reply = client.post(CHECK, ask(endpoint)).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["details"]["field"]), (400, &"endpoint".into()), "{endpoint}");
        assert!(error["message"].as_str().unwrap().starts_with("the path "), "{error}");
    }
    let batch = format!("[{},{}]", ask("/v1%2flogin"), ask("login"));
    let reply = client.post("/v1/check/batch", batch).await.json();
    assert_eq!((&reply[0]["error"]["code"], &reply[1]["allowed"]), (&"BAD_REQUEST".into(), &true.into()));
}

#[tokio::test]
async fn a_flagged_check_reports_the_limit() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let standing = r#""limit":1,"remaining":0,"reset_after_ms":60000,"retry_after_ms":0,"rule":"captcha","degraded":false"#;
    for flags in ["", r#","flags":{"x-captcha":"captcha"}"#, r#","flags":{"x-captcha":"captcha"}"#] {
        let reply = client.post(CHECK, r#"{"key":"sk_1","endpoint":"/v1/captcha"}"#).await;
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (200, format!(r#"{{"allowed":true,{standing}{flags}}}"#).as_str())
        );
        let expected = [
            "ratelimit-policy: \"captcha\";q=1;w=60",
            "ratelimit: \"captcha\";r=0;t=60",
            "x-ratelimit-limit: 1",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 1800000060",
        ];
        assert_eq!(reply.limit_headers(), expected);
    }
    let batch = client.post("/v1/check/batch", r#"[{"key":"sk_1","endpoint":"/v1/captcha"}]"#).await;
    assert_eq!(batch.body, format!(r#"[{{"allowed":true,{standing},"flags":{{"x-captcha":"captcha"}}}}]"#));
}
