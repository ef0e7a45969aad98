//! Sends what leases ask: the calls of many clients travel in one script call.
//!
//! Each shard has a queue and a few script calls under way. While those are out, what comes gathers, and goes
//! together as soon as one is back: the busier a shard is, the more travels in one call, up to a budget of the server's
//! time ([`command`]). No timer holds anything back. When a call is back, the next leaves before its answers are handed out: a server that has to
//! wait for us does nothing.
//!
//! A [`batch`] is what travels together, [`command`] is how it is said to the server, and [`outcome`] is what comes
//! of it.

mod batch;
mod command;
mod outcome;

use super::connection::Failure;
use super::shard::{CallOutcome, RedisShard};
use super::shard_queue::{SendPermit, SentBatch, ShardQueue};
use super::{StoreCore, VerdictSender};
use crate::lease::StoreCall;
pub(super) use batch::{Batch, QueuedCall};
use parking_lot::RwLock;
use redis::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// A late answer is waited for so long: by then what it lends is dead, or nobody needs it any more.
const LATE: Duration = Duration::from_secs(2);

/// The queues of all shards, by their number.
#[derive(Debug, Default)]
pub(super) struct ShardQueues {
    by_shard: RwLock<HashMap<u32, Arc<ShardQueue>>>,
    /// Calls on their way, or waiting to be.
    pending: AtomicUsize,
    calls: AtomicU64,
}

impl ShardQueues {
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Something is on its way.
    pub(super) fn begin(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// It has arrived, or never will.
    pub(super) fn end(&self) {
        self.end_all(1);
    }

    fn end_all(&self, count: usize) {
        self.pending.fetch_sub(count, Ordering::AcqRel);
    }

    /// Waits until nothing is on its way, or `longest` is over.
    pub(super) async fn drained(&self, longest: Duration) {
        let end = Instant::now() + longest;
        while self.pending.load(Ordering::Acquire) > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for ShardQueues {
    fn drop(&mut self) {
        self.by_shard.get_mut().values().for_each(|lane| lane.close());
    }
}

impl StoreCore {
    /// Sends `call` to whoever serves its key. If that shard is away, who waits hears so at once.
    pub(crate) fn send(self: &Arc<Self>, call: StoreCall<VerdictSender>) {
        // Who waits for it may have come while the last call for the same was under way.
        let since = call.waiters().next().map_or_else(Instant::now, VerdictSender::since);
        let deadline = since + self.settings.timeout;
        self.enqueue(QueuedCall::new(call, deadline));
    }

    fn enqueue(self: &Arc<Self>, queued: QueuedCall) {
        let shard = self.servers.shard_of(queued.call.key.as_bytes());
        if shard.is_open() {
            return self.book.failed(queued.call, false);
        }
        self.queues.begin();
        if let Some(lane) = self.queues.by_shard.read().get(&shard.number()) {
            return lane.push(queued);
        }
        self.open_lane(&shard).push(queued);
    }

    fn open_lane(self: &Arc<Self>, shard: &Arc<RedisShard>) -> Arc<ShardQueue> {
        let mut lanes = self.queues.by_shard.write();
        let lane = lanes.entry(shard.number()).or_insert_with(|| {
            let lane = Arc::new(ShardQueue::new());
            self.runtime.spawn(keep_draining(Arc::downgrade(self), Arc::clone(shard), Arc::clone(&lane)));
            lane
        });
        Arc::clone(lane)
    }

    /// Sends a batch. None if it took too long for all of them to get here.
    fn depart(&self, shard: &Arc<RedisShard>, mut batch: Batch) -> Option<SentBatch> {
        let sent = Instant::now();
        if let Some(late) = batch.take_late(sent) {
            late.give_up(false);
        }
        if batch.len() == 0 {
            return None;
        }
        self.queues.calls.fetch_add(1, Ordering::Relaxed);
        let command = self.command(shard, &batch, true);
        Some(SentBatch::depart(shard, batch, command, sent))
    }

    /// Waits until the store answers, or nobody waits any more.
    async fn land(&self, shard: &Arc<RedisShard>, flight: &mut SentBatch) -> Option<Result<Value, Failure>> {
        let mut is_by_name = true;
        while let Some(deadline) = flight.batch.next_deadline() {
            match flight.answer_until(deadline).await {
                Some(Err(Failure::NoScript)) if is_by_name => {
                    flight.again(shard, self.command(shard, &flight.batch, false));
                    is_by_name = false;
                }
                Some(result) => return Some(result),
                None => flight.batch.leave_to_policy(),
            }
        }
        None
    }

    /// Sends one batch and draws the consequences.
    async fn serve(self: Arc<Self>, shard: Arc<RedisShard>, batch: Batch) {
        if let Some(mut flight) = self.depart(&shard, batch) {
            let landed = self.land(&shard, &mut flight).await;
            self.conclude(&shard, flight, landed);
        }
    }

    /// Sends one batch after the other behind `next`, as long as there are any: they have the same place.
    async fn serve_lane(
        self: Arc<Self>,
        shard: Arc<RedisShard>,
        lane: Arc<ShardQueue>,
        mut next: Option<SentBatch>,
        place: SendPermit,
    ) {
        while let Some(mut flight) = next {
            let landed = self.land(&shard, &mut flight).await;
            next = self.depart(&shard, Batch::new(&self, lane.pop(self.room(&shard))));
            self.conclude(&shard, flight, landed);
        }
        drop(place);
    }

    fn conclude(
        self: &Arc<Self>,
        shard: &Arc<RedisShard>,
        mut flight: SentBatch,
        landed: Option<Result<Value, Failure>>,
    ) {
        if let Some(result) = landed {
            return self.finish(shard, flight.batch, result);
        }
        flight.batch.count_out();
        let (shared, shard) = (Arc::clone(self), Arc::clone(shard));
        // In the background: whoever waits for a place behind this batch must not wait for it.
        tokio::spawn(async move {
            // Only the silence of the store counts against it, not the wait for a place.
            let silence_end = flight.sent + shared.settings.timeout;
            let mut answer = flight.answer_until(silence_end).await;
            if answer.is_none() {
                shard.report(CallOutcome::TimedOut);
                answer = flight.answer_until(Instant::now() + LATE).await;
            }
            if let Some(Ok(value)) = answer {
                shared.finish(&shard, flight.batch, Ok(value));
            }
        });
    }
}

/// Sends what comes for one shard. A fault of ours costs those whom it meets an answer, and nobody else the lane.
async fn keep_draining(shared: Weak<StoreCore>, shard: Arc<RedisShard>, lane: Arc<ShardQueue>) {
    let number = shard.number();
    loop {
        let draining = tokio::spawn(drain(Weak::clone(&shared), Arc::clone(&shard), Arc::clone(&lane)));
        match draining.await {
            Err(error) if error.is_panic() => {
                tracing::error!(
                    shard = number,
                    "the task that sends to a shard has panicked; it begins anew"
                );
            }
            _ => return,
        }
    }
}

async fn drain(shared: Weak<StoreCore>, shard: Arc<RedisShard>, lane: Arc<ShardQueue>) {
    while let Some(deadline) = lane.first().await {
        let place = lane.place(deadline).await;
        let Some(strong) = shared.upgrade() else { return };
        let room = strong.room(&shard);
        let Some(place) = place else {
            Batch::new(&strong, lane.pop_late()).give_up(false);
            continue;
        };
        drop(strong);
        // Whoever is ready to ask as well comes along: it costs no time that is not theirs.
        if lane.waiting() < room.clients {
            tokio::task::yield_now().await;
        }
        let Some(shared) = shared.upgrade() else { return };
        if !shared.learns_clock(&shard).await {
            Batch::new(&shared, lane.pop(room)).give_up(false);
            continue;
        }
        // It leaves here, and not when the task has its turn.
        let first = shared.depart(&shard, Batch::new(&shared, lane.pop(room)));
        if first.is_some() {
            tokio::spawn(shared.serve_lane(Arc::clone(&shard), Arc::clone(&lane), first, place));
        }
    }
}
