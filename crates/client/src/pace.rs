//! When the next request to a server may go: what it said is left, counted down here.
//!
//! Between two answers, every request that goes takes one of what is left. Nothing left: requests wait for the reset.
//! Little left: they are spaced evenly over the time until then. `Retry-After` closes the way
//! altogether. Every answer corrects the count; requests under way are taken off what it says, for the server
//! may not have seen them yet.

use crate::advice::{Advice, Quota};
use std::time::Duration;
use tokio::time::Instant;

/// How a caller keeps to what servers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceSettings {
    /// A request that would have to wait longer is not sent, and fails with [`crate::Throttled`].
    pub longest_wait: Duration,
    /// What servers say is believed for so long at most: a wrong header must not silence a caller for good.
    pub longest_trust: Duration,
    /// Requests are spaced once less than so many in a hundred of the limit are left.
    pub space_below_percent: u32,
    /// How many servers, or whatever the key says, are known at once.
    pub most_keys: usize,
}

impl Default for PaceSettings {
    fn default() -> Self {
        Self {
            longest_wait: Duration::from_secs(60),
            longest_trust: Duration::from_secs(3_600),
            space_below_percent: 20,
            most_keys: 1_024,
        }
    }
}

/// What is known of one server.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Nothing goes before.
    closed_until: Instant,
    /// What is left until the reset; none if nothing is known.
    left: Option<Left>,
    /// When the next may go while they are spaced.
    next: Instant,
    under_way: u64,
}

#[derive(Clone, Copy, Debug)]
struct Left {
    remaining: u64,
    reset: Instant,
    limit: Option<u64>,
    window: Duration,
}

/// What a request has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Go at this instant. It has been counted.
    Go(Instant),
    /// Ask again then.
    Wait(Instant),
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { closed_until: now, left: None, next: now, under_way: 0 }
    }

    /// Whether there is nothing in here that a fresh one would not know.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        self.under_way == 0 && self.closed_until <= now && self.left.is_none_or(|left| left.reset <= now)
    }

    /// Whether a request may go. One that waits for longer than `longest_wait` is not counted.
    pub(crate) fn turn(&mut self, now: Instant, settings: &PaceSettings) -> Turn {
        if self.closed_until > now {
            return Turn::Wait(self.closed_until);
        }
        self.refill(now);
        let Some(left) = &mut self.left else {
            self.under_way += 1;
            return Turn::Go(now);
        };
        if left.remaining == 0 {
            return Turn::Wait(left.reset);
        }
        let most = left.limit.unwrap_or(0).max(left.remaining);
        let is_low =
            u128::from(left.remaining) * 100 < u128::from(most) * u128::from(settings.space_below_percent);
        let mut at = now;
        if is_low {
            at = self.next.max(now);
            if at - now > settings.longest_wait {
                return Turn::Wait(at);
            }
            let share = u32::try_from(left.remaining).unwrap_or(u32::MAX);
            self.next = at + left.reset.saturating_duration_since(at) / share;
        }
        left.remaining -= 1;
        self.under_way += 1;
        Turn::Go(at)
    }

    /// At the reset the limit is whole again, as far as that is known.
    fn refill(&mut self, now: Instant) {
        let Some(left) = &mut self.left else { return };
        if left.reset > now {
            return;
        }
        match left.limit {
            Some(limit) => {
                left.remaining = limit.saturating_sub(self.under_way);
                left.reset = now + left.window;
            }
            None => self.left = None,
        }
    }

    /// A request is over, with an answer or without.
    pub(crate) fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// An answer says `advice`. The request that it answers must have ended. `is_refusal` says whether it was refused.
    pub(crate) fn heard(&mut self, advice: &Advice, is_refusal: bool, now: Instant, settings: &PaceSettings) {
        if let (Some(wait), true) = (advice.retry_after, is_refusal) {
            self.closed_until = self.closed_until.max(now + wait.min(settings.longest_trust));
        }
        let Some(Quota { remaining, reset, limit, window }) = advice.quota else { return };
        let reset = reset.min(settings.longest_trust);
        let known = self.left.and_then(|left| left.limit);
        self.left = Some(Left {
            remaining: remaining.saturating_sub(self.under_way),
            reset: now + reset,
            limit: limit.or(known),
            // Never nothing: a limit that is whole again at once is no limit.
            window: window.unwrap_or(reset).clamp(Duration::from_millis(100), settings.longest_trust),
        });
        // Where a refused request was told when to come back, that counts, and not when the limit is whole again.
        if is_refusal && advice.retry_after.is_some() {
            self.left = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(remaining: u64, reset: u64, limit: u64) -> Advice {
        let reset = Duration::from_secs(reset);
        let quota = Quota { remaining, reset, limit: Some(limit), window: Some(reset) };
        Advice { retry_after: None, quota: Some(quota) }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_free_then_spaced_then_held() {
        let (now, settings) = (Instant::now(), PaceSettings::default());
        let mut pace = Pace::new(now);
        pace.heard(&quota(22, 10, 100), false, now, &settings);
        let turns: Vec<Turn> = (0..23).map(|_| pace.turn(now, &settings)).collect();
        let free = turns.iter().filter(|turn| **turn == Turn::Go(now)).count();
        assert_eq!(free, 4, "three while there is enough, and the first that is spaced");
        let seconds = |turn: &Turn| match turn {
            Turn::Go(at) => (*at - now).as_secs_f64(),
            Turn::Wait(_) => panic!("all but the last go"),
        };
        for pair in turns[3..22].windows(2) {
            let gap = seconds(&pair[1]) - seconds(&pair[0]);
            assert!((gap - 10.0 / 19.0).abs() < 0.01, "{gap}");
        }
        assert_eq!(turns[22], Turn::Wait(now + Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_makes_it_whole_and_what_is_under_way_counts() {
        let (now, settings) = (Instant::now(), PaceSettings::default());
        let mut pace = Pace::new(now);
        for _ in 0..3 {
            assert_eq!(pace.turn(now, &settings), Turn::Go(now), "nothing is known");
        }
        pace.ended();
        pace.heard(&quota(2, 5, 2), false, now, &settings);
        let reset = now + Duration::from_secs(5);
        assert_eq!(pace.turn(now, &settings), Turn::Wait(reset), "both that are left are under way");
        pace.ended();
        pace.ended();
        let goes = (0..5).filter(|_| matches!(pace.turn(reset, &settings), Turn::Go(_))).count();
        assert_eq!(goes, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_closes_for_what_it_says_and_no_longer_than_is_believed() {
        let (now, settings) = (Instant::now(), PaceSettings::default());
        let mut pace = Pace::new(now);
        let refusal = |seconds| Advice { retry_after: Some(Duration::from_secs(seconds)), ..quota(0, 60, 5) };
        pace.heard(&refusal(3), true, now, &settings);
        let open = now + Duration::from_secs(3);
        assert_eq!(pace.turn(now, &settings), Turn::Wait(open));
        assert_eq!(pace.turn(open, &settings), Turn::Go(open));
        pace.heard(&refusal(1_000_000), true, now, &settings);
        assert_eq!(pace.turn(open, &settings), Turn::Wait(now + settings.longest_trust));
    }
}
