//! No decision of up to four limits allocates once its client, its path and its states are known.

use crate::clients;
use crate::setting::{Setting, key};
use fastrand::Rng;
use tollgate_limiter::Request;

const RULES: &str = "
tiers:
  gold: { api_key_pattern: 'sk_gold_*', limit: 1000000/h }
rules:
  - { id: plan, key: api_key, tier: gold }
  - { id: bucket, key: api_key, endpoint: '/v1/{*rest}', limit: 1000000/h }
  - { id: leaky, key: user, algorithm: leaky_bucket, limit: 1000000/h }
  - { id: spaced, key: [tenant, ip], algorithm: gcra, limit: 1000/h, burst: 100 }
  - { id: window, match: { endpoint_regex: '^/users' }, algorithm: fixed_window, limit: 100/h }
  - { id: counter, endpoint: '/v2/{*rest}', algorithm: sliding_window_counter, limit: 1000000/h }
allow: ['sk_internal_*', 10.0.0.0/8]
deny: ['sk_revoked_*', { key: 'sk_late', expires: 2027-01-01 }]
";

#[test]
fn a_single_limit() {
    let setting = Setting::new("rules:\n  - { id: one, limit: 50/h }");
    let request = Request { endpoint: "/v1/orders?page=1", ..key("a") };
    setting.send(10, &request);
    let measured = allocation_counter::measure(|| {
        assert_eq!(setting.send(1_000, &request), 40, "admitted and refused requests");
    });
    assert_eq!(measured.count_total, 0);
}

#[test]
fn many_clients_and_limits() {
    let setting = Setting::new(RULES);
    let mut rng = Rng::with_seed(31);
    let requests: Vec<Request<'_>> =
        std::iter::repeat_with(|| Request { cost: 1, ..clients::draw(&mut rng) })
            .filter(Request::has_identity)
            .take(200)
            .collect();
    let all = || requests.iter().filter(|request| setting.check(request).allowed()).count();
    for _ in 0..20 {
        all();
    }
    let measured = allocation_counter::measure(|| {
        for _ in 0..5 {
            all();
        }
    });
    assert_eq!(measured.count_total, 0);
}
