//! Which leases a tick examines: each at the interval of its rule.

use tollgate_core::key::StateKey;
use tollgate_core::time::BootTime;

/// The keys that need something from a tick, those of one interval together, so that a tick for the sake of a
/// short interval costs nothing where there are many keys of a longer one.
#[derive(Debug, Default)]
pub(super) struct TickSchedule {
    rounds: Vec<TickInterval>,
    /// When the last tick was.
    last_tick: BootTime,
}

#[derive(Debug)]
struct TickInterval {
    interval_us: u64,
    keys: Vec<StateKey>,
}

impl TickSchedule {
    /// Adds `key`, which is examined every `interval_us`.
    pub(super) fn join(&mut self, key: StateKey, interval_us: u64) {
        match self.rounds.iter_mut().find(|round| round.interval_us == interval_us) {
            Some(round) => round.keys.push(key),
            None => self.rounds.push(TickInterval { interval_us, keys: vec![key] }),
        }
    }

    /// Removes `key`, which was examined every `interval_us`.
    pub(super) fn leave(&mut self, key: StateKey, interval_us: u64) {
        let mut rounds = self.rounds.iter_mut().filter(|round| round.interval_us == interval_us);
        if let Some(keys) = rounds.next().map(|round| &mut round.keys)
            && let Some(index) = keys.iter().position(|known| *known == key)
        {
            keys.swap_remove(index);
        }
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.rounds.iter().map(|round| round.keys.len()).sum()
    }

    /// Calls `visit` with the keys that are due at the tick of `now`; ticks are `tick_us` apart. A key stays if it
    /// returns true.
    pub(super) fn walk(&mut self, now: BootTime, tick_us: u64, mut visit: impl FnMut(StateKey) -> bool) {
        for round in &mut self.rounds {
            // Ticks are a little early or late: a key whose interval is that of the ticks is due at each.
            let is_due = round.interval_us <= tick_us
                || now.as_us() / round.interval_us != self.last_tick.as_us() / round.interval_us;
            if is_due {
                round.keys.retain(|key| visit(*key));
            }
        }
        self.rounds.retain(|round| !round.keys.is_empty());
        self.last_tick = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    /// The keys that are visited by a tick at `now_us`, in order.
    fn visited(rounds: &mut TickSchedule, now_us: u64, tick_us: u64) -> Vec<u64> {
        let mut visited = Vec::new();
        rounds.walk(BootTime::from_us(now_us), tick_us, |key| {
            visited.push(key.as_bits());
            true
        });
        visited.sort_unstable();
        visited
    }

    #[test]
    fn each_key_is_visited_at_its_own_interval() {
        let mut rounds = TickSchedule::default();
        for (key, interval_ms) in [(1, 10), (2, 25), (3, 100), (4, 100)] {
            rounds.join(StateKey::from_bits(key), interval_ms * MS);
        }
        let mut visits = [0; 5];
        for tick in 1..=100 {
            // Never quite in time.
            let now_us = tick * 10 * MS + tick % 3 * 100;
            for key in visited(&mut rounds, now_us, 10 * MS) {
                visits[key as usize] += 1;
            }
        }
        assert_eq!(visits, [0, 100, 40, 10, 10]);
    }

    #[test]
    fn key_at_the_tick_interval_is_due_at_each_tick() {
        let mut rounds = TickSchedule::default();
        rounds.join(StateKey::from_bits(1), 100 * MS);
        for now_us in [100_050, 199_950, 300_050] {
            assert_eq!(visited(&mut rounds, now_us, 100 * MS), [1], "{now_us}");
        }
    }

    #[test]
    fn removed_keys_are_not_visited() {
        let mut rounds = TickSchedule::default();
        for key in [1, 2, 3] {
            rounds.join(StateKey::from_bits(key), 10 * MS);
        }
        rounds.leave(StateKey::from_bits(2), 10 * MS);
        rounds.join(StateKey::from_bits(2), 1_000 * MS);
        assert_eq!(visited(&mut rounds, 10 * MS, 10 * MS), [1, 3]);
        rounds.walk(BootTime::from_us(20 * MS), 10 * MS, |key| key == StateKey::from_bits(3));
        assert_eq!(visited(&mut rounds, 30 * MS, 10 * MS), [3]);
        assert_eq!(visited(&mut rounds, 1_000 * MS, 10 * MS), [2, 3]);
    }
}
