//! States that operators ask for: reading them, and letting them start fresh. One script call for each client.
//!
//! Reading is a call of the limit script with no request: the script opens the states as for a request, and takes nothing.
//! What this node holds or has not reported yet is applied to a copy, as the next call of a check would report it.

use crate::StoreCore;
use crate::connection::Failure;
use crate::script_call::NamedScript;
use redis::Value;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use tokio::task::JoinHandle;
use tollgate_core::algorithm::StateKind;
use tollgate_core::lending::{Prefetch, StoredState};
use tollgate_core::script::{
    self, ChargeCall, ReplyState, RequestRun, RequestStatus, ScriptCall, ScriptReply,
};
use tollgate_core::state_address::{StateAddress, StateField};
use tollgate_core::time::StoreTime;
use tollgate_limiter::{ClientIdentities, StateAnswer, StateQuestion, StoreUnavailable};

/// Limits in one call: more would delay other commands of the server.
const MOST_AT_ONCE: usize = 32;

static LIMITS: LazyLock<NamedScript> = LazyLock::new(|| NamedScript::new(script::source()));
static RESET: LazyLock<NamedScript> = LazyLock::new(|| NamedScript::new(script::reset_source()));

/// The indices of questions about one client: by its key, and by the cost that is asked about.
type QuestionGroups<'q> = BTreeMap<(&'q str, u32), Vec<usize>>;

/// A call that was started.
type StartedCall = JoinHandle<Option<Vec<StateAnswer>>>;

/// Calls that run at the same time, each with the indices of the states that it is about. No call waits for another: a decision
/// may need several, and waits no longer than for one.
#[derive(Default)]
pub(crate) struct StateCalls(Vec<(Vec<usize>, StartedCall)>);

impl StateCalls {
    pub(crate) fn start(
        &mut self,
        core: &StoreCore,
        indices: Vec<usize>,
        call: impl Future<Output = Option<Vec<StateAnswer>>> + Send + 'static,
    ) {
        self.0.push((indices, core.runtime.spawn(call)));
    }

    /// The answers about `count` states.
    pub(crate) async fn answers(self, count: usize) -> Vec<Option<StateAnswer>> {
        let mut answers = vec![None; count];
        for (indices, call) in self.0 {
            let Ok(Some(found)) = call.await else { continue };
            for (index, answer) in indices.into_iter().zip(found) {
                answers[index] = Some(answer);
            }
        }
        answers
    }
}

impl StoreCore {
    /// See [`SharedStore::peek`](tollgate_limiter::SharedStore::peek).
    pub(crate) async fn peek(self: &Arc<Self>, states: &[StateQuestion]) -> Vec<Option<StateAnswer>> {
        let mut calls = StateCalls::default();
        let mut groups = QuestionGroups::new();
        for (index, question) in states.iter().enumerate() {
            let Some(address) = &question.address else { continue };
            if question.meter.algorithm().state_kind() == StateKind::InFlight {
                let (core, address, quota) = (Arc::clone(self), address.clone(), question.meter.quota());
                let call = async move { Some(vec![core.peek_slots(&address, quota).await?]) };
                calls.start(self, vec![index], call);
            } else {
                groups.entry((&address.key, question.cost)).or_default().push(index);
            }
        }
        for ((key, cost), indices) in groups {
            for indices in indices.chunks(MOST_AT_ONCE) {
                let some: Vec<StateQuestion> = indices.iter().map(|index| states[*index].clone()).collect();
                let (core, key) = (Arc::clone(self), key.to_owned());
                let call = async move { core.peek_client(&key, cost, &some).await };
                calls.start(self, indices.to_vec(), call);
            }
        }
        calls.answers(states.len()).await
    }

    async fn peek_slots(&self, address: &StateAddress, quota: u32) -> Option<StateAnswer> {
        let held = self.held_slots(address).await?;
        let remaining = quota.saturating_sub(held);
        Some(StateAnswer { status: RequestStatus { remaining, ..RequestStatus::default() }, lent: 0 })
    }

    async fn peek_client(&self, key: &str, cost: u32, states: &[StateQuestion]) -> Option<Vec<StateAnswer>> {
        let fields = states.iter().filter_map(|question| Some((question, question.address.as_ref()?.field)));
        let runs = SmallVec::from_iter([RequestRun { repeats: 0, cost }]);
        let call =
            ScriptCall { runs, charges: fields.map(|(question, field)| charge(question, field)).collect() };
        let shard = self.servers.shard_of(key.as_bytes());
        if !self.knows_clock(&shard).await {
            return None;
        }
        let keys: Vec<Vec<u8>> =
            std::iter::once(key.as_bytes().to_vec()).chain(script::log_keys(key.as_bytes(), &call)).collect();
        let arguments = |shard: &_| script::arguments(self.call_time(shard), false, std::iter::once(&call));
        let value = self.run_script(&LIMITS, &keys, arguments).await.ok()?;
        let (now, reply) = read_reply(&value)?;
        let reply = match ScriptReply::decode(&call, now, reply) {
            Ok(reply) => reply,
            Err(invalid) => {
                shard.note_error_inside(&Failure::of_text(&invalid.to_string()));
                return None;
            }
        };
        let answers = states.iter().zip(&reply.charges).map(|(question, charge)| match &charge.state {
            ReplyState::Stored(state) => self.answer(question, *state, now),
            ReplyState::Log(statuses) => {
                StateAnswer { status: statuses.first().copied().unwrap_or_default(), lent: 0 }
            }
        });
        Some(answers.collect())
    }

    /// What `state` means for the next request on this node.
    pub(crate) fn answer(
        &self,
        question: &StateQuestion,
        mut state: StoredState,
        now: StoreTime,
    ) -> StateAnswer {
        let StateQuestion { key, client, meter, cost, .. } = question;
        let lent = state.lent.total();
        let reports = self.leases.pending_reports(*client, *key, meter, self.lease_time());
        state.apply_reports(meter, now, &reports);
        let (remaining, reset_after_us) = state.remaining_and_reset(meter, now);
        let retry_after_us = state.step(meter, now, *cost).retry_after_us;
        StateAnswer { status: RequestStatus { remaining, retry_after_us, reset_after_us }, lent }
    }

    /// See [`SharedStore::reset`](tollgate_limiter::SharedStore::reset).
    pub(crate) async fn reset(
        &self,
        states: Vec<StateQuestion>,
        client: ClientIdentities,
    ) -> Result<usize, StoreUnavailable> {
        let mut by_key: BTreeMap<&str, SmallVec<[ChargeCall; 2]>> = BTreeMap::new();
        for question in &states {
            // A store that was never reached.
            let address = question.address.as_ref().ok_or(StoreUnavailable)?;
            let charges = by_key.entry(&address.key).or_default();
            charges.push(charge(question, address.field));
            if question.is_by_route && !question.meter.is_log() {
                charges.push(charge(question, address.field.without_route()));
            }
        }
        let mut count = 0;
        for (key, charges) in by_key {
            for charges in charges.chunks(MOST_AT_ONCE) {
                let call = ScriptCall { runs: SmallVec::new(), charges: SmallVec::from(charges) };
                count += self.reset_client(key, &call).await.map_err(|_| StoreUnavailable)?;
            }
        }
        self.mark_reset(&client).await?;
        Ok(count)
    }

    async fn reset_client(&self, key: &str, call: &ScriptCall) -> Result<usize, Failure> {
        let shard = self.servers.shard_of(key.as_bytes());
        if !self.knows_clock(&shard).await {
            return Err(Failure::Unavailable);
        }
        let keys: Vec<Vec<u8>> =
            std::iter::once(key.as_bytes().to_vec()).chain(script::log_keys(key.as_bytes(), call)).collect();
        let arguments = |shard: &_| script::state_arguments(self.call_time(shard), std::iter::once(call));
        match self.run_script(&RESET, &keys, arguments).await? {
            Value::Array(parts) => match parts.as_slice() {
                [_, Value::Int(found)] => Ok(usize::try_from(*found).unwrap_or_default()),
                _ => Err(Failure::ClockStepped),
            },
            _ => Err(Failure::InvalidAnswer("not the answer to a reset")),
        }
    }
}

pub(crate) fn charge(question: &StateQuestion, field: StateField) -> ChargeCall {
    ChargeCall {
        meter: question.meter,
        field,
        enforced: true,
        as_lent: false,
        prefetch: Prefetch::NONE,
        reports: SmallVec::new(),
    }
}

/// The time and the reply to the only client; none if the clock was not where it was expected.
fn read_reply(value: &Value) -> Option<(StoreTime, &[u8])> {
    let Value::Array(parts) = value else { return None };
    match parts.as_slice() {
        [Value::BulkString(time), Value::BulkString(reply)] => Some((script::read_time(time).ok()?, reply)),
        _ => None,
    }
}
