//! Who asks most, in fixed memory, from a sample of the checks.
//!
//! Each thread takes one check in [`ONE_IN`] on average, at random distances, so that no rhythm of requests hides from
//! it. The sampled keys are counted in sets of eight, in the manner of HeavyKeeper: a newcomer to a full set does not
//! take the place of the key with the least, it wears it down, and the less likely so the more that key has. So
//! whoever asks rarely passes through and leaves those alone who ask much, however many they are. No count is ever
//! more than what was seen: nobody is reported for what others did.

use super::label::Label;
use tollgate_core::key::Identity;

/// One check in so many is looked at.
pub(crate) const ONE_IN: u32 = 64;

const SETS: usize = 256;
const WAYS: usize = 8;
/// A count is worn down with a chance of one in this to the power of the count.
const WEAR: f64 = 1.08;

/// Keys are hashes; 0 stands for none.
#[derive(Clone, Copy)]
struct Sample {
    key: u64,
    count: u32,
    refused: u32,
    label: Label,
}

/// The counts since the last look.
pub(super) struct Samples {
    sets: Box<[[Sample; WAYS]]>,
    since_us: u64,
}

/// What was seen of one key.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) key: u64,
    pub(super) per_second: u64,
    pub(super) refused_percent: u8,
    pub(super) label: Label,
}

impl Samples {
    pub(super) fn new(now_us: u64) -> Self {
        let nobody = Label::new(&Identity::Anonymous);
        let empty = Sample { key: 0, count: 0, refused: 0, label: nobody };
        Self { sets: vec![[empty; WAYS]; SETS].into_boxed_slice(), since_us: now_us }
    }

    pub(super) fn since_us(&self) -> u64 {
        self.since_us
    }

    /// Counts one that was sampled, if it has or finds a place.
    pub(super) fn add(&mut self, key: u64, identity: &Identity<'_>, refused: bool) {
        let key = key.max(1);
        let set = &mut self.sets[key as usize % SETS];
        if let Some(known) = set.iter_mut().find(|sample| sample.key == key) {
            known.count = known.count.saturating_add(1);
            known.refused += u32::from(refused);
            return;
        }
        // Of equals any: if it were always the first, newcomers would only ever displace each other.
        set.rotate_left((key >> 32) as usize % WAYS);
        let Some(least) = set.iter_mut().min_by_key(|sample| sample.count) else { return };
        if least.count > 0 && fastrand::f64() < WEAR.powi(-(least.count.min(1_000) as i32)) {
            least.count -= 1;
            least.refused = least.refused.min(least.count);
        }
        if least.count == 0 {
            *least = Sample { key, count: 1, refused: u32::from(refused), label: Label::new(identity) };
        }
    }

    /// One that was counted turned out to be refused.
    pub(super) fn refused(&mut self, key: u64) {
        let key = key.max(1);
        if let Some(sample) = self.sets[key as usize % SETS].iter_mut().find(|sample| sample.key == key) {
            sample.refused = (sample.refused + 1).min(sample.count);
        }
    }

    /// Whoever asked at least `per_second` times a second since the last look; the counts begin anew.
    pub(super) fn look(&mut self, per_second: u64, now_us: u64, mut found: impl FnMut(Seen)) {
        let elapsed_us = now_us.saturating_sub(self.since_us).max(1);
        for sample in self.sets.iter_mut().flatten() {
            let seen = u64::from(sample.count);
            let rate = u128::from(seen) * u128::from(ONE_IN) * 1_000_000 / u128::from(elapsed_us);
            if sample.key != 0 && rate >= u128::from(per_second) {
                let refused_percent = (u64::from(sample.refused) * 100 / seen.max(1)).min(100) as u8;
                let per_second = rate.min(u64::MAX.into()) as u64;
                found(Seen { key: sample.key, per_second, refused_percent, label: sample.label });
            }
            *sample = Sample { key: 0, count: 0, refused: 0, ..*sample };
        }
        self.since_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// A node that is asked ten million times a second by a million keys, twenty of them ten thousand times.
    #[test]
    fn heavy_keys_are_found_among_any_number_of_others_and_none_is_overrated() {
        let mut rng = Rng::with_seed(5);
        let mut samples = Samples::new(0);
        let heavy: Vec<u64> = (0..20).map(|_| rng.u64(..)).collect();
        let (of_each, of_others) = (10_000 / ONE_IN, 10_000_000 / ONE_IN);
        for _ in 0..of_each {
            for key in &heavy {
                samples.add(*key, &Identity::User("heavy"), true);
            }
            for _ in 0..of_others / of_each {
                samples.add(
                    rng.u64(..1_000_000).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    &Identity::User("light"),
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
