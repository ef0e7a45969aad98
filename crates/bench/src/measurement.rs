//! Measuring, and reporting a value beside its bar.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// How many bars this process has missed.
static MISSED: AtomicUsize = AtomicUsize::new(0);

/// How many keys are copied to a warm buffer at a time.
const BATCH: usize = 256;

/// Nanoseconds per call of `body` over the picked keys. Each key is copied to a warm buffer before its batch is timed:
/// in a server it has just been parsed out of a request, and fetching it from a list of millions is no part of a check.
pub fn nanos_per_call(keys: &[String], picks: &[u32], mut body: impl FnMut(&String)) -> f64 {
    let mut warm = vec![String::new(); BATCH];
    let mut nanos = 0;
    for batch in picks.chunks(BATCH) {
        for (pick, key) in batch.iter().zip(&mut warm) {
            key.clone_from(&keys[*pick as usize]);
        }
        let start = Instant::now();
        warm[..batch.len()].iter().for_each(&mut body);
        nanos += start.elapsed().as_nanos();
    }
    nanos as f64 / picks.len() as f64
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The resident memory of this process.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Prints a value that must be at most `bar`.
pub fn report_at_most(what: &str, value: f64, bar: f64) {
    print_result(what, value, '≤', bar, value <= bar);
}

/// Prints a value that must be at least `bar`.
pub fn report_at_least(what: &str, value: f64, bar: f64) {
    print_result(what, value, '≥', bar, value >= bar);
}

fn print_result(what: &str, value: f64, sign: char, bar: f64, is_met: bool) {
    let result = if is_met { "met" } else { "MISSED" };
    MISSED.fetch_add(usize::from(!is_met), Ordering::Relaxed);
    println!("  {what:<58} {value:>8.2}   bar {sign} {bar:<6} {result}");
}

/// Whether all bars so far were met.
pub fn all_met() -> bool {
    MISSED.load(Ordering::Relaxed) == 0
}
