//! Tokens that callers give back: one script call for each client.
//!
//! Tokens that this node has spent from credit and not reported yet become credit again. The store is asked for the rest
//! only: it counts those tokens as lent, and no bucket rises above its capacity less what is lent.

use crate::StoreCore;
use crate::connection::Failure;
use crate::key_states::{StateCalls, charge};
use crate::script_call::NamedScript;
use redis::Value;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use tollgate_core::script::{self, ReplyState, RequestRun, ScriptCall};
use tollgate_limiter::{StateAnswer, StateQuestion};

/// States in one call: more would delay other commands of the server.
const MOST_AT_ONCE: usize = 32;

static REFUND: LazyLock<NamedScript> = LazyLock::new(|| NamedScript::new(script::refund_source()));

impl StoreCore {
    /// See [`SharedStore::refund`](tollgate_limiter::SharedStore::refund).
    pub(crate) async fn refund(self: &Arc<Self>, states: &[StateQuestion]) -> Vec<Option<StateAnswer>> {
        let mut calls = StateCalls::default();
        let mut by_key: BTreeMap<&str, Vec<(usize, StateQuestion)>> = BTreeMap::new();
        for (index, question) in states.iter().enumerate() {
            let Some(address) = &question.address else { continue };
            let StateQuestion { key, client, meter, cost, .. } = question;
            let unspent = self.leases.unspend(*client, *key, meter, *cost, self.lease_time());
            let rest = StateQuestion { cost: cost - unspent, ..question.clone() };
            by_key.entry(&address.key).or_default().push((index, rest));
        }
        for (key, states) in by_key {
            for states in states.chunks(MOST_AT_ONCE) {
                let (indices, some): (Vec<usize>, Vec<StateQuestion>) = states.iter().cloned().unzip();
                let (core, key) = (Arc::clone(self), key.to_owned());
                // Counted as pending, so that a node that stops waits for it.
                core.queues.add_pending();
                let call = async move {
                    let answers = core.refund_client(&key, &some).await;
                    core.queues.remove_pending(1);
                    answers
                };
                calls.start(self, indices, call);
            }
        }
        calls.answers(states.len()).await
    }

    async fn refund_client(&self, key: &str, states: &[StateQuestion]) -> Option<Vec<StateAnswer>> {
        let call = |question: &StateQuestion| {
            let charge = charge(question, question.address.as_ref()?.field);
            let runs = SmallVec::from_iter([RequestRun { repeats: 1, cost: question.cost }]);
            Some(ScriptCall { runs, charges: SmallVec::from_iter([charge]) })
        };
        let calls: Vec<ScriptCall> = states.iter().filter_map(call).collect();
        let shard = self.servers.shard_of(key.as_bytes());
        if !self.knows_clock(&shard).await {
            return None;
        }
        let logs = calls.iter().flat_map(|call| script::log_keys(key.as_bytes(), call));
        let keys: Vec<Vec<u8>> = std::iter::once(key.as_bytes().to_vec()).chain(logs).collect();
        let arguments = |shard: &_| script::state_arguments(self.call_time(shard), calls.iter());
        let value = self.run_script(&REFUND, &keys, arguments).await.ok()?;
        let Value::Array(parts) = value else { return None };
        let [Value::BulkString(time), replies @ ..] = parts.as_slice() else { return None };
        // The time alone: the clock was not where it was expected, and nothing was changed.
        if replies.len() != calls.len() {
            return None;
        }
        let now = script::read_time(time).ok()?;
        let mut answers = Vec::new();
        for ((question, call), reply) in states.iter().zip(&calls).zip(replies) {
            let Value::BulkString(reply) = reply else { return None };
            match ReplyState::decode_refund(call, now, reply) {
                Ok(ReplyState::Stored(state)) => {
                    answers.push(self.answer(&StateQuestion { cost: 1, ..question.clone() }, state, now));
                }
                Ok(ReplyState::Log(statuses)) => {
                    let status = statuses.first().copied().unwrap_or_default();
                    answers.push(StateAnswer { status, lent: 0 });
                }
                Err(invalid) => {
                    shard.note_error_inside(&Failure::of_text(&invalid.to_string()));
                    return None;
                }
            }
        }
        Some(answers)
    }
}
