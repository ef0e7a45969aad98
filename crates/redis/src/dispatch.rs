//! Sends the calls of leases: those of many clients in one script call.
//!
//! Each shard has a queue and a few script calls in flight. Calls that arrive meanwhile are sent together as soon as one
//! of these is answered: the busier a shard is, the more clients share a script call, up to a budget of the server's
//! time ([`command`]). No timer delays a call. When a reply arrives, the next batch is sent before the reply is applied, so
//! that the server is not idle.
//!
//! A [`batch`] is what is sent together, [`command`] writes it as a script call, and [`outcome`] applies the result.

mod batch;
mod call_span;
mod command;
mod outcome;

use super::connection::Failure;
use super::shard::{CallOutcome, RedisShard};
use super::shard_queue::{SendPermit, SentBatch, ShardQueue};
use super::{StoreCore, VerdictSender};
use crate::lease::{Executed, StoreCall};
pub(super) use batch::{Batch, QueuedCall};
pub(super) use call_span::CallSpan;
pub(crate) use command::ScriptForm;
use parking_lot::RwLock;
use redis::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tollgate_limiter::metrics::{BATCH_BOUNDS, Histogram};

/// How long a late reply is waited for: by then the credit in it has expired.
const LATE: Duration = Duration::from_secs(2);

/// The queues of all shards, by their number.
#[derive(Debug)]
pub(super) struct ShardQueues {
    by_shard: RwLock<HashMap<u32, Arc<ShardQueue>>>,
    /// Calls that are queued or in flight.
    pending: AtomicUsize,
    calls: AtomicU64,
    batch_sizes: Histogram,
}

impl Default for ShardQueues {
    fn default() -> Self {
        Self {
            by_shard: RwLock::default(),
            pending: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            batch_sizes: Histogram::new(BATCH_BOUNDS, 1.0),
        }
    }
}

impl ShardQueues {
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn batch_sizes(&self) -> &Histogram {
        &self.batch_sizes
    }

    /// Counts a script call for `clients` clients.
    fn count_call(&self, shard: &RedisShard, clients: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        shard.counters().calls.fetch_add(1, Ordering::Relaxed);
        self.batch_sizes.observe(clients as u64);
    }

    /// Counts a call as pending.
    pub(super) fn add_pending(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Calls were answered, or never will be.
    pub(super) fn remove_pending(&self, count: usize) {
        self.pending.fetch_sub(count, Ordering::AcqRel);
    }

    /// Waits until no call is pending, or `longest` is over.
    pub(super) async fn wait_until_drained(&self, longest: Duration) {
        let end = Instant::now() + longest;
        while self.pending.load(Ordering::Acquire) > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for ShardQueues {
    fn drop(&mut self) {
        self.by_shard.get_mut().values().for_each(|queue| drop(queue.close()));
    }
}

impl StoreCore {
    /// Sends `call` to the shard that serves its key. If that is unavailable, the waiters receive a failure at once.
    pub(crate) fn send(self: &Arc<Self>, call: StoreCall<VerdictSender>) {
        // The first waiter may have arrived while the last call for the group was in flight.
        let since = call.waiters().next().map_or_else(Instant::now, VerdictSender::since);
        let deadline = since + self.settings.timeout;
        self.enqueue(QueuedCall::new(call, deadline));
    }

    fn enqueue(self: &Arc<Self>, queued: QueuedCall) {
        let shard = self.servers.shard_of(queued.call.key.as_bytes());
        if shard.is_open() {
            return self.leases.fail(queued.call, Executed::No);
        }
        self.queues.add_pending();
        if let Some(queue) = self.queues.by_shard.read().get(&shard.number()) {
            return queue.push(queued);
        }
        self.open_queue(&shard, queued);
    }

    fn open_queue(self: &Arc<Self>, shard: &Arc<RedisShard>, first: QueuedCall) {
        let mut queues = self.queues.by_shard.write();
        let queue = queues.entry(shard.number()).or_insert_with(|| {
            let queue = Arc::new(ShardQueue::new());
            self.runtime.spawn(keep_draining(Arc::downgrade(self), Arc::clone(shard), Arc::clone(&queue)));
            queue
        });
        queue.push(first);
    }

    /// Closes the queues of shards that are gone. Calls that are still queued fail.
    pub(super) fn close_queues(self: &Arc<Self>) {
        let mut queues = self.queues.by_shard.write();
        let shards = self.servers.shards();
        let is_gone = |number: u32| shards.iter().all(|shard| shard.number() != number);
        let gone: Vec<_> = queues.extract_if(|number, _| is_gone(*number)).collect();
        // Calls are queued while the map is locked: none is added to a queue that is closed here.
        drop(queues);
        for (_, queue) in gone {
            Batch::new(self, queue.close()).give_up(Executed::No);
        }
    }

    /// Sends a batch. None if all of its calls have timed out.
    fn send_batch(&self, shard: &Arc<RedisShard>, mut batch: Batch) -> Option<SentBatch> {
        let sent = Instant::now();
        if let Some(late) = batch.take_late(sent) {
            late.give_up(Executed::No);
        }
        if batch.len() == 0 {
            return None;
        }
        self.queues.count_call(shard, batch.len());
        let span = self.begin_span(shard, batch.len());
        let command = self.command(shard, &batch, ScriptForm::Digest);
        Some(SentBatch::send(shard, batch, command, sent).with_span(span))
    }

    /// Waits for the reply until the last waiter has timed out.
    async fn await_reply(
        &self,
        shard: &Arc<RedisShard>,
        sent: &mut SentBatch,
    ) -> Option<Result<Value, Failure>> {
        let mut form = ScriptForm::Digest;
        while let Some(deadline) = sent.batch.next_deadline() {
            match sent.reply_until(deadline).await {
                Some(Err(Failure::NoScript)) if form == ScriptForm::Digest => {
                    sent.resend(shard, self.command(shard, &sent.batch, ScriptForm::Source));
                    form = ScriptForm::Source;
                }
                Some(result) => {
                    shard.count_duration(sent.sent.elapsed());
                    self.end_span(sent, Some(&result));
                    return Some(result);
                }
                None => sent.batch.time_out_due(),
            }
        }
        self.end_span(sent, None);
        None
    }

    fn end_span(&self, sent: &mut SentBatch, result: Option<&Result<Value, Failure>>) {
        if let Some(span) = sent.span.take() {
            span.end(self.clock.now(), result);
        }
    }

    /// Sends one batch and applies the result.
    async fn send_and_finish(self: Arc<Self>, shard: Arc<RedisShard>, batch: Batch) {
        if let Some(mut sent) = self.send_batch(&shard, batch) {
            let reply = self.await_reply(&shard, &mut sent).await;
            self.finish_or_wait(&shard, sent, reply);
        }
    }

    /// Sends one batch after the other behind `next` until the queue is empty, with one permit.
    async fn drain_behind(
        self: Arc<Self>,
        shard: Arc<RedisShard>,
        queue: Arc<ShardQueue>,
        mut next: Option<SentBatch>,
        permit: SendPermit,
    ) {
        while let Some(mut sent) = next {
            let reply = self.await_reply(&shard, &mut sent).await;
            next = self.send_batch(&shard, Batch::new(&self, queue.pop(self.room(&shard))));
            self.finish_or_wait(&shard, sent, reply);
        }
        drop(permit);
    }

    fn finish_or_wait(
        self: &Arc<Self>,
        shard: &Arc<RedisShard>,
        mut sent: SentBatch,
        reply: Option<Result<Value, Failure>>,
    ) {
        if let Some(result) = reply {
            return self.finish(shard, sent.batch, result);
        }
        sent.batch.stop_counting();
        let (core, shard) = (Arc::clone(self), Arc::clone(shard));
        // In the background: the batches behind this one must not wait for it.
        tokio::spawn(async move {
            // Only the time without a reply counts against the shard, not the wait for a permit.
            let silence_end = sent.sent + core.settings.timeout;
            let mut answer = sent.reply_until(silence_end).await;
            if answer.is_none() {
                shard.report(CallOutcome::TimedOut);
                answer = sent.reply_until(Instant::now() + LATE).await;
            }
            if let Some(result) = answer {
                core.finish(&shard, sent.batch, result);
            }
        });
    }
}

/// Sends the calls for one shard. A panic fails only the affected calls: the task is restarted.
async fn keep_draining(core: Weak<StoreCore>, shard: Arc<RedisShard>, queue: Arc<ShardQueue>) {
    let number = shard.number();
    loop {
        let draining = tokio::spawn(drain(Weak::clone(&core), Arc::clone(&shard), Arc::clone(&queue)));
        match draining.await {
            Err(error) if error.is_panic() => {
                tracing::error!(shard = number, "task that sends to a shard panicked; restarting it");
            }
            _ => return,
        }
    }
}

async fn drain(core: Weak<StoreCore>, shard: Arc<RedisShard>, queue: Arc<ShardQueue>) {
    while queue.first().await {
        let permit = queue.permit().await;
        let Some(strong) = core.upgrade() else { return };
        let room = strong.room(&shard);
        let Some(permit) = permit else {
            Batch::new(&strong, queue.pop_late()).give_up(Executed::No);
            continue;
        };
        drop(strong);
        // Tasks that are ready may add their calls to this batch first.
        if queue.waiting() < room.clients {
            tokio::task::yield_now().await;
        }
        let Some(core) = core.upgrade() else { return };
        let deadline = queue.earliest_deadline();
        if !timeout_at(deadline, core.knows_clock(&shard)).await.unwrap_or(false) {
            Batch::new(&core, queue.pop_late()).give_up(Executed::No);
            Batch::new(&core, queue.pop(room)).give_up(Executed::No);
            continue;
        }
        // Sent here, and not when the task is scheduled.
        let first = core.send_batch(&shard, Batch::new(&core, queue.pop(room)));
        if first.is_some() {
            tokio::spawn(core.drain_behind(Arc::clone(&shard), Arc::clone(&queue), first, permit));
        }
    }
}
