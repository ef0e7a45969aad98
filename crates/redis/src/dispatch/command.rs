//! The script call for a batch, and what is read from its reply.

use super::StoreCore;
use super::batch::Batch;
use crate::shard::RedisShard;
use crate::shard_queue::BatchLimits;
use crate::url::StoreKind;
use redis::{Cmd, Value};
use std::sync::LazyLock;
use tollgate_core::script::{self, CallTime, work};
use tollgate_core::time::StoreTime;

/// Clients in one script call: more would hardly make it cheaper.
const MOST_CLIENTS: usize = 128;
const _: () = assert!(MOST_CLIENTS <= script::MOST_CLIENTS);

/// The script, as a server alone runs it and as the nodes of a Cluster do, each with its name.
static SCRIPTS: LazyLock<[(String, String); 2]> = LazyLock::new(|| {
    let named = |text: String| (sha1_smol::Sha1::from(&text).digest().to_string(), text);
    [named(script::source().to_owned()), named(format!("{}{}", script::CLUSTER_HEADER, script::source()))]
});

/// How a script call names its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptForm {
    /// By its digest: the server may not have it (`NOSCRIPT`).
    Digest,
    /// By its text.
    Source,
}

impl StoreCore {
    /// The script call for a batch.
    pub(super) fn command(&self, shard: &RedisShard, batch: &Batch, form: ScriptForm) -> Cmd {
        let calls = batch.calls();
        let is_cluster = *self.servers.kind() == StoreKind::Cluster;
        // Where a call may not cross slots they go one by one, see `room`; then no keys have to be repeated.
        let crosses_slots = is_cluster && shard.crosses_slots();
        let (digest, source) = &SCRIPTS[usize::from(crosses_slots)];
        let mut command = match form {
            ScriptForm::Digest => redis::cmd("EVALSHA"),
            ScriptForm::Source => redis::cmd("EVAL"),
        };
        command.arg(match form {
            ScriptForm::Digest => digest,
            ScriptForm::Source => source,
        });
        // Servers differ in what they make of a key that is not declared; across slots, Redis wants the others left out.
        let declared = &calls[..if crosses_slots { 1 } else { calls.len() }];
        let asks = declared.iter().map(|queued| (queued.call.key.as_bytes(), &queued.call.ask));
        let logs: Vec<_> = asks.flat_map(|(key, ask)| script::log_keys(key, ask)).collect();
        command.arg(declared.len() + logs.len());
        for queued in declared {
            command.arg(queued.call.key.as_bytes());
        }
        command.arg(logs);
        let time = match &self.given_time {
            Some(clock) => CallTime::Given(StoreTime::from_us(clock.now().as_us())),
            None => shard.clock().call_time(self.clock.boot()),
        };
        let asks = calls.iter().map(|queued| &queued.call.ask);
        command.arg(script::arguments(time, crosses_slots, asks));
        if crosses_slots {
            for queued in calls {
                command.arg(queued.call.key.as_bytes());
            }
        }
        command
    }

    /// How much may travel in one call.
    pub(super) fn room(&self, shard: &RedisShard) -> BatchLimits {
        let is_cluster = *self.servers.kind() == StoreKind::Cluster;
        let clients = if !is_cluster || shard.crosses_slots() { MOST_CLIENTS } else { 1 };
        BatchLimits { clients, work_ns: work::CLIENTS_NS }
    }
}

/// The reply to a script call.
pub(super) enum BatchReply {
    /// The time at the store and the reply to each client.
    Answers(StoreTime, Vec<Vec<u8>>),
    /// The clock is not where it was expected: nothing was charged.
    ClockStepped,
}

pub(super) fn read(value: Value, clients: usize) -> Option<BatchReply> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter().map(|part| match part {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    });
    let store_time = script::read_time(&parts.next()??).ok()?;
    let answers: Vec<Vec<u8>> = parts.collect::<Option<_>>()?;
    match answers.len() {
        0 => Some(BatchReply::ClockStepped),
        count => (count == clients).then_some(BatchReply::Answers(store_time, answers)),
    }
}
