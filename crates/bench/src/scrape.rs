//! `/metrics` of a node with many rules and routes: the time to render it, and what continuous scraping costs checks.

use crate::measurement::{median, nanos_per_call, report_at_most};
use crate::workload::{keys, limiter, zipf};
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tollgate_limiter::{Limiter, Request};
use tollgate_telemetry::{MetricRegistry, TextFormat};

const RULES: usize = 200;
const ROUTES: usize = 50;
const RENDER_ROUNDS: usize = 41;
const RENDER_BAR_MS: f64 = 20.0;
/// Rounds of checks without and with scrapes, in turns.
const CHECK_ROUNDS: usize = 21;
const ROUND_CHECKS: usize = 200_000;
const CHECK_BAR: f64 = 1.2;

pub fn run() {
    let limiter = Arc::new(limiter(&rules(), 1 << 28));
    count_all_series(&limiter);
    let registry = Arc::new(MetricRegistry::default());
    registry.register(Arc::clone(&limiter) as _);
    println!("scrape: {RULES} rules × {ROUTES} routes, median of {RENDER_ROUNDS} renderings");
    let mut times = Vec::new();
    let mut text = String::new();
    for _ in 0..RENDER_ROUNDS {
        let start = Instant::now();
        text = TextFormat::Prometheus.render(&registry.collect());
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    println!("  {} lines, {:.1} MB", text.lines().count(), text.len() as f64 / 1e6);
    report_at_most("rendering, ms", median(&mut times), RENDER_BAR_MS);
    checks_beside_scrapes(&limiter, &registry);
}

fn rules() -> String {
    let mut text = "routes:\n".to_owned();
    for route in 0..ROUTES {
        let _ = writeln!(text, "  - /v{route}/items/{{id}}");
    }
    text.push_str("rules:\n  - { id: all, match: { api_key_pattern: 'sk_*' }, limit: 1000000/s }\n");
    for rule in 1..RULES {
        let _ = writeln!(
            text,
            "  - {{ id: rule_{rule}, match: {{ api_key_pattern: 'c{rule}_*' }}, limit: 1000000/s }}"
        );
    }
    text
}

/// One decision for each rule and route.
fn count_all_series(limiter: &Limiter) {
    for route in 0..ROUTES {
        let endpoint = format!("/v{route}/items/7");
        check(limiter, "sk_1", &endpoint);
        (1..RULES).for_each(|rule| check(limiter, &format!("c{rule}_1"), &endpoint));
    }
}

/// Checks on one thread, while another renders without a pause or does nothing.
fn checks_beside_scrapes(limiter: &Arc<Limiter>, registry: &Arc<MetricRegistry>) {
    println!("scrape: ns per check, medians of {CHECK_ROUNDS} rounds taken in turns");
    let (keys, picks) = (keys(10_000), zipf(10_000, 2_000_000, 7));
    keys.iter().for_each(|key| check(limiter, key, "/v1/items/7"));
    let (is_scraping, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut quiet, mut scraped, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Acquire) {
                if is_scraping.load(Ordering::Acquire) {
                    black_box(TextFormat::Prometheus.render(&registry.collect()));
                } else {
                    std::thread::yield_now();
                }
            }
        });
        for picks in picks.chunks(ROUND_CHECKS).cycle().take(CHECK_ROUNDS) {
            let measure = |scrapes: bool| {
                is_scraping.store(scrapes, Ordering::Release);
                nanos_per_call(&keys, picks, |key| check(limiter, key, "/v1/items/7"))
            };
            let (without, with) = (measure(false), measure(true));
            quiet.push(without);
            scraped.push(with);
            ratios.push(with / without);
        }
        has_ended.store(true, Ordering::Release);
    });
    let (quiet, scraped) = (median(&mut quiet), median(&mut scraped));
    println!("  without scrapes {quiet:>6.1}   scraped without a pause {scraped:>6.1}");
    report_at_most("checks beside scrapes: × without", median(&mut ratios), CHECK_BAR);
}

#[inline]
fn check(limiter: &Limiter, key: &str, endpoint: &str) {
    let request = Request { api_key: Some(key), endpoint, ..Request::default() };
    black_box(limiter.check(&request).is_ok());
}
