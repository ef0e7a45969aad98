//! The most frequent keys, in fixed memory, from a sample of the checks.
//!
//! Each thread samples one check in [`ONE_IN`] on average, at random distances, so that periodic requests cannot evade
//! it. The sampled keys are counted in sets of eight, as in HeavyKeeper: a new key in a full set does not replace the key
//! with the smallest count but decrements that count, with a probability that falls as the count grows. So any number of
//! rare keys does not displace frequent ones. No count exceeds the number of samples of its key.

use super::label::Label;
use crate::set_table::SetTable;
use tollgate_core::key::Identity;
use tollgate_core::time::UnixTime;

/// One check in so many is sampled.
pub(crate) const ONE_IN: u32 = 64;

const SETS: usize = 256;
const WAYS: usize = 8;
/// A count is decremented with a probability of one in this to the power of the count.
const DECAY: f64 = 1.08;

/// The samples of one key.
#[derive(Clone, Copy, Default)]
struct SampleCount {
    count: u32,
    refused: u32,
    label: Label,
}

/// The counts since the last look.
pub(super) struct Samples {
    counts: SetTable<SampleCount, WAYS>,
    since: UnixTime,
}

/// The outcome of a sampled check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleOutcome {
    /// A limit or a hold refused it.
    Refused,
    /// It is not refused, or not decided yet.
    NotRefused,
}

/// The rate of one key.
#[derive(Clone, Copy)]
pub(super) struct SampledKey {
    pub(super) key: u64,
    pub(super) per_second: u64,
    pub(super) refused_percent: u8,
    pub(super) label: Label,
}

impl Samples {
    pub(super) fn new(now: UnixTime) -> Self {
        Self { counts: SetTable::new(SETS), since: now }
    }

    pub(super) fn since(&self) -> UnixTime {
        self.since
    }

    /// Counts a sampled check. A key that has no place and gets none is not counted.
    pub(super) fn add(&mut self, key: u64, identity: &Identity<'_>, outcome: SampleOutcome) {
        let Some(sample) = self.counts.entry(key, |samples| decay_smallest(samples, key)) else { return };
        if sample.count == 0 {
            sample.label = Label::new(identity);
        }
        sample.count = sample.count.saturating_add(1);
        match outcome {
            SampleOutcome::Refused => sample.refused = (sample.refused + 1).min(sample.count),
            SampleOutcome::NotRefused => {}
        }
    }

    /// Records that a check that was counted is refused.
    pub(super) fn record_refusal(&mut self, key: u64) {
        if let Some(sample) = self.counts.find_mut(key) {
            sample.refused = (sample.refused + 1).min(sample.count);
        }
    }

    /// The keys with at least `per_second` requests a second since the last look. Resets the counts.
    pub(super) fn look(&mut self, per_second: u64, now: UnixTime, mut found: impl FnMut(SampledKey)) {
        let elapsed_us = now.since(self.since).max(1);
        for (key, SampleCount { count, refused, label }) in self.counts.iter() {
            let rate = u128::from(*count) * u128::from(ONE_IN) * 1_000_000 / u128::from(elapsed_us);
            if rate >= u128::from(per_second) {
                let refused_percent = (u64::from(*refused) * 100 / u64::from(*count).max(1)).min(100) as u8;
                let per_second = rate.min(u64::MAX.into()) as u64;
                found(SampledKey { key, per_second, refused_percent, label: *label });
            }
        }
        self.counts.clear();
        self.since = now;
    }
}

/// Decrements the smallest count for the new key `key`; returns its way if it is 0. Of equal counts any is used: if it
/// were always the first, new keys would only replace each other.
fn decay_smallest(samples: &mut [SampleCount; WAYS], key: u64) -> Option<usize> {
    let first = (key >> 32) as usize;
    let ways = (0..WAYS).map(|step| (first + step) % WAYS);
    let way = ways.min_by_key(|way| samples[*way].count)?;
    let SampleCount { count, refused, .. } = &mut samples[way];
    if fastrand::f64() < DECAY.powi(-((*count).min(1_000) as i32)) {
        *count -= 1;
        *refused = (*refused).min(*count);
    }
    (*count == 0).then_some(way)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use tollgate_core::request::NamedIdentity;

    /// Ten million requests a second of a million keys; twenty of the keys send ten thousand each.
    #[test]
    fn frequent_keys_are_found_among_many_others_and_no_rate_is_too_high() {
        let mut rng = Rng::with_seed(5);
        let mut samples = Samples::new(UnixTime::default());
        let heavy: Vec<u64> = (0..20).map(|_| rng.u64(..)).collect();
        let (of_each, of_others) = (10_000 / ONE_IN, 10_000_000 / ONE_IN);
        for _ in 0..of_each {
            for key in &heavy {
                samples.add(*key, &Identity::Named(NamedIdentity::User, "heavy"), SampleOutcome::Refused);
            }
            for _ in 0..of_others / of_each {
                samples.add(
                    rng.u64(..1_000_000).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    &Identity::Named(NamedIdentity::User, "light"),
                    SampleOutcome::NotRefused,
                );
            }
        }
        let mut found = Vec::new();
        samples.look(7_500, UnixTime::from_us(1_000_000), |seen| found.push(seen));
        let right = found.iter().filter(|seen| heavy.contains(&seen.key)).count();
        assert_eq!((right, found.len()), (heavy.len(), heavy.len()));
        for seen in found {
            assert!(seen.label.text() == "heavy" && seen.per_second <= 10_000 && seen.refused_percent == 100);
        }
        samples.look(1, UnixTime::from_us(2_000_000), |seen| panic!("{} is still there", seen.key));
    }
}
