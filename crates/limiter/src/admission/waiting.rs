//! Requests that wait in a queue, and refusals after a delay.

use super::attempt::{PendingAdmission, QueuePlace};
use super::permit::Permit;
use super::{Admission, AdmissionDelay};
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::observe::FinalDecision;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tollgate_core::decision::{LimitStatus, Outcome};
use tollgate_core::rules::written::{OnExceed, TarpitSettings};
use tollgate_core::time::UnixTime;

/// The end of a request in flight is not known in advance. A request that waits for a slot is woken when a request of
/// this node ends, and tries again this often for those of other nodes.
const RETRY_SLOT_US: u64 = 100_000;

/// Admits `asked` or refuses it.
pub(super) async fn admission(limiter: Arc<Limiter>, asked: PendingAdmission) -> Admission {
    let mut delay = None;
    let (mut decision, permit) = match asked.queue {
        None => asked.attempt(&limiter, None).await,
        Some(place) => wait_in_queue(&limiter, &asked, place, &mut delay).await,
    };
    asked.use_longest_wait(&limiter, &mut decision);
    if !decision.allowed() {
        limiter.give_back_guard(asked.guarded);
    }
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
            decision.now += tarpit.delay.us;
        }
    }
    let (rules, labels) = (&asked.snapshot.rules, asked.labels);
    let admission = Admission { decision, permit: permit.or_none(), delay };
    let (decision, outcome) = (&admission.decision, admission.outcome());
    limiter.count_late(&FinalDecision { rules, labels, decision, outcome }, &asked.late);
    admission
}

/// The delay of a response, and its rule.
fn delay_of(decision: &Decision) -> Option<(&'static str, TarpitSettings)> {
    let (names, action) = match decision.outcome {
        Outcome::Limited(_) => {
            let names = decision.terms?.names;
            (names, &names.on_exceed)
        }
        Outcome::Denied => return None,
        Outcome::Unlimited | Outcome::Admitted(_) => {
            let names = decision.soft?;
            (names, &names.soft.as_ref()?.then)
        }
    };
    match action {
        OnExceed::Tarpit(tarpit) => Some((&names.rule, *tarpit)),
        OnExceed::Reject | OnExceed::Shadow | OnExceed::Queue(_) | OnExceed::Shed(_) | OnExceed::Flag(_) => {
            None
        }
    }
}

/// Waits for its turn. See [`super::wait_queue`].
async fn wait_in_queue(
    limiter: &Arc<Limiter>,
    asked: &PendingAdmission,
    place: QueuePlace,
    delay: &mut Option<AdmissionDelay>,
) -> (Decision, Permit) {
    let QueuePlace { key, queue, .. } = place;
    let deadline = Instant::now() + Duration::from_micros(queue.max_wait.us);
    let turn = limiter.admissions.wait_queues.arrive(key);
    let mut due = None;
    if turn.ahead().count == 0 {
        let (decision, permit) = asked.attempt(limiter, None).await;
        let Some(standing) = waits(&decision) else { return (decision, permit) };
        if promised_us(&decision, &standing).is_some_and(|wait_us| wait_us > queue.max_wait.us) {
            return (decision, permit);
        }
        turn.record_refusal(decision);
        due = Some(decision);
    }
    let ahead = turn.ahead();
    let refusal = ahead.refusal.map(|refusal| {
        let pace_us = asked.snapshot.rules.set.limit(place.limit).refill_us(ahead.cost).unwrap_or(0);
        put_off(refusal, limiter.clock().now(), pace_us)
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
            // All before it are still being charged: so is it, but it does not wait.
            None => asked.attempt(limiter, None).await,
        };
    }
    *delay = Some(AdmissionDelay::Queued);
    loop {
        if !turn.is_first() {
            if timeout_at(deadline, turn.woken()).await.is_err() {
                let ahead = turn.ahead();
                let now = limiter.clock().now();
                let pace_us = asked.snapshot.rules.set.limit(place.limit).refill_us(ahead.cost).unwrap_or(0);
                return match ahead.refusal {
                    Some(refusal) => (put_off(refusal, now, pace_us), Permit::default()),
                    None => asked.attempt(limiter, None).await,
                };
            }
            due = None;
            continue;
        }
        let meant = due.and_then(|refusal: Decision| {
            let wait_us = promised_us(&refusal, &waits(&refusal)?)?;
            Some(refusal.now + wait_us)
        });
        let (decision, permit) = asked.attempt(limiter, meant).await;
        let Some(standing) = waits(&decision) else { return (decision, permit) };
        turn.record_refusal(decision);
        let promised_us = promised_us(&decision, &standing);
        let until = Instant::now() + Duration::from_micros(promised_us.unwrap_or(RETRY_SLOT_US));
        if until > deadline && promised_us.is_some() || Instant::now() >= deadline {
            return (decision, permit);
        }
        due = Some(decision);
        tokio::select! {
            () = sleep_until(until.min(deadline)) => {}
            // Its retry time is not valid any more.
            () = turn.woken() => due = None,
        }
    }
}

/// The status of the limit, if its request may wait.
fn waits(decision: &Decision) -> Option<LimitStatus> {
    let Outcome::Limited(standing) = decision.outcome else { return None };
    matches!(decision.terms?.names.on_exceed, OnExceed::Queue(_)).then_some(standing)
}

/// The wait until its turn, if that follows from time alone: a slot is free when a request ends.
fn promised_us(refusal: &Decision, standing: &LimitStatus) -> Option<u64> {
    let counts_in_flight = refusal.terms.is_some_and(|terms| terms.counts_in_flight());
    standing.wait_us().filter(|_| !counts_in_flight)
}

/// The last refusal, for a request whose turn is `pace_us` later.
fn put_off(mut refusal: Decision, now: UnixTime, pace_us: u64) -> Decision {
    let elapsed_us = now.since(refusal.now);
    if let Outcome::Limited(standing) = &mut refusal.outcome {
        let left_us = standing.wait_us().map(|wait_us| wait_us.saturating_sub(elapsed_us));
        standing.subtract_elapsed(elapsed_us);
        if let Some(left_us) = left_us {
            standing.extend_wait(left_us.saturating_add(pace_us));
        }
    }
    refusal.now = now;
    refusal
}
