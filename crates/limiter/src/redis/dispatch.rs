//! Sends what leases ask: the calls of many clients travel in one script call.
//!
//! Each shard has a queue and a few script calls under way. While those are out, what comes gathers, and goes
//! together as soon as one is back: the busier a shard is, the more travels in one call. No timer holds
//! anything back. When a call is back, the next leaves before its answers are handed out: a server that has to
//! wait for us does nothing.

use super::lane::{Flight, Lane, Place};
use super::link::Failure;
use super::shard::{Outcome, Shard};
use super::url::{Address, Kind};
use super::{Shared, Ticket};
use crate::lease::Call;
use parking_lot::RwLock;
use redis::{Cmd, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tollgate_core::script::{self, Answer, Unreadable};

/// Clients in one script call: more would hardly make it cheaper, and keep the server from others for longer.
const MOST_CLIENTS: usize = 128;
const _: () = assert!(MOST_CLIENTS <= script::MOST_CLIENTS);
/// A slot that moves is followed so many times.
const MOST_HOPS: u32 = 3;
/// A late answer is waited for so long: by then what it lends is dead, or nobody needs it any more.
const LATE: Duration = Duration::from_secs(2);

/// The script, as a server alone runs it and as the nodes of a Cluster do, each with its name.
static SCRIPTS: LazyLock<[(String, String); 2]> = LazyLock::new(|| {
    let named = |text: String| (sha1_smol::Sha1::from(&text).digest().to_string(), text);
    [named(script::SCRIPT.to_owned()), named(format!("{}{}", script::CLUSTER_HEADER, script::SCRIPT))]
});

/// The queues of all shards, by their number.
#[derive(Debug, Default)]
pub(super) struct Queues {
    by_shard: RwLock<HashMap<u32, Arc<Lane>>>,
    /// Calls on their way, or waiting to be.
    pending: AtomicUsize,
    calls: AtomicU64,
    /// The second of the last complaint: a store that is full refuses everybody.
    complained: AtomicU64,
}

/// A call on its way.
#[derive(Debug)]
pub(super) struct Queued {
    call: Call<Ticket>,
    /// Until when those who wait for it can wait.
    pub(super) deadline: Instant,
    /// They do not wait any more.
    is_overdue: bool,
    hops: u32,
}

impl Queues {
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Something else is on its way.
    pub(super) fn begin(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// It has arrived, or never will.
    pub(super) fn end(&self) {
        self.pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until nothing is on its way, or `longest` is over.
    pub(super) async fn drained(&self, longest: Duration) {
        let end = Instant::now() + longest;
        while self.pending.load(Ordering::Acquire) > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.by_shard.get_mut().values().for_each(|lane| lane.close());
    }
}

impl Shared {
    /// Sends `call` to whoever serves its key. If that shard is away, who waits hears so at once.
    pub(crate) fn send(self: &Arc<Self>, call: Call<Ticket>) {
        // Who waits for it may have come while the last call for the same was under way.
        let since = call.waiters().next().map_or_else(Instant::now, Ticket::since);
        let deadline = since + self.settings.timeout;
        self.enqueue(Queued { call, deadline, is_overdue: false, hops: 0 });
    }

    fn enqueue(self: &Arc<Self>, queued: Queued) {
        let shard = self.servers.shard_of(queued.call.key.as_bytes());
        if shard.is_open() {
            return self.book.failed(queued.call, false);
        }
        self.queues.pending.fetch_add(1, Ordering::AcqRel);
        if let Some(lane) = self.queues.by_shard.read().get(&shard.number()) {
            return lane.push(queued);
        }
        self.open_lane(&shard).push(queued);
    }

    fn open_lane(self: &Arc<Self>, shard: &Arc<Shard>) -> Arc<Lane> {
        let mut lanes = self.queues.by_shard.write();
        let lane = lanes.entry(shard.number()).or_insert_with(|| {
            let lane = Arc::new(Lane::new());
            self.runtime.spawn(drain(Arc::downgrade(self), Arc::clone(shard), Arc::clone(&lane)));
            lane
        });
        Arc::clone(lane)
    }

    fn done(&self, calls: usize) {
        self.queues.pending.fetch_sub(calls, Ordering::AcqRel);
    }

    fn give_up(&self, batch: Vec<Queued>, was_seen: bool) {
        self.done(batch.len());
        for queued in batch {
            self.book.failed(queued.call, was_seen);
        }
    }

    /// The script call for a batch.
    fn command(&self, shard: &Shard, batch: &[Queued], by_name: bool) -> Cmd {
        let is_cluster = *self.servers.kind() == Kind::Cluster;
        // Before 7.0 a cluster's calls go one by one, see `room`; then no keys have to be repeated.
        let crosses_slots = is_cluster && crosses_slots(shard);
        let (name, text) = &SCRIPTS[usize::from(crosses_slots)];
        let mut command = if by_name { redis::cmd("EVALSHA") } else { redis::cmd("EVAL") };
        command.arg(if by_name { name } else { text });
        let declared = if crosses_slots { 1 } else { batch.len() };
        command.arg(declared);
        for queued in &batch[..declared] {
            command.arg(queued.call.key.as_bytes());
        }
        let given_us = self.given_time.as_ref().map(|clock| clock.now_us());
        let asks = batch.iter().map(|queued| &queued.call.ask);
        command.arg(script::arguments(given_us, crosses_slots, asks));
        if crosses_slots {
            for queued in batch {
                command.arg(queued.call.key.as_bytes());
            }
        }
        command
    }

    /// How many clients may travel in one call.
    fn room(&self, shard: &Shard) -> usize {
        let is_alone = *self.servers.kind() != Kind::Cluster;
        if is_alone || crosses_slots(shard) { MOST_CLIENTS } else { 1 }
    }

    /// Sends a batch. None if it took too long for all of them to get here.
    fn depart(&self, shard: &Arc<Shard>, batch: Vec<Queued>) -> Option<Flight> {
        let sent = Instant::now();
        let (batch, late): (Vec<_>, Vec<_>) = batch.into_iter().partition(|queued| queued.deadline > sent);
        if !late.is_empty() {
            self.give_up(late, false);
        }
        if batch.is_empty() {
            return None;
        }
        self.queues.calls.fetch_add(1, Ordering::Relaxed);
        let command = self.command(shard, &batch, true);
        Some(Flight::depart(shard, batch, command, sent))
    }

    /// Waits until the store answers, or nobody waits any more.
    async fn land(&self, shard: &Arc<Shard>, flight: &mut Flight) -> Option<Result<Value, Failure>> {
        let mut is_by_name = true;
        while let Some(deadline) = next_deadline(&flight.batch) {
            match flight.answer_until(deadline).await {
                Some(Err(Failure::NoScript)) if is_by_name => {
                    flight.again(shard, self.command(shard, &flight.batch, false));
                    is_by_name = false;
                }
                Some(result) => return Some(result),
                None => self.leave_to_policy(&mut flight.batch),
            }
        }
        None
    }

    /// Sends one batch and draws the consequences.
    async fn serve(self: Arc<Self>, shard: Arc<Shard>, batch: Vec<Queued>) {
        if let Some(mut flight) = self.depart(&shard, batch) {
            let landed = self.land(&shard, &mut flight).await;
            self.conclude(&shard, flight, landed);
        }
    }

    /// Sends one batch after the other behind `next`, as long as there are any: they have the same place.
    async fn serve_lane(
        self: Arc<Self>,
        shard: Arc<Shard>,
        lane: Arc<Lane>,
        mut next: Option<Flight>,
        place: Place,
    ) {
        while let Some(mut flight) = next {
            let landed = self.land(&shard, &mut flight).await;
            next = self.depart(&shard, lane.pop(self.room(&shard)));
            self.conclude(&shard, flight, landed);
        }
        drop(place);
    }

    fn conclude(
        self: &Arc<Self>,
        shard: &Arc<Shard>,
        mut flight: Flight,
        landed: Option<Result<Value, Failure>>,
    ) {
        if let Some(result) = landed {
            return self.finish(shard, flight.batch, result);
        }
        self.done(flight.batch.len());
        let (shared, shard) = (Arc::clone(self), Arc::clone(shard));
        // In the background: whoever waits for a place behind this batch must not wait for it.
        tokio::spawn(async move {
            // Only the silence of the store counts against it, not the wait for a place.
            let silence_end = flight.sent + shared.settings.timeout;
            let mut answer = flight.answer_until(silence_end).await;
            if answer.is_none() {
                shard.report(Outcome::TimedOut);
                answer = flight.answer_until(Instant::now() + LATE).await;
            }
            if let Some(Ok(value)) = answer {
                shared.queues.pending.fetch_add(flight.batch.len(), Ordering::AcqRel);
                shared.finish(&shard, flight.batch, Ok(value));
            }
        });
    }

    /// Whose time has come waits no longer; the call goes on.
    fn leave_to_policy(&self, batch: &mut [Queued]) {
        let now = Instant::now();
        for queued in batch.iter_mut().filter(|queued| !queued.is_overdue && queued.deadline <= now) {
            queued.is_overdue = true;
            self.book.overdue(&mut queued.call);
        }
    }

    fn finish(self: &Arc<Self>, shard: &Arc<Shard>, batch: Vec<Queued>, result: Result<Value, Failure>) {
        match result {
            Ok(value) => self.take_in(shard, batch, value),
            // It may have been executed: a debit is never sent again.
            Err(Failure::Lost) => self.give_up(batch, true),
            Err(failure @ (Failure::Moved { .. } | Failure::Ask { .. } | Failure::TryAgain)) => {
                self.follow(shard, batch, &failure);
            }
            Err(failure) => {
                if !matches!(failure, Failure::Unavailable) {
                    tracing::debug!(shard = shard.number(), %failure, "a call was refused");
                }
                self.give_up(batch, false);
            }
        }
    }

    fn take_in(self: &Arc<Self>, shard: &Arc<Shard>, batch: Vec<Queued>, value: Value) {
        let Some((store_us, answers)) = read(value, batch.len()) else {
            if self.may_complain() {
                tracing::warn!(shard = shard.number(), "the store's answer cannot be read");
            }
            return self.give_up(batch, true);
        };
        self.done(batch.len());
        let now_us = self.lease_us();
        for (queued, answer) in batch.into_iter().zip(answers) {
            match Answer::decode(&queued.call.ask, store_us, &answer) {
                Ok(answer) => {
                    if let Some(call) = self.book.answered(queued.call, &answer, now_us) {
                        self.send(call);
                    }
                }
                Err(unreadable) => self.refused(shard, queued, &unreadable),
            }
        }
    }

    /// The script did nothing for this client, and said why.
    fn refused(self: &Arc<Self>, shard: &Arc<Shard>, queued: Queued, why: &Unreadable) {
        let has_moved =
            matches!(why, Unreadable::Refused(why) if why.contains("non local key") || why.contains("MOVED"));
        if has_moved {
            self.servers.refresh();
            self.queues.pending.fetch_add(1, Ordering::AcqRel);
            return self.follow(shard, vec![queued], &Failure::TryAgain);
        }
        if self.may_complain() {
            tracing::warn!(shard = shard.number(), %why, "the store cannot serve a client");
        }
        self.book.failed(queued.call, matches!(why, Unreadable::Malformed));
    }

    /// Once a second.
    fn may_complain(&self) -> bool {
        let second = self.lease_us() / 1_000_000;
        self.queues.complained.swap(second, Ordering::Relaxed) != second
    }

    /// Slots are on the move. Nothing was executed: each client is sent on its own way.
    fn follow(self: &Arc<Self>, shard: &Arc<Shard>, batch: Vec<Queued>, failure: &Failure) {
        self.done(batch.len());
        let alone = batch.len() == 1;
        for mut queued in batch {
            queued.hops += 1;
            if queued.hops > MOST_HOPS || queued.deadline <= Instant::now() {
                self.book.failed(queued.call, false);
                continue;
            }
            let target = match failure {
                Failure::Moved { address, .. } | Failure::Ask { address, .. } if alone => {
                    self.servers.shard_at(address, shard)
                }
                _ => None,
            };
            let is_asking = alone && matches!(failure, Failure::Ask { .. });
            let newcomer = match failure {
                Failure::Ask { address, .. } if alone && target.is_none() => {
                    self.servers.address_of(address, shard)
                }
                _ => None,
            };
            let shared = Arc::clone(self);
            shared.queues.pending.fetch_add(1, Ordering::AcqRel);
            let shard = Arc::clone(shard);
            self.runtime.spawn(async move {
                if let Some(address) = newcomer {
                    return shared.serve_at(&address, &shard, queued).await;
                }
                let target = match target {
                    Some(target) => target,
                    None if alone => {
                        // Whoever serves it now is known in a moment.
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        shared.servers.shard_of(queued.call.key.as_bytes())
                    }
                    None => shard,
                };
                shared.serve_alone(target, queued, is_asking).await;
            });
        }
    }

    /// Sends one client's call by itself.
    async fn serve_alone(self: Arc<Self>, shard: Arc<Shard>, queued: Queued, is_asking: bool) {
        if !is_asking {
            return self.serve(shard, vec![queued]).await;
        }
        let (deadline, batch) = (queued.deadline, vec![queued]);
        self.queues.calls.fetch_add(1, Ordering::Relaxed);
        let command = self.command(&shard, &batch, false);
        match timeout_at(deadline, shard.start_asking(command)).await {
            Ok(result) => self.finish(&shard, batch, result),
            Err(_) => self.give_up(batch, true),
        }
    }
}

/// When the next of those who still wait is to be left to the failure policy.
fn next_deadline(batch: &[Queued]) -> Option<Instant> {
    batch.iter().filter(|queued| !queued.is_overdue).map(|queued| queued.deadline).min()
}

impl Shared {
    /// Sends one client's call to a server that has no slots yet, on the word of `shard`.
    async fn serve_at(self: Arc<Self>, address: &Address, shard: &Arc<Shard>, queued: Queued) {
        let (deadline, batch) = (queued.deadline, vec![queued]);
        self.queues.calls.fetch_add(1, Ordering::Relaxed);
        let command = self.command(shard, &batch, false);
        let answer = async { self.servers.newcomer(address).await?.send_asking(command).await };
        match timeout_at(deadline, answer).await {
            Ok(result) => self.finish(shard, batch, result),
            Err(_) => self.give_up(batch, true),
        }
    }
}

fn crosses_slots(shard: &Shard) -> bool {
    shard.version().is_some_and(|version| version >= (7, 0))
}

/// The time at the store and the answer to each client.
fn read(value: Value, clients: usize) -> Option<(u64, Vec<Vec<u8>>)> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter().map(|part| match part {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    });
    let store_us = script::read_time(&parts.next()??).ok()?;
    let answers: Vec<Vec<u8>> = parts.collect::<Option<_>>()?;
    (answers.len() == clients).then_some((store_us, answers))
}

/// Sends what comes for one shard.
async fn drain(shared: std::sync::Weak<Shared>, shard: Arc<Shard>, lane: Arc<Lane>) {
    while let Some(deadline) = lane.first().await {
        let place = lane.place(deadline).await;
        let Some(strong) = shared.upgrade() else { return };
        let room = strong.room(&shard);
        let Some(place) = place else {
            strong.give_up(lane.pop_late(), false);
            continue;
        };
        drop(strong);
        // Whoever is ready to ask as well comes along: it costs no time that is not theirs.
        if lane.waiting() < room {
            tokio::task::yield_now().await;
        }
        let Some(shared) = shared.upgrade() else { return };
        // It leaves here, and not when the task has its turn.
        let first = shared.depart(&shard, lane.pop(room));
        if first.is_some() {
            tokio::spawn(shared.serve_lane(Arc::clone(&shard), Arc::clone(&lane), first, place));
        }
    }
}
