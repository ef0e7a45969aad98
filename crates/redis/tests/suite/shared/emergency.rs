//! The limit per address while the store is away.

use super::fleet::alone;
use crate::setting::{PLENTY, SECOND_US, START_US, from, load, rule};
use tollgate_limiter::{
    Clock, Decision, Emergency, FailureSettings, Limiter, ManualClock, MemoryStore, Outcome, Request,
};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::RedisServer;

const RULES: &str = "rules: [{ id: one, key: api_key, limit: 1000/h }]";

/// Asks so often from `address`, and returns how many passed, and the last decision.
async fn ask(limiter: &Limiter, address: &str, count: usize) -> (usize, Decision) {
    let request = Request { api_key: Some("one"), ip: from(address), endpoint: "/", ..Request::default() };
    let (mut passed, mut last) = (0, None);
    for _ in 0..count {
        let decision = limiter.check(&request).unwrap().decision().await;
        passed += usize::from(decision.allowed());
        last = Some(decision);
    }
    (passed, last.unwrap())
}

async fn open(server: &RedisServer) -> RedisStore {
    let url = server.url().parse().unwrap();
    RedisStore::open(&url, RedisSettings::default(), Clock::system()).await.unwrap()
}

fn limiter(store: &RedisStore, clock: &ManualClock, emergency: Emergency) -> Limiter {
    let settings = FailureSettings { emergency, ..FailureSettings::default() };
    let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock.clone()))
        .sharing(store.shared_store(), settings);
    let loaded = load(RULES);
    limiter.install(loaded.rules, loaded.lists).unwrap();
    limiter
}

#[test]
fn each_address_is_limited_by_itself_while_the_store_is_away() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        server.kill();
        let clock = ManualClock::new(START_US);
        let store = open(&server).await;
        let calm = limiter(&store, &clock, Emergency::Off);
        assert_eq!(ask(&calm, "203.0.113.1", 100).await.0, 100, "as `allow` says");
        for emergency in [Emergency::OnOutage, Emergency::On] {
            let limiter = limiter(&store, &clock, emergency);
            let (passed, last) = ask(&limiter, "203.0.113.1", 100).await;
            let is_outage = emergency == Emergency::OnOutage;
            assert_eq!((passed, rule(&last), last.degraded), (10, Some("emergency"), is_outage));
            let Outcome::Limited(standing) = last.outcome else { panic!("{last:?}") };
            assert_eq!(standing.wait_us(), Some(SECOND_US / 10));
            assert_eq!(ask(&limiter, "203.0.113.2", 5).await.0, 5, "another address");
            clock.advance_us(SECOND_US / 10);
            assert_eq!(ask(&limiter, "203.0.113.1", 3).await.0, 1);
            limiter.set_emergency(Emergency::Off);
            assert_eq!(ask(&limiter, "203.0.113.1", 100).await.0, 100, "it is over");
        }
    });
}

#[test]
fn with_the_store_it_applies_if_an_operator_says_so() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let clock = ManualClock::new(START_US);
        let store = open(&server).await;
        let limiter = limiter(&store, &clock, Emergency::OnOutage);
        let (passed, last) = ask(&limiter, "203.0.113.1", 100).await;
        assert_eq!((passed, last.degraded), (100, false), "there is no outage");
        limiter.set_emergency(Emergency::On);
        let (passed, last) = ask(&limiter, "203.0.113.1", 100).await;
        assert_eq!((passed, rule(&last), last.degraded), (10, Some("emergency"), false));
        limiter.switch_emergency(None);
        assert_eq!(ask(&limiter, "203.0.113.1", 100).await.0, 100);
    });
}
