//! Cooldowns over a shared store are those over the embedded one.

use crate::conformance::cooldowns::{RULES, cooldowns_grow_hold_and_are_forgotten};
use crate::on_redis::on_redis;
use crate::setting::{HOUR_US, PLENTY, SECOND_US, START_US, from, key, load, told};
use tollgate_limiter::{Clock, FailureSettings, Limiter, ManualClock, MemoryStore, Request};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{PATIENCE, RedisServer};

#[test]
fn cooldowns_are_the_same_over_a_shared_store() {
    let server = RedisServer::start(&[]);
    cooldowns_grow_hold_and_are_forgotten(&on_redis(&server.url(), "penalty:", RULES));
}

/// What the store last said of a limit counts for a client in a cooldown too, and the store is not asked for it.
#[tokio::test]
async fn a_cooldown_is_no_shorter_than_what_is_remembered_of_other_limits() {
    let server = RedisServer::start(&[]);
    let (clock, own) = (ManualClock::new(START_US), ManualClock::new(START_US));
    let settings = RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() };
    let url = server.url().parse().unwrap();
    let store = RedisStore::open_on_clock(&url, settings, own.clone(), clock.clone()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock.clone()))
        .sharing(store.shared_store(), FailureSettings::default());
    let loaded = load(
        "
defaults: { consistency: strict }
rules:
  - { id: api, limit: 5/min, penalty: { after: 3, first: 10s, longest: 1m } }
  - { id: hour, key: ip, algorithm: fixed_window, limit: 7/h }
",
    );
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let check = async |name: &str| {
        let request = Request { ip: from("203.0.113.9"), ..key(name) };
        limiter.check(&request).unwrap().decision().await
    };
    while limiter.abuse_counts().cooldowns == 0 {
        check("a").await;
        for clock in [&clock, &own] {
            clock.advance_us(SECOND_US / 10);
        }
    }
    let (wait_us, by) = told(&check("a").await).unwrap();
    assert!(wait_us <= 10 * SECOND_US && by == "api", "{wait_us} by {by}");
    // Another key behind the same address takes the rest of the hour.
    for allowed in [true, true, false] {
        assert_eq!(check("b").await.allowed(), allowed);
    }
    let request = Request { ip: from("203.0.113.9"), ..key("a") };
    let decided = limiter.check(&request).unwrap().now().expect("the store is not asked");
    let left_us = START_US + HOUR_US - clock.now().as_us();
    assert_eq!(told(&decided), Some((left_us, "hour".to_owned())));
    assert_eq!(told(&limiter.refuse(&request).unwrap()), Some((left_us, "hour".to_owned())));
}
