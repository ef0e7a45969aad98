//! The time of a shard, as this node expects it.
//!
//! Limits refill by the clock of the server, so a clock that steps gives tokens away (forward) or stops all refills
//! (backward): after a failover to a server whose clock is 60 s ahead, every bucket would be 60 s fuller. A node knows
//! better: between two heartbeats the server's clock must advance as much as its own. Each call carries the time that the
//! node expects; a server that finds its clock further away than half a second changes nothing and returns the time
//! alone. The calls fail, and the node sends a heartbeat at once.
//!
//! A heartbeat is a measurement of the server's clock: its error is at most half the time that the heartbeat took. A node
//! that measures another time than it expects votes for a correction with its next heartbeat, and if more than half of the
//! nodes vote alike, all calls correct the clock by the median of their votes (`core/heartbeat.lua`). The time that limits see goes
//! on as if nothing had happened. The correction shrinks by a hundredth of the time that passes, until it is gone: until
//! then limits refill up to 1 % too fast or too slowly. A node that stands alone against the others (its virtual machine
//! was paused) gives in after three seconds.
//!
//! Steps of less than half a second pass unnoticed.

use parking_lot::Mutex;
use tollgate_core::heartbeat::ClockCorrection;
use tollgate_core::script::{CLOCK_TOLERANCE_US, CallTime};
use tollgate_core::time::{BootTime, ServerTime, StoreTime};

/// A node that expects another time than the majority gives in after this time, if its vote was counted so often.
const DOUBT_US: u64 = 3_000_000;
const VOTES_IN_VAIN: u32 = 3;
/// See the module.
#[derive(Debug, Default)]
pub struct ShardClock {
    known: Mutex<ClockState>,
}

#[derive(Debug, Default)]
struct ClockState {
    /// The shard's time, corrected, at an instant of this node's clock.
    anchor: Option<ClockAnchor>,
    /// What the majority has agreed on, for calls. A call of a node that expects another time is refused, and is not charged by that
    /// time: calls by two times that take turns would fill a bucket again and again.
    correction: ClockCorrection,
    /// What was left of it at the last heartbeat.
    correction_us: i64,
    /// The correction that this node holds right, while it differs from the others' by more than the tolerance.
    vote_us: Option<i64>,
    /// How many heartbeats with its vote were answered.
    votes_cast: u32,
    /// Since when this node and the majority expect different times.
    doubt_since: Option<BootTime>,
    /// Whether a call or a heartbeat has found the clock elsewhere since a heartbeat last found it where it is expected.
    is_doubted: bool,
}

#[derive(Clone, Copy, Debug)]
struct ClockAnchor {
    boot: BootTime,
    shard: StoreTime,
    correction: ClockCorrection,
}

/// What a heartbeat has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChange {
    /// The server's clock is not where this node expects it. The next heartbeat, which is due soon, carries its vote.
    Doubted,
    /// The server's clock has stepped by about so many microseconds; it is corrected from now on.
    Stepped(i64),
    /// The clock is not corrected any more.
    Restored,
    /// This node's own clock was wrong by so many microseconds.
    OwnClock(i64),
}

impl ClockState {
    fn expected(&self, boot: BootTime) -> Option<StoreTime> {
        let anchor = self.anchor?;
        Some(anchor.shard.shifted_by(boot.ahead_of(anchor.boot)))
    }

    /// What is left of the correction of the expected time, if it still leads there. Then the server has lost it, and all nodes vote
    /// for the same: measurements of their own would be some milliseconds apart, and calls with the old and with the new
    /// correction would take turns until all nodes have heard of the new one.
    fn lost_correction_us(&self, boot: BootTime, server: ServerTime) -> Option<i64> {
        let correction = self.anchor?.correction;
        let off_us = correction.apply(server).ahead_of(self.expected(boot)?);
        (off_us.unsigned_abs() <= CLOCK_TOLERANCE_US).then(|| correction.left_us(server))
    }
}

impl ShardClock {
    /// Whether a heartbeat was ever answered.
    pub fn is_known(&self) -> bool {
        self.known.lock().anchor.is_some()
    }

    /// The time for a call that is sent at `boot`.
    pub fn call_time(&self, boot: BootTime) -> CallTime {
        let known = self.known.lock();
        CallTime::Corrected { correction: known.correction, expected: known.expected(boot) }
    }

    /// By how much the server's clock was corrected at the last heartbeat.
    pub fn correction_us(&self) -> i64 {
        self.known.lock().correction_us
    }

    /// A call found the clock not where this node expects it. Returns whether it is the first since a heartbeat last found it
    /// there.
    pub fn begin_doubt(&self) -> bool {
        !std::mem::replace(&mut self.known.lock().is_doubted, true)
    }

    /// The correction that this node votes for with its next heartbeat.
    pub fn vote_us(&self) -> Option<i64> {
        self.known.lock().vote_us
    }

    /// The server's clock showed `server` when a heartbeat was answered, and the majority corrects it by
    /// `correction`.
    pub fn note_heartbeat(
        &self,
        sent: BootTime,
        received: BootTime,
        server: ServerTime,
        correction: ClockCorrection,
    ) -> Option<ClockChange> {
        let mut known = self.known.lock();
        let took_us = received.since(sent);
        let boot = sent + took_us / 2;
        let correction_us = correction.left_us(server);
        let agreed = correction.apply(server);
        let off_us = known.expected(boot).map(|expected| agreed.ahead_of(expected));
        let mut change = None;
        if let Some(off_us) = off_us.filter(|us| us.unsigned_abs() > CLOCK_TOLERANCE_US + took_us / 2) {
            known.is_doubted = true;
            let since = *known.doubt_since.get_or_insert(boot);
            known.votes_cast += u32::from(known.vote_us.is_some());
            if boot.since(since) < DOUBT_US || known.votes_cast < VOTES_IN_VAIN {
                let lost_us = known.lost_correction_us(boot, server);
                known.vote_us = Some(lost_us.unwrap_or(correction_us - off_us));
                // Without an agreement the server may have lost it.
                if correction != ClockCorrection::default() {
                    known.correction = correction;
                }
                return Some(ClockChange::Doubted);
            }
            change = Some(ClockChange::OwnClock(-off_us));
        } else if (correction_us == 0) != (known.correction_us == 0) {
            change = Some(match correction_us {
                0 => ClockChange::Restored,
                us => ClockChange::Stepped(-us),
            });
        }
        *known = ClockState {
            anchor: Some(ClockAnchor { boot, shard: agreed, correction }),
            correction,
            correction_us,
            vote_us: None,
            votes_cast: 0,
            doubt_since: None,
            is_doubted: false,
        };
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;
    const NOON_US: u64 = 1_794_916_800 * SECOND_US;

    /// A node that has run for an hour, and a server whose clock is `ahead_us` ahead of the true time.
    struct ClockFixture {
        clock: ShardClock,
        boot_us: u64,
        true_us: u64,
        ahead_us: i64,
    }

    impl ClockFixture {
        fn new() -> Self {
            let pair = Self {
                clock: ShardClock::default(),
                boot_us: 3_600 * SECOND_US,
                true_us: NOON_US,
                ahead_us: 0,
            };
            assert_eq!(pair.beat(0), None);
            pair
        }

        fn pass(&mut self, us: u64) {
            self.boot_us += us;
            self.true_us += us;
        }

        fn server(&self) -> ServerTime {
            ServerTime::from_us(self.true_us).shifted_by(self.ahead_us)
        }

        /// A heartbeat that takes 2 ms, answered with a correction that was agreed on now.
        fn beat(&self, agreed_us: i64) -> Option<ClockChange> {
            self.beat_with(ClockCorrection { agreed_us, since: self.server() })
        }

        fn beat_with(&self, correction: ClockCorrection) -> Option<ClockChange> {
            let boot = BootTime::from_us(self.boot_us);
            self.clock.note_heartbeat(boot.shifted_by(-1_000), boot + 1_000, self.server(), correction)
        }

        /// How far from what is expected a call finds the corrected clock.
        fn off_us(&self) -> i64 {
            let boot = BootTime::from_us(self.boot_us);
            let CallTime::Corrected { correction, expected: Some(expected) } = self.clock.call_time(boot)
            else {
                panic!("not corrected");
            };
            correction.apply(self.server()).ahead_of(expected)
        }
    }

    #[test]
    fn a_clock_that_goes_on_is_expected_where_it_is() {
        let mut pair = ClockFixture::new();
        for _ in 0..100 {
            pair.pass(SECOND_US);
            assert!(pair.off_us().abs() < 200, "{}", pair.off_us());
            // Clocks run apart by a ten-thousandth.
            pair.ahead_us += 100;
            assert_eq!(pair.beat(0), None);
        }
    }

    #[test]
    fn a_step_is_noticed_corrected_and_absorbed() {
        for step_us in [60 * SECOND_US as i64, -20 * SECOND_US as i64, 700_000] {
            let mut pair = ClockFixture::new();
            pair.pass(SECOND_US);
            pair.ahead_us += step_us;
            assert!(pair.off_us().unsigned_abs() > CLOCK_TOLERANCE_US, "calls are refused");
            assert_eq!(pair.beat(0), Some(ClockChange::Doubted));
            let vote = pair.clock.vote_us().unwrap();
            assert!((vote + step_us).abs() < 2_000, "{vote}");
            assert!(
                matches!(pair.beat(vote), Some(ClockChange::Stepped(by)) if (by - step_us).abs() < 2_000)
            );
            assert_eq!(pair.clock.vote_us(), None, "it agrees with the others");
            assert!(pair.off_us().abs() < 2_000, "calls are served");
            // The time that limits see never runs more than 1 % too fast or too slowly.
            let mut last = pair.server().shifted_by(pair.clock.correction_us());
            let correction = ClockCorrection { agreed_us: vote, since: pair.server() };
            let mut beats = 0;
            loop {
                pair.pass(SECOND_US);
                let is_over = correction.left_us(pair.server()) == 0;
                let change = pair.beat_with(correction);
                let now = pair.server().shifted_by(pair.clock.correction_us());
                let advanced_us = now.ahead_of(last);
                assert!((980_000..=1_020_000).contains(&advanced_us), "{advanced_us} in a second");
                last = now;
                beats += 1;
                if is_over {
                    assert_eq!(change, Some(ClockChange::Restored));
                    break;
                }
            }
            let expected = step_us.unsigned_abs() / 10_000;
            assert!((expected * 98 / 100..=expected * 102 / 100 + 5).contains(&beats), "{beats} seconds");
        }
    }

    /// Nodes measure the clock with errors of their own: they vote for what they have agreed on before.
    #[test]
    fn a_correction_that_the_server_has_lost_is_voted_for_as_it_was() {
        let mut pair = ClockFixture::new();
        pair.ahead_us = 60 * SECOND_US as i64;
        let correction = ClockCorrection { agreed_us: -60_000_000, since: pair.server() };
        assert!(matches!(pair.beat_with(correction), Some(ClockChange::Stepped(_))));
        pair.pass(SECOND_US);
        // A measurement that is wrong by 3 ms, all of which was on the way back.
        let sent = BootTime::from_us(pair.boot_us);
        let lost = ClockCorrection::default();
        let change = pair.clock.note_heartbeat(sent, sent + 6_000, pair.server(), lost);
        assert_eq!(change, Some(ClockChange::Doubted));
        assert_eq!(pair.clock.vote_us(), Some(correction.left_us(pair.server())));
        assert_eq!(pair.clock.vote_us(), Some(-59_990_000));
        assert!(pair.off_us().abs() < 20_000, "calls are served meanwhile");
    }

    /// A node that has started after a step and before the agreement.
    #[test]
    fn calls_of_a_node_that_expects_another_time_than_is_agreed_are_refused() {
        let mut pair = ClockFixture::new();
        assert!(pair.off_us().abs() < 10, "calls are served");
        pair.pass(SECOND_US);
        assert_eq!(pair.beat(-60_000_000), Some(ClockChange::Doubted));
        assert!(pair.off_us().unsigned_abs() > CLOCK_TOLERANCE_US, "calls are refused");
        assert_eq!(pair.clock.vote_us(), Some(0), "it votes for the time that it knows");
    }

    #[test]
    fn a_node_alone_against_the_others_gives_in() {
        let mut pair = ClockFixture::new();
        // Its machine stood still for a minute, and its clock with it.
        pair.true_us += 60 * SECOND_US;
        assert!(pair.off_us().unsigned_abs() > CLOCK_TOLERANCE_US);
        for _ in 0..3 {
            assert_eq!(pair.beat(0), Some(ClockChange::Doubted));
            assert!(pair.off_us().unsigned_abs() > CLOCK_TOLERANCE_US, "calls are refused");
            pair.pass(SECOND_US);
        }
        assert_eq!(pair.beat(0), Some(ClockChange::OwnClock(-60 * SECOND_US as i64)));
        assert!(pair.off_us().abs() < 10);
    }
}
