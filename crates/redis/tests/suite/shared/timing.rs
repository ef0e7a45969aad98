//! Rules that say for themselves how their tokens are leased.

use super::fleet::{Node, alone};
use crate::setting::load;
use std::time::Duration;
use tollgate_core::rules::LoadedRules;
use tollgate_limiter::Request;
use tollgate_redis::RedisSettings;
use tollgate_testbed::{PATIENCE, RedisServer, eventually};

const CAPACITY: u64 = 1_000;

fn rule(lease: &str) -> String {
    format!("rules: [{{ id: one, params: {{ capacity: 1000, refill_rate: 5/day }}, lease: {{ {lease} }} }}]")
}

fn costing(cost: u64) -> Request<'static> {
    Request { api_key: Some("a"), endpoint: "/", cost, ..Request::default() }
}

/// The nodes by themselves would bring nothing back today, and nothing refills: what is there again is there
/// because the new rule says so.
#[test]
fn a_new_interval_is_kept_as_soon_as_the_rule_is_installed() {
    alone(async || {
        let redis = RedisServer::start(&[]);
        let settings = RedisSettings {
            secret: Some([7; 16]),
            timeout: PATIENCE / 10,
            lease_interval: Duration::from_secs(86_400),
            ..RedisSettings::default()
        };
        let holds = Node::start_with(&redis.url(), &rule(""), settings.clone()).await;
        let other = Node::start_with(&redis.url(), &rule(""), settings).await;
        let (mut spent, mut calls) = (0, 0);
        // Right after a call, what a busy key takes ahead is in hand.
        while spent < 200 || holds.store.calls() == calls {
            calls = holds.store.calls();
            assert_eq!(holds.check(&costing(1)).await, (true, false));
            spent += 1;
        }
        let all = CAPACITY - spent;
        assert_eq!(other.check(&costing(all - 1)).await, (false, false), "several are held");
        let LoadedRules { rules, lists, .. } = load(&rule("interval: 5ms, horizon: 50ms"));
        holds.limiter.install(rules, lists).unwrap();
        assert_eq!(holds.check(&costing(1)).await, (true, false));
        eventually("all that was held is there for the other", async || {
            other.check(&costing(all - 1)).await == (true, false)
        })
        .await;
        assert_eq!(other.check(&costing(1)).await, (false, false), "and no more than that");
    });
}
