//! The memory of ten million states.

use crate::measurement::{megabytes, report_at_most, resident_bytes};
use crate::workload::limiter;
use std::fmt::Write;
use tollgate_limiter::Request;

/// No state becomes fresh while the bench runs.
const RULES: &str = "rules: [{ id: daily, limit: 10/day }]";
const STATES: u64 = 10_000_000;

pub fn run() {
    println!("memory: {} M states of one limit", STATES / 1_000_000);
    let before = resident_bytes();
    let limiter = limiter(RULES, 1 << 30);
    let mut key = String::new();
    for number in 0..STATES {
        key.clear();
        let _ = write!(key, "sk_prod_{number:010}");
        let request = Request { api_key: Some(&key), ..Request::default() };
        assert!(
            limiter.check(&request).is_ok_and(|check| check.now().is_some_and(|decision| decision.allowed())),
            "each key is new"
        );
    }
    let grown = resident_bytes() - before;
    let usage = limiter.store().usage();
    println!("  {} states in {:.0} MB of tables", usage.states, megabytes(usage.bytes as u64));
    assert_eq!(usage.states as u64, STATES, "no state may be lost");
    report_at_most("growth of resident memory, MB", megabytes(grown), 500.0);
}
