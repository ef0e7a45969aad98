//! Requests in flight and lines, of several nodes on one store.

use super::fleet::{Node, alone, nodes, patient_nodes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tollgate_limiter::{Admission, Outcome, Request};
use tollgate_testbed::{RedisServer, eventually};

const TEN: &str = "rules: [{ id: ten, algorithm: concurrency, limit: 10, on_store_failure: deny }]";

fn of(key: &str) -> Request<'_> {
    Request { api_key: Some(key), endpoint: "/", ..Request::default() }
}

async fn admit(node: &Node, key: &str) -> Admission {
    node.limiter.admit(&of(key)).unwrap().admission().await
}

/// What stands in the store for requests in flight.
fn taken(server: &RedisServer) -> usize {
    let count = "local n = 0 for _, k in ipairs(redis.call('KEYS', '*:f:*')) do n = n + redis.call('ZCARD', k) end return n";
    server.cli(&["EVAL", count, "0"]).trim().parse().unwrap()
}

#[test]
fn never_an_eleventh_over_three_nodes() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let three = patient_nodes(&server.url(), TEN, 3).await;
        let (in_flight, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let end = Instant::now() + Duration::from_secs(3);
        let all: Vec<_> = (0..60)
            .map(|number: usize| {
                let node = Arc::clone(&three[number % 3]);
                let (in_flight, most) = (Arc::clone(&in_flight), Arc::clone(&most));
                tokio::spawn(async move {
                    let mut passed = 0;
                    while Instant::now() < end {
                        let admission = admit(&node, "one").await;
                        if !admission.decision.allowed() {
                            sleep(Duration::from_millis(2)).await;
                            continue;
                        }
                        passed += 1;
                        most.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        sleep(Duration::from_millis(3)).await;
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                        drop(admission);
                    }
                    passed
                })
            })
            .collect();
        let mut passed = 0;
        for one in all {
            passed += one.await.unwrap();
        }
        let most = most.load(Ordering::SeqCst);
        println!("{passed} passed, at most {most} at once");
        assert!(passed > 100, "{passed}");
        assert_eq!(most, 10);
        let freed = eventually("all are given back", async || taken(&server) == 0).await;
        assert!(freed < Duration::from_secs(2), "{freed:?}");
    });
}

#[test]
fn places_are_held_on_to_and_those_of_a_dead_node_run_out() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let mut two = nodes(&server.url(), TEN, 2).await;
        let (lives, dies) = (two.remove(0), two.remove(0));
        let mut held = Vec::new();
        for _ in 0..4 {
            held.extend(admit(&lives, "one").await.permit);
        }
        for _ in 0..6 {
            // As in a process that is killed: nothing is given back.
            std::mem::forget(admit(&dies, "one").await.permit.expect("there is room"));
        }
        assert!(!admit(&lives, "one").await.decision.allowed());
        // Longer than a slot lives without renewal.
        sleep(Duration::from_secs(6)).await;
        assert_eq!(taken(&server), 10, "both say that they still hold theirs");
        assert!(!admit(&lives, "one").await.decision.allowed());
        drop(dies);
        let start = Instant::now();
        eventually("the dead node's are free", async || {
            taken(&server) == 4 || {
                // Expired ones are removed by whoever asks.
                drop(admit(&lives, "one").await);
                taken(&server) <= 5
            }
        })
        .await;
        println!("free {:?} after the node died", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
        for _ in 0..6 {
            held.extend(admit(&lives, "one").await.permit);
        }
        assert_eq!(held.len(), 10, "six are free, and no more");
        assert!(!admit(&lives, "one").await.decision.allowed());
    });
}

#[test]
fn all_or_nothing_with_other_limits_of_the_store() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let rules = "
rules:
  - { id: two, algorithm: concurrency, limit: 2, on_store_failure: deny }
  - { id: rate, limit: 3/day, consistency: strict, on_store_failure: deny }
";
        let node = patient_nodes(&server.url(), rules, 1).await.remove(0);
        let (one, two) = (admit(&node, "one").await, admit(&node, "one").await);
        assert!(one.decision.allowed() && two.decision.allowed());
        for _ in 0..5 {
            assert_eq!(admit(&node, "one").await.decision.terms.unwrap().names.rule, "two");
        }
        drop((one, two));
        eventually("both are given back", async || taken(&server) == 0).await;
        let third = admit(&node, "one").await;
        assert!(third.decision.allowed(), "the rate was not spent by those refused: {third:?}");
        drop(third);
        for _ in 0..5 {
            assert_eq!(admit(&node, "one").await.decision.terms.unwrap().names.rule, "rate");
        }
        eventually("no slot is held", async || taken(&server) == 0).await;
    });
}

#[test]
fn a_refusal_promises_no_time_unless_another_limit_does() {
    alone(async || {
        let server = RedisServer::start(&[]);
        for (other, expected) in [
            ("", None),
            ("  - { id: rate, limit: 3/day, consistency: strict, on_store_failure: deny }", None),
            ("  - { id: rate, limit: 2/day, consistency: strict, on_store_failure: deny }", Some("rate")),
        ] {
            let rules = format!(
                "rules:\n  - {{ id: two, algorithm: concurrency, limit: 2, on_store_failure: deny }}\n{other}"
            );
            let node = patient_nodes(&server.url(), &rules, 1).await.remove(0);
            let key = format!("{expected:?} {}", other.len());
            let held = [admit(&node, &key).await, admit(&node, &key).await];
            assert!(held.iter().all(|one| one.decision.allowed()), "{other}");
            let refused = admit(&node, &key).await.decision;
            let Outcome::Limited(standing) = refused.outcome else { panic!("{refused:?}") };
            let by = refused.terms.unwrap().names.rule.as_str();
            match expected {
                None => assert_eq!((by, standing.wait_us()), ("two", None), "{other}"),
                Some(rule) => {
                    let wait_s = standing.wait_us().unwrap_or(0) / 1_000_000;
                    assert!(by == rule && (43_000..=43_200).contains(&wait_s), "{by} {wait_s}");
                }
            }
        }
    });
}

#[test]
fn without_the_store_the_rule_decides() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        let rules = "
rules:
  - { id: local, endpoint: /local, algorithm: concurrency, limit: 10, on_store_failure: local }
  - { id: deny, endpoint: /deny, algorithm: concurrency, limit: 10, on_store_failure: deny }
  - { id: allow, endpoint: /allow, algorithm: concurrency, limit: 10, on_store_failure: allow }
";
        let node = nodes(&server.url(), rules, 2).await.remove(0);
        let admit = async |endpoint: &str| {
            let request = Request { endpoint, ..of("one") };
            node.limiter.admit(&request).unwrap().admission().await
        };
        server.kill();
        let away = async || admit("/allow").await.decision.degraded;
        eventually("the store is away", away).await;
        let mut held: BTreeMap<&str, Vec<Admission>> = BTreeMap::new();
        for endpoint in ["/local", "/deny", "/allow"] {
            for _ in 0..20 {
                let admission = admit(endpoint).await;
                assert!(admission.decision.degraded, "{endpoint}");
                if admission.decision.allowed() {
                    held.entry(endpoint).or_default().push(admission);
                }
            }
        }
        let count = |endpoint| held.get(endpoint).map_or(0, Vec::len);
        // Half of ten: there are two nodes.
        assert_eq!((count("/local"), count("/deny"), count("/allow")), (5, 0, 20));
        // A store that comes back learns what is in flight.
        server.restart_empty();
        eventually("it knows of all", async || taken(&server) == 25).await;
        let full = async || {
            let decision = admit("/allow").await.decision;
            !decision.degraded && !decision.allowed()
        };
        eventually("and counts them", full).await;
        drop(held);
        eventually("all are given back", async || taken(&server) == 0).await;
    });
}

#[test]
fn lines_of_two_nodes_go_at_one_pace() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let rules = "
rules:
  - id: even
    algorithm: leaky_bucket
    limit: 20/s
    on_exceed: { queue: { max_wait: 30s, length: 100 } }
    on_store_failure: deny
";
        let two = patient_nodes(&server.url(), rules, 2).await;
        let start = Instant::now();
        let mut all = Vec::new();
        for number in 0..40_usize {
            let node = Arc::clone(&two[number % 2]);
            let mut one = Box::pin(async move {
                let admission = admit(&node, "one").await;
                assert!(admission.decision.allowed(), "{admission:?}");
                (start.elapsed(), number)
            });
            // It arrives when it is first polled: here, so that they arrive in this order on any number of threads.
            let passed = std::future::poll_fn(|cx| Poll::Ready(one.as_mut().poll(cx))).await;
            assert!(passed.is_pending(), "the store has to be heard");
            all.push(tokio::spawn(one));
        }
        let mut passed = Vec::new();
        for one in all {
            passed.push(one.await.unwrap());
        }
        passed.sort();
        let took = passed.last().unwrap().0;
        println!("40 at 20/s took {took:?}");
        // Thirty-nine intervals of 50 ms: never faster. How much slower is a matter of timers and round trips.
        assert!(took >= Duration::from_millis(1_940), "{took:?}");
        assert!(took < Duration::from_millis(6_000), "{took:?}");
        for pair in passed.windows(3) {
            // Two may be seen close together, three may not.
            assert!(pair[2].0 - pair[0].0 >= Duration::from_millis(50), "{pair:?}");
        }
        for node in 0..2 {
            let order: Vec<usize> =
                passed.iter().map(|(_, number)| *number).filter(|number| number % 2 == node).collect();
            assert!(order.is_sorted(), "in order on each node: {order:?}");
        }
    });
}
