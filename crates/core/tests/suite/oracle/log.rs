//! The sliding window log: a list is its definition, so the twin differs only in that it searches.

use super::Oracle;
use crate::sample::Window;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::Limit;

#[derive(Default)]
pub struct SlidingWindowLog {
    admitted: Vec<(u64, u32)>,
}

impl SlidingWindowLog {
    fn used(&self, rule: &Window, now_us: u64) -> u64 {
        let counts = |at_us: u64| at_us + rule.window_us > now_us;
        self.admitted.iter().filter(|(at_us, _)| counts(*at_us)).map(|(_, cost)| u64::from(*cost)).sum()
    }
}

impl Oracle for SlidingWindowLog {
    type Rule = Window;
    const ALGORITHM: Algorithm = Algorithm::SlidingWindowLog;

    fn draw(rng: &mut fastrand::Rng) -> Window {
        Window::draw_for_log(rng)
    }

    fn edited(rule: &Window, rng: &mut fastrand::Rng) -> Window {
        match rng.u8(0..3) {
            0 => Window { limit: rng.u32(1..=60), ..*rule },
            1 => Window { window_us: 1 + rng.u64(0..2 * rule.window_us) / 2, ..*rule },
            _ => Self::draw(rng),
        }
    }

    fn limit(rule: &Window) -> Limit {
        rule.limit(Self::ALGORITHM)
    }

    fn settle(&mut self, rule: &Window, now_us: u64) {
        if self.admitted.last().is_some_and(|(at_us, _)| *at_us > now_us + rule.window_us) {
            for (at_us, _) in &mut self.admitted {
                *at_us = now_us.min(*at_us);
            }
        }
    }

    fn admits(&self, rule: &Window, now_us: u64, cost: u32) -> bool {
        self.used(rule, now_us) + u64::from(cost) <= rule.limit.into()
    }

    /// What has left the window when a request is admitted is forgotten, also for a longer window to come.
    fn spend(&mut self, rule: &Window, now_us: u64, cost: u32) {
        self.admitted.retain(|(at_us, _)| at_us + rule.window_us > now_us);
        let newest_us = self.admitted.last().map_or(0, |(at_us, _)| *at_us);
        self.admitted.push((newest_us.max(now_us), cost));
    }

    fn remaining(&self, rule: &Window, now_us: u64) -> u32 {
        u64::from(rule.limit).saturating_sub(self.used(rule, now_us)) as u32
    }

    fn is_fresh(&self, rule: &Window, now_us: u64) -> bool {
        self.used(rule, now_us) == 0
    }
}
