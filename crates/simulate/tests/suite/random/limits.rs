//! Limits of any algorithm, each in two versions.

use super::*;

/// In milliseconds.
const WINDOWS_MS: [u64; 5] = [100, 500, 1_000, 2_000, 5_000];
/// A log remembers each request.
const LARGEST_LOG: u64 = 200;

#[derive(Clone, Copy)]
pub(super) struct DrawnLimit {
    algorithm: &'static str,
    pub(super) capacity: u64,
    pub(super) per_second: u64,
    window_ms: u64,
    consistency: &'static str,
    lease: &'static str,
}

impl DrawnLimit {
    pub(super) fn new(random: &mut fastrand::Rng) -> Self {
        let algorithms = [
            "token_bucket",
            "leaky_bucket",
            "gcra",
            "fixed_window",
            "sliding_window_counter",
            "sliding_window_log",
        ];
        Self::of(algorithms[random.usize(0..algorithms.len())], WINDOWS_MS[random.usize(0..5)], random)
    }

    /// Other numbers of the same limit, mostly about as large. Windows of another length are other states; of a log they are one,
    /// which has no larger numbers.
    pub(super) fn other_version(&self, random: &mut fastrand::Rng) -> Self {
        let is_log = self.algorithm == "sliding_window_log";
        let window_ms = match random.u8(0..3) {
            0 if !is_log => WINDOWS_MS[random.usize(0..5)],
            _ => self.window_ms,
        };
        let other = Self::of(self.algorithm, window_ms, random);
        let mut near = |number: u64| [number.div_ceil(2), number, 2 * number][random.usize(0..3)];
        let (capacity, per_second) = (near(self.capacity), near(self.per_second));
        match random.u8(0..3) {
            0 => other,
            _ => Self { capacity, per_second, ..other },
        }
    }

    fn of(algorithm: &'static str, window_ms: u64, random: &mut fastrand::Rng) -> Self {
        let capacity = [1, 3, 10, 50, 200, 1_000, 5_000][random.usize(0..7)];
        let capacity = if algorithm == "sliding_window_log" { capacity.min(LARGEST_LOG) } else { capacity };
        let rate = [1, 7, 50, 300, 2_000, 10_000][random.usize(0..6)];
        let is_window = algorithm.contains("window");
        Self {
            algorithm,
            capacity,
            per_second: if is_window { (capacity * 1_000 / window_ms).max(1) } else { rate },
            window_ms,
            consistency: ["leased", "leased", "strict"][random.usize(0..3)],
            lease: ["", "horizon: 5s", "interval: 7ms", "interval: 2s, horizon: 10s"][random.usize(0..4)],
        }
    }

    fn rule(&self, key: &str) -> String {
        let Self { algorithm, capacity, per_second, window_ms, consistency, lease } = self;
        let params = match *algorithm {
            "leaky_bucket" => format!("capacity: {capacity}, leak_rate: {per_second}"),
            "token_bucket" | "gcra" => format!("capacity: {capacity}, refill_rate: {per_second}"),
            _ => format!("limit: {capacity}, window: {window_ms}ms"),
        };
        let lease = if *consistency == "strict" { String::new() } else { format!(", lease: {{{lease}}}") };
        format!(
            "  - {{id: by-{key}, key: [{key}], algorithm: {algorithm}, consistency: {consistency}, \
             params: {{{params}}}{lease}}}\n"
        )
    }
}

/// A limit by API key, one by address, and one by user: each is another call.
pub(super) fn rules(limits: &[DrawnLimit]) -> String {
    let rules = limits.iter().zip(["api_key", "ip", "user"]).map(|(limit, key)| limit.rule(key));
    format!("rules:\n{}", rules.collect::<String>())
}

/// Changes from one version to the other: at one node, as in a canary, or at all.
pub(super) fn changes(
    random: &mut fastrand::Rng,
    nodes: u16,
    versions: &[Arc<RuleSet>; 2],
) -> Vec<(u64, FleetEvent)> {
    let count = [0, 1, 3, 8][random.usize(0..4)];
    let change = |_| {
        let version = Arc::clone(&versions[random.usize(0..2)]);
        let at_us = if random.u8(0..4) == 0 { 0 } else { random.u64(0..6 * SECOND_US) };
        let event = match random.u8(0..4) {
            0 => FleetEvent::Rules(version),
            _ => FleetEvent::RulesAt(random.u16(0..nodes), version),
        };
        (at_us, event)
    };
    (0..count).map(change).collect()
}
