//! The emergency limit with the embedded store.

use crate::admission::limiter;
use crate::setting::{PLENTY, SECOND_US, START_US, Setting, from, key, load, rule, told};
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};
use tollgate_limiter::{Clock, Emergency, Limiter, ManualClock, MemoryStore, Request};

const RULES: &str = "
rules: [{ id: plan, key: api_key, limit: 1000/h }]
allow: [192.0.2.99]
";

fn client<'a>(api_key: &'a str, address: &str) -> Request<'a> {
    Request { ip: from(address), ..key(api_key) }
}

#[test]
fn an_operator_switches_it_on_and_off() {
    let setting = Setting::new(RULES);
    let (one, two) = (client("a", "203.0.113.1"), client("b", "203.0.113.1"));
    assert_eq!(setting.send(100, &one), 100);
    setting.limiter.set_emergency(Emergency::On);
    assert_eq!(setting.limiter.emergency(), Emergency::On);
    assert_eq!((setting.send(7, &one), setting.send(100, &two)), (7, 3), "ten of one address");
    let refused = setting.check(&one);
    assert_eq!((rule(&refused), refused.degraded), (Some("emergency"), false));
    assert_eq!(told(&refused), Some((SECOND_US / 10, "emergency".to_owned())));
    setting.clock.advance_us(SECOND_US / 10 - 1);
    assert_eq!(setting.send(1, &one), 0, "the wait is true");
    setting.clock.advance_us(1);
    assert_eq!(setting.send(2, &one), 1);
    assert_eq!(setting.send(100, &client("a", "203.0.113.2")), 10, "another address");
    assert_eq!(setting.send(100, &client("a", "192.0.2.99")), 100, "on the allow list");
    assert_eq!(setting.send(100, &key("a")), 100, "without an address");
    setting.limiter.switch_emergency(Some(Emergency::OnOutage));
    assert_eq!(setting.send(100, &one), 100, "the embedded store has no outage");
    setting.limiter.set_emergency(Emergency::On);
    setting.limiter.switch_emergency(None);
    assert_eq!((setting.limiter.emergency(), setting.send(100, &one)), (Emergency::Off, 100));
}

#[test]
fn a_request_that_is_refused_otherwise_takes_nothing() {
    let setting = Setting::new("rules: [{ id: plan, key: api_key, limit: 4/h }]");
    setting.limiter.set_emergency(Emergency::On);
    assert_eq!(setting.send(100, &client("a", "203.0.113.1")), 4);
    assert_eq!(rule(&setting.check(&client("a", "203.0.113.1"))), Some("plan"));
    assert_eq!(setting.send(100, &client("b", "203.0.113.1")), 4);
    assert_eq!(setting.send(100, &client("c", "203.0.113.1")), 2, "ten in all");
    let invalid = Request { cost: 5, ..client("d", "203.0.113.2") };
    assert!((0..20).all(|_| setting.decide(&invalid).is_err()));
    assert_eq!(setting.send(4, &client("d", "203.0.113.2")), 4);
}

#[test]
fn it_can_be_on_from_the_start_and_is_counted() {
    let clock = ManualClock::new(START_US);
    let limiter =
        Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(clock)).with_emergency(Emergency::On, 3);
    let loaded = load(RULES);
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let request = client("a", "2001:db8::1");
    let decide = || limiter.check(&request).unwrap().now().unwrap();
    assert_eq!((0..10).filter(|_| decide().allowed()).count(), 3);
    limiter.set_emergency(Emergency::Off);
    assert!(decide().allowed());
    limiter.switch_emergency(None);
    assert!(!decide().allowed(), "as it was made");
    let samples = MetricSamples::of([&limiter as &dyn MetricSource]);
    let of_emergency =
        samples.of_metric(&catalog::DECISIONS).iter().filter(|sample| &*sample.labels[0] == "emergency");
    let refused: u64 = of_emergency.map(|sample| sample.as_count().unwrap()).sum();
    assert_eq!(refused, 8);
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_take_a_token_too() {
    let limiter = limiter(
        "rules: [{ id: line, key: api_key, limit: 100/h, on_exceed: { queue: { max_wait: 1s, length: 5 } } }]",
    );
    limiter.set_emergency(Emergency::On);
    let mut admitted = 0;
    for _ in 0..20 {
        let request = client("a", "203.0.113.1");
        admitted += usize::from(limiter.admit(&request).unwrap().admission().await.decision.allowed());
    }
    assert_eq!(admitted, 10);
}
