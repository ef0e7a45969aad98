//! The most frequent keys, in fixed memory, from a sample of the checks.
//!
//! Each thread takes one check in [`ONE_IN`] on average, at random distances, so that no rhythm of requests hides from
//! it. The sampled keys are counted in sets of eight, in the manner of HeavyKeeper: a newcomer to a full set does not
//! take the place of the key with the least, it wears it down, and the less likely so the more that key has. So
//! rare keys do not displace frequent ones, however many they are. No count is ever more than what was seen: no key is
//! reported for the requests of others.

use super::label::Label;
use tollgate_core::key::Identity;

/// One check in so many is looked at.
pub(crate) const ONE_IN: u32 = 64;

const SETS: usize = 256;
const WAYS: usize = 8;
/// A count is worn down with a chance of one in this to the power of the count.
const WEAR: f64 = 1.08;

/// Two cache lines of keys that fall together. Keys are hashes; 0 stands for none.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct SampleSet {
    keys: [u64; WAYS],
    counts: [u32; WAYS],
    refused: [u32; WAYS],
}

/// The counts since the last look.
pub(super) struct Samples {
    sets: Box<[SampleSet]>,
    /// Apart: a key that is counted already does not need its label.
    labels: Box<[[Label; WAYS]]>,
    since_us: u64,
}

/// What was seen of one key.
#[derive(Clone, Copy)]
pub(super) struct SampledKey {
    pub(super) key: u64,
    pub(super) per_second: u64,
    pub(super) refused_percent: u8,
    pub(super) label: Label,
}

impl SampleSet {
    fn way_of(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|known| *known == key)
    }

    /// The one with the least. Of equals any: if it were always the first, newcomers would only ever displace each
    /// other.
    fn least(&self, newcomer: u64) -> usize {
        let first = (newcomer >> 32) as usize;
        let ways = (0..WAYS).map(|step| (first + step) % WAYS);
        ways.min_by_key(|way| self.counts[*way]).unwrap_or_default()
    }
}

impl Samples {
    pub(super) fn new(now_us: u64) -> Self {
        let nobody = Label::new(&Identity::Anonymous);
        Self {
            sets: vec![SampleSet::default(); SETS].into_boxed_slice(),
            labels: vec![[nobody; WAYS]; SETS].into_boxed_slice(),
            since_us: now_us,
        }
    }

    pub(super) fn since_us(&self) -> u64 {
        self.since_us
    }

    /// Counts one that was sampled, if it has or finds a place.
    pub(super) fn add(&mut self, key: u64, identity: &Identity<'_>, refused: bool) {
        let key = key.max(1);
        let index = key as usize % SETS;
        let set = &mut self.sets[index];
        if let Some(way) = set.way_of(key) {
            set.counts[way] = set.counts[way].saturating_add(1);
            set.refused[way] += u32::from(refused);
            return;
        }
        let way = set.least(key);
        let count = &mut set.counts[way];
        if *count > 0 && fastrand::f64() < WEAR.powi(-((*count).min(1_000) as i32)) {
            *count -= 1;
            set.refused[way] = set.refused[way].min(*count);
        }
        if *count == 0 {
            *count = 1;
            set.keys[way] = key;
            set.refused[way] = u32::from(refused);
            self.labels[index][way] = Label::new(identity);
        }
    }

    /// One that was counted turned out to be refused.
    pub(super) fn record_refusal(&mut self, key: u64) {
        let key = key.max(1);
        let set = &mut self.sets[key as usize % SETS];
        if let Some(way) = set.way_of(key) {
            set.refused[way] = (set.refused[way] + 1).min(set.counts[way]);
        }
    }

    /// The keys with at least `per_second` requests a second since the last look. Resets the counts.
    pub(super) fn look(&mut self, per_second: u64, now_us: u64, mut found: impl FnMut(SampledKey)) {
        let elapsed_us = now_us.saturating_sub(self.since_us).max(1);
        for (set, labels) in self.sets.iter_mut().zip(&self.labels) {
            for (way, label) in labels.iter().enumerate() {
                let seen = u64::from(set.counts[way]);
                let rate = u128::from(seen) * u128::from(ONE_IN) * 1_000_000 / u128::from(elapsed_us);
                if set.keys[way] != 0 && rate >= u128::from(per_second) {
                    let refused_percent = (u64::from(set.refused[way]) * 100 / seen.max(1)).min(100) as u8;
                    let per_second = rate.min(u64::MAX.into()) as u64;
                    found(SampledKey { key: set.keys[way], per_second, refused_percent, label: *label });
                }
            }
            *set = SampleSet::default();
        }
        self.since_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use tollgate_core::request::NamedIdentity;

    /// A node that is asked ten million times a second by a million keys, twenty of them ten thousand times.
    #[test]
    fn heavy_keys_are_found_among_any_number_of_others_and_none_is_overrated() {
        let mut rng = Rng::with_seed(5);
        let mut samples = Samples::new(0);
        let heavy: Vec<u64> = (0..20).map(|_| rng.u64(..)).collect();
        let (of_each, of_others) = (10_000 / ONE_IN, 10_000_000 / ONE_IN);
        for _ in 0..of_each {
            for key in &heavy {
                samples.add(*key, &Identity::Named(NamedIdentity::User, "heavy"), true);
            }
            for _ in 0..of_others / of_each {
                samples.add(
                    rng.u64(..1_000_000).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    &Identity::Named(NamedIdentity::User, "light"),
                    false,
                );
            }
        }
        let mut found = Vec::new();
        samples.look(7_500, 1_000_000, |seen| found.push(seen));
        let right = found.iter().filter(|seen| heavy.contains(&seen.key)).count();
        assert_eq!((right, found.len()), (heavy.len(), heavy.len()));
        for seen in found {
            assert!(seen.label.text() == "heavy" && seen.per_second <= 10_000 && seen.refused_percent == 100);
        }
        samples.look(1, 2_000_000, |seen| panic!("{} is still there", seen.key));
    }
}
