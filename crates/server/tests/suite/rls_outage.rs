//! The RLS door with a shared store: one limit for several doors, and what an outage of the store means to Envoy.

use crate::rls_fixture::{RlsFixture, descriptor, over, request, statuses};
use tollgate_http::{HeaderOptions, UnavailableStatus};
use tollgate_limiter::{Clock, FailureSettings, Limiter, ManualClock, MemoryStore};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_server::rls_door::DescriptorCharging;
use tollgate_server::rls_door::proto::Code;
use tollgate_testbed::{PATIENCE, RedisServer};

const RULES: &str = "
rules:
  - { id: users, match: { exactly: [user] }, key: user, limit: 6/day }
  - { id: tenants, match: { exactly: [tenant] }, key: tenant, limit: 4/day }
  - { id: logins, match: { exactly: [login] }, key: login, limit: 4/day, on_store_failure: deny }
";

async fn fixture(server: &RedisServer) -> (RlsFixture, RedisStore) {
    let settings = RedisSettings { timeout: PATIENCE, ..RedisSettings::default() };
    let store = RedisStore::open(&server.url().parse().unwrap(), settings, Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(16 << 20), Clock::system())
        .sharing(store.shared_store(), FailureSettings::default());
    (RlsFixture::of(limiter, ManualClock::new(0), RULES).await, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doors_share_their_limits() {
    let server = RedisServer::start(&[]);
    let doors = [fixture(&server).await, fixture(&server).await];
    let mut clients = [doors[0].0.client().await, doors[1].0.client().await];
    let both = request(&[descriptor(&[("user", "ann")]), descriptor(&[("tenant", "t")])]);
    let mut admitted = 0;
    for turn in 0..8 {
        admitted += usize::from(clients[turn % 2].ask(&both).await.overall_code() == Code::Ok);
    }
    assert_eq!(admitted, 4, "one limit for both, exactly");
    // Two tokens of the user are left: those of refused requests were not spent.
    let user = request(&[descriptor(&[("user", "ann")])]);
    let mut admitted = 0;
    for turn in 0..4 {
        admitted += usize::from(clients[turn % 2].ask(&user).await.overall_code() == Code::Ok);
    }
    assert_eq!(admitted, 2);
    for (_, store) in &doors {
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_decided_by_the_policy_of_the_rule() {
    let mut server = RedisServer::start(&[]);
    let (fixture, store) = fixture(&server).await;
    let mut client = fixture.client().await;
    let user = request(&[descriptor(&[("user", "ann")])]);
    let login = request(&[descriptor(&[("login", "ann")])]);
    assert_eq!(statuses(&client.ask(&login).await), [(Code::Ok, 3)]);
    server.kill();
    for _ in 0..20 {
        let answer = client.ask(&user).await;
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(statuses(&answer), [(Code::Ok, u32::MAX)], "what remains is not known");
        assert_eq!(answer.statuses[0].current_limit, None);
        let policy = answer.response_headers_to_add.iter().find(|header| header.key == "x-ratelimit-policy");
        assert_eq!(policy.unwrap().value, "degraded");
    }
    assert!(fixture.counted("users", "degraded") >= 20);
    let other_login = request(&[descriptor(&[("login", "ben")])]);
    let error = client.try_ask(&other_login).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
    let both = request(&[descriptor(&[("user", "ann")]), descriptor(&[("login", "ben")])]);
    assert_eq!(client.try_ask(&both).await.unwrap_err().code(), tonic::Code::Unavailable);
    // An error admits the request at an Envoy that fails open, so there is a setting.
    let headers =
        HeaderOptions { store_unavailable: UnavailableStatus::TooManyRequests, ..HeaderOptions::default() };
    let fixture = fixture.sending(headers).await;
    let mut client = fixture.client().await;
    let answer = client.ask(&other_login).await;
    assert_eq!((answer.overall_code(), answer.statuses[0].code()), (Code::OverLimit, Code::OverLimit));
    assert!(String::from_utf8_lossy(&answer.raw_body).contains("STORE_UNAVAILABLE"), "{answer:?}");
    assert!(answer.response_headers_to_add.iter().any(|header| header.key == "retry-after"));
    // A descriptor that is over its limit in any case is no matter of the store.
    let fixture = fixture.charging(DescriptorCharging::Independent).await;
    let hostile = request(&[descriptor(&[("login", "ben")]), descriptor(&[("path", "/%zz")])]);
    let answer = fixture.client().await.ask(&hostile).await;
    assert_eq!((answer.overall_code(), statuses(&answer)[1]), (Code::OverLimit, over(0)));
    store.close().await;
}
