//! Finds events by comparing the state of a node with that of a second ago, so that no part of the node has to report
//! them.

use super::events::LiveEventKind;
use crate::rule_installer::RuleStatus;
use std::collections::BTreeMap;
use tollgate_limiter::metrics::{MetricSamples, MetricValue, catalog};
use tollgate_redis::{BreakerState, ShardFigures};

/// Further apart than this, one of two clocks is wrong.
const WORRYING_DRIFT_US: u64 = 500_000;

/// An event that was found.
pub(crate) type FoundEvent = (LiveEventKind, String);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ChangeWatch {
    /// None before the first look.
    rules: Option<(u64, u64)>,
    shards: BTreeMap<u32, KnownShard>,
    upstreams: BTreeMap<(String, String), bool>,
}

#[derive(Clone, Copy, Debug)]
struct KnownShard {
    breaker: BreakerState,
    opened: u64,
    clock_steps: u64,
    is_drifting: bool,
}

impl KnownShard {
    fn new(shard: &ShardFigures) -> Self {
        let is_drifting = shard.drift_us.unsigned_abs() > WORRYING_DRIFT_US;
        let ShardFigures { breaker, opened, clock_steps, .. } = *shard;
        Self { breaker, opened, clock_steps, is_drifting }
    }
}

impl ChangeWatch {
    /// Compares the rules in force. The first look finds those of the start.
    pub(crate) fn look_at_rules(&mut self, status: &RuleStatus, found: &mut Vec<FoundEvent>) {
        let (revision, failures) = (status.revision, status.failures);
        let known = self.rules.replace((revision, failures));
        if known.is_none_or(|(known, _)| known != revision) {
            found.push((LiveEventKind::RulesInForce, format!("revision {revision} is in force")));
        }
        if failures > known.map_or(0, |(_, failures)| failures)
            && let Some(error) = &status.error
        {
            let error = error.to_string();
            let error = error.trim_start_matches("error: ").lines().next().unwrap_or_default().to_owned();
            let text = format!("rule reload failed, revision {revision} stays in force: {error}");
            found.push((LiveEventKind::ReloadFailed, text));
        }
    }

    /// Compares the shards of the store. A breaker that opened and closed within the second is found too.
    pub(crate) fn look_at_shards(&mut self, shards: &[ShardFigures], found: &mut Vec<FoundEvent>) {
        let known = std::mem::take(&mut self.shards);
        self.shards = shards.iter().map(|shard| (shard.number, KnownShard::new(shard))).collect();
        for shard in shards {
            let now = KnownShard::new(shard);
            let closed = KnownShard { breaker: BreakerState::Closed, opened: 0, is_drifting: false, ..now };
            // Before the first look: a shard that was never away is no event, and its clock has not stepped.
            let before = known.get(&shard.number).copied().unwrap_or(closed);
            let address = shard.address.as_deref().unwrap_or("unknown address");
            let name = format!("shard {} ({address})", shard.number);
            let has_opened = now.opened > before.opened;
            if has_opened {
                found.push((LiveEventKind::BreakerOpened, format!("{name} unavailable: breaker opened")));
            }
            match (now.breaker, before.breaker) {
                (BreakerState::HalfOpen, BreakerState::Open) => {
                    let text = format!("{name} is probed: breaker half-open");
                    found.push((LiveEventKind::BreakerHalfOpen, text));
                }
                (BreakerState::Closed, before) if has_opened || before != BreakerState::Closed => {
                    found.push((LiveEventKind::BreakerClosed, format!("{name} available: breaker closed")));
                }
                _ => {}
            }
            if now.clock_steps > before.clock_steps {
                found.push((LiveEventKind::ClockStep, format!("clock of {name} stepped; it is corrected")));
            }
            if now.is_drifting != before.is_drifting {
                let (ms, again) = (shard.drift_us / 1_000, if now.is_drifting { "" } else { " no more" });
                let text = format!("clock of {name} differs from this node's by {ms} ms{again}");
                found.push((LiveEventKind::ClockDrift, text));
            }
        }
    }

    /// Compares the health of upstream servers. The first look at one only finds that it is unhealthy.
    pub(crate) fn look_at_upstreams(&mut self, samples: &MetricSamples, found: &mut Vec<FoundEvent>) {
        for sample in samples.of_metric(&catalog::UPSTREAM_HEALTHY) {
            let ([upstream, server], MetricValue::Number(value)) = (&sample.labels[..], &sample.value) else {
                continue;
            };
            let is_healthy = *value > 0.0;
            let known = self.upstreams.insert((upstream.to_string(), server.to_string()), is_healthy);
            match (known.unwrap_or(true), is_healthy) {
                (true, false) => {
                    let text = format!("server {server} of upstream {upstream} is unhealthy");
                    found.push((LiveEventKind::UpstreamUnhealthy, text));
                }
                (false, true) => {
                    let text = format!("server {server} of upstream {upstream} is healthy again");
                    found.push((LiveEventKind::UpstreamHealthy, text));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::metrics::HistogramSnapshot;

    fn shard(breaker: BreakerState, opened: u64) -> ShardFigures {
        ShardFigures {
            number: 3,
            address: Some("10.0.0.5:6379".to_owned()),
            breaker,
            opened,
            closed: 0,
            timeouts: 0,
            drift_us: 0,
            clock_steps: 0,
            durations: HistogramSnapshot::default(),
        }
    }

    fn kinds(found: &mut Vec<FoundEvent>) -> Vec<LiveEventKind> {
        std::mem::take(found).into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn breakers_are_followed() {
        use BreakerState::{Closed, HalfOpen, Open};
        use LiveEventKind::{BreakerClosed, BreakerHalfOpen, BreakerOpened};
        let (mut watch, mut found) = (ChangeWatch::default(), Vec::new());
        for (state, opened, expected) in [
            (Closed, 0, &[][..]),
            (Open, 1, &[BreakerOpened]),
            (Open, 1, &[]),
            (HalfOpen, 1, &[BreakerHalfOpen]),
            (Closed, 1, &[BreakerClosed]),
            // Within a second.
            (Closed, 2, &[BreakerOpened, BreakerClosed]),
            (Closed, 2, &[]),
        ] {
            watch.look_at_shards(&[shard(state, opened)], &mut found);
            assert_eq!(kinds(&mut found), expected, "{state:?} {opened}");
        }
    }

    #[test]
    fn clocks_are_followed() {
        let (mut watch, mut found) = (ChangeWatch::default(), Vec::new());
        let at =
            |drift_us, clock_steps| ShardFigures { drift_us, clock_steps, ..shard(BreakerState::Closed, 0) };
        watch.look_at_shards(&[at(1_000, 7)], &mut found);
        assert_eq!(kinds(&mut found), [], "steps before the start are not news");
        watch.look_at_shards(&[at(-700_000, 8)], &mut found);
        let texts: Vec<_> = found.drain(..).map(|(_, text)| text).collect();
        assert_eq!(texts[0], "clock of shard 3 (10.0.0.5:6379) stepped; it is corrected");
        assert_eq!(texts[1], "clock of shard 3 (10.0.0.5:6379) differs from this node's by -700 ms");
        watch.look_at_shards(&[at(0, 8)], &mut found);
        assert_eq!(kinds(&mut found), [LiveEventKind::ClockDrift]);
    }

    #[test]
    fn rules_and_upstreams_are_followed() {
        let (mut watch, mut found) = (ChangeWatch::default(), Vec::new());
        let mut status = RuleStatus { revision: 4, ..RuleStatus::default() };
        watch.look_at_rules(&status, &mut found);
        watch.look_at_rules(&status, &mut found);
        assert_eq!(
            std::mem::take(&mut found),
            [(LiveEventKind::RulesInForce, "revision 4 is in force".to_owned())]
        );
        let error = std::io::Error::other("gone");
        let error = crate::RuleSourceError::Read { origin: "rules.yaml".to_owned(), error };
        (status.failures, status.error) = (1, Some(std::sync::Arc::new(error)));
        watch.look_at_rules(&status, &mut found);
        let text = "rule reload failed, revision 4 stays in force: cannot read rules.yaml: gone";
        assert_eq!(std::mem::take(&mut found), [(LiveEventKind::ReloadFailed, text.to_owned())]);

        for (healthy, expected) in [
            (1.0, &[][..]),
            (0.0, &[LiveEventKind::UpstreamUnhealthy]),
            (0.0, &[]),
            (1.0, &[LiveEventKind::UpstreamHealthy]),
        ] {
            let mut samples = MetricSamples::default();
            samples.number(&catalog::UPSTREAM_HEALTHY, &["api", "127.0.0.1:9000"], healthy);
            watch.look_at_upstreams(&samples, &mut found);
            assert_eq!(kinds(&mut found), expected);
        }
    }
}
