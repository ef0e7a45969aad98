//! The sizes of limits: defaults, tier, rule and override as layers, later ones over earlier ones.

use super::short_forms::{LimitAmount, ShortLimit};
use super::written::{WrittenDefaults, WrittenParams, WrittenRule, WrittenTier};
use crate::algorithm::Algorithm;
use crate::document::{Document, DocumentPath};
use crate::limit::{LONGEST_US, LimitSize};
use crate::rate::{LimitShorthand, Rate};

/// The default `timeout` of requests in flight.
const DEFAULT_TIMEOUT_US: u64 = 60_000_000;

/// The numbers in one part of the file.
#[derive(Debug)]
pub(super) struct SizeLayer<'f> {
    pub(super) algorithm: Option<Algorithm>,
    /// The short form, outside `params`.
    limit: Option<LimitAmount>,
    burst: Option<u64>,
    limits: Option<&'f [ShortLimit]>,
    params: Option<&'f WrittenParams>,
    pub(super) path: DocumentPath,
    params_path: DocumentPath,
}

/// A size that results from layers.
#[derive(Debug)]
pub(super) struct StatedSize {
    pub(super) size: LimitSize,
    /// The period as written: it names the limit among several.
    pub(super) period_us: Option<u64>,
    /// Written as a number without a period.
    pub(super) is_bare: bool,
    /// A burst or capacity is stated.
    pub(super) has_burst: bool,
    /// Where to report an error about it.
    pub(super) at: DocumentPath,
}

/// Where a field of a layer is given: outside `params`, and inside.
#[derive(Clone, Copy, Debug)]
struct GivenField {
    name: &'static str,
    outside: bool,
    inside: bool,
}

impl GivenField {
    fn is_given(&self) -> bool {
        self.outside || self.inside
    }
}

impl<'f> SizeLayer<'f> {
    pub(super) fn of_rule(rule: &'f WrittenRule, path: &DocumentPath) -> Self {
        Self {
            algorithm: rule.algorithm,
            limit: rule.limit,
            burst: rule.burst,
            limits: rule.limits.as_deref(),
            params: rule.params.as_ref(),
            path: path.clone(),
            params_path: path.field("params"),
        }
    }

    pub(super) fn of_tier(tier: &'f WrittenTier, path: &DocumentPath) -> Self {
        Self {
            algorithm: tier.algorithm,
            limit: tier.limit,
            burst: tier.burst,
            limits: tier.limits.as_deref(),
            params: tier.params.as_ref(),
            path: path.clone(),
            params_path: path.field("params"),
        }
    }

    pub(super) fn of_defaults(defaults: &'f WrittenDefaults, path: &DocumentPath) -> Self {
        Self {
            algorithm: defaults.algorithm,
            limit: defaults.limit,
            burst: defaults.burst,
            limits: defaults.limits.as_deref(),
            params: defaults.params.as_ref(),
            path: path.clone(),
            params_path: path.field("params"),
        }
    }

    pub(super) fn of_params(params: &'f WrittenParams, path: &DocumentPath) -> Self {
        Self {
            algorithm: None,
            limit: None,
            burst: None,
            limits: None,
            params: Some(params),
            path: path.clone(),
            params_path: path.clone(),
        }
    }

    /// Whether it states a limit, not only an algorithm.
    pub(super) fn states_a_size(&self) -> bool {
        let in_params = self.params.is_some_and(|params| {
            params.capacity.is_some()
                || params.refill_rate.is_some()
                || params.leak_rate.is_some()
                || params.limit.is_some()
                || params.limits.is_some()
                || params.burst.is_some()
        });
        self.limit.is_some() || self.burst.is_some() || self.limits.is_some() || in_params
    }

    /// Whether it replaces all layers below.
    pub(super) fn covers(&self) -> bool {
        let none = WrittenParams::default();
        let params = self.params.unwrap_or(&none);
        let rate = params.refill_rate.or(params.leak_rate);
        let by_amount = match self.limit.or(params.limit) {
            Some(LimitAmount::Quota(_)) => true,
            Some(LimitAmount::Count(_)) => params.window.is_some(),
            None => false,
        };
        self.list().is_some() || by_amount || params.capacity.is_some() && rate.is_some()
    }

    /// The list of limits and its path.
    fn list(&self) -> Option<(&'f [ShortLimit], DocumentPath)> {
        let in_params = self.params.and_then(|params| params.limits.as_deref());
        let outside = self.limits.map(|list| (list, self.path.field("limits")));
        outside.or_else(|| in_params.map(|list| (list, self.params_path.field("limits"))))
    }

    /// The single amount and its path.
    fn amount(&self) -> Option<(LimitAmount, DocumentPath)> {
        let in_params = self.params.and_then(|params| params.limit);
        let outside = self.limit.map(|amount| (amount, self.path.field("limit")));
        outside.or_else(|| in_params.map(|amount| (amount, self.params_path.field("limit"))))
    }

    /// Where it states a limit that would reject every request, whichever rule takes it.
    pub(super) fn zeros(&self) -> Vec<DocumentPath> {
        let count_of = |amount: LimitAmount| match amount {
            LimitAmount::Count(count) => count,
            LimitAmount::Quota(quota) => quota.amount,
        };
        let single = self.amount().filter(|(amount, _)| count_of(*amount) == 0).map(|(_, path)| path);
        let capacity = self.params.and_then(|params| params.capacity).filter(|capacity| *capacity == 0);
        let capacity = capacity.map(|_| self.params_path.field("capacity"));
        let listed = self.list().into_iter().flat_map(|(list, path)| {
            let zeros = list.iter().enumerate().filter(|(_, short)| short.limit.amount == 0);
            zeros.map(move |(index, _)| path.index(index))
        });
        single.into_iter().chain(capacity).chain(listed).collect()
    }

    /// The single burst and its path.
    fn burst(&self) -> Option<(u64, DocumentPath)> {
        let in_params = self.params.and_then(|params| params.burst);
        let outside = self.burst.map(|burst| (burst, self.path.field("burst")));
        outside.or_else(|| in_params.map(|burst| (burst, self.params_path.field("burst"))))
    }

    /// Reports fields that are given twice or contradict each other. True if there are none.
    fn check_consistency(&self, document: &mut Document) -> bool {
        let none = WrittenParams::default();
        let params = self.params.unwrap_or(&none);
        let several = self.limits.is_some() || params.limits.is_some();
        let given = |name, outside, inside| GivenField { name, outside, inside };
        let limit = given("limit", self.limit.is_some(), params.limit.is_some());
        let burst = given("burst", self.burst.is_some(), params.burst.is_some());
        let limits = given("limits", self.limits.is_some(), params.limits.is_some());
        let capacity = given("capacity", false, params.capacity.is_some());
        let window = given("window", false, params.window.is_some());
        let rates = [
            given("refill_rate", false, params.refill_rate.is_some()),
            given("leak_rate", false, params.leak_rate.is_some()),
        ];
        let other_window = match (self.limit.or(params.limit), params.window) {
            (Some(LimitAmount::Quota(quota)), Some(window)) => quota.period_us != window.us,
            _ => false,
        };

        let mut is_consistent = true;
        let mut report = |field: GivenField, message: String, hint: &str| {
            let path = if field.outside { &self.path } else { &self.params_path };
            document.error_at_name(&path.field(field.name), message, hint);
            is_consistent = false;
        };
        for field in [limit, burst, limits].into_iter().filter(|field| field.outside && field.inside) {
            let hint = "it is also in `params`; keep one of them";
            report(field, format!("`{}` is given twice", field.name), hint);
        }
        if several {
            let others = [limit, burst, capacity, window].into_iter().chain(rates);
            for field in others.filter(GivenField::is_given) {
                let hint = "move it into the list: [{ limit: 10/s, burst: 20 }, 250/day]";
                report(field, format!("`{}` cannot be combined with `limits`", field.name), hint);
            }
        }
        if limit.inside && capacity.is_given() {
            let hint = "a bucket has a `capacity` and a rate, a window a `limit`";
            let inside = GivenField { outside: false, ..limit };
            report(inside, "`limit` and `capacity` exclude each other".to_owned(), hint);
        }
        if burst.is_given() && capacity.is_given() {
            report(burst, "`burst` and `capacity` exclude each other".to_owned(), "keep one of them");
        }
        if other_window {
            let hint = "remove `window`, or write the limit as a plain number";
            report(window, "the limit already has a period".to_owned(), hint);
        }
        is_consistent
    }

    /// Reports numbers that the algorithm does not have. True if there are none.
    fn check_algorithm(&self, rule: &str, algorithm: Algorithm, document: &mut Document) -> bool {
        const OF_WINDOWS: &str = "a window has a `limit` and a `window`";
        let windows = algorithm.counts_windows();
        let name = algorithm.name();
        let mut is_valid = true;
        let bursts = self.list().into_iter().flat_map(|(list, path)| {
            let with_burst = list.iter().enumerate().filter(|(_, short)| short.burst.is_some());
            with_burst.map(move |(index, _)| path.index(index).field("burst"))
        });
        for path in bursts.chain(self.burst().map(|(_, path)| path)).filter(|_| windows) {
            let message = format!(
                "rule `{rule}` is a {name}, which has no burst: its whole limit can be spent at once"
            );
            document.error_at_name(&path, message, "remove it, or use token_bucket");
            is_valid = false;
        }
        let in_flight = algorithm == Algorithm::Concurrency;
        if let Some((_, path)) = self.list().filter(|_| in_flight) {
            let message = format!("rule `{rule}` counts requests in flight, which takes one limit");
            document.error_at_name(&path, message, "write `limit: 10`, and the rates in another rule");
            is_valid = false;
        }
        let Some(params) = self.params else { return is_valid };
        let leaky = algorithm == Algorithm::LeakyBucket;
        let wrong = [
            (params.capacity.is_some() && windows, "capacity", OF_WINDOWS),
            (params.refill_rate.is_some() && windows, "refill_rate", OF_WINDOWS),
            (params.leak_rate.is_some() && windows, "leak_rate", OF_WINDOWS),
            (params.window.is_some() && in_flight, "window", "it has a `limit`, and a `timeout`"),
            (params.timeout.is_some() && !in_flight, "timeout", "only `concurrency` has one"),
            (params.refill_rate.is_some() && leaky, "refill_rate", "it has a `leak_rate`"),
            (params.leak_rate.is_some() && !windows && !leaky, "leak_rate", "it has a `refill_rate`"),
        ];
        for (_, field, hint) in wrong.into_iter().filter(|(wrong, ..)| *wrong) {
            let message = format!("rule `{rule}` is a {name}, which has no `{field}`");
            document.error_at_name(&self.params_path.field(field), message, hint);
            is_valid = false;
        }
        is_valid
    }
}

/// The sizes that result from the layers. `None` if a layer is invalid, which is then reported.
pub(super) fn sizes_of(
    rule: &str,
    algorithm: Algorithm,
    layers: &[&SizeLayer<'_>],
    document: &mut Document,
) -> Option<Vec<StatedSize>> {
    let contradicting = layers.iter().filter(|layer| !layer.check_consistency(document)).count();
    // A replaced layer need not fit the algorithm of this rule. For requests in flight a count replaces all.
    let is_complete = |layer: &&SizeLayer<'_>| {
        layer.covers() || algorithm == Algorithm::Concurrency && layer.amount().is_some()
    };
    let lowest = layers.iter().rposition(is_complete).unwrap_or(0);
    let layers = &layers[lowest..];
    let unsuitable = layers.iter().filter(|layer| !layer.check_algorithm(rule, algorithm, document)).count();
    if contradicting + unsuitable > 0 {
        return None;
    }
    let mut sizes: Vec<StatedSize> = Vec::new();
    for layer in layers {
        if let Some((list, path)) = layer.list() {
            sizes = listed_sizes(algorithm, list, &path, document)?;
        } else if layer.states_a_size()
            || layer.params.is_some_and(|params| params.window.is_some() || params.timeout.is_some())
        {
            // A single limit replaces several.
            let base = if sizes.len() == 1 { sizes.pop() } else { None };
            sizes = vec![apply_layer(algorithm, base, layer, document)?];
        }
    }
    Some(sizes)
}

/// The sizes of a list of short limits.
fn listed_sizes(
    algorithm: Algorithm,
    list: &[ShortLimit],
    path: &DocumentPath,
    document: &mut Document,
) -> Option<Vec<StatedSize>> {
    if list.is_empty() {
        document.missing(path, "an empty list sets no limit", "write `limits: [10/s, 250/day]`");
        return None;
    }
    let mut sizes = Vec::new();
    for (index, short) in list.iter().enumerate() {
        let path = path.index(index);
        let period_us = short.limit.period_us;
        check_window(period_us, &path, document)?;
        let mut size = size_of_quota(short.limit);
        if let Some(burst) = short.burst {
            apply_burst(&mut size, algorithm, burst);
        }
        let has_burst = short.burst.is_some();
        sizes.push(StatedSize { size, period_us: Some(period_us), is_bare: false, has_burst, at: path });
    }
    Some(sizes)
}

/// Applies one layer to the size below it.
fn apply_layer(
    algorithm: Algorithm,
    base: Option<StatedSize>,
    layer: &SizeLayer<'_>,
    document: &mut Document,
) -> Option<StatedSize> {
    let here = if layer.params.is_some() { &layer.params_path } else { &layer.path };
    let mut stated = base.unwrap_or_else(|| StatedSize {
        size: LimitSize::default(),
        period_us: None,
        is_bare: false,
        has_burst: false,
        at: here.clone(),
    });
    let size = &mut stated.size;
    let none = WrittenParams::default();
    let params = layer.params.unwrap_or(&none);
    if algorithm == Algorithm::Concurrency {
        let known_us = size.window_us.unwrap_or(DEFAULT_TIMEOUT_US);
        size.window_us = Some(params.timeout.map_or(known_us, |timeout| timeout.us));
        if let Some(timeout) = params.timeout {
            check_window(timeout.us, &layer.params_path.field("timeout"), document)?;
        }
    }
    if let Some(window) = params.window {
        check_window(window.us, &layer.params_path.field("window"), document)?;
        size.window_us = Some(window.us);
    }
    if let Some((amount, path)) = layer.amount() {
        match amount {
            LimitAmount::Count(count) => {
                size.capacity = Some(count);
                size.rate = size.window_us.and_then(|window_us| Rate::per(count, window_us));
            }
            LimitAmount::Quota(_) if algorithm == Algorithm::Concurrency => {
                let hint = "write a plain number: `limit: 10`";
                document.error(&path, "requests in flight are not counted over a period", hint);
                return None;
            }
            LimitAmount::Quota(quota) => {
                check_window(quota.period_us, &path, document)?;
                *size = size_of_quota(quota);
            }
        }
        stated.is_bare = matches!(amount, LimitAmount::Count(_));
        stated.at = path;
    }
    let rate = params.refill_rate.or(params.leak_rate);
    if let Some(rate) = rate {
        size.rate = Some(rate.0);
    }
    if let Some(capacity) = params.capacity {
        size.capacity = Some(capacity);
        stated.is_bare = false;
        stated.has_burst = true;
        stated.at = layer.params_path.field("capacity");
    }
    // With another capacity or rate, an inherited window would be wrong in the headers.
    if (rate.is_some() || params.capacity.is_some()) && params.window.is_none() && !algorithm.counts_windows()
    {
        size.window_us = None;
    }
    if let Some((burst, path)) = layer.burst() {
        apply_burst(size, algorithm, burst);
        stated.has_burst = true;
        if size.rate.is_some() {
            stated.at = path;
        }
    }
    stated.period_us = size.window_us;
    Some(stated)
}

fn size_of_quota(LimitShorthand { amount, period_us }: LimitShorthand) -> LimitSize {
    LimitSize { capacity: Some(amount), rate: Rate::per(amount, period_us), window_us: Some(period_us) }
}

fn apply_burst(size: &mut LimitSize, algorithm: Algorithm, burst: u64) {
    size.rate = size.rate.or_else(|| Rate::per(size.capacity?, size.window_us?));
    size.capacity = Some(if algorithm == Algorithm::Gcra { burst.saturating_add(1) } else { burst });
    // Headers must agree with the capacity, so the window is the time to fill it.
    size.window_us = None;
}

fn check_window(us: u64, path: &DocumentPath, document: &mut Document) -> Option<()> {
    if us == 0 || us > LONGEST_US {
        let hint = "a value outside this range is probably unintended";
        document.error(path, "the window must be between 1 µs and 366 days", hint);
        return None;
    }
    Some(())
}
