//! Changes of rules and lists.

use crate::setting::{MINUTE_US, SECOND_US, START_US, Setting, from, key, load};
use std::sync::mpsc;
use std::thread;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::rules::lists::AccessLists;
use tollgate_limiter::{Outcome, Request};

fn bucket(capacity: u32) -> String {
    format!("rules:\n  - {{ id: one, params: {{ capacity: {capacity}, refill_rate: 1 }} }}")
}

fn lists(text: &str) -> AccessLists {
    load(&format!("allow_empty: true\n{text}")).lists
}

#[test]
fn tokens_are_kept_when_the_capacity_changes() {
    let setting = Setting::new(&bucket(100));
    assert_eq!(setting.send(60, &key("a")), 60);
    setting.install(&bucket(1_000));
    assert_eq!(setting.remaining(&key("a")), 39, "40 were left; a larger bucket is no gift");
    setting.install(&bucket(10));
    assert_eq!(setting.remaining(&key("a")), 9, "tokens above the capacity are dropped");
    setting.install(&bucket(1_000));
    assert_eq!(setting.remaining(&key("a")), 8);
    setting.clock.advance_us(100 * SECOND_US);
    assert_eq!(setting.remaining(&key("a")), 107, "it refills at the new rate");
    assert_eq!(setting.remaining(&key("b")), 999, "a new key has a full bucket");
}

#[test]
fn the_count_of_a_window_is_kept() {
    let windows = Algorithm::scripted().filter(|algorithm| algorithm.counts_windows());
    for algorithm in windows.map(Algorithm::name) {
        let rules = |limit: u32| {
            format!(
                "rules:\n  - {{ id: one, algorithm: {algorithm}, params: {{ limit: {limit}, window: 60 }} }}"
            )
        };
        let setting = Setting::new(&rules(10));
        assert_eq!(setting.send(6, &key("a")), 6);
        setting.install(&rules(100));
        assert_eq!(setting.remaining(&key("a")), 93, "{algorithm}");
        setting.install(&rules(5));
        assert_eq!(setting.send(1, &key("a")), 0, "{algorithm}: seven are more than five");
    }
}

#[test]
fn another_algorithm_or_id_starts_fresh() {
    let setting = Setting::new(&bucket(100));
    assert_eq!(setting.send(60, &key("a")), 60);
    setting.install("rules:\n  - { id: one, algorithm: fixed_window, params: { limit: 100, window: 60 } }");
    assert_eq!(setting.remaining(&key("a")), 99);
    setting.install(&bucket(100).replace("id: one", "id: two"));
    assert_eq!(setting.remaining(&key("a")), 99);
    setting.install(&bucket(100));
    assert_eq!(setting.remaining(&key("a")), 39, "the old state is kept");
}

#[test]
fn a_removed_rule_has_no_effect() {
    let setting = Setting::new(&bucket(1));
    assert_eq!(setting.send(2, &key("a")), 1);
    setting.install("allow_empty: true");
    assert_eq!(setting.check(&key("a")).outcome, Outcome::Unlimited);
    setting.install(&bucket(1));
    assert_eq!(setting.send(1, &key("a")), 0);
}

/// The cached selection of a client changes with the rules: its tier, its rules, its override.
#[test]
fn cached_selections_change_with_the_rules() {
    let rules = |pattern: &str, own: &str, path: &str| {
        format!(
            "
rules:
  - id: one
    match: {{ api_key_pattern: '{pattern}', endpoint: '{path}' }}
    params: {{ capacity: 100, refill_rate: 1 }}
    override: {{ {own}: {{ capacity: 500 }} }}
"
        )
    };
    let request = Request { endpoint: "/v1/a", ..key("sk_1") };
    let setting = Setting::new(&rules("sk_*", "nobody", "/v1/{x}"));
    assert_eq!(setting.send(10, &request), 10);
    for (pattern, own, path, expected) in [
        ("pk_*", "nobody", "/v1/{x}", None),
        ("sk_*", "sk_1", "/v1/{x}", Some(500)),
        ("sk_*", "nobody", "/v2/{x}", None),
        ("sk_?", "nobody", "/v1/a", Some(100)),
    ] {
        setting.install(&rules(pattern, own, path));
        for _ in 0..4 {
            let decision = setting.check(&request);
            assert_eq!(decision.terms.map(|terms| terms.quota), expected, "{pattern} {own} {path}");
        }
    }
}

#[test]
fn lists_take_effect_at_once_and_spend_no_tokens() {
    let setting = Setting::new(&bucket(100));
    let addressed = Request { ip: from("203.0.113.9"), ..key("a") };
    assert_eq!(setting.send(10, &addressed), 10, "so that the client is cached");
    for (text, expected) in [
        ("deny: [a]", Outcome::Denied),
        ("allow: [a]", Outcome::Unlimited),
        ("allow: [a]\ndeny: ['?']", Outcome::Denied),
        ("deny: [203.0.113.0/24]", Outcome::Denied),
        ("allow: [203.0.113.9]", Outcome::Unlimited),
        ("allow: [203.0.113.9, b]\ndeny: [a]", Outcome::Denied),
    ] {
        setting.limiter.set_lists(lists(text));
        for _ in 0..4 {
            assert_eq!(setting.check(&addressed).outcome, expected, "{text}");
        }
    }
    setting.limiter.set_lists(AccessLists::default());
    assert_eq!(setting.remaining(&addressed), 89, "a client on a list spends nothing");
}

/// Each thread has its own caches and its own snapshot.
#[test]
fn lists_take_effect_on_threads_with_caches() {
    let setting = Setting::new(&bucket(1_000));
    let (ask, asked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let setting = &setting;
        scope.spawn(move || {
            for () in asked {
                let outcomes: Vec<Outcome> = (0..4).map(|_| setting.check(&key("a")).outcome).collect();
                tell.send(outcomes).unwrap();
            }
        });
        let outcomes = || {
            ask.send(()).unwrap();
            told.recv().unwrap()
        };
        for _ in 0..3 {
            assert!(outcomes().iter().all(|outcome| matches!(outcome, Outcome::Admitted(_))));
            setting.limiter.set_lists(lists("deny: [a]"));
            assert_eq!(outcomes(), [Outcome::Denied; 4]);
            setting.limiter.set_lists(lists("allow: [a]"));
            assert_eq!(outcomes(), [Outcome::Unlimited; 4]);
            setting.limiter.set_lists(AccessLists::default());
        }
        drop(ask);
    });
}

#[test]
fn a_list_entry_expires_at_its_time() {
    let text = format!(
        "{}
deny:
  - {{ key: a, expires: 2026-01-05T00:01:00Z }}
  - {{ key: 203.0.113.0/24, expires: 2026-01-05T00:02:00Z }}
allow:
  - {{ key: 'a*', expires: 2026-01-05T00:03:00Z }}
",
        bucket(100)
    );
    let setting = Setting::new(&text);
    let addressed = Request { ip: from("203.0.113.9"), ..key("a") };
    let passes = |outcome| matches!(outcome, Outcome::Admitted(_));
    for (minute, by_name, by_address) in [
        (1, Outcome::Denied, Outcome::Denied),
        (2, Outcome::Unlimited, Outcome::Denied),
        (3, Outcome::Unlimited, Outcome::Unlimited),
    ] {
        for _ in 0..4 {
            setting.clock.set_us(START_US + minute * MINUTE_US - 1);
            assert_eq!(setting.check(&key("a")).outcome, by_name, "just before minute {minute}");
            assert_eq!(setting.check(&addressed).outcome, by_address, "just before minute {minute}");
        }
    }
    setting.clock.set_us(START_US + 3 * MINUTE_US);
    assert!(passes(setting.check(&key("a")).outcome));
    assert!(passes(setting.check(&addressed).outcome));
}
