//! The RLS door, asked by a gRPC client: statuses, hits, headers, health and reflection.

use crate::rls_fixture::{RlsFixture, descriptor, headers, metadata, over, request, statuses};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_http::HeaderOptions;
use tollgate_server::rls_door::DescriptorCharging;
use tollgate_server::rls_door::descriptors::{MOST_DESCRIPTORS, MOST_ENTRIES};
use tollgate_server::rls_door::proto::{Code, RateLimitDescriptor, RateLimitRequest, Unit};
use tollgate_testbed::PATIENCE;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

const SECOND_US: u64 = 1_000_000;

#[tokio::test]
async fn a_limit_is_spent_and_refused() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let asked = request(&[descriptor(&[("user", "ann")])]);
    for remaining in [2, 1, 0] {
        let answer = client.ask(&asked).await;
        assert_eq!(answer.overall_code(), Code::Ok);
        let [status] = &answer.statuses[..] else { panic!("{answer:?}") };
        assert_eq!((status.code(), status.limit_remaining), (Code::Ok, remaining));
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (3, Unit::Minute, "users"));
        let reset = status.duration_until_reset.as_ref().unwrap();
        assert_eq!((reset.seconds, reset.nanos), (i64::from(3 - remaining) * 20, 0));
        let shown = headers(&answer);
        assert_eq!(shown["x-ratelimit-limit"], "3");
        assert_eq!(shown["x-ratelimit-remaining"], remaining.to_string());
        assert_eq!(shown["ratelimit-policy"], "\"users\";q=3;w=60");
        assert!(!shown.contains_key("retry-after") && answer.raw_body.is_empty());
        assert_eq!(metadata(&answer, "rule").as_deref(), Some("users"));
        assert_eq!(metadata(&answer, "outcome").as_deref(), Some("allowed"));
    }
    fixture.clock.advance_us(500_000);
    let answer = client.ask(&asked).await;
    assert_eq!(statuses(&answer), [over(0)]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds, 60, "59.5 s, rounded up");
    assert_eq!(headers(&answer)["retry-after"], "20", "19.5 s, rounded up");
    assert_eq!(headers(&answer)["content-type"], "application/json");
    let body = String::from_utf8(answer.raw_body.to_vec()).unwrap();
    assert!(body.contains("RATE_LIMIT_EXCEEDED") && body.contains("3 requests per 60 seconds"), "{body}");
    assert_eq!(metadata(&answer, "outcome").as_deref(), Some("limited"));
    // In time.
    fixture.clock.advance_us(20 * SECOND_US);
    assert_eq!(statuses(&client.ask(&asked).await), [(Code::Ok, 0)]);
}

#[tokio::test]
async fn no_rule_is_no_limit() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    for entries in [[("color", "red")], [("path", "/free")], [("api_key", "sk_internal_1")]] {
        let answer = client.ask(&request(&[descriptor(&entries)])).await;
        assert_eq!(statuses(&answer), [(Code::Ok, u32::MAX)], "{entries:?}");
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(answer.statuses[0].current_limit, None);
        assert_eq!(answer.response_headers_to_add, []);
    }
}

/// The window of a limit is a unit of Envoy's API where there is one.
#[tokio::test]
async fn limits_have_units() {
    let fixture = RlsFixture::with(
        &[
            ("s", "s"),
            ("h", "h"),
            ("d", "day"),
            ("w", "week"),
            ("m", "30 days"),
            ("y", "365 days"),
            ("t", "10s"),
        ]
        .map(|(id, period)| {
            format!("  - {{ id: {id}, match: {{ exactly: [{id}] }}, key: {id}, limit: 1/{period} }}\n")
        })
        .concat()
        .replacen("", "rules:\n", 1),
    )
    .await;
    let mut client = fixture.client().await;
    for (key, unit) in [
        ("s", Unit::Second),
        ("h", Unit::Hour),
        ("d", Unit::Day),
        ("w", Unit::Week),
        ("m", Unit::Month),
        ("y", Unit::Year),
        ("t", Unit::Unknown),
    ] {
        let answer = client.ask(&request(&[descriptor(&[(key, "x")])])).await;
        let limit = answer.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (1, unit), "{key}");
    }
}

#[tokio::test]
async fn hits_are_taken_looked_for_and_given_back() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let hits = |of_request: u32, own: Option<u64>, is_negative: bool| {
        let user = descriptor(&[("user", "ann")]);
        let user = RateLimitDescriptor { hits_addend: own, is_negative_hits: is_negative, ..user };
        RateLimitRequest { hits_addend: of_request, ..request(&[user]) }
    };
    for (of_request, own, is_negative, expected) in [
        (2, None, false, (Code::Ok, 1)),
        (2, Some(0), false, (Code::Ok, 1)),
        (0, Some(2), false, (Code::OverLimit, 1)),
        (2, Some(1), false, (Code::Ok, 0)),
        (9, Some(0), false, (Code::OverLimit, 0)),
        (0, Some(2), true, (Code::Ok, 2)),
        (0, Some(0), true, (Code::Ok, 2)),
        // Never above the capacity.
        (0, Some(1_000_000_000), true, (Code::Ok, 3)),
        (1, None, true, (Code::Ok, 3)),
        // More than the limit holds: no wait helps.
        (0, Some(4), false, (Code::OverLimit, 0)),
        (u32::MAX, None, false, (Code::OverLimit, 0)),
        (0, Some(u64::MAX), false, (Code::OverLimit, 0)),
        (3, None, false, (Code::Ok, 0)),
    ] {
        let answer = client.ask(&hits(of_request, own, is_negative)).await;
        assert_eq!(statuses(&answer), [expected], "{of_request} {own:?} {is_negative}: {answer:?}");
        if let Some(reset) = &answer.statuses[0].duration_until_reset {
            assert!(reset.seconds >= 1, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn several_descriptors_are_charged_all_or_nothing() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let both = request(&[descriptor(&[("user", "ann")]), descriptor(&[("tenant", "t")])]);
    assert_eq!(statuses(&client.ask(&both).await), [(Code::Ok, 2), (Code::Ok, 1)]);
    assert_eq!(statuses(&client.ask(&both).await), [(Code::Ok, 1), (Code::Ok, 0)]);
    for _ in 0..5 {
        let answer = client.ask(&both).await;
        assert_eq!(answer.overall_code(), Code::OverLimit);
        assert_eq!(statuses(&answer), [(Code::Ok, 1), over(0)], "the user's token is not spent");
        assert_eq!(metadata(&answer, "rule").as_deref(), Some("tenants"), "the rule that refuses");
    }
    let alone = request(&[descriptor(&[("user", "ann")])]);
    assert_eq!(statuses(&client.ask(&alone).await), [(Code::Ok, 0)]);
}

/// Of admissions the headers are those of the limit with the fewest tokens left, of refusals those of the longest wait, wherever its
/// descriptor is. What is left then says nothing: it is nothing everywhere.
#[tokio::test]
async fn the_headers_are_those_of_the_limit_that_matters_most() {
    let names = ["second", "hour", "minute"];
    let order = |first: usize| [0, 1, 2].map(|place| names[(first + place) % 3]);
    for charging in [DescriptorCharging::AllOrNothing, DescriptorCharging::Independent] {
        let fixture = RlsFixture::with(
            "rules:
  - { id: second, match: { exactly: [second] }, key: second, limit: 4/s }
  - { id: minute, match: { exactly: [minute] }, key: minute, limit: 3/min }
  - { id: hour, match: { exactly: [hour] }, key: hour, limit: 4/h }",
        )
        .await
        .charging(charging)
        .await;
        let mut client = fixture.client().await;
        let asked = |first, value: &str| request(&order(first).map(|name| descriptor(&[(name, value)])));
        for first in 0..3 {
            let answer = client.ask(&asked(first, &first.to_string())).await;
            let shown = headers(&answer);
            assert_eq!((shown["x-ratelimit-limit"], shown["x-ratelimit-remaining"]), ("3", "2"));
            assert_eq!(metadata(&answer, "rule").as_deref(), Some("minute"), "{:?}", order(first));
        }
        // All that is left of each.
        let all = [("second", 4), ("minute", 3), ("hour", 4)].map(|(name, hits)| RateLimitDescriptor {
            hits_addend: Some(hits),
            ..descriptor(&[(name, "ann")])
        });
        assert_eq!(client.ask(&request(&all)).await.overall_code(), Code::Ok);
        for first in 0..3 {
            let answer = client.ask(&asked(first, "ann")).await;
            assert_eq!(statuses(&answer), [over(0); 3]);
            let shown = headers(&answer);
            assert_eq!(
                (shown["x-ratelimit-limit"], shown["retry-after"]),
                ("4", "900"),
                "{:?}",
                order(first)
            );
            assert_eq!(shown["ratelimit-policy"], "\"hour\";q=4;w=3600");
            assert_eq!(metadata(&answer, "rule").as_deref(), Some("hour"));
        }
        // Without the refusal of the longest wait, those of the next one.
        let two = request(&["minute", "second"].map(|name| descriptor(&[(name, "ann")])));
        assert_eq!(headers(&client.ask(&two).await)["retry-after"], "20");
    }
}

#[tokio::test]
async fn descriptors_may_be_counted_independently() {
    let fixture = RlsFixture::start().await.charging(DescriptorCharging::Independent).await;
    let mut client = fixture.client().await;
    let both = request(&[descriptor(&[("user", "ann")]), descriptor(&[("tenant", "t")])]);
    for expected in [
        [(Code::Ok, 2), (Code::Ok, 1)],
        [(Code::Ok, 1), (Code::Ok, 0)],
        [(Code::Ok, 0), over(0)],
        [over(0), over(0)],
    ] {
        let answer = client.ask(&both).await;
        assert_eq!(statuses(&answer), expected);
        let is_over = expected.iter().any(|(code, _)| *code == Code::OverLimit);
        assert_eq!(answer.overall_code() == Code::OverLimit, is_over);
    }
    let one_refused = request(&[descriptor(&[("path", "/%zz")]), descriptor(&[("user", "ben")])]);
    assert_eq!(statuses(&client.ask(&one_refused).await), [over(0), (Code::Ok, 2)]);
}

/// A rule replaces others of all descriptors of the request.
#[tokio::test]
async fn rules_are_replaced_across_descriptors() {
    let fixture = RlsFixture::with(
        "rules:\n  - { id: users, match: { exactly: [user] }, key: user, limit: 1/day }\n\
         \x20 - { id: vips, match: { exactly: [vip] }, key: vip, limit: 9/day, replaces: users }\n",
    )
    .await;
    let mut client = fixture.client().await;
    let both = request(&[descriptor(&[("user", "ann")]), descriptor(&[("vip", "ann")])]);
    for remaining in [8, 7, 6] {
        assert_eq!(statuses(&client.ask(&both).await), [(Code::Ok, u32::MAX), (Code::Ok, remaining)]);
    }
    let user = request(&[descriptor(&[("user", "ann")])]);
    assert_eq!(statuses(&client.ask(&user).await), [(Code::Ok, 0)]);
    assert_eq!(statuses(&client.ask(&user).await), [over(0)]);
    assert_eq!(statuses(&client.ask(&both).await), [(Code::Ok, u32::MAX), (Code::Ok, 5)]);
    // More than the limit that is replaced holds.
    let mut costly = both.clone();
    costly.hits_addend = 2;
    assert_eq!(statuses(&client.ask(&costly).await), [(Code::Ok, u32::MAX), (Code::Ok, 3)]);
    costly.hits_addend = 10;
    assert_eq!(client.ask(&costly).await.overall_code(), Code::OverLimit, "more than its own limit holds");
}

/// An error would admit the request, by Envoy's default.
#[tokio::test]
async fn hostile_descriptors_are_over_their_limit() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let long = format!("/{}", "x".repeat(5_000));
    let paths = ["/a%", "/a%2fb", "/a%00", "/a\\b", "/../..", "/%ff", &long];
    for path in paths {
        let asked =
            request(&[descriptor(&[("path", path), ("user", "ann")]), descriptor(&[("user", "ann")])]);
        let answer = client.ask(&asked).await;
        assert_eq!(answer.overall_code(), Code::OverLimit, "{path}");
        assert_eq!(statuses(&answer), [over(0), (Code::Ok, u32::MAX)], "{path}");
        assert_eq!(answer.statuses[1].current_limit, None, "what is left was not looked for");
        let body = String::from_utf8(answer.raw_body.to_vec()).unwrap();
        assert!(body.contains("BAD_REQUEST"), "{path}: {body}");
    }
    let many: Vec<_> = (0..=MOST_ENTRIES).map(|_| ("user", "ann")).collect();
    assert_eq!(statuses(&client.ask(&request(&[descriptor(&many)])).await), [over(0)]);
    let none = client.ask(&request(&[descriptor(&[])])).await;
    assert_eq!(statuses(&none), [over(0)], "no entries");
    let descriptors = vec![descriptor(&[("user", "ann")]); MOST_DESCRIPTORS + 1];
    let answer = client.ask(&request(&descriptors)).await;
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(statuses(&answer), vec![over(0); MOST_DESCRIPTORS + 1]);
    let user = descriptor(&[("user", "ann")]);
    let in_flight = descriptor(&[("slots", "x")]);
    let too_many = RateLimitDescriptor { hits_addend: Some(4), ..user.clone() };
    for (undecidable, why) in [(in_flight, "requests are not seen to end"), (too_many, "the limit is 3")] {
        let asked = request(&[user.clone(), undecidable, user.clone()]);
        let expected = [(Code::Ok, u32::MAX), over(0), (Code::Ok, u32::MAX)];
        assert_eq!(statuses(&client.ask(&asked).await), expected, "{why}");
    }
    // Nothing of all that was charged.
    let user = request(&[descriptor(&[("user", "ann")])]);
    assert_eq!(statuses(&client.ask(&user).await), [(Code::Ok, 2)]);
}

#[tokio::test]
async fn lists_and_domains_apply() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let denied = client.ask(&request(&[descriptor(&[("api_key", "sk_bad")])])).await;
    assert_eq!((denied.overall_code(), statuses(&denied)), (Code::OverLimit, vec![over(0)]));
    assert_eq!(metadata(&denied, "outcome").as_deref(), Some("denied"));
    assert!(String::from_utf8_lossy(&denied.raw_body).contains("DENIED"));
    assert!(!headers(&denied).contains_key("retry-after"));
    let orders = [descriptor(&[("path", "/v1/orders?page=2"), ("api_key", "sk_1")])];
    let shop = RateLimitRequest { domain: "shop".to_owned(), ..request(&orders) };
    assert_eq!(statuses(&client.ask(&shop).await), [(Code::Ok, 0)]);
    let same = [descriptor(&[("path", "//v1/./orders?page=3"), ("api_key", "sk_1")])];
    let same = RateLimitRequest { domain: "shop".to_owned(), ..request(&same) };
    assert_eq!(statuses(&client.ask(&same).await), [over(0)], "another spelling is no other quota");
    assert_eq!(statuses(&client.ask(&request(&orders)).await), [(Code::Ok, u32::MAX)], "another domain");
}

#[tokio::test]
async fn flags_are_headers_for_the_upstream() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let asked = request(&[descriptor(&[("flagged", "x")])]);
    let first = client.ask(&asked).await;
    assert_eq!(first.request_headers_to_add, []);
    let second = client.ask(&asked).await;
    assert_eq!(second.overall_code(), Code::Ok);
    let [flag] = &second.request_headers_to_add[..] else { panic!("{second:?}") };
    assert_eq!(flag.key, "x-over-limit");
    assert_eq!(metadata(&second, "outcome").as_deref(), Some("flagged"));
    let shadowed = request(&[descriptor(&[("shadowed", "x")])]);
    client.ask(&shadowed).await;
    let second = client.ask(&shadowed).await;
    assert_eq!(metadata(&second, "shadowed_by").as_deref(), Some("shadowed"));
    assert_eq!(second.overall_code(), Code::Ok);
}

#[tokio::test]
async fn the_families_of_headers_are_settings() {
    let options = HeaderOptions { x_ratelimit: false, legacy: true, ..HeaderOptions::default() };
    let fixture = RlsFixture::start().await.sending(options).await;
    let answer = fixture.client().await.ask(&request(&[descriptor(&[("user", "ann")])])).await;
    let shown: Vec<&str> = headers(&answer).into_keys().collect();
    assert_eq!(
        shown,
        ["ratelimit", "ratelimit-limit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset"]
    );
}

#[tokio::test]
async fn decisions_are_counted() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let both = request(&[descriptor(&[("user", "ann")]), descriptor(&[("tenant", "t")])]);
    for _ in 0..3 {
        client.ask(&both).await;
    }
    let counted = |outcome| (fixture.counted("users", outcome), fixture.counted("tenants", outcome));
    assert_eq!((counted("allowed"), counted("limited")), ((2, 2), (0, 1)));
}

#[tokio::test]
async fn a_request_without_descriptors_is_an_error() {
    let fixture = RlsFixture::start().await;
    let error = fixture.client().await.try_ask(&request(&[])).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn messages_are_bounded() {
    let fixture = RlsFixture::start().await;
    let mut client = fixture.client().await;
    let long = |bytes: usize| request(&[descriptor(&[("user", "x".repeat(bytes).as_str())])]);
    assert_eq!(statuses(&client.ask(&long(3 << 20)).await), [(Code::Ok, 2)]);
    let error = client.try_ask(&long(5 << 20)).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");
    assert_eq!(statuses(&client.ask(&long(10)).await), [(Code::Ok, 2)], "the connection is kept");
}

#[tokio::test]
async fn what_is_not_grpc_is_told_so() {
    let fixture = RlsFixture::start().await;
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut reply)).await.unwrap().unwrap();
    assert!(reply.starts_with("HTTP/1.1 415 ") && reply.contains("gRPC calls over HTTP/2"), "{reply}");
}

async fn health(
    client: &mut HealthClient<tonic::transport::Channel>,
    service: &str,
) -> Result<ServingStatus, tonic::Code> {
    let asked = HealthCheckRequest { service: service.to_owned() };
    let answer = timeout(PATIENCE, client.check(asked)).await.unwrap();
    answer.map(|answer| answer.into_inner().status()).map_err(|error| error.code())
}

#[tokio::test]
async fn health_follows_readiness() {
    let mut fixture = RlsFixture::start().await;
    let mut client = HealthClient::new(fixture.channel().await);
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(health(&mut client, service).await, Ok(ServingStatus::Serving));
    }
    assert_eq!(health(&mut client, "other").await, Err(tonic::Code::NotFound));
    let watched = client.watch(HealthCheckRequest::default()).await.unwrap();
    let mut watched = watched.into_inner();
    let next = |message: Option<HealthCheckResponse>| message.map(|message| message.status());
    let first = timeout(PATIENCE, watched.message()).await.unwrap().unwrap();
    assert_eq!(next(first), Some(ServingStatus::Serving));
    fixture.stop.take().unwrap().send(()).unwrap();
    let second = timeout(PATIENCE, watched.message()).await.unwrap().unwrap();
    assert_eq!(next(second), Some(ServingStatus::NotServing));
    assert!(timeout(PATIENCE, watched.message()).await.unwrap().unwrap().is_none(), "the stream ends");
    let cut = timeout(Duration::from_secs(5), fixture.served).await.expect("no drain waits for it").unwrap();
    assert_eq!(cut, 0);
    assert!(TcpStream::connect(fixture.address).await.is_err());
}

#[tokio::test]
async fn a_node_without_rules_is_not_healthy() {
    let fixture = RlsFixture::start().await.not_ready().await;
    let mut client = HealthClient::new(fixture.channel().await);
    assert_eq!(health(&mut client, "").await, Ok(ServingStatus::NotServing));
    fixture.readiness.set_rules_installed();
    assert_eq!(health(&mut client, "").await, Ok(ServingStatus::Serving));
}

#[tokio::test]
async fn services_are_reflected() {
    let fixture = RlsFixture::start().await;
    let mut client = ServerReflectionClient::new(fixture.channel().await);
    let ask = |message: MessageRequest| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        tonic::codegen::tokio_stream::iter([request])
    };
    let mut answers = client
        .server_reflection_info(ask(MessageRequest::ListServices(String::new())))
        .await
        .unwrap()
        .into_inner();
    let answer = timeout(PATIENCE, answers.message()).await.unwrap().unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else { panic!("a list") };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for expected in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|name| name == expected), "{names:?}");
    }
    let symbol = MessageRequest::FileContainingSymbol(
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor".to_owned(),
    );
    let mut answers = client.server_reflection_info(ask(symbol)).await.unwrap().into_inner();
    let answer = timeout(PATIENCE, answers.message()).await.unwrap().unwrap().unwrap();
    assert!(matches!(answer.message_response, Some(MessageResponse::FileDescriptorResponse(_))));
}
