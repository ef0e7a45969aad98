//! Malformed checks: always 400 with the error and its position, never a panic.

use crate::fixture::{DoorFixture, START_US, door};
use http::HeaderMap;
use tollgate_limiter::{Clock, ManualClock};
use tollgate_server::{batch, check};

/// (body, line, column, field, part of the message or hint)
const MALFORMED: [(&str, u64, u64, &str, &str); 32] = [
    ("", 1, 1, "", "EOF while parsing a value"),
    ("  \n ", 2, 1, "", "EOF while parsing a value"),
    ("nonsense", 1, 2, "", "expected ident"),
    ("\u{feff}{}", 1, 1, "", "expected value"),
    ("{", 1, 1, "", "EOF while parsing an object"),
    (r#"{"key""#, 1, 6, "", "EOF while parsing an object"),
    (r#"{"key":"#, 1, 7, "key", "EOF while parsing a value"),
    (r#"{"key":"sk"#, 1, 10, "key", "EOF while parsing a string"),
    (r#"{"key":"sk",}"#, 1, 13, "", "trailing comma"),
    (r#"{"key":"sk"} x"#, 1, 14, "", "trailing characters"),
    (r#"{"key":"sk"}{}"#, 1, 13, "", "trailing characters"),
    ("{'key':'sk'}", 1, 2, "", "key must be a string"),
    ("{\n  \"key\": \"sk\",\n  \"cost\": none\n}", 3, 12, "cost", "expected ident"),
    ("null", 1, 4, "", "invalid type: null, expected a check: a JSON object"),
    ("12", 1, 2, "", "invalid type: integer `12`"),
    ("\"sk\"", 1, 4, "", "invalid type: string"),
    ("\n [\"sk\"]", 2, 2, "", "/v1/check/batch"),
    (r#"{"key":12}"#, 1, 9, "key", "invalid type: integer `12`, expected a string"),
    (r#"{"key":["sk"]}"#, 1, 7, "key", "expected a string"),
    (r#"{"key":""}"#, 1, 10, "key", "must not be empty"),
    (r#"{"key":"a","key":"b"}"#, 1, 16, "", "duplicate field `key`"),
    (r#"{"x":"sk"}"#, 1, 4, "x", "the fields are key, user"),
    (r#"{"api_key":"sk"}"#, 1, 10, "api_key", "did you mean `key`?"),
    (r#"{"tenent":"t"}"#, 1, 9, "tenent", "did you mean `tenant`?"),
    (r#"{"key":"sk","endpont":"/"}"#, 1, 21, "endpont", "did you mean `endpoint`?"),
    (r#"{"ip":"203.0.113.300"}"#, 1, 21, "ip", "invalid IP address syntax"),
    (r#"{"ip":""}"#, 1, 8, "ip", "invalid IP address syntax"),
    (r#"{"key":"sk","cost":-1}"#, 1, 21, "cost", "expected an integer of at least 1"),
    (r#"{"key":"sk","cost":0}"#, 1, 20, "cost", "expected an integer of at least 1"),
    (r#"{"key":"sk","cost":1.5}"#, 1, 22, "cost", "expected an integer of at least 1"),
    (r#"{"key":"sk","priority":256}"#, 1, 26, "priority", "an integer from 0 to 255"),
    (r#"{"ids":{"invoice":"a","invoice":"b"}}"#, 1, 36, "ids", "duplicate id `invoice`"),
];

#[tokio::test]
async fn errors_have_a_position_and_a_field() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    for (body, line, column, field, says) in MALFORMED {
        let reply = client.post("/v1/check", body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert_eq!(reply.limit_headers(), [""; 0], "{body}");
        let error = &reply.json()["error"];
        let details = &error["details"];
        assert_eq!(error["code"], "BAD_REQUEST", "{body}");
        let place = (details["line"].as_u64().unwrap(), details["column"].as_u64().unwrap());
        assert_eq!(place, (line, column), "{body}: {error}");
        assert_eq!(details["field"].as_str().unwrap_or_default(), field, "{body}: {error}");
        let told = format!("{} {}", error["message"].as_str().unwrap(), details["hint"]);
        assert!(told.contains(says), "{body}: {told}");
        assert!(told.contains(&format!(" at line {line} column {column}")), "{body}: {told}");
    }
    let many: Vec<String> = (0..33).map(|index| format!(r#""id{index}":"x""#)).collect();
    let reply = client.post("/v1/check", format!(r#"{{"ids":{{{}}}}}"#, many.join(","))).await;
    assert!(reply.body.contains("more than 32 ids"), "{}", reply.body);
}

#[tokio::test]
async fn an_identity_is_required() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    for body in ["{}", r#"{"endpoint":"/v1/orders","cost":1}"#, r#"{"key":null}"#, r#"{"ids":{}}"#] {
        let reply = client.post("/v1/check", body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.body.contains("give at least one of key, user, tenant, ip or ids"), "{}", reply.body);
    }
}

#[tokio::test]
async fn endpoints_are_bounded() {
    let fixture = DoorFixture::start().await;
    let body = format!(r#"{{"key":"sk","endpoint":"/{}"}}"#, "x".repeat(5_000));
    let reply = fixture.client().await.post("/v1/check", body).await;
    assert_eq!((reply.status, reply.json()["error"]["details"]["field"].as_str()), (400, Some("endpoint")));
}

#[tokio::test]
async fn bodies_are_bounded() {
    let fixture = DoorFixture::start().await;
    let body = |length: usize| format!(r#"{{"key":"sk"{}}}"#, " ".repeat(length - 12));
    let mut client = fixture.client().await;
    assert_eq!(client.post("/v1/check", body(64 * 1024)).await.status, 200);
    let reply = client.post("/v1/check", body(64 * 1024 + 1)).await;
    assert_eq!(reply.status, 413);
    assert_eq!(
        reply.body,
        r#"{"error":{"code":"BODY_TOO_LARGE","message":"the body is longer than 65536 bytes"}}"#
    );
    // A batch may be longer.
    let mut client = fixture.client().await;
    let batch = format!("[{}]", body(100 * 1024));
    assert_eq!(client.post("/v1/check/batch", batch).await.status, 200);
}

#[tokio::test]
async fn echoed_input_is_truncated_and_escaped() {
    let fixture = DoorFixture::start().await;
    let body = format!(r#"{{"\"<\u0007{}":1}}"#, "x".repeat(10_000));
    let reply = fixture.client().await.post("/v1/check", body).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.len() < 1_500, "{} bytes", reply.body.len());
    assert!(reply.json()["error"]["message"].as_str().unwrap().starts_with("unknown field `\"<\u{7}xxx"));
}

/// Random bytes, and valid checks with some bytes changed: each gets a response.
#[tokio::test]
async fn random_bodies_are_answered() {
    let door = door(Clock::Manual(ManualClock::new(START_US)));
    let mut random = fastrand::Rng::with_seed(7);
    let sound =
        br#"{"key":"sk_1","ip":"203.0.113.9","ids":{"invoice":"\u00e9"},"endpoint":"/v1/orders","cost":2}"#;
    let headers = HeaderMap::new();
    let mut seen = [0_u32; 600];
    for round in 0..10_000 {
        let body: Vec<u8> = if round % 2 == 0 {
            (0..random.usize(..200)).map(|_| random.u8(..)).collect()
        } else {
            let mut body = sound.to_vec();
            for _ in 0..random.usize(1..4) {
                let place = random.usize(..body.len());
                match random.u8(..3) {
                    0 => body[place] = random.u8(..),
                    1 => drop(body.remove(place)),
                    _ => body.insert(place, *random.choice(b"{}[]\",:\\0-\xff").unwrap()),
                }
            }
            body
        };
        seen[usize::from(check::respond(&door, &headers, &body).await.status().as_u16())] += 1;
        batch::respond(&door, &body).await;
        batch::respond(&door, &[b"[".as_slice(), &body, b"]"].concat()).await;
    }
    assert!(seen[400] > 5_000 && seen[200] > 0 && seen[429] > 0, "the bodies were of every kind");
    assert_eq!(seen[200] + seen[400] + seen[429], 10_000);
}

#[tokio::test]
async fn random_bodies_leave_the_connection_usable() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let mut random = fastrand::Rng::with_seed(8);
    for _ in 0..500 {
        let body: Vec<u8> = (0..random.usize(..100)).map(|_| random.u8(..)).collect();
        assert_eq!(client.post("/v1/check", body).await.status, 400);
    }
    assert_eq!(client.post("/v1/check", r#"{"key":"sk"}"#).await.status, 200);
}
