//! What happened lately: rules in force, breakers, clocks, nodes, changes by operators. In fixed memory.
//!
//! Parts of a node report with [`EventReporter::report`], which never waits: an event that finds the queue full is
//! dropped. Most events need no report, as the live figures are compared with those of a second ago
//! ([`super::change_watch`]).

use crate::past_text::past_text;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tollgate_core::time::UnixTime;
use tollgate_limiter::Clock;
use utoipa::ToSchema;

/// Events that are kept.
const MOST_EVENTS: usize = 200;
/// Events that wait to be taken, once a second.
const QUEUE: usize = 256;
/// Longer texts are cut.
const LONGEST_TEXT: usize = 500;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LiveEventKind {
    /// Rules came into force.
    RulesInForce,
    /// Rules were read and could not be used.
    ReloadFailed,
    /// The circuit breaker of a shard opened.
    BreakerOpened,
    /// The circuit breaker of a shard is half open: the shard is probed.
    BreakerHalfOpen,
    /// The circuit breaker of a shard closed.
    BreakerClosed,
    /// The clock of a shard stepped.
    ClockStep,
    /// The clocks of this node and of a shard differ by more than 500 ms, or do so no more.
    ClockDrift,
    /// A node joined the fleet.
    NodeJoined,
    /// A node left the fleet, or is silent.
    NodeLeft,
    /// The emergency limit was switched on.
    EmergencyOn,
    /// The emergency limit was switched off.
    EmergencyOff,
    /// A revision was published.
    Published,
    /// An older revision was published again.
    RolledBack,
    /// A server of an upstream became unhealthy.
    UpstreamUnhealthy,
    /// A server of an upstream is healthy again.
    UpstreamHealthy,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveEvent {
    /// Grows by one with each event of this node.
    pub id: u64,
    /// When.
    pub t: String,
    /// What.
    pub kind: LiveEventKind,
    /// A sentence with the values that matter.
    pub text: String,
}

/// Reports events without waiting.
#[derive(Clone, Debug)]
pub struct EventReporter {
    queue: SyncSender<(UnixTime, LiveEventKind, String)>,
    clock: Clock,
}

impl EventReporter {
    /// Reports that something happened now.
    pub fn report(&self, kind: LiveEventKind, text: impl Into<String>) {
        if self.queue.try_send((self.clock.now(), kind, text.into())).is_err() {
            tracing::debug!(?kind, "event dropped: too many at once, or live figures are off");
        }
    }
}

/// The last events, the oldest first.
#[derive(Debug)]
pub(crate) struct EventRing {
    events: VecDeque<Arc<LiveEvent>>,
    next_id: u64,
    queue: Receiver<(UnixTime, LiveEventKind, String)>,
}

impl EventRing {
    pub(crate) fn new(clock: Clock) -> (Self, EventReporter) {
        let (sender, queue) = sync_channel(QUEUE);
        let ring = Self { events: VecDeque::with_capacity(MOST_EVENTS), next_id: 1, queue };
        (ring, EventReporter { queue: sender, clock })
    }

    /// Takes in what was reported. Returns the new events.
    pub(crate) fn take_reported(&mut self) -> Vec<Arc<LiveEvent>> {
        let reported: Vec<_> = self.queue.try_iter().take(QUEUE).collect();
        reported.into_iter().map(|(time, kind, text)| self.add(time, kind, text)).collect()
    }

    pub(crate) fn add(&mut self, time: UnixTime, kind: LiveEventKind, mut text: String) -> Arc<LiveEvent> {
        if text.len() > LONGEST_TEXT {
            super::clean(&mut text, LONGEST_TEXT);
            text.push('…');
        }
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        let event = Arc::new(LiveEvent { id: self.next_id, t: past_text(time), kind, text });
        self.next_id += 1;
        self.events.push_back(Arc::clone(&event));
        event
    }

    /// The last `count` events, the newest first.
    pub(crate) fn latest(&self, count: usize) -> Vec<LiveEvent> {
        self.events.iter().rev().take(count).map(|event| LiveEvent::clone(event)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::ManualClock;

    #[test]
    fn the_last_events_are_kept_and_too_many_are_dropped() {
        let clock = ManualClock::new(1_800_000_000_000_000);
        let (mut ring, reporter) = EventRing::new(Clock::Manual(clock.clone()));
        for number in 0..QUEUE + 10 {
            reporter.report(LiveEventKind::Published, format!("revision {number}"));
        }
        assert_eq!(ring.take_reported().len(), QUEUE);
        clock.advance_us(1_000_000);
        reporter.report(LiveEventKind::EmergencyOn, "ü".repeat(1_000));
        assert_eq!(ring.take_reported().len(), 1);
        let latest = ring.latest(1_000);
        assert_eq!(latest.len(), MOST_EVENTS);
        assert_eq!((latest[0].id, latest[0].t.as_str()), (257, "2027-01-15T08:00:01Z"));
        assert_eq!(latest[0].text.chars().count(), LONGEST_TEXT / 2 + 1);
        assert_eq!(latest[1].text, "revision 255");
        let json = serde_json::to_value(&latest[1]).unwrap();
        assert_eq!(json["kind"], "published");
        drop(ring);
        reporter.report(LiveEventKind::Published, "without a reader");
    }
}
