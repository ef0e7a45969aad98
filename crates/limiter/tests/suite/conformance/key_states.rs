//! What operators read is what the next check says, and a client that was reset is as one that was never seen.

use super::clients;
use super::setting::{MINUTE_US, SECOND_US, from, key, rule};
use super::walks::{Engine, MIXED, pause_us};
use fastrand::Rng;
use tollgate_core::algorithm::Algorithm;
use tollgate_limiter::{Decision, EndpointScope, LimitReading, Outcome, Request, RequestStatus, StateSource};

/// The readings and the decision of one request, which spends nothing before it is decided.
struct Read {
    readings: Vec<LimitReading>,
    cost: u32,
}

impl Read {
    fn status(reading: &LimitReading) -> RequestStatus {
        reading.state.expect("the store answers").status
    }

    /// Asserts that `decision` is what was read.
    fn assert_agrees(&self, decision: &Decision, context: &str) {
        let enforced = || self.readings.iter().filter(|reading| reading.enforced);
        match decision.outcome {
            Outcome::Denied => {}
            Outcome::Unlimited => {}
            Outcome::Admitted(standing) => {
                let waits = enforced().find(|reading| Self::status(reading).retry_after_us > 0);
                assert_eq!(waits, None, "{context}");
                let flagged = decision.flagged_by.is_some();
                let spent = |reading: &&LimitReading| {
                    let left = Self::status(reading).remaining;
                    left == standing.remaining + self.cost || flagged && left == standing.remaining
                };
                assert!(
                    self.of(decision).any(|reading| spent(&reading)),
                    "{context}: {standing:?} {:?}",
                    self.readings
                );
            }
            Outcome::Limited(standing) => {
                let longest = enforced().map(|reading| Self::status(reading).retry_after_us).max();
                assert_eq!(standing.wait_us(), longest, "{context}");
                let same = |reading: &LimitReading| {
                    let status = Self::status(reading);
                    (status.remaining, Some(status.retry_after_us), status.reset_after_us)
                        == (standing.remaining, standing.wait_us(), standing.reset_after_us)
                };
                assert!(self.of(decision).any(same), "{context}: {standing:?} {:?}", self.readings);
            }
        }
    }

    /// The readings of the limit that decided.
    fn of(&self, decision: &Decision) -> impl Iterator<Item = &LimitReading> {
        let names = decision.terms.expect("a limit decided").names;
        self.readings.iter().filter(|reading| reading.rule == names.rule && reading.limit == names.policy)
    }
}

/// Random requests against every kind of rule: reading twice says the same, and the check that follows agrees.
pub fn walk_readings(engine: Engine<'_>, steps: usize) {
    let mut rng = Rng::with_seed(17);
    let setting = engine(MIXED);
    let (mut admitted, mut limited) = (0, 0);
    for step in 0..steps {
        setting.clock.advance_us(pause_us(&mut rng));
        let request = clients::draw(&mut rng);
        let context = format!("step {step}: {request:?}");
        let readings = setting.peek(&request, EndpointScope::Request);
        assert_eq!(readings, setting.peek(&request, EndpointScope::Request), "{context}");
        // A limit that the request can never pass is read with the largest cost that can.
        let Ok(decision) = setting.decide(&request) else { continue };
        Read { readings, cost: request.cost as u32 }.assert_agrees(&decision, &context);
        match decision.outcome {
            Outcome::Admitted(_) => admitted += 1,
            Outcome::Limited(_) => limited += 1,
            Outcome::Unlimited | Outcome::Denied => {}
        }
    }
    assert!(admitted > steps / 20 && limited > steps / 20, "{admitted} admitted, {limited} limited");
}

const ALGORITHMS: &str = "
rules:
  - { id: token_bucket, endpoint: /token_bucket, key: api_key, limit: 9/h }
  - { id: leaky_bucket, endpoint: /leaky_bucket, key: api_key, algorithm: leaky_bucket, limit: 9/h }
  - { id: gcra, endpoint: /gcra, key: api_key, algorithm: gcra, limit: 9/h, burst: 8 }
  - { id: fixed_window, endpoint: /fixed_window, key: api_key, algorithm: fixed_window, limit: 9/h }
  - { id: sliding_window_log, endpoint: /sliding_window_log, key: api_key, algorithm: sliding_window_log, limit: 9/h }
  - { id: sliding_window_counter, endpoint: /sliding_window_counter, key: api_key, algorithm: sliding_window_counter, limit: 9/h }
  - { id: routes, endpoint: ['/things/{id}', '/stuff/{id}'], key: [api_key, route], limit: 9/h }
  - { id: everybody, endpoint: /everybody, key: route, limit: 9/h }
";

/// Under every algorithm, a client that was reset has all tokens again, and another client keeps its own.
pub fn walk_resets(engine: Engine<'_>) {
    let setting = engine(ALGORITHMS);
    let scripted: Vec<&str> = Algorithm::scripted().map(Algorithm::name).collect();
    for name in scripted.iter().copied() {
        let endpoint = format!("/{name}");
        let (client, other) =
            (Request { endpoint: &endpoint, ..key("a") }, Request { endpoint: &endpoint, ..key("b") });
        assert_eq!((setting.send(12, &client), setting.send(5, &other)), (9, 5), "{name}");
        let [reading] = &*setting.peek(&client, EndpointScope::Request) else { panic!("{name}: one limit") };
        let status = reading.state.unwrap().status;
        assert_eq!((reading.rule.as_str(), reading.algorithm.name(), status.remaining), (name, name, 0));
        assert!(status.retry_after_us > 0 && reading.source != StateSource::Unknown);
        assert_eq!(setting.reset(&client, EndpointScope::Request), 1, "{name}");
        assert_eq!(setting.reset(&client, EndpointScope::Request), 0, "{name}: there is none left");
        assert_eq!((setting.send(12, &client), setting.send(9, &other)), (9, 4), "{name}");
        setting.clock.advance_us(MINUTE_US / 100);
    }
    let anywhere = setting.peek(&key("a"), EndpointScope::Any);
    let rules: Vec<&str> = anywhere.iter().map(|reading| reading.rule.as_str()).collect();
    let routes = anywhere.iter().filter_map(|reading| reading.route.as_deref());
    assert_eq!(routes.collect::<Vec<_>>(), ["/things/{id}", "/stuff/{id}"]);
    assert!(scripted.iter().all(|name| rules.contains(name)) && !rules.contains(&"everybody"), "{rules:?}");
    for endpoint in ["/things/1", "/stuff/1", "/everybody"] {
        assert_eq!(setting.send(12, &Request { endpoint, ..key("a") }), 9);
    }
    assert_eq!(setting.reset(&key("a"), EndpointScope::Any), scripted.len() + 2);
    for endpoint in ["/things/2", "/stuff/2"] {
        assert_eq!(setting.send(12, &Request { endpoint, ..key("a") }), 9, "{endpoint}");
    }
    let shared = Request { endpoint: "/everybody", ..key("a") };
    assert_eq!(
        (setting.send(1, &shared), setting.reset(&shared, EndpointScope::Request)),
        (0, 0),
        "it is not its own"
    );
}

/// A reset ends a cooldown, and names the identity by which a rule counts.
pub fn resets_end_cooldowns(engine: Engine<'_>) {
    let setting = engine(
        "
rules:
  - { id: login, endpoint: /login, key: ip, limit: 2/min, penalty: { after: 3, first: 10min } }
  - { id: plan, key: api_key, limit: 100/min }
",
    );
    let client = Request { ip: from("192.0.2.1"), endpoint: "/login", ..Request::default() };
    assert_eq!(setting.send(2, &client), 2);
    for _ in 0..20 {
        setting.clock.advance_us(SECOND_US / 2);
        setting.check(&client);
    }
    let held = setting.check(&client);
    let Outcome::Limited(standing) = held.outcome else { panic!("{held:?}") };
    assert!(standing.wait_us() > Some(5 * MINUTE_US), "{standing:?}");
    let address = Request { ip: from("192.0.2.1"), ..Request::default() };
    let readings = setting.peek(&address, EndpointScope::Any);
    let counted: Vec<_> = readings.iter().map(|reading| (&*reading.rule, &*reading.counted_by)).collect();
    let ip = ["ip".to_owned()];
    assert_eq!(
        counted,
        [("login", &ip[..]), ("plan", &ip[..])],
        "without an API key a rule counts by the address"
    );
    assert_eq!(setting.reset(&address, EndpointScope::Any), 2);
    let decision = setting.check(&client);
    assert_eq!((decision.allowed(), rule(&decision)), (true, Some("login")));
}
