//! Clients are no labels: a million of them add nothing to what is exported.

use std::collections::BTreeSet;
use std::sync::Arc;
use tollgate_core::rules;
use tollgate_limiter::{Clock, Limiter, MemoryStore, Request};
use tollgate_telemetry::{MetricRegistry, TextFormat};

const RULES: &str = "
tiers:
  pro: { api_key_pattern: \"pro_*\", limit: 1000/h }
routes: [\"/users/{id}\", \"/orders/{id}/items\"]
rules:
  - { id: api, key: api_key, limit: 100/h }
  - { id: users, endpoint: \"/users/{id}\", key: [api_key, route], limit: 10/h }
  - { id: addresses, key: ip, limit: 5/h, on_exceed: shadow }
";

/// The names and labels of all samples, and the size of the text without the values.
fn rendered(registry: &MetricRegistry) -> (BTreeSet<String>, usize) {
    let text = TextFormat::Prometheus.render(&registry.collect());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = samples.map(|line| line.rsplit_once(' ').unwrap().0).collect();
    let size = series.iter().map(|series| series.len()).sum();
    (series.into_iter().map(str::to_owned).collect(), size)
}

#[test]
fn a_million_clients_have_the_samples_of_a_thousand() {
    let loaded = rules::load("rules.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
    let limiter = Limiter::new(MemoryStore::new(256 << 20), Clock::system());
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let limiter = Arc::new(limiter);
    let registry = MetricRegistry::default();
    registry.register(Arc::clone(&limiter) as _);

    let send = |number: u32| {
        let tier = if number.is_multiple_of(3) { "pro" } else { "free" };
        let key = format!("{tier}_{number}");
        let endpoint = match number % 4 {
            0 => format!("/users/{number}"),
            1 => format!("/orders/{number}/items"),
            2 => format!("/{number}"),
            _ => format!("/other/{number}/{key}"),
        };
        let ip = Some(std::net::IpAddr::from(number.to_be_bytes()));
        let request = Request { api_key: Some(&key), ip, endpoint: &endpoint, ..Request::default() };
        limiter.check(&request).unwrap().now().unwrap();
    };
    (0..1_000).for_each(send);
    let before = rendered(&registry);
    assert!(before.0.len() > 50, "{before:?}");
    (1_000..1_000_000).for_each(send);
    assert_eq!(rendered(&registry), before);
}
