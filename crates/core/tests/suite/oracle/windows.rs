//! The windows that are aligned to the clock. The twin keeps every admitted request of the last two windows
//! and counts them anew each time.

use super::Oracle;
use crate::sample::Window;
use std::borrow::Cow;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::Limit;

/// One admitted request: when, by the limit's clock, and its cost.
type Admitted = (u64, u32);

#[derive(Default)]
struct Book {
    /// The rule under which the last request was admitted.
    rule: Option<Window>,
    admitted: Vec<Admitted>,
}

/// What a limit sees of the book at one instant.
struct View {
    clock_us: u64,
    elapsed_us: u64,
    current: i128,
    previous: i128,
}

fn start_of(rule: &Window, us: u64) -> u64 {
    us - us % rule.window_us
}

fn tick_of(rule: &Window, us: u64) -> u64 {
    us - us % rule.tick_us
}

/// What was admitted in the window that starts at `start_us`.
fn sum(admitted: &[Admitted], rule: &Window, start_us: u64) -> u32 {
    admitted.iter().filter(|(at_us, _)| start_of(rule, *at_us) == start_us).map(|(_, cost)| cost).sum()
}

impl Book {
    /// The start of the newest window, and what it and the one before admitted.
    fn newest(&self) -> Option<(u64, u32, u32)> {
        let rule = self.rule?;
        let start_us = start_of(&rule, self.admitted.last()?.0);
        let current = sum(&self.admitted, &rule, start_us);
        Some((start_us, current, sum(&self.admitted, &rule, start_us - rule.window_us)))
    }

    /// The book as a rule reads it. Another rule than the one that wrote it finds two counts: one at the
    /// start of the newest window, and one that belongs before the window in which that start now lies.
    fn under(&self, rule: &Window) -> Cow<'_, [Admitted]> {
        match self.newest() {
            Some((start_us, current, previous)) if self.rule != Some(*rule) => {
                Cow::Owned(vec![(start_of(rule, start_us) - 1, previous), (start_us, current)])
            }
            _ => Cow::Borrowed(&self.admitted),
        }
    }

    fn view(&self, rule: &Window, now_us: u64) -> View {
        let admitted = self.under(rule);
        let newest_us = admitted.last().map_or(0, |(at_us, _)| start_of(rule, *at_us));
        // After a small step back the clock stands still at the newest window's start.
        let clock_us = tick_of(rule, now_us).max(newest_us);
        let start_us = start_of(rule, clock_us);
        View {
            clock_us,
            elapsed_us: clock_us - start_us,
            current: sum(&admitted, rule, start_us).into(),
            previous: sum(&admitted, rule, start_us - rule.window_us).into(),
        }
    }

    /// After a jump of the clock the newest window becomes the present one. It lies ahead by its start, or by that of the
    /// window of this rule in which it starts.
    fn settle(&mut self, rule: &Window, now_us: u64, begins: fn(&Window, u64) -> u64) {
        let clock_us = tick_of(rule, now_us);
        let Some((start_us, current, previous)) = self.newest() else { return };
        if begins(rule, start_us) > clock_us + rule.window_us {
            self.rule = Some(*rule);
            self.admitted = vec![(start_of(rule, clock_us) - 1, previous), (clock_us, current)];
        }
    }

    fn spend(&mut self, rule: &Window, now_us: u64, cost: u32) {
        let clock_us = self.view(rule, now_us).clock_us;
        self.admitted = self.under(rule).into_owned();
        self.admitted.push((clock_us, cost));
        self.rule = Some(*rule);
        // Only to keep the walk fast: what is older cannot be asked for any more.
        let oldest_us = start_of(rule, clock_us) - rule.window_us;
        self.admitted.retain(|(at_us, _)| *at_us >= oldest_us);
    }
}

macro_rules! keeps_a_book {
    ($algorithm:ident, ahead by $begins:ident) => {
        type Rule = Window;
        const ALGORITHM: Algorithm = Algorithm::$algorithm;

        fn draw(rng: &mut fastrand::Rng) -> Window {
            Window::draw(rng)
        }
        fn edited(rule: &Window, rng: &mut fastrand::Rng) -> Window {
            rule.edited(rng)
        }
        fn limit(rule: &Window) -> Limit {
            rule.limit(Self::ALGORITHM)
        }
        fn settle(&mut self, rule: &Window, now_us: u64) {
            self.0.settle(rule, now_us, $begins);
        }
        fn spend(&mut self, rule: &Window, now_us: u64, cost: u32) {
            self.0.spend(rule, now_us, cost);
        }
    };
}

#[derive(Default)]
pub struct FixedWindow(Book);

impl Oracle for FixedWindow {
    keeps_a_book!(FixedWindow, ahead by tick_of);

    fn admits(&self, rule: &Window, now_us: u64, cost: u32) -> bool {
        self.0.view(rule, now_us).current + i128::from(cost) <= rule.limit.into()
    }

    fn remaining(&self, rule: &Window, now_us: u64) -> u32 {
        (i128::from(rule.limit) - self.0.view(rule, now_us).current).max(0) as u32
    }

    fn is_fresh(&self, rule: &Window, now_us: u64) -> bool {
        self.0.view(rule, now_us).current == 0
    }
}

#[derive(Default)]
pub struct SlidingWindowCounter(Book);

impl SlidingWindowCounter {
    /// What is left of the limit by the weighted estimate, times the window.
    fn room(&self, rule: &Window, now_us: u64) -> i128 {
        let view = self.0.view(rule, now_us);
        let window = i128::from(rule.window_us);
        let weight = window - i128::from(view.elapsed_us);
        let limit = i128::from(rule.limit);
        // Under a lowered limit, a window was at most full.
        (limit - view.current.min(limit)) * window - view.previous.min(limit) * weight
    }
}

impl Oracle for SlidingWindowCounter {
    keeps_a_book!(SlidingWindowCounter, ahead by start_of);

    fn admits(&self, rule: &Window, now_us: u64, cost: u32) -> bool {
        self.room(rule, now_us) >= i128::from(cost) * i128::from(rule.window_us)
    }

    fn remaining(&self, rule: &Window, now_us: u64) -> u32 {
        (self.room(rule, now_us).max(0) / i128::from(rule.window_us)) as u32
    }

    fn is_fresh(&self, rule: &Window, now_us: u64) -> bool {
        let view = self.0.view(rule, now_us);
        view.current == 0 && view.previous == 0
    }
}
