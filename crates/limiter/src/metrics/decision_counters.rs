//! Counts decisions by rule, algorithm, tier, route, door and outcome.
//!
//! A decision takes some fifty nanoseconds, so it can afford one addition and nothing that threads share. Each thread has
//! cells of its own for each series (a combination of labels), finds them again in a map of its own, and adds to them
//! without a lock or an atomic read-modify-write. The registry knows the cells of all threads and adds them up when an
//! exporter asks. Cells of threads that have ended are folded into the total of their series.
//!
//! The cells of admitted requests are the buckets of `tollgate_remaining_ratio`, and those of limited requests the buckets
//! of `tollgate_retry_after_seconds`: the one addition serves the counter and the histogram.

mod collection;
mod meter;

use super::decision_outcome::DecisionOutcome;
use super::histogram::Histogram;
use crate::decision::Decision;
use crate::request_limit::is_request_limit;
use crate::snapshot::RulesInForce;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tollgate_core::algorithm::Algorithm;
use tollgate_core::decision::Outcome;
use tollgate_core::limit::Limit;
use tollgate_core::request::Door;
use tollgate_core::rules::{LimitId, REQUEST_LIMIT, RouteId, RuleSet, TierId};

pub use meter::{DecisionIncrements, DecisionMeter, OutcomeCounts};

/// `tollgate_remaining_ratio` has buckets for nothing left, and for up to each tenth.
const REMAINING_TENTHS: usize = 10;
/// The upper bounds of `tollgate_retry_after_seconds`, in microseconds.
const RETRY_BOUNDS_US: [u64; 11] = [
    10_000,
    100_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    3_600_000_000,
    86_400_000_000,
];

const ALLOWED_BY_REMAINING: usize = 0;
const ALLOWED_UNLIMITED: usize = ALLOWED_BY_REMAINING + REMAINING_TENTHS + 1;
const REMAINING_SUM: usize = ALLOWED_UNLIMITED + 1;
const LIMITED_BY_RETRY: usize = REMAINING_SUM + 1;
const LIMITED_UNKNOWN_RETRY: usize = LIMITED_BY_RETRY + RETRY_BOUNDS_US.len() + 1;
const RETRY_SUM_US: usize = LIMITED_UNKNOWN_RETRY + 1;
/// The other outcomes, in the order of [`DecisionOutcome`].
const OTHERS: usize = RETRY_SUM_US + 1;
/// What was left of a shadow limit when another limit decided.
const SHADOW_BY_REMAINING: usize = OTHERS + DecisionOutcome::ALL.len() - 2;
const CELLS: usize = SHADOW_BY_REMAINING + REMAINING_TENTHS + 1;
/// One unit of the remaining sum is this share of the limit.
const REMAINING_UNIT: f64 = 1.0 / (REMAINING_TENTHS as f64 * 65_536.0);

/// Series beyond this number lose their route. Configured routes times rules can be many.
const MOST_SERIES: usize = 50_000;
/// How many rule sets a thread keeps the handles of: those of a few limiters of one process.
const MOST_RULE_SETS: usize = 4;

/// How many handles of limits that requests state a thread keeps: one for each limiter, algorithm and door.
const MOST_REQUEST_LIMITS: usize = 64;

/// What a decision is counted under, besides the limit and the outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RequestLabels {
    pub(crate) tier: Option<TierId>,
    pub(crate) route: Option<RouteId>,
    pub(crate) door: Door,
}

/// What determined a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DecidedBy {
    /// No limit: a list, or no rule matches.
    Nothing,
    /// A limit of the rules in force.
    Limit(LimitId),
    /// The denial of a hot key.
    HotKey,
    /// The limit per address in an emergency.
    Emergency,
    /// A limit that the request states. All of them are counted together, because a series for each would be too many.
    RequestLimit(Algorithm),
}

impl DecidedBy {
    /// What a decision with this outcome is counted under.
    pub(crate) fn of(decision: &Decision, outcome: DecisionOutcome) -> Self {
        let noted = Some(decision.noted.limit).filter(|limit| *limit != LimitId::NONE);
        let effective = match outcome {
            DecisionOutcome::ShadowLimited | DecisionOutcome::Flagged => noted,
            DecisionOutcome::Tarpitted if decision.allowed() => noted,
            // Only shadow rules match.
            DecisionOutcome::Allowed if decision.outcome == Outcome::Unlimited => noted,
            _ => None,
        };
        if let Some(limit) = effective {
            return Self::Limit(limit);
        }
        match decision.outcome {
            Outcome::Unlimited | Outcome::Denied => Self::Nothing,
            Outcome::Admitted(status) | Outcome::Limited(status) => {
                match decision.terms.map(|terms| terms.names.rule.as_str()) {
                    _ if status.limit != LimitId::NONE => Self::Limit(status.limit),
                    Some("emergency") => Self::Emergency,
                    _ => Self::HotKey,
                }
            }
        }
    }

    /// The same, if `rules` are those that the limit is of.
    pub(crate) fn under(self, rules: &RulesInForce) -> Self {
        match self {
            Self::Limit(limit) if is_request_limit(rules.number) => {
                Self::RequestLimit(rules.set.limit(limit).algorithm())
            }
            other => other,
        }
    }

    pub(crate) fn rule(self, rules: &RuleSet) -> &str {
        match self {
            Self::Nothing => "",
            Self::Limit(id) => &rules.rule_of(id).id,
            Self::HotKey => "hot_key",
            Self::Emergency => "emergency",
            Self::RequestLimit(_) => REQUEST_LIMIT,
        }
    }
}

/// The counters of a limiter.
#[derive(Debug)]
pub(crate) struct DecisionCounters {
    /// Identifies these counters in the handles of threads.
    number: u32,
    series: Mutex<HashMap<SeriesLabels, Arc<Series>>>,
    /// Changes with the list of series, under its lock.
    version: AtomicU64,
    invalid: [AtomicU64; Door::ALL.len()],
    /// The durations of some decisions made on this node.
    pub(crate) local: Histogram,
    /// The durations of all decisions that waited for the shared store.
    pub(crate) remote: Histogram,
}

impl Default for DecisionCounters {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            series: Mutex::default(),
            version: AtomicU64::new(0),
            invalid: Default::default(),
            local: Histogram::latencies(),
            remote: Histogram::latencies(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SeriesLabels {
    rule: Arc<str>,
    algorithm: &'static str,
    tier: Arc<str>,
    route: Arc<str>,
    door: Door,
}

/// One combination of labels.
#[derive(Debug, Default)]
struct Series {
    /// The cells of each thread.
    threads: Mutex<Vec<Arc<SeriesCells>>>,
    /// The totals of threads that have ended.
    ended: SeriesCells,
}

/// The counters of one thread for one series. Only that thread writes to them.
#[derive(Debug)]
#[repr(align(64))]
struct SeriesCells([AtomicU64; CELLS]);

impl Default for SeriesCells {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl SeriesCells {
    #[inline]
    fn add(&self, cell: usize, added: u64) {
        let cell = &self.0[cell];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(added), Ordering::Release);
    }

    fn add_to(&self, totals: &mut [u64; CELLS]) {
        for (total, cell) in totals.iter_mut().zip(&self.0) {
            *total = total.wrapping_add(cell.load(Ordering::Acquire));
        }
    }
}

/// The cells that a thread counts one limit and door with.
#[derive(Clone, Debug)]
pub(crate) struct SeriesHandle {
    /// The number of the rule set.
    rules: u32,
    decided_by: DecidedBy,
    labels: RequestLabels,
    /// Tenths of the limit for each token, with 32 bits after the point, rounded up.
    tenths_per_token: u64,
    cells: Arc<SeriesCells>,
}

impl SeriesHandle {
    /// Whether it counts decisions by `limit` at `door`.
    #[inline]
    pub(crate) fn is_of(&self, limit: LimitId, door: Door) -> bool {
        self.decided_by == DecidedBy::Limit(limit) && self.labels.door == door
    }

    /// Whether it counts decisions by `decided_by` under `rules` for requests with these labels.
    #[inline]
    pub(crate) fn is_for(&self, rules: &RulesInForce, decided_by: DecidedBy, labels: RequestLabels) -> bool {
        self.rules == rules.number && self.decided_by == decided_by && self.labels == labels
    }

    /// Counts a request that was decided by an enforced limit without any other effect.
    pub(crate) fn count_outcome(&self, outcome: Outcome) {
        match outcome {
            Outcome::Admitted(status) => self.count_allowed(status.remaining),
            Outcome::Limited(status) => self.count_limited(status.wait_us()),
            Outcome::Unlimited | Outcome::Denied => {}
        }
    }

    /// Adds what is left of a shadow limit, for a decision that is counted elsewhere.
    pub(crate) fn observe_shadow(&self, remaining: u32) {
        let (tenth, tenths) = self.tenth(remaining);
        self.cells.add(SHADOW_BY_REMAINING + tenth, 1);
        self.cells.add(REMAINING_SUM, tenths >> 16);
    }

    /// The tenth of the limit that `remaining` does not exceed, and the tenths with 32 bits after the point.
    #[inline]
    fn tenth(&self, remaining: u32) -> (usize, u64) {
        let tenths = u64::from(remaining).saturating_mul(self.tenths_per_token);
        // Above the edge of a tenth it belongs to the next; an error of rounding is smaller than `remaining`.
        let is_above = (tenths as u32) > remaining;
        (((tenths >> 32) as usize + usize::from(is_above)).min(REMAINING_TENTHS), tenths)
    }

    /// Counts a request that was admitted with so much left.
    #[inline]
    pub(crate) fn count_allowed(&self, remaining: u32) {
        let (tenth, tenths) = self.tenth(remaining);
        self.cells.add(ALLOWED_BY_REMAINING + tenth, 1);
        self.cells.add(REMAINING_SUM, tenths >> 16);
    }

    /// Counts a request that was refused until then. Not inlined, so that an admitted request is counted inline.
    #[inline(never)]
    pub(crate) fn count_limited(&self, retry_after_us: Option<u64>) {
        match retry_after_us {
            Some(wait_us) => {
                let bucket = RETRY_BOUNDS_US.iter().filter(|bound| **bound < wait_us).count();
                self.cells.add(LIMITED_BY_RETRY + bucket, 1);
                self.cells.add(RETRY_SUM_US, wait_us);
            }
            None => self.cells.add(LIMITED_UNKNOWN_RETRY, 1),
        }
    }

    /// Counts a decision.
    pub(crate) fn count(&self, outcome: DecisionOutcome, decision: &Decision) {
        match (outcome, decision.outcome) {
            (DecisionOutcome::Allowed, admitted) => match (self.decided_by, admitted) {
                // Each has a quota of its own, so what is left is no share of one.
                (DecidedBy::RequestLimit(_), _) => self.cells.add(ALLOWED_UNLIMITED, 1),
                (_, Outcome::Admitted(status)) => self.count_allowed(status.remaining),
                (DecidedBy::Limit(_), _) => self.count_allowed(decision.noted.remaining),
                (DecidedBy::Nothing | DecidedBy::HotKey | DecidedBy::Emergency, _) => {
                    self.cells.add(ALLOWED_UNLIMITED, 1);
                }
            },
            (DecisionOutcome::Limited, Outcome::Limited(status)) => self.count_limited(status.wait_us()),
            (DecisionOutcome::Limited, _) => self.count_limited(None),
            (other, _) => self.cells.add(OTHERS + other as usize - 2, 1),
        }
    }
}

/// The handles of one thread for one rule set.
type HandlesOfRules = HashMap<(DecidedBy, RequestLabels), SeriesHandle>;

/// The handles of one thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadHandles {
    /// By the number of the rule set, the latest last.
    known: Vec<(u32, HandlesOfRules)>,
    /// Of limits that requests state, whatever their numbers, by the number of the counters.
    request_limits: HashMap<(u32, DecidedBy, RequestLabels), SeriesHandle>,
}

impl ThreadHandles {
    /// The handle of decisions by `decided_by` under `rules` for requests with these labels.
    pub(crate) fn find(
        &mut self,
        counters: &DecisionCounters,
        rules: &RulesInForce,
        decided_by: DecidedBy,
        labels: RequestLabels,
    ) -> &SeriesHandle {
        if let DecidedBy::RequestLimit(_) = decided_by {
            let key = (counters.number, decided_by, labels);
            if self.request_limits.len() >= MOST_REQUEST_LIMITS && !self.request_limits.contains_key(&key) {
                self.request_limits.clear();
            }
            let new = || counters.register(rules, decided_by, labels);
            return self.request_limits.entry(key).or_insert_with(new);
        }
        let known = self.known.iter().rposition(|(number, _)| *number == rules.number);
        let known = known.unwrap_or_else(|| {
            if self.known.len() == MOST_RULE_SETS {
                self.known.remove(0);
            }
            self.known.push((rules.number, HashMap::new()));
            self.known.len() - 1
        });
        let handles = &mut self.known[known].1;
        let new = || counters.register(rules, decided_by, labels);
        handles.entry((decided_by, labels)).or_insert_with(new)
    }
}

impl DecisionCounters {
    /// Counts a request that was invalid.
    #[cold]
    pub(crate) fn count_invalid(&self, door: Door) {
        self.invalid[door as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// New cells for a thread.
    fn register(
        &self,
        rules_in_force: &RulesInForce,
        decided_by: DecidedBy,
        labels: RequestLabels,
    ) -> SeriesHandle {
        let rules = &rules_in_force.set;
        let limit = match decided_by {
            DecidedBy::Limit(id) => Some(rules.limit(id)),
            DecidedBy::Nothing | DecidedBy::HotKey | DecidedBy::Emergency | DecidedBy::RequestLimit(_) => {
                None
            }
        };
        let tier = match decided_by {
            DecidedBy::Limit(id) => rules.tier_name(id, labels.tier),
            DecidedBy::Nothing | DecidedBy::HotKey | DecidedBy::Emergency | DecidedBy::RequestLimit(_) => {
                None
            }
        };
        let algorithm = match decided_by {
            DecidedBy::RequestLimit(algorithm) => Some(algorithm),
            _ => limit.map(Limit::algorithm),
        };
        let mut texts = SeriesLabels {
            rule: decided_by.rule(rules).into(),
            algorithm: algorithm.map_or("", Algorithm::name),
            tier: tier.unwrap_or_default().into(),
            route: labels.route.map_or("", |route| rules.route_template(route)).into(),
            door: labels.door,
        };
        let cells = Arc::new(SeriesCells::default());
        let mut series = self.series.lock();
        if series.len() >= MOST_SERIES && !series.contains_key(&texts) {
            texts.route = "".into();
        }
        if !series.contains_key(&texts) {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        series.entry(texts).or_default().threads.lock().push(Arc::clone(&cells));
        let quota = limit.map_or(0, |limit| u64::from(limit.shown_quota));
        let tenths_per_token = ((REMAINING_TENTHS as u64) << 32).div_ceil(quota.max(1));
        SeriesHandle { rules: rules_in_force.number, decided_by, labels, tenths_per_token, cells }
    }

    /// Forgets the series of rules that are no longer there.
    pub(crate) fn retain(&self, rules: &RuleSet) {
        let is_rule = |name: &str| rules.rules().iter().any(|rule| rule.id == name);
        let is_own = |name: &str| matches!(name, "" | "hot_key" | "emergency" | REQUEST_LIMIT);
        let mut series = self.series.lock();
        series.retain(|labels, _| is_own(&labels.rule) || is_rule(&labels.rule));
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

impl Series {
    fn totals(&self) -> [u64; CELLS] {
        let mut totals = [0; CELLS];
        let mut threads = self.threads.lock();
        threads.retain(|cells| {
            let has_ended = Arc::strong_count(cells) == 1;
            if has_ended {
                let mut last = [0; CELLS];
                cells.add_to(&mut last);
                // Written under the lock of `threads` only.
                last.iter().enumerate().for_each(|(cell, count)| self.ended.add(cell, *count));
            } else {
                cells.add_to(&mut totals);
            }
            !has_ended
        });
        self.ended.add_to(&mut totals);
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::collection::outcome_total;
    use super::*;
    use tollgate_core::time::UnixTime;

    fn handle(quota: u64) -> SeriesHandle {
        SeriesHandle {
            rules: 0,
            decided_by: DecidedBy::Nothing,
            labels: RequestLabels::default(),
            tenths_per_token: ((REMAINING_TENTHS as u64) << 32).div_ceil(quota),
            cells: Arc::default(),
        }
    }

    fn totals(handle: &SeriesHandle) -> [u64; CELLS] {
        let mut totals = [0; CELLS];
        handle.cells.add_to(&mut totals);
        totals
    }

    #[test]
    fn what_is_left_falls_into_the_tenth_that_it_does_not_exceed() {
        for quota in [1_u64, 2, 3, 7, 10, 99, 100, 101, 1_000, 9_999, 65_536] {
            for remaining in (0..=quota).step_by((quota as usize / 500).max(1)) {
                let handle = handle(quota);
                handle.count_allowed(remaining as u32);
                let expected = (remaining * 10).div_ceil(quota) as usize;
                let found = totals(&handle)[..=REMAINING_TENTHS].iter().position(|count| *count == 1);
                assert_eq!(found, Some(expected), "{remaining} of {quota}");
            }
        }
        // More left than the stated limit, and the largest limit.
        for (quota, remaining) in [(10, 15), (u64::from(u32::MAX), u32::MAX)] {
            let handle = handle(quota);
            handle.count_allowed(remaining);
            assert_eq!(totals(&handle)[REMAINING_TENTHS], 1);
        }
    }

    #[test]
    fn the_sum_of_what_is_left_is_right() {
        let handle = handle(200);
        (0..=200).for_each(|remaining| handle.count_allowed(remaining));
        let sum = totals(&handle)[REMAINING_SUM] as f64 * REMAINING_UNIT;
        assert!((sum - 100.5).abs() < 0.01, "{sum}");
    }

    #[test]
    fn retry_times_fall_into_the_bucket_of_their_bound() {
        let handle = handle(1);
        for wait_us in [1, 10_000, 10_001, 86_400_000_000, 86_400_000_001] {
            handle.count_limited(Some(wait_us));
        }
        handle.count_limited(None);
        let totals = totals(&handle);
        assert_eq!(totals[LIMITED_BY_RETRY..LIMITED_UNKNOWN_RETRY], [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(outcome_total(&totals, DecisionOutcome::Limited), 6);
    }

    #[test]
    fn every_outcome_has_a_cell_of_its_own() {
        for outcome in DecisionOutcome::ALL {
            let handle = handle(1);
            handle.count(outcome, &Decision::without_limit(Outcome::Unlimited, UnixTime::from_us(0)));
            let totals = totals(&handle);
            for other in DecisionOutcome::ALL {
                assert_eq!(
                    outcome_total(&totals, other),
                    u64::from(other == outcome),
                    "{outcome:?} {other:?}"
                );
            }
        }
    }
}
