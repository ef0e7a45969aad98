//! When the next request to a server may be sent: the remaining quota that the server stated, counted down locally.
//!
//! Between two responses, every request that is sent takes one of what remains. At zero, requests wait for the reset.
//! Below a share of the limit, they are spaced evenly until the reset. `Retry-After` of a refusal stops all requests
//! until then. Every response corrects the count; requests in flight are subtracted from what it states, because the
//! server may not have counted them yet.

use crate::response_limits::{RemainingQuota, ResponseLimits};
use crate::retry::ServerOutcome;
use std::time::Duration;
use tokio::time::Instant;

/// How a client keeps to the limits that servers state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceSettings {
    /// A request that would have to wait longer is not sent, and fails with [`crate::Throttled`].
    pub max_wait: Duration,
    /// The longest wait or reset that is believed: a wrong header must not silence a client for good.
    pub max_trust: Duration,
    /// Requests are spaced once less than this percentage of the limit remains.
    pub space_below_percent: u32,
    /// How many keys (by default: servers) are tracked at once.
    pub max_keys: usize,
}

impl Default for PaceSettings {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(60),
            max_trust: Duration::from_secs(3_600),
            space_below_percent: 20,
            max_keys: 1_024,
        }
    }
}

/// The pace of one key.
#[derive(Debug)]
pub(crate) struct PaceState {
    /// No request is sent before.
    closed_until: Instant,
    /// What remains until the reset; none if the server has stated nothing.
    quota: Option<CountedQuota>,
    /// When the next request may be sent while requests are spaced.
    next: Instant,
    in_flight: u64,
}

/// A stated quota, counted down locally.
#[derive(Clone, Copy, Debug)]
struct CountedQuota {
    remaining: u64,
    reset: Instant,
    limit: Option<u64>,
    window: Duration,
}

/// When a request may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendTime {
    /// Send at this instant. The request has been counted.
    At(Instant),
    /// Ask again at this instant. Nothing was counted.
    AskAgain(Instant),
}

impl PaceState {
    pub(crate) fn new(now: Instant) -> Self {
        Self { closed_until: now, quota: None, next: now, in_flight: 0 }
    }

    /// Whether dropping this state loses no information.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        self.in_flight == 0 && self.closed_until <= now && self.quota.is_none_or(|quota| quota.reset <= now)
    }

    /// Decides when a request may be sent. One that would wait for longer than `max_wait` is not counted.
    pub(crate) fn reserve(&mut self, now: Instant, settings: &PaceSettings) -> SendTime {
        if self.closed_until > now {
            return SendTime::AskAgain(self.closed_until);
        }
        self.refill(now);
        let Some(quota) = &mut self.quota else {
            self.in_flight += 1;
            return SendTime::At(now);
        };
        if quota.remaining == 0 {
            return SendTime::AskAgain(quota.reset);
        }
        let limit = quota.limit.unwrap_or(0).max(quota.remaining);
        let is_low =
            u128::from(quota.remaining) * 100 < u128::from(limit) * u128::from(settings.space_below_percent);
        let mut at = now;
        if is_low {
            at = self.next.max(now);
            if at - now > settings.max_wait {
                return SendTime::AskAgain(at);
            }
            let share = u32::try_from(quota.remaining).unwrap_or(u32::MAX);
            self.next = at + quota.reset.saturating_duration_since(at) / share;
        }
        quota.remaining -= 1;
        self.in_flight += 1;
        SendTime::At(at)
    }

    /// After the reset the limit is full again, if its size is known.
    fn refill(&mut self, now: Instant) {
        let Some(quota) = &mut self.quota else { return };
        if quota.reset > now {
            return;
        }
        match quota.limit {
            Some(limit) => {
                quota.remaining = limit.saturating_sub(self.in_flight);
                quota.reset = now + quota.window;
            }
            None => self.quota = None,
        }
    }

    /// Records the end of a request, with or without a response.
    pub(crate) fn record_end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Records what a response states. The end of its request must have been recorded.
    pub(crate) fn record_response(
        &mut self,
        limits: &ResponseLimits,
        outcome: ServerOutcome,
        now: Instant,
        settings: &PaceSettings,
    ) {
        let refused_for = limits.retry_after.filter(|_| outcome == ServerOutcome::Refused);
        if let Some(wait) = refused_for {
            self.closed_until = self.closed_until.max(now + wait.min(settings.max_trust));
        }
        let Some(RemainingQuota { remaining, reset, limit, window }) = limits.quota else { return };
        let reset = reset.min(settings.max_trust);
        let known = self.quota.and_then(|quota| quota.limit);
        self.quota = Some(CountedQuota {
            remaining: remaining.saturating_sub(self.in_flight),
            reset: now + reset,
            limit: limit.or(known),
            // Never zero: a limit that is full again at once is no limit.
            window: window.unwrap_or(reset).clamp(Duration::from_millis(100), settings.max_trust),
        });
        // The retry time of a refusal counts instead of the reset, when the limit is full again.
        if refused_for.is_some() {
            self.quota = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(remaining: u64, reset: u64, limit: u64) -> ResponseLimits {
        let reset = Duration::from_secs(reset);
        let quota = RemainingQuota { remaining, reset, limit: Some(limit), window: Some(reset) };
        ResponseLimits { retry_after: None, quota: Some(quota) }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_free_then_spaced_then_held() {
        let (now, settings) = (Instant::now(), PaceSettings::default());
        let mut pace = PaceState::new(now);
        pace.record_response(&quota(22, 10, 100), ServerOutcome::Served, now, &settings);
        let times: Vec<SendTime> = (0..23).map(|_| pace.reserve(now, &settings)).collect();
        let free = times.iter().filter(|time| **time == SendTime::At(now)).count();
        assert_eq!(free, 4, "three while there is enough, and the first that is spaced");
        let seconds = |time: &SendTime| match time {
            SendTime::At(at) => (*at - now).as_secs_f64(),
            SendTime::AskAgain(_) => panic!("all but the last are sent"),
        };
        for pair in times[3..22].windows(2) {
            let gap = seconds(&pair[1]) - seconds(&pair[0]);
            assert!((gap - 10.0 / 19.0).abs() < 0.01, "{gap}");
        }
        assert_eq!(times[22], SendTime::AskAgain(now + Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_fills_the_limit_less_the_requests_in_flight() {
        let (now, settings) = (Instant::now(), PaceSettings::default());
        let mut pace = PaceState::new(now);
        for _ in 0..3 {
            assert_eq!(pace.reserve(now, &settings), SendTime::At(now), "nothing is known");
        }
        pace.record_end();
        pace.record_response(&quota(2, 5, 2), ServerOutcome::Served, now, &settings);
        let reset = now + Duration::from_secs(5);
        assert_eq!(pace.reserve(now, &settings), SendTime::AskAgain(reset), "both that remain are in flight");
        pace.record_end();
        pace.record_end();
        let sent = (0..5).filter(|_| matches!(pace.reserve(reset, &settings), SendTime::At(_))).count();
        assert_eq!(sent, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_closes_for_its_retry_time_up_to_the_longest_trust() {
        let (now, settings) = (Instant::now(), PaceSettings::default());
        let mut pace = PaceState::new(now);
        let refusal =
            |seconds| ResponseLimits { retry_after: Some(Duration::from_secs(seconds)), ..quota(0, 60, 5) };
        pace.record_response(&refusal(3), ServerOutcome::Refused, now, &settings);
        let open = now + Duration::from_secs(3);
        assert_eq!(pace.reserve(now, &settings), SendTime::AskAgain(open));
        assert_eq!(pace.reserve(open, &settings), SendTime::At(open));
        pace.record_response(&refusal(1_000_000), ServerOutcome::Refused, now, &settings);
        assert_eq!(pace.reserve(open, &settings), SendTime::AskAgain(now + settings.max_trust));
    }
}
