//! The circuit breaker of a shard.
//!
//! Closed: calls are sent. A run of failures opens it; any success ends the run. Open: no call is sent, so a
//! decision takes microseconds, and only the supervisor of the shard probes the server, with growing backoff.
//! Half-open: a probe is in flight; for calls that is the same as open.
//!
//! It reads no clock and draws no random number: both are handed in.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use tollgate_core::time::TimerTime;

/// So many failures in a row open it.
const FAILURES_IN_A_ROW: u32 = 3;
/// A run that lasts this long opens it too, however few failures it has.
const FAILING_US: u64 = 100_000;
const FIRST_PROBE_US: u64 = 50_000;
const LAST_PROBE_US: u64 = 500_000;

/// What a breaker does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Lets them through.
    Closed,
    /// Lets none through.
    Open,
    /// Lets none through, but a probe is under way.
    HalfOpen,
}

/// The run of failures behind a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerTransition {
    /// Since the first failure of the run.
    pub(crate) after_us: u64,
    /// Failures in the run, probes included.
    pub(crate) failures: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// [`BreakerState`], read without the lock.
    state: AtomicU8,
    /// Failures in the run, read without the lock: a success has nothing to do while it is 0.
    failures: AtomicU32,
    schedule: Mutex<ProbeSchedule>,
}

#[derive(Debug, Default)]
struct ProbeSchedule {
    first_failure: TimerTime,
    next_probe: TimerTime,
    backoff_us: u64,
}

const CLOSED: u8 = 0;
const OPEN: u8 = 1;
const HALF_OPEN: u8 = 2;

impl Breaker {
    /// A closed one.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(CLOSED), failures: AtomicU32::new(0), schedule: Mutex::default() }
    }

    /// Whether calls must not go out.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) != CLOSED
    }

    /// What it does now.
    pub(crate) fn state(&self) -> BreakerState {
        match self.state.load(Ordering::Acquire) {
            CLOSED => BreakerState::Closed,
            OPEN => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        }
    }

    /// Failures in the run.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// A call was answered: the run ends. An open breaker stays open: the reply may be an old one.
    #[inline]
    pub(crate) fn record_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            let _schedule = self.schedule.lock();
            if !self.is_open() {
                self.failures.store(0, Ordering::Relaxed);
            }
        }
    }

    /// A call failed. Returns the transition if that opened the breaker.
    pub(crate) fn record_failure(&self, now: TimerTime) -> Option<BreakerTransition> {
        let mut schedule = self.schedule.lock();
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        if failures == 1 {
            schedule.first_failure = now;
        }
        let after_us = now.since(schedule.first_failure);
        if self.is_open() || (failures < FAILURES_IN_A_ROW && after_us < FAILING_US) {
            return None;
        }
        self.open(&mut schedule, now);
        Some(BreakerTransition { after_us, failures })
    }

    /// Opens it whatever happened before.
    pub(crate) fn trip(&self, now: TimerTime) -> Option<BreakerTransition> {
        let mut schedule = self.schedule.lock();
        if self.is_open() {
            return None;
        }
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        if failures == 1 {
            schedule.first_failure = now;
        }
        self.open(&mut schedule, now);
        Some(BreakerTransition { after_us: now.since(schedule.first_failure), failures })
    }

    fn open(&self, schedule: &mut ProbeSchedule, now: TimerTime) {
        schedule.backoff_us = FIRST_PROBE_US;
        schedule.next_probe = now + FIRST_PROBE_US;
        self.state.store(OPEN, Ordering::Release);
    }

    /// When the next probe is due.
    pub(crate) fn next_probe(&self) -> TimerTime {
        self.schedule.lock().next_probe
    }

    /// Makes the next probe due now, for a reason such as a new address.
    pub(crate) fn probe_now(&self, now: TimerTime) {
        let mut schedule = self.schedule.lock();
        schedule.backoff_us = FIRST_PROBE_US;
        schedule.next_probe = now;
    }

    /// A probe goes out.
    pub(crate) fn begin_probe(&self) {
        let _schedule = self.schedule.lock();
        if self.is_open() {
            self.state.store(HALF_OPEN, Ordering::Release);
        }
    }

    /// A probe was not answered. The next comes after twice the time, give or take a quarter: `jitter` is
    /// drawn evenly from 0 to 1,000.
    pub(crate) fn record_probe_failure(&self, now: TimerTime, jitter: u32) {
        let mut schedule = self.schedule.lock();
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        let spread_us = schedule.backoff_us / 2 * u64::from(jitter.min(1_000)) / 1_000;
        schedule.next_probe = now + (schedule.backoff_us * 3 / 4 + spread_us);
        schedule.backoff_us = (schedule.backoff_us * 2).min(LAST_PROBE_US * 4 / 5);
        if self.is_open() {
            self.state.store(OPEN, Ordering::Release);
        }
    }

    /// A probe succeeded: the breaker closes. Returns the transition if it was open.
    pub(crate) fn record_probe_success(&self, now: TimerTime) -> Option<BreakerTransition> {
        let schedule = self.schedule.lock();
        let was_open = self.is_open();
        let failures = self.failures.swap(0, Ordering::Relaxed);
        self.state.store(CLOSED, Ordering::Release);
        was_open.then(|| BreakerTransition { after_us: now.since(schedule.first_failure), failures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT_US: u64 = 50_000;

    fn at(us: u64) -> TimerTime {
        TimerTime::from_us(us)
    }

    #[test]
    fn three_failures_open_it_and_two_do_not() {
        let breaker = Breaker::new();
        assert_eq!(breaker.record_failure(at(1_000)), None);
        assert_eq!(breaker.record_failure(at(1_001)), None);
        assert!(!breaker.is_open());
        assert_eq!(breaker.record_failure(at(1_002)), Some(BreakerTransition { after_us: 2, failures: 3 }));
        assert_eq!(breaker.state(), BreakerState::Open);
        assert_eq!(breaker.record_failure(at(1_003)), None, "it opens once");
    }

    #[test]
    fn a_success_ends_the_run() {
        let breaker = Breaker::new();
        for round in 0..10 {
            let now_us = round * 1_000_000;
            assert_eq!(breaker.record_failure(at(now_us)), None);
            assert_eq!(breaker.record_failure(at(now_us + 1)), None);
            breaker.record_success();
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn two_failures_open_it_when_they_lie_a_tenth_of_a_second_apart() {
        let breaker = Breaker::new();
        assert_eq!(breaker.record_failure(at(0)), None);
        assert_eq!(
            breaker.record_failure(at(100_000)),
            Some(BreakerTransition { after_us: 100_000, failures: 2 })
        );
    }

    /// The supervisor pings when nothing was answered for 100 ms, counts a failure when the reply is 50 ms
    /// late, and another for each further third of that.
    #[test]
    fn an_outage_opens_it_within_200_ms_without_load() {
        let breaker = Breaker::new();
        // The worst moment: just after a reply.
        let ping_us = 100_000;
        let mut late_us = TIMEOUT_US;
        while breaker.record_failure(at(ping_us + late_us)).is_none() {
            late_us += TIMEOUT_US / 3;
        }
        assert!(ping_us + late_us < 200_000, "opened after {} µs", ping_us + late_us);
    }

    #[test]
    fn under_load_an_outage_opens_it_with_the_third_timeout() {
        let breaker = Breaker::new();
        let opened = (0..100).find(|call| breaker.record_failure(at(call * 1_000 + TIMEOUT_US)).is_some());
        assert_eq!(opened, Some(2), "calls sent at 0, 1 and 2 ms are late at 50, 51 and 52");
    }

    #[test]
    fn probes_come_ever_more_rarely_and_never_more_than_half_a_second_apart() {
        for jitter in [0, 500, 1_000, 9_999] {
            let breaker = Breaker::new();
            assert!(breaker.trip(at(0)).is_some());
            let (mut now_us, mut pauses_ms) = (0, Vec::new());
            for _ in 0..8 {
                let due_us = breaker.next_probe().as_us();
                pauses_ms.push((due_us - now_us) / 1_000);
                now_us = due_us;
                breaker.begin_probe();
                assert_eq!(breaker.state(), BreakerState::HalfOpen);
                assert!(breaker.is_open());
                breaker.record_probe_failure(at(now_us), jitter);
            }
            assert_eq!(pauses_ms[0], 50);
            assert!((37..=62).contains(&pauses_ms[1]), "{pauses_ms:?}");
            assert!(pauses_ms.windows(2).skip(1).all(|pair| pair[0] <= pair[1]), "{pauses_ms:?}");
            assert!((300..=500).contains(&pauses_ms[7]), "{pauses_ms:?}");
        }
    }

    #[test]
    fn only_a_probe_closes_it() {
        let breaker = Breaker::new();
        assert!(breaker.trip(at(10)).is_some());
        breaker.record_success();
        assert!(breaker.is_open(), "a late answer proves nothing");
        breaker.begin_probe();
        breaker.record_probe_failure(at(60_010), 0);
        breaker.begin_probe();
        assert_eq!(
            breaker.record_probe_success(at(100_010)),
            Some(BreakerTransition { after_us: 100_000, failures: 2 })
        );
        assert!(!breaker.is_open());
        assert_eq!(breaker.record_probe_success(at(100_011)), None);
        assert_eq!(breaker.record_failure(at(100_012)), None, "a new run begins");
    }

    #[test]
    fn probe_now_resets_the_backoff() {
        let breaker = Breaker::new();
        assert!(breaker.trip(at(0)).is_some());
        for _ in 0..5 {
            breaker.record_probe_failure(at(1_000_000), 1_000);
        }
        breaker.probe_now(at(1_000_000));
        assert_eq!(breaker.next_probe(), at(1_000_000));
    }
}
