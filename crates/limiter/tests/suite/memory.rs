//! The memory of the store: every state expires, the cap holds, and a flood does not affect other clients.

use crate::clients;
use crate::setting::{DAY_US, HOUR_US, PLENTY, SECOND_US, Setting, decide, from, key};
use fastrand::Rng;
use std::net::Ipv4Addr;
use tollgate_core::algorithm::Algorithm;
use tollgate_limiter::{MemoryUse, Outcome, Request};

const MEGABYTE: usize = 1 << 20;
/// The most bytes of overflow cells, which are not part of the cap.
const CROWDS: usize = 64 << 10;
/// The smallest array that each of the 1,024 shards may have, even if logs have taken all its room.
const SMALLEST_ARRAYS: usize = 1_024 * 8 * 24;

/// Every algorithm, with keys of different kinds.
fn every_algorithm() -> String {
    let keys = ["api_key", "user", "ip", "tenant", "[user, ip]", "[api_key, route]"];
    let limits = ["100/min", "10/h", "100/12h"];
    let rule = |(index, algorithm): (usize, Algorithm)| {
        let (name, key, limit) = (algorithm.name(), keys[index % keys.len()], limits[index % limits.len()]);
        format!("  - {{ id: {name}, key: {key}, algorithm: {name}, limit: {limit} }}\n")
    };
    format!("rules:\n{}", Algorithm::scripted().enumerate().map(rule).collect::<String>())
}

/// A flood of new keys from one network.
struct Flood {
    sent: u32,
}

impl Flood {
    /// Sends `count` more and returns how many were admitted.
    fn send(&mut self, setting: &Setting, count: u32, endpoint: &str) -> u32 {
        let mut passed = 0;
        for _ in 0..count {
            self.sent += 1;
            let name = format!("flood-{}", self.sent);
            let ip = Ipv4Addr::from_bits(0xc633_0000 | self.sent & 0xffff);
            let request = Request { ip: Some(ip.into()), endpoint, ..key(&name) };
            passed += u32::from(setting.check(&request).allowed());
        }
        passed
    }
}

fn assert_within(usage: MemoryUse, most_bytes: usize) {
    assert!(usage.bytes <= most_bytes + CROWDS, "{usage:?} is more than {most_bytes}");
}

#[test]
fn every_state_expires() {
    let setting = Setting::new(&every_algorithm());
    let mut rng = Rng::with_seed(21);
    for _ in 0..5_000 {
        setting.clock.advance_us(rng.u64(..SECOND_US));
        let request = Request { cost: 1, ..clients::draw(&mut rng) };
        // A request without an identity.
        let _ = decide(&setting.limiter, &request);
    }
    let usage = setting.limiter.store().usage();
    assert!(usage.states > 100 && usage.bytes > 24 * usage.states, "{usage:?}");
    setting.tidy();
    assert!(setting.limiter.store().usage().states > 0, "states that matter are kept");
    setting.clock.advance_us(3 * DAY_US);
    setting.tidy();
    let usage = setting.limiter.store().usage();
    let evicted = usage.evicted;
    assert_eq!(usage, MemoryUse { states: 0, bytes: 0, overflowed: 0, evicted });
    assert!(evicted > 0);
}

#[test]
fn new_keys_alone_keep_the_table_small() {
    let setting = Setting::new("rules:\n  - { id: one, limit: 60/min }");
    let mut most = 0;
    for second in 0..40 {
        for number in 0..1_000 {
            assert!(setting.check(&key(&format!("{second}-{number}"))).allowed());
        }
        setting.clock.advance_us(SECOND_US);
        most = most.max(setting.limiter.store().usage().states);
    }
    assert!(most < 20_000, "each matters for a second, at most half of 40,000 are held: {most}");
}

#[test]
fn a_flood_at_the_cap_does_not_affect_other_clients() {
    const ROUND_US: u64 = 10 * SECOND_US;
    let setting = Setting::with_memory("rules:\n  - { id: one, limit: 60/h }", MEGABYTE);
    let usage = || setting.limiter.store().usage();
    let (abuser, regular) = (
        Request { ip: from("198.51.7.7"), ..key("abuser") },
        Request { ip: from("203.0.113.9"), ..key("regular") },
    );
    assert_eq!(setting.send(61, &abuser), 60);
    assert_eq!(setting.send(2, &regular), 2);

    let mut flood = Flood { sent: 0 };
    let passed = flood.send(&setting, 60_000, "/");
    assert_within(usage(), MEGABYTE);
    assert!(usage().bytes > MEGABYTE / 2, "the memory is used: {:?}", usage());
    let overflowed = setting.limiter.store().overflowed();
    assert!(overflowed > 10_000, "{overflowed}");
    assert_eq!(usage().overflowed, overflowed);
    // Clients with a state of their own are admitted, the others share one limit.
    assert_eq!(u64::from(passed), 60_000 - overflowed + 60);
    assert_eq!(setting.send(3, &abuser), 0, "a client cannot flush its own state");

    let mut abused = 0;
    for round in 1..=24 {
        setting.clock.advance_us(ROUND_US);
        flood.send(&setting, 3_000, "/");
        if round % 3 == 0 {
            setting.tidy();
        }
        assert_within(usage(), MEGABYTE);
        assert!(setting.check(&regular).allowed(), "round {round}: a regular was turned away");
        abused += setting.send(2, &abuser);
        assert_eq!(abused as u64, round * ROUND_US / (60 * SECOND_US), "round {round}: one a minute");
    }
    setting.clock.advance_us(DAY_US);
    setting.tidy();
    assert_eq!((usage().states, usage().bytes), (0, 0), "after the flood all memory is free");
}

/// Overflow cells are chosen by network. One in 256 networks shares a cell with the flood.
#[test]
fn new_keys_from_other_networks_are_admitted() {
    let setting = Setting::with_memory("rules:\n  - { id: one, limit: 60/h }", MEGABYTE);
    Flood { sent: 0 }.send(&setting, 80_000, "/");
    let before = setting.limiter.store().overflowed();
    let passed = (0..64)
        .filter(|network| {
            let ip = Some(Ipv4Addr::new(100, *network, 1, 1).into());
            setting.check(&Request { ip, ..key(&format!("newcomer-{network}")) }).allowed()
        })
        .count();
    assert!(setting.limiter.store().overflowed() > before + 32, "most of them have no state of their own");
    assert!(passed >= 56, "only {passed} of 64 passed");
}

#[test]
fn logs_count_too() {
    let rules = "rules:\n  - { id: one, algorithm: sliding_window_log, limit: 5/h }";
    let setting = Setting::with_memory(rules, MEGABYTE);
    let usage = || setting.limiter.store().usage();
    let abuser = Request { ip: from("203.0.113.9"), ..key("abuser") };
    assert_eq!(setting.send(6, &abuser), 5);
    let mut flood = Flood { sent: 0 };
    for _ in 0..4 {
        flood.send(&setting, 4_000, "/");
        assert_within(usage(), MEGABYTE);
    }
    assert!(usage().bytes > MEGABYTE / 2 && usage().overflowed > 5_000, "{:?}", usage());
    assert_eq!(setting.send(3, &abuser), 0);
    setting.clock.advance_us(2 * HOUR_US);
    setting.tidy();
    assert_eq!((usage().states, usage().bytes), (0, 0));
}

#[test]
fn logs_and_cells_share_the_cap() {
    let rules = "
rules:
  - { id: log, endpoint: /login, algorithm: sliding_window_log, limit: 5/h }
  - { id: cell, endpoint: /cell, limit: 60/h }
";
    for endpoints in [["/login", "/cell"], ["/cell", "/login"]] {
        let setting = Setting::with_memory(rules, MEGABYTE);
        let mut flood = Flood { sent: 0 };
        for endpoint in endpoints {
            flood.send(&setting, 50_000, endpoint);
            assert_within(setting.limiter.store().usage(), MEGABYTE + SMALLEST_ARRAYS);
        }
    }
}

/// Several limits, of which only some have memory for a state, are still charged all or nothing.
#[test]
fn all_or_nothing_holds_at_the_cap() {
    let rules = "
rules:
  - { id: user, key: user, algorithm: fixed_window, limit: 2/h }
  - { id: tenant, key: tenant, algorithm: fixed_window, limit: 100/h }
";
    let setting = Setting::with_memory(rules, MEGABYTE);
    let ask = |user: &str, tenant: &str| {
        setting.check(&Request { user: Some(user), tenant: Some(tenant), ..Request::default() })
    };
    assert!(ask("first", "north").allowed());
    Flood { sent: 0 }.send(&setting, 60_000, "/");
    assert!(setting.limiter.store().overflowed() > 0);
    // The overflow cell admits two an hour; the state of the tenant counts only admitted requests.
    let passed = (0..50).filter(|number| ask(&format!("user-{number}"), "north").allowed()).count();
    match ask("first", "north").outcome {
        Outcome::Admitted(standing) => assert_eq!(standing.remaining, 0, "its second of two"),
        other => panic!("{other:?}"),
    }
    assert!(passed <= 50);
    setting.install("rules:\n  - { id: tenant, key: tenant, algorithm: fixed_window, limit: 100/h }");
    let tenant = Request { tenant: Some("north"), ..Request::default() };
    assert_eq!(setting.remaining(&tenant) as usize, 100 - 2 - passed - 1);
}

#[test]
fn refused_and_unlimited_requests_have_no_state() {
    let setting =
        Setting::with_memory("rules:\n  - { id: one, endpoint: /a, limit: 1/h }\ndeny: ['bad*']", PLENTY);
    for number in 0..1_000 {
        setting.check(&key(&format!("bad-{number}")));
        setting.check(&key(&format!("elsewhere-{number}")));
    }
    assert_eq!(setting.limiter.store().usage().states, 0);
    let request = Request { endpoint: "/a", ..key("a") };
    assert_eq!(setting.send(100, &request), 1);
    assert_eq!(setting.limiter.store().usage().states, 1);
}
