//! How large a limit is: what a rule, its tier, the defaults and an override say, laid over each other.

use super::spelling::{Amount, ShortLimit};
use super::written::{Defaults, Params, Rule, Tier};
use crate::algorithm::Algorithm;
use crate::document::{Document, Path};
use crate::limit::Size;
use crate::rate::{Quota, Rate};

/// What one place in the file says about size.
#[derive(Debug)]
pub(super) struct Layer<'f> {
    pub(super) algorithm: Option<Algorithm>,
    /// The short form beside the others: `limit`, `burst`, `limits`.
    short: (Option<Amount>, Option<u64>, Option<&'f [ShortLimit]>),
    params: Option<&'f Params>,
    path: Path,
    params_path: Path,
}

impl<'f> Layer<'f> {
    pub(super) fn of_rule(rule: &'f Rule, path: &Path) -> Self {
        let short = (rule.limit, rule.burst, rule.limits.as_deref());
        Self::new(rule.algorithm, short, rule.params.as_ref(), path)
    }

    pub(super) fn of_tier(tier: &'f Tier, path: &Path) -> Self {
        let short = (tier.limit, tier.burst, tier.limits.as_deref());
        Self::new(tier.algorithm, short, tier.params.as_ref(), path)
    }

    pub(super) fn of_defaults(defaults: &'f Defaults, path: &Path) -> Self {
        let short = (defaults.limit, defaults.burst, defaults.limits.as_deref());
        Self::new(defaults.algorithm, short, defaults.params.as_ref(), path)
    }

    pub(super) fn of_params(params: &'f Params, path: &Path) -> Self {
        let (path, params_path) = (path.clone(), path.clone());
        Self { algorithm: None, short: (None, None, None), params: Some(params), path, params_path }
    }

    fn new(
        algorithm: Option<Algorithm>,
        short: (Option<Amount>, Option<u64>, Option<&'f [ShortLimit]>),
        params: Option<&'f Params>,
        path: &Path,
    ) -> Self {
        Self { algorithm, short, params, path: path.clone(), params_path: path.field("params") }
    }

    /// Whether it gives a limit at all, rather than only how to count.
    pub(super) fn states_a_size(&self) -> bool {
        let (limit, burst, limits) = &self.short;
        let in_params = self.params.is_some_and(|params| {
            params.capacity.is_some()
                || params.refill_rate.is_some()
                || params.leak_rate.is_some()
                || params.limit.is_some()
                || params.limits.is_some()
                || params.burst.is_some()
        });
        limit.is_some() || burst.is_some() || limits.is_some() || in_params
    }
}

/// The sizes that the layers add up to, each with the place that a complaint about it belongs to. None if
/// something in them cannot be; that has been noted then.
pub(super) fn sizes_of(
    algorithm: Algorithm,
    layers: &[&Layer<'_>],
    document: &mut Document,
) -> Option<Vec<(Size, Path)>> {
    let mut sizes: Vec<(Size, Path)> = Vec::new();
    for layer in layers {
        let (limit, burst, limits) = layer.short;
        let params = layer.params;
        let in_params = params.and_then(|params| params.limits.as_deref());
        let list = limits.map(|list| (list, layer.path.field("limits")));
        let list = list.or(in_params.map(|list| (list, layer.params_path.field("limits"))));
        if let Some((list, path)) = list {
            let single = limit.is_some()
                || params.is_some_and(|params| params.limit.is_some() || params.capacity.is_some());
            if single {
                document.error_at_name(&path, "`limits` and a single limit exclude each other", "keep one");
                return None;
            }
            sizes = listed(algorithm, list, &path, document)?;
            continue;
        }
        if !layer.states_a_size() && params.is_none_or(|params| params.window.is_none()) {
            continue;
        }
        // Over several limits, a single one replaces them all.
        let base = match sizes.as_slice() {
            [(only, _)] => *only,
            _ => Size::default(),
        };
        let (mut size, mut at) = (base, layer.path.clone());
        if let Some(amount) = limit {
            at = layer.path.field("limit");
            lay_amount(&mut size, amount);
        }
        if let Some(params) = params {
            at = lay_params(&mut size, algorithm, params, &layer.params_path, document)?;
        }
        if let Some(burst) = burst {
            lay_burst(&mut size, algorithm, burst, &layer.path.field("burst"), document)?;
        }
        sizes = vec![(size, at)];
    }
    Some(sizes)
}

/// A list of short limits.
fn listed(
    algorithm: Algorithm,
    list: &[ShortLimit],
    path: &Path,
    document: &mut Document,
) -> Option<Vec<(Size, Path)>> {
    if list.is_empty() {
        document.error(path, "an empty list limits nothing", "write `limits: [10/s, 250/day]`");
        return None;
    }
    let mut sizes = Vec::new();
    for (index, short) in list.iter().enumerate() {
        let path = path.index(index);
        let mut size = Size::default();
        lay_amount(&mut size, Amount::Quota(short.limit));
        if let Some(burst) = short.burst {
            lay_burst(&mut size, algorithm, burst, &path, document)?;
            // The period stays: it names the limit among its siblings.
            size.window_us = Some(short.limit.period_us);
        }
        sizes.push((size, path));
    }
    Some(sizes)
}

fn lay_amount(size: &mut Size, amount: Amount) {
    match amount {
        Amount::Count(count) => {
            size.capacity = Some(count);
            size.rate = size.window_us.and_then(|window_us| Rate::per(count, window_us));
        }
        Amount::Quota(Quota { amount, period_us }) => {
            *size = Size {
                capacity: Some(amount),
                rate: Rate::per(amount, period_us),
                window_us: Some(period_us),
            };
        }
    }
}

fn lay_burst(
    size: &mut Size,
    algorithm: Algorithm,
    burst: u64,
    path: &Path,
    document: &mut Document,
) -> Option<()> {
    if algorithm.counts_windows() {
        document.error_at_name(
            path,
            format!("a {} has no burst: its limit can come at once", algorithm.name()),
            "remove it, or use token_bucket",
        );
        return None;
    }
    size.capacity = Some(if algorithm == Algorithm::Gcra { burst.saturating_add(1) } else { burst });
    // What headers show must agree with the capacity, so the window is the time to fill it.
    size.window_us = None;
    Some(())
}

/// Lays the long form over what is below; answers where a complaint about the result belongs.
fn lay_params(
    size: &mut Size,
    algorithm: Algorithm,
    params: &Params,
    path: &Path,
    document: &mut Document,
) -> Option<Path> {
    let windows = algorithm.counts_windows();
    let leaky = algorithm == Algorithm::LeakyBucket;
    let name = algorithm.name();
    let wrong = [
        (params.capacity.is_some() && windows, "capacity", "a window has a `limit` and a `window`"),
        (params.refill_rate.is_some() && windows, "refill_rate", "a window has a `limit` and a `window`"),
        (params.leak_rate.is_some() && windows, "leak_rate", "a window has a `limit` and a `window`"),
        (params.refill_rate.is_some() && leaky, "refill_rate", "a leaky bucket has a `leak_rate`"),
        (params.leak_rate.is_some() && !windows && !leaky, "leak_rate", "a token bucket has a `refill_rate`"),
        (
            params.limit.is_some() && params.capacity.is_some(),
            "limit",
            "with a `capacity`, leave `limit` out",
        ),
    ];
    let mut fine = true;
    for (_, field, hint) in wrong.into_iter().filter(|(wrong, ..)| *wrong) {
        document.error_at_name(&path.field(field), format!("{name} does not take `{field}` here"), hint);
        fine = false;
    }
    if !fine {
        return None;
    }
    let mut at = path.clone();
    if let Some(window) = params.window {
        size.window_us = Some(window.us);
        at = path.field("window");
    }
    if let Some(amount) = params.limit {
        lay_amount(size, amount);
        at = path.field("limit");
    }
    if let Some(rate) = params.refill_rate.or(params.leak_rate) {
        size.rate = Some(rate.0);
    }
    if let Some(capacity) = params.capacity {
        size.capacity = Some(capacity);
        at = path.field("capacity");
        // A new capacity makes an inherited window a lie in the headers, unless the file states one.
        if params.refill_rate.or(params.leak_rate).is_some() && params.window.is_none() {
            size.window_us = None;
        }
    }
    if let Some(burst) = params.burst {
        lay_burst(size, algorithm, burst, &path.field("burst"), document)?;
    }
    Some(at)
}
