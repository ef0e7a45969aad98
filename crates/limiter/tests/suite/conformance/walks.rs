//! Random walks that compare the engine, with its caches and fast paths, with the virtual node, which has none. The same
//! walks run on the embedded store here and on Redis in `shared/conformance.rs`.

use super::clients;
use super::setting::{DAY_US, HOUR_US, MINUTE_US, SECOND_US, START_US, Setting, load, rule};
use fastrand::Rng;
use tollgate_core::rules::{LoadedRules, VirtualNode};
use tollgate_limiter::{Decision, InvalidRequest, Outcome, Request};

const API_ENDPOINTS: &str = include_str!("../../../../../examples/rules/api-endpoints.yaml");
const B2B_EDGE: &str = include_str!("../../../../../examples/rules/b2b-edge.yaml");
const ORDERS: &str = include_str!("../../../../../examples/rules/orders.yaml");
const QUICKSTART: &str = include_str!("../../../../../examples/rules/quickstart.yaml");
const SAAS_TIERS: &str = include_str!("../../../../../examples/rules/saas-tiers.yaml");

/// Every kind of rule.
pub(super) const MIXED: &str = r#"
defaults: { tier: guest }
tiers:
  guest: { limit: 30/min }
  gold: { api_key_pattern: "sk_gold_*", keys: [acme-corp], limit: 300/min }
routes: ["/v1/orders/{id}"]
rules:
  - id: plan
    key: api_key
    override: { sk_gold_vip: { limit: 900/min }, sk_free_1: { limit: 3/min } }
  - id: leaky
    endpoint: /leaky
    key: user
    algorithm: leaky_bucket
    params: { capacity: 7, leak_rate: 2 }
    override: { ann: { capacity: 9, leak_rate: 3 } }
  - id: spaced
    endpoint: /spaced
    key: [tenant, user]
    algorithm: gcra
    limit: 5/s
    burst: 3
  - id: windows
    endpoint: "/v1/things/{id}"
    key: [route, ip]
    algorithm: fixed_window
    limit: 9/10s
  - id: logged
    endpoint: /login
    methods: POST
    key: ip
    algorithm: sliding_window_log
    limit: 5/min
  - id: weighted
    match: { endpoint_regex: "^/v2/" }
    algorithm: sliding_window_counter
    params: { limit: 12, window: 30 }
  - id: several
    endpoint: /export
    key: user
    limits: [3/s, 20/min, 100/h]
  - id: netted
    endpoint: /reports
    match: { api_key_pattern: "sk_*" }
    limit: 6/min
    ip_safety_net: 3
  - id: watched
    endpoint: /reports
    on_exceed: shadow
    limit: 2/min
  - id: told
    endpoint: /reports
    on_exceed: flag
    limit: 3/min
    soft: 50%
  - id: invoices
    match: { ids: { invoice: "EU-*" } }
    key: invoice
    limit: 10/min
  - id: edge
    domain: envoy
    endpoint: /edge
    limit: 4/min
  - id: rest
    fallback: true
    key: ip
    limit: 15/min
allow:
  - sk_internal_*
  - 10.0.0.0/8
  - { key: sk_gold_2, expires: 2026-01-05T01:00:00Z }
  - { key: 203.0.113.10, expires: 2026-01-05T03:00:00Z }
deny:
  - sk_revoked_*
  - { key: sk_late, expires: 2026-01-05T02:00:00Z, reason: too late }
  - { key: 198.51.100.0/24, expires: 2026-01-05T00:30:00Z }
"#;

/// The engine and the virtual node, with the same rules.
struct Pair {
    engine: Setting,
    node: VirtualNode,
    loaded: LoadedRules,
    counts: Counts,
}

/// The outcomes of a walk: a walk without outcomes of one kind would not test that kind.
#[derive(Debug, Default)]
pub struct Counts {
    pub admitted: usize,
    pub limited: usize,
    pub unlimited: usize,
    pub denied: usize,
    pub invalid: usize,
}

/// Makes an engine with these rules on an empty store.
pub type Engine<'e> = &'e dyn Fn(&str) -> Setting;

impl Pair {
    fn new(engine: Setting, text: &str) -> Self {
        let loaded = load(text);
        Self { engine, node: VirtualNode::default(), loaded, counts: Counts::default() }
    }

    fn install(&mut self, text: &str) {
        self.engine.install(text);
        self.loaded = load(text);
    }

    fn check(&mut self, request: &Request<'_>) {
        let now = self.engine.clock.now();
        let expected = self.node.check(&self.loaded, request, now);
        let found = self.engine.decide(request);
        let context = || format!("{request:?} at {} s", (now.as_us() as f64 - START_US as f64) / 1e6);
        assert_eq!(
            found.as_ref().map(|decision| decision.outcome),
            expected.as_ref().copied(),
            "{}",
            context()
        );
        if let Ok(decision) = &found {
            assert_eq!(rule(decision), self.rule(&expected), "{}", context());
            assert_eq!(decision.now, now);
            assert!(!decision.degraded);
        }
        self.count(&found);
    }

    fn rule(&self, outcome: &Result<Outcome, InvalidRequest>) -> Option<&str> {
        match outcome {
            Ok(Outcome::Admitted(standing) | Outcome::Limited(standing)) => {
                Some(&self.loaded.rules.rule_of(standing.limit).id)
            }
            _ => None,
        }
    }

    fn count(&mut self, found: &Result<Decision, InvalidRequest>) {
        let counts = &mut self.counts;
        *match found.as_ref().map(|decision| decision.outcome) {
            Ok(Outcome::Admitted(_)) => &mut counts.admitted,
            Ok(Outcome::Limited(_)) => &mut counts.limited,
            Ok(Outcome::Unlimited) => &mut counts.unlimited,
            Ok(Outcome::Denied) => &mut counts.denied,
            Err(_) => &mut counts.invalid,
        } += 1;
    }
}

/// A pause that is zero, short, or so long that many states expire.
pub(super) fn pause_us(rng: &mut Rng) -> u64 {
    match rng.u8(..) {
        0..=90 => 0,
        91..=180 => rng.u64(..5_000),
        181..=235 => rng.u64(..SECOND_US / 4),
        236..=252 => rng.u64(..2 * SECOND_US),
        253..=254 => rng.u64(..20 * SECOND_US),
        255 => rng.u64(..3 * MINUTE_US),
    }
}

/// `steps` random requests, with a reload of `texts` in turn every 2,000. While the numbers stay the same
/// a reload may happen at any time. When they change it happens after a pause in which every state has become
/// fresh: a state that equals a fresh one under the old numbers may be removed or not.
/// Pauses are divided by `pace`.
fn run(engine: Engine<'_>, seed: u64, steps: usize, pace: u64, texts: &[&str]) -> Counts {
    let mut rng = Rng::with_seed(seed);
    let mut pair = Pair::new(engine(texts[0]), texts[0]);
    for step in 1..=steps {
        pair.engine.clock.advance_us(pause_us(&mut rng) / pace);
        pair.check(&clients::draw(&mut rng));
        if step % 500 == 0 {
            pair.engine.tidy();
        }
        if step % 2_000 == 0 {
            if texts.len() > 1 {
                pair.engine.clock.advance_us(3 * HOUR_US);
            }
            pair.install(texts[step / 2_000 % texts.len()]);
        }
    }
    assert_eq!(pair.engine.limiter.store().overflowed(), 0, "there is memory for all states");
    pair.counts
}

pub fn walk_the_shipped_files(engine: Engine<'_>, steps: usize) {
    for (seed, text) in [API_ENDPOINTS, B2B_EDGE, ORDERS, QUICKSTART, SAAS_TIERS].into_iter().enumerate() {
        let counts = run(engine, seed as u64, steps, 100, &[text]);
        assert!(
            counts.admitted > steps / 90 && counts.limited > steps / 180,
            "file {seed} shows little: {counts:?}"
        );
    }
}

pub fn walk_everything(engine: Engine<'_>, steps: usize) {
    let counts = run(engine, 11, steps, 1, &[MIXED]);
    let (many, some) = (steps / 20, steps / 200);
    let Counts { admitted, limited, unlimited, denied, invalid } = counts;
    assert!(
        admitted > many && limited > many && unlimited > some && denied > some && invalid > some,
        "{counts:?}"
    );
}

pub fn walk_changing_rules(engine: Engine<'_>, steps: usize) {
    let wider = MIXED.replace("/min", "/20s").replace("algorithm: gcra", "algorithm: leaky_bucket");
    let fewer = MIXED.replace("limit: 30/min", "limit: 11/min").replace("key: user", "key: [user, ip]");
    let counts = run(engine, 12, steps, 1, &[MIXED, &wider, ORDERS, &fewer]);
    assert!(counts.limited > steps / 20, "{counts:?}");
}

/// Where slow rules apply: up to four of them to one request.
pub const TOGETHER: [&str; 6] = [
    "",
    "endpoint: [/leaky, /users],",
    "endpoint: [/spaced, /export],",
    "endpoint: [/search, /users],",
    "endpoint: [/login, /export],",
    "",
];
/// One of them to each request. After a jump of the clock a state is moved to the present by the first request;
/// if another limit refuses that request, Redis keeps the move and the virtual node does not.
pub const APART: [&str; 6] = [
    "endpoint: [/, /hello, /v1/orders, /v1/customers],",
    "endpoint: [/leaky, /users],",
    "endpoint: [/spaced, /export],",
    "endpoint: [/search, /v1/reports/daily],",
    "endpoint: [/login, /v1/things/1, /v1/things/2],",
    "endpoint: [/reports, /v2/a, /v2/b, /edge],",
];

/// Limits so slow that within ten minutes no state becomes fresh, and so none is removed. Then both sides agree whatever
/// the clock does, and however the numbers change.
fn slow_rules(rng: &mut Rng, places: &[&str; 6]) -> String {
    let mut number = |most: u64| rng.u64(1..=most);
    let [bucket, leaky, spaced, window, log, counter] = places;
    format!(
        "
rules:
  - {{ id: bucket, key: api_key, {bucket} limit: {}/h, burst: {} }}
  - {{ id: leaky, key: user, {leaky} algorithm: leaky_bucket, limit: {}/h, burst: {} }}
  - {{ id: spaced, key: ip, {spaced} algorithm: gcra, limit: {}/h, burst: {} }}
  - {{ id: window, key: user, {window} algorithm: fixed_window, limit: {}/{}h }}
  - {{ id: log, key: ip, {log} algorithm: sliding_window_log, limit: {}/{}h }}
  - {{ id: counter, key: tenant, {counter} algorithm: sliding_window_counter, limit: {}/{}h }}
",
        number(5),
        number(9),
        number(5),
        number(9),
        number(5),
        number(9),
        number(9),
        number(2),
        number(9),
        number(2),
        number(40),
        number(2),
    )
}

pub fn walk_a_clock_that_goes_back(engine: Engine<'_>, walks: usize, places: &[&str; 6]) {
    let mut rng = Rng::with_seed(13);
    let mut counts = Counts::default();
    for _ in 0..walks {
        let text = slow_rules(&mut rng, places);
        let mut pair = Pair::new(engine(&text), &text);
        for epoch in 0..3 {
            // Far back, beyond the span of any limit; near a boundary of no window.
            let from_us = START_US - 4 * epoch * DAY_US + MINUTE_US;
            for step in 1..=150 {
                pair.engine.clock.set_us(from_us + rng.u64(..10 * MINUTE_US));
                let request = Request { cost: rng.u64(1..=2), ..clients::draw(&mut rng) };
                pair.check(&request);
                if step % 40 == 0 {
                    pair.install(&slow_rules(&mut rng, places));
                }
                if step % 50 == 0 {
                    pair.engine.tidy();
                }
            }
        }
        counts.admitted += pair.counts.admitted;
        counts.limited += pair.counts.limited;
    }
    assert!(counts.admitted > 75 * walks && counts.limited > 50 * walks, "{counts:?}");
}
