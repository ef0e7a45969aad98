//! What becomes of a request for which time matters: its wait in a line, and answers that are held back.

use super::attempt::{PendingAdmission, QueuePlace};
use super::permit::Permit;
use super::{Admission, AdmissionDelay};
use crate::decision::Decision;
use crate::limiter::Limiter;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tollgate_core::decision::{LimitStatus, Outcome};
use tollgate_core::rules::written::{OnExceed, TarpitSettings};

/// When a request in flight ends is not known. A request that waits for a place is woken when one of this node ends,
/// and looks this often for those of other nodes.
const LOOK_AGAIN_US: u64 = 100_000;

/// Lets `asked` in or refuses it.
pub(super) async fn admission(limiter: Arc<Limiter>, asked: PendingAdmission) -> Admission {
    let mut delay = None;
    let (mut decision, permit) = match asked.line {
        None => asked.attempt(&limiter, None).await,
        Some(line) => in_line(&limiter, &asked, line, &mut delay).await,
    };
    asked.tell_longest_wait(&limiter, &mut decision);
    if let (Outcome::Limited(_), Some(key)) = (&decision.outcome, asked.watched) {
        limiter.abuse.record_late_refusal(key);
    }
    if let Some((rule, tarpit)) = delay_of(&decision)
        && let Some(_delayed) = limiter.admissions.rule_loads.delay(rule, &tarpit)
    {
        delay = Some(AdmissionDelay::Tarpitted);
        sleep(Duration::from_micros(tarpit.delay.us)).await;
        if let Outcome::Limited(standing) = &mut decision.outcome {
            standing.subtract_elapsed(tarpit.delay.us);
            decision.now_us += tarpit.delay.us;
        }
    }
    Admission { decision, permit: permit.or_none(), delay }
}

/// How long its answer is held back, and by which rule.
fn delay_of(decision: &Decision) -> Option<(&'static str, TarpitSettings)> {
    let (names, said) = match decision.outcome {
        Outcome::Limited(_) => {
            let names = decision.terms?.names;
            (names, &names.on_exceed)
        }
        Outcome::Denied => return None,
        _ => {
            let names = decision.soft?;
            (names, &names.soft.as_ref()?.then)
        }
    };
    match said {
        OnExceed::Tarpit(tarpit) => Some((&names.rule, *tarpit)),
        _ => None,
    }
}

/// Waits for its turn. See [`super::wait_queue`].
async fn in_line(
    limiter: &Arc<Limiter>,
    asked: &PendingAdmission,
    line: QueuePlace,
    delay: &mut Option<AdmissionDelay>,
) -> (Decision, Permit) {
    let QueuePlace { key, queue, .. } = line;
    let deadline = Instant::now() + Duration::from_micros(queue.max_wait.us);
    let turn = limiter.admissions.wait_queues.arrive(key);
    let mut due = None;
    if turn.ahead().count == 0 {
        let (decision, permit) = asked.attempt(limiter, None).await;
        let Some(standing) = waits(&decision) else { return (decision, permit) };
        if promised_us(&decision, &standing).is_some_and(|wait_us| wait_us > queue.max_wait.us) {
            return (decision, permit);
        }
        turn.note(decision);
        due = Some(decision);
    }
    let ahead = turn.ahead();
    let refusal = ahead.refusal.map(|refusal| {
        let pace_us = asked.snapshot.rules.set.limit(line.limit).refill_us(ahead.cost).unwrap_or(0);
        put_off(refusal, limiter.clock().now_us(), pace_us)
    });
    if let Some(refusal) = refusal
        && let Outcome::Limited(standing) = &refusal.outcome
        && promised_us(&refusal, standing).is_some_and(|wait_us| wait_us > queue.max_wait.us)
    {
        return (refusal, Permit::default());
    }
    if !turn.wait(asked.cost, queue.length) {
        return match refusal {
            Some(refusal) => (refusal, Permit::default()),
            // All before it are still asking: so does it, but it does not wait.
            None => asked.attempt(limiter, None).await,
        };
    }
    *delay = Some(AdmissionDelay::Queued);
    loop {
        if !turn.is_first() {
            if timeout_at(deadline, turn.nudged()).await.is_err() {
                let told = turn.ahead();
                let now_us = limiter.clock().now_us();
                let pace_us = asked.snapshot.rules.set.limit(line.limit).refill_us(told.cost).unwrap_or(0);
                return match told.refusal {
                    Some(refusal) => (put_off(refusal, now_us, pace_us), Permit::default()),
                    None => asked.attempt(limiter, None).await,
                };
            }
            due = None;
            continue;
        }
        let meant_us = due.and_then(|refusal: Decision| {
            let wait_us = promised_us(&refusal, &waits(&refusal)?)?;
            Some(refusal.now_us + wait_us)
        });
        let (decision, permit) = asked.attempt(limiter, meant_us).await;
        let Some(standing) = waits(&decision) else { return (decision, permit) };
        turn.note(decision);
        let promised_us = promised_us(&decision, &standing);
        let until = Instant::now() + Duration::from_micros(promised_us.unwrap_or(LOOK_AGAIN_US));
        if until > deadline && promised_us.is_some() || Instant::now() >= deadline {
            return (decision, permit);
        }
        due = Some(decision);
        tokio::select! {
            () = sleep_until(until.min(deadline)) => {}
            // What it was told does not hold any more.
            () = turn.nudged() => due = None,
        }
    }
}

/// How things stand for a request that may wait.
fn waits(decision: &Decision) -> Option<LimitStatus> {
    let Outcome::Limited(standing) = decision.outcome else { return None };
    matches!(decision.terms?.names.on_exceed, OnExceed::Queue(_)).then_some(standing)
}

/// When its turn comes, if that follows from time alone: a place in flight is free when a request ends.
fn promised_us(refusal: &Decision, standing: &LimitStatus) -> Option<u64> {
    let counts_in_flight = refusal.terms.is_some_and(|terms| terms.counts_in_flight());
    standing.wait_us().filter(|_| !counts_in_flight)
}

/// What the last request that asked was told, for one that would come `pace_us` later.
fn put_off(mut refusal: Decision, now_us: u64, pace_us: u64) -> Decision {
    let elapsed_us = now_us.saturating_sub(refusal.now_us);
    if let Outcome::Limited(standing) = &mut refusal.outcome {
        let left_us = standing.wait_us().map(|wait_us| wait_us.saturating_sub(elapsed_us));
        standing.subtract_elapsed(elapsed_us);
        if let Some(left_us) = left_us {
            standing.extend_wait(left_us.saturating_add(pace_us));
        }
    }
    refusal.now_us = now_us;
    refusal
}
