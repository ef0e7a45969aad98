//! Grants with the embedded store: exactly so many tokens, until a time, for every algorithm.

use crate::admission::limiter;
use crate::setting::{HOUR_US, MINUTE_US, PLENTY, SECOND_US, START_US, Setting, from, key, load, rule};
use fastrand::Rng;
use std::sync::Arc;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::time::UnixTime;
use tollgate_limiter::{
    ActiveGrant, Clock, EndpointScope, Limiter, ManualClock, MemoryStore, Outcome, Request,
};

const ALGORITHMS: &str = "
rules:
  - { id: token_bucket, endpoint: /token_bucket, limit: 3/h }
  - { id: leaky_bucket, endpoint: /leaky_bucket, algorithm: leaky_bucket, limit: 3/h }
  - { id: gcra, endpoint: /gcra, algorithm: gcra, limit: 3/h, burst: 2 }
  - { id: fixed_window, endpoint: /fixed_window, algorithm: fixed_window, limit: 3/h }
  - { id: sliding_window_log, endpoint: /sliding_window_log, algorithm: sliding_window_log, limit: 3/h }
  - { id: sliding_window_counter, endpoint: /sliding_window_counter, algorithm: sliding_window_counter, limit: 3/h }
";

fn grant(id: &str, kind: &str, value: &str, tokens: u64) -> ActiveGrant {
    let expires = UnixTime::from_us(START_US + HOUR_US / 2);
    let (id, kind, value) = (id.to_owned(), kind.to_owned(), value.to_owned());
    ActiveGrant { id, kind, value, rule: None, tokens, expires }
}

fn left(setting: &Setting, request: &Request<'_>) -> Vec<(String, u64)> {
    let balances = setting.wait(setting.limiter.grant_balances(request));
    balances.into_iter().map(|balance| (balance.grant.id, balance.left.unwrap())).collect()
}

#[test]
fn every_algorithm_admits_exactly_so_many_more() {
    for (number, algorithm) in Algorithm::scripted().enumerate() {
        let setting = Setting::new(ALGORITHMS);
        let endpoint = format!("/{}", algorithm.name());
        let client = Request { endpoint: &endpoint, ..key("a") };
        let other = Request { endpoint: &endpoint, ..key("b") };
        setting.limiter.set_grants(vec![grant("g", "api_key", "a", 5)]);
        assert_eq!((setting.send(20, &client), setting.send(20, &other)), (3 + 5, 3), "{algorithm:?}");
        assert_eq!(left(&setting, &client), [("g".to_owned(), 0)]);
        setting.limiter.set_grants(vec![grant("h", "api_key", "a", 5 + number as u64)]);
        let double = Request { cost: 2, ..client };
        assert_eq!(setting.send(20, &double), (5 + number) / 2, "a cost of 2");
        assert_eq!(setting.send(20, &client), number.wrapping_add(1) % 2, "the token that is left");
    }
}

#[test]
fn a_granted_decision_says_so_and_is_not_counted_by_the_limit() {
    let setting = Setting::new(ALGORITHMS);
    let client = Request { endpoint: "/token_bucket", ..key("a") };
    setting.send(3, &client);
    setting.limiter.set_grants(vec![grant("g", "api_key", "a", 2)]);
    let before = setting.peek(&client, EndpointScope::Request);
    let decision = setting.check(&client);
    let Outcome::Admitted(status) = decision.outcome else { panic!("{decision:?}") };
    assert_eq!((decision.granted, rule(&decision)), (true, Some("token_bucket")));
    assert_eq!((status.remaining, status.retry_after_us), (0, None));
    assert_eq!(setting.peek(&client, EndpointScope::Request), before);
    assert!(setting.limiter.refuse(&client).is_none(), "a fast path leaves it to the grant");
    assert!(setting.check(&client).granted && !setting.check(&client).granted);
}

#[test]
fn it_ends_at_its_time() {
    let setting = Setting::new(ALGORITHMS);
    let client = Request { endpoint: "/sliding_window_log", ..key("a") };
    setting.send(3, &client);
    setting.limiter.set_grants(vec![grant("g", "api_key", "a", 100)]);
    setting.clock.advance_us(HOUR_US / 2 - 1);
    assert_eq!(setting.send(1, &client), 1);
    setting.clock.advance_us(1);
    assert_eq!(setting.send(1, &client), 0);
}

#[test]
fn what_was_drawn_stays_drawn_and_a_removed_grant_is_gone() {
    let setting = Setting::new(ALGORITHMS);
    let client = Request { endpoint: "/token_bucket", ..key("a") };
    setting.limiter.set_grants(vec![grant("g", "api_key", "a", 4)]);
    assert_eq!(setting.send(5, &client), 5);
    setting.limiter.set_grants(vec![grant("g", "api_key", "a", 4), grant("h", "user", "x", 9)]);
    assert_eq!(left(&setting, &client), [("g".to_owned(), 2)]);
    assert_eq!(setting.send(1, &client), 1);
    setting.limiter.set_grants(Vec::new());
    assert_eq!(setting.send(1, &client), 0);
}

const SEVERAL: &str = "
rules:
  - { id: plan, key: api_key, limit: 3/h }
  - { id: edge, key: ip, limit: 6/h }
  - { id: told, key: ip, limit: 1/h, on_exceed: shadow }
";

#[test]
fn a_limit_without_a_grant_still_refuses_and_nothing_is_drawn() {
    let setting = Setting::new(SEVERAL);
    let client = Request { ip: from("192.0.2.1"), ..key("a") };
    let of_rule = |rule: &str, tokens| ActiveGrant {
        rule: Some(rule.to_owned()),
        ..grant(rule, "api_key", "a", tokens)
    };
    setting.limiter.set_grants(vec![of_rule("plan", 10)]);
    // Three within both limits, three more by the grant, which `edge` counts as well.
    assert_eq!(setting.send(20, &client), 6);
    assert_eq!(
        left(&setting, &client),
        [("plan".to_owned(), 7)],
        "nothing is drawn for those that stay refused"
    );
    let refused = setting.check(&client);
    assert!(!refused.allowed() && !refused.granted);
    // Each limit has a grant of its own: both are drawn from.
    setting.limiter.set_grants(vec![of_rule("plan", 10), of_rule("edge", 2)]);
    assert_eq!(setting.send(20, &client), 2);
    assert_eq!(left(&setting, &client), [("edge".to_owned(), 0), ("plan".to_owned(), 5)]);
    // One that is for all rules is drawn from once.
    setting.limiter.set_grants(vec![of_rule("plan", 10), grant("all", "ip", "192.0.2.1", 3)]);
    assert_eq!(setting.send(20, &client), 3);
    assert_eq!(left(&setting, &client), [("plan".to_owned(), 5), ("all".to_owned(), 0)]);
}

#[test]
fn a_tenant_has_a_pool_for_all_of_its_users() {
    let setting = Setting::new("rules: [{ id: plan, key: user, limit: 2/h }]");
    setting.limiter.set_grants(vec![grant("g", "tenant", "acme", 5)]);
    let of_user =
        |user| Request { user: Some(user), tenant: Some("acme"), endpoint: "/", ..Request::default() };
    let passed: usize = ["ann", "ben", "cleo"].map(|user| setting.send(4, &of_user(user))).into_iter().sum();
    assert_eq!(passed, 3 * 2 + 5);
    assert_eq!(setting.send(3, &Request { tenant: None, ..of_user("dan") }), 2, "another tenant");
}

#[test]
fn holds_are_not_lifted_by_a_grant() {
    let setting =
        Setting::new("rules: [{ id: login, key: ip, limit: 2/min, penalty: { after: 3, first: 10min } }]");
    let client = Request { ip: from("2001:db8::7"), endpoint: "/", ..Request::default() };
    setting.send(2, &client);
    for _ in 0..20 {
        setting.clock.advance_us(SECOND_US / 2);
        setting.check(&client);
    }
    setting.limiter.set_grants(vec![grant("g", "ip", "2001:db8::1", 5)]);
    assert_eq!(setting.send(3, &client), 0, "in a cooldown");
    setting.reset(&client, EndpointScope::Any);
    assert_eq!(setting.send(20, &client), 2 + 5, "an address of the same network");
}

/// With a single limit, a decision differs from the one without grants only if that refuses.
#[test]
fn random_requests_differ_only_where_they_would_be_refused() {
    let mut rng = Rng::with_seed(5);
    for _ in 0..40 {
        let (plain, granting) = (Setting::new(ALGORITHMS), Setting::new(ALGORITHMS));
        let pools: Vec<ActiveGrant> = (0..4)
            .map(|number| {
                let value = ["a", "b"][rng.usize(..2)];
                let expires = UnixTime::from_us(START_US + rng.u64(1..20) * MINUTE_US);
                let rule = rng.bool().then(|| Algorithm::ALL[rng.usize(..3)].name().to_owned());
                ActiveGrant { expires, rule, ..grant(&number.to_string(), "api_key", value, rng.u64(1..30)) }
            })
            .collect();
        granting.limiter.set_grants(pools.clone());
        let mut drawn = 0;
        for _ in 0..300 {
            let pause_us = rng.u64(..MINUTE_US / 10);
            plain.clock.advance_us(pause_us);
            granting.clock.advance_us(pause_us);
            let algorithm = Algorithm::ALL[rng.usize(..6)];
            let endpoint = format!("/{}", algorithm.name());
            let request =
                Request { endpoint: &endpoint, cost: rng.u64(1..4), ..key(["a", "b", "c"][rng.usize(..3)]) };
            let (expected, found) = (plain.check(&request), granting.check(&request));
            if found.granted {
                assert!(!expected.allowed());
                drawn += request.cost;
            } else {
                assert_eq!(found.outcome, expected.outcome);
            }
        }
        let tokens: u64 = pools.iter().map(|pool| pool.tokens).sum();
        let left: u64 =
            ["a", "b"].iter().flat_map(|value| left(&granting, &key(value))).map(|(_, left)| left).sum();
        assert_eq!(drawn + left, tokens);
    }
}

#[test]
fn threads_draw_exactly_so_many() {
    let clock = ManualClock::new(START_US);
    let limiter = Arc::new(Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock)));
    let loaded = load(SEVERAL);
    limiter.install(loaded.rules, loaded.lists).unwrap();
    limiter.set_grants(vec![grant("g", "tenant", "acme", 5_000), grant("h", "tenant", "acme", 77)]);
    let drawn: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let limiter = &limiter;
                scope.spawn(move || {
                    let client = format!("client-{thread}");
                    let request = Request { tenant: Some("acme"), ip: from("192.0.2.1"), ..key(&client) };
                    let decide = || limiter.check(&request).unwrap().now().unwrap();
                    (0..4_000).filter(|_| decide().granted).count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(drawn, 5_077);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_in_a_queue_is_admitted_at_once() {
    let limiter =
        limiter("rules: [{ id: line, limit: 1/h, on_exceed: { queue: { max_wait: 1s, length: 5 } } }]");
    let expires = limiter.clock().now() + HOUR_US;
    limiter.set_grants(vec![ActiveGrant { expires, ..grant("g", "api_key", "a", 2) }]);
    let mut admitted = Vec::new();
    for _ in 0..4 {
        let admission = limiter.admit(&key("a")).unwrap().admission().await;
        admitted.push((admission.decision.allowed(), admission.decision.granted));
    }
    assert_eq!(admitted, [(true, false), (true, true), (true, true), (false, false)]);
}
