//! The result of a batch: its replies are applied, its calls are redirected, or they fail.

use super::StoreCore;
use super::batch::{Batch, QueuedCall};
use super::command::{BatchReply, ScriptForm, read};
use crate::connection::Failure;
use crate::errors::is_key_moved;
use crate::lease::Executed;
use crate::shard::RedisShard;
use crate::url::ServerAddress;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tollgate_core::script::{ReplyError, ScriptCall, ScriptReply};

/// A call follows a slot that moves until it times out, but not for ever between two servers that disagree.
const MOST_HOPS: u32 = 10;

/// How many clients a redirected call is for. A redirection names the server of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientsInCall {
    One,
    Several,
}

/// How a server is asked for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotAccess {
    /// The slot is the server's own.
    Owned,
    /// The slot is moving to the server: `ASKING` precedes the command.
    Asking,
}

/// Whether a server that replies with `failure` to a whole script call may have executed it. A server returns an error with a
/// code before it starts a script.
fn executed(failure: &Failure) -> Executed {
    match failure {
        Failure::Lost | Failure::InvalidAnswer(_) | Failure::Other(_) => Executed::Maybe,
        _ => Executed::No,
    }
}

/// Whether a script that did not find a key may have changed another one before: it applies reports on one log after the other. All
/// else it writes after it has read all keys.
fn is_partly_executed(ask: &ScriptCall) -> bool {
    let logs = || ask.charges.iter().filter(|charge| charge.meter.is_log());
    logs().count() > 1 && logs().any(|charge| !charge.reports.is_empty())
}

impl StoreCore {
    pub(super) fn finish(
        self: &Arc<Self>,
        shard: &Arc<RedisShard>,
        batch: Batch,
        result: Result<Value, Failure>,
    ) {
        match result {
            Ok(value) => self.apply_replies(shard, batch, value),
            Err(failure @ (Failure::Moved { .. } | Failure::Ask { .. } | Failure::TryAgain)) => {
                let clients = if batch.len() == 1 { ClientsInCall::One } else { ClientsInCall::Several };
                batch.conclude(|queued| self.redirect(shard, queued, clients, &failure));
            }
            Err(failure) => {
                shard.note_error(&failure);
                batch.give_up(executed(&failure));
            }
        }
    }

    fn apply_replies(self: &Arc<Self>, shard: &Arc<RedisShard>, batch: Batch, value: Value) {
        let (store_time, answers) = match read(value, batch.len()) {
            Some(BatchReply::Answers(store_time, answers)) => (store_time, answers),
            Some(BatchReply::ClockStepped) => {
                shard.note_error(&Failure::ClockStepped);
                self.doubt_clock(shard);
                return batch.give_up(Executed::No);
            }
            None => {
                shard.note_error(&Failure::InvalidAnswer("not in a known format"));
                return batch.give_up(Executed::Maybe);
            }
        };
        let now = self.lease_time();
        let mut answers = answers.into_iter();
        batch.conclude(|queued| {
            let answer = answers.next().unwrap_or_default();
            match ScriptReply::decode(&queued.call.ask, store_time, &answer) {
                Ok(answer) => {
                    if let Some(call) = self.leases.apply_reply(queued.call, &answer, now) {
                        self.send(call);
                    }
                }
                Err(unreadable) => self.fail_refused(shard, queued, &unreadable),
            }
        });
    }

    /// Fails a call for which the script returned an error, or follows a slot that has moved.
    fn fail_refused(self: &Arc<Self>, shard: &Arc<RedisShard>, queued: QueuedCall, why: &ReplyError) {
        if matches!(why, ReplyError::Refused(text) if is_key_moved(text)) {
            self.servers.refresh();
            if !is_partly_executed(&queued.call.ask) {
                return self.redirect(shard, queued, ClientsInCall::One, &Failure::TryAgain);
            }
        }
        let failure = match why {
            ReplyError::Refused(text) => Failure::of_text(text),
            ReplyError::Malformed => Failure::InvalidAnswer("not in a known format"),
            ReplyError::Impossible(why) => Failure::InvalidAnswer(why),
        };
        shard.note_error_inside(&failure);
        // A script may fail after its first write, and what is reported twice is returned twice.
        self.leases.fail(queued.call, Executed::Maybe);
    }

    /// Slots are moving, and nothing was executed: each client is sent again in a call of its own. A redirection names the
    /// server of a single client.
    fn redirect(
        self: &Arc<Self>,
        shard: &Arc<RedisShard>,
        mut queued: QueuedCall,
        clients: ClientsInCall,
        failure: &Failure,
    ) {
        queued.hops += 1;
        if queued.hops > MOST_HOPS || queued.deadline <= Instant::now() {
            return self.leases.fail(queued.call, Executed::No);
        }
        let (named, access) = match (clients, failure) {
            (ClientsInCall::One, Failure::Moved { address, .. }) => (Some(address), SlotAccess::Owned),
            (ClientsInCall::One, Failure::Ask { address, .. }) => (Some(address), SlotAccess::Asking),
            _ => (None, SlotAccess::Owned),
        };
        let target = named.and_then(|address| self.servers.shard_at(address, shard));
        let added = named.filter(|_| target.is_none());
        let added = added.and_then(|address| self.servers.address_of(address, shard));
        let (core, shard) = (Arc::clone(self), Arc::clone(shard));
        let batch = Batch::of_one(self, queued);
        self.runtime.spawn(async move {
            if let Some(address) = added {
                return core.send_to_added(&address, &shard, batch, access).await;
            }
            let target = match (target, clients) {
                (Some(target), _) => target,
                (None, ClientsInCall::One) => {
                    // The new slot map is expected in a moment.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let key = batch.calls().first().map(|queued| Arc::clone(&queued.call.key));
                    core.servers.shard_of(key.as_deref().unwrap_or_default().as_bytes())
                }
                (None, ClientsInCall::Several) => shard,
            };
            core.send_alone(target, batch, access).await;
        });
    }

    /// Sends one client's call by itself.
    async fn send_alone(self: Arc<Self>, shard: Arc<RedisShard>, batch: Batch, access: SlotAccess) {
        let Some(deadline) = batch.next_deadline().filter(|_| access == SlotAccess::Asking) else {
            return self.send_and_finish(shard, batch).await;
        };
        self.queues.count_call(&shard, batch.len());
        let command = self.command(&shard, &batch, ScriptForm::Source);
        match timeout_at(deadline, shard.start_asking(command)).await {
            Ok(result) => self.finish(&shard, batch, result),
            Err(_) => batch.give_up(Executed::Maybe),
        }
    }

    /// Sends one client's call to a server that is no shard yet, as `shard` said.
    async fn send_to_added(
        self: Arc<Self>,
        address: &ServerAddress,
        shard: &Arc<RedisShard>,
        batch: Batch,
        access: SlotAccess,
    ) {
        let deadline = batch.next_deadline().unwrap_or_else(Instant::now);
        self.queues.count_call(shard, batch.len());
        let command = self.command(shard, &batch, ScriptForm::Source);
        let answer = async {
            let connection = self.servers.added_server(address).await?;
            match access {
                SlotAccess::Owned => connection.send(&command).await,
                SlotAccess::Asking => connection.send_asking(command).await,
            }
        };
        match timeout_at(deadline, answer).await {
            Ok(result) => self.finish(shard, batch, result),
            Err(_) => batch.give_up(Executed::Maybe),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::Algorithm;
    use tollgate_core::lending::{LeaseReport, Prefetch};
    use tollgate_core::limit::{Limit, LimitSize};
    use tollgate_core::script::ChargeCall;
    use tollgate_core::state_address::StateField;

    #[test]
    fn only_reports_on_one_of_several_logs_may_be_applied_before_a_key_is_missed() {
        use Algorithm::{FixedWindow, SlidingWindowLog};
        let charge = |algorithm, reports| {
            let size = LimitSize { capacity: Some(10), rate: None, window_us: Some(60_000_000) };
            ChargeCall {
                meter: *Limit::new("a", algorithm, size).unwrap().meter(),
                field: StateField::new(1, None),
                enforced: true,
                as_lent: false,
                prefetch: Prefetch::NONE,
                reports: std::iter::repeat_n(LeaseReport::default(), reports).collect(),
            }
        };
        for (charges, is_partly) in [
            (&[(SlidingWindowLog, 0), (SlidingWindowLog, 1)][..], true),
            (&[(SlidingWindowLog, 0), (SlidingWindowLog, 0)], false),
            (&[(SlidingWindowLog, 1)], false),
            (&[(SlidingWindowLog, 1), (FixedWindow, 1)], false),
            (&[(FixedWindow, 1), (SlidingWindowLog, 0), (SlidingWindowLog, 0)], false),
        ] {
            let charges = charges.iter().map(|(algorithm, reports)| charge(*algorithm, *reports));
            let ask = ScriptCall { runs: Default::default(), charges: charges.collect() };
            assert_eq!(is_partly_executed(&ask), is_partly, "{ask:?}");
        }
    }
}
