//! The calls to one shard: queued, and in flight.

use super::connection::Failure;
use super::dispatch::{Batch, CallSpan, QueuedCall};
use super::shard::RedisShard;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};

/// Script calls in flight per shard.
const IN_FLIGHT: usize = 3;

/// See the module.
#[derive(Debug)]
pub(super) struct ShardQueue {
    queue: Mutex<QueuedCalls>,
    /// A call was queued that the drain task has to look at, or the queue was closed.
    arrived: Notify,
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct QueuedCalls {
    /// By deadline. Nearly all come in that order: a request that has waited behind another call of its client times out earlier than
    /// those queued last.
    calls: VecDeque<QueuedCall>,
    is_closed: bool,
}

impl QueuedCalls {
    /// Returns the place in the queue.
    fn insert(&mut self, queued: QueuedCall) -> usize {
        let is_last = self.calls.back().is_none_or(|last| last.deadline <= queued.deadline);
        let place = match is_last {
            true => self.calls.len(),
            false => self.calls.partition_point(|other| other.deadline <= queued.deadline),
        };
        self.calls.insert(place, queued);
        place
    }

    fn earliest_deadline(&self) -> Option<Instant> {
        self.calls.front().map(|queued| queued.deadline)
    }
}

/// Bounds of one script call.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLimits {
    pub(super) clients: usize,
    /// How long the script may take for them, see `core/script/work.rs`.
    pub(super) work_ns: u32,
}

impl BatchLimits {
    /// How many of the calls that take so long fit in, from the first on. One always does.
    fn count(self, works_ns: impl Iterator<Item = u32>) -> usize {
        let mut sum_ns = 0_u32;
        let fits = |(number, work_ns): &(usize, u32)| {
            sum_ns = sum_ns.saturating_add(*work_ns);
            *number == 0 || sum_ns <= self.work_ns
        };
        works_ns.take(self.clients).enumerate().take_while(fits).count()
    }
}

/// Permission to have one call in flight.
pub(super) type SendPermit = OwnedSemaphorePermit;

impl ShardQueue {
    pub(super) fn new() -> Self {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT));
        Self { queue: Mutex::default(), arrived: Notify::new(), permits }
    }

    /// Queues a call by its deadline.
    pub(super) fn push(&self, queued: QueuedCall) {
        let place = self.queue.lock().insert(queued);
        if place == 0 {
            self.arrived.notify_one();
        }
    }

    /// The next calls, as many as there is room for; at least one, if there is one.
    pub(super) fn pop(&self, room: BatchLimits) -> Vec<QueuedCall> {
        let calls = &mut self.queue.lock().calls;
        let count = room.count(calls.iter().map(|queued| queued.work_ns));
        calls.drain(..count).collect()
    }

    /// The calls that have timed out.
    pub(super) fn pop_late(&self) -> Vec<QueuedCall> {
        let (calls, now) = (&mut self.queue.lock().calls, Instant::now());
        let count = calls.partition_point(|queued| queued.deadline <= now);
        calls.drain(..count).collect()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().calls.len()
    }

    /// Waits for a call. False when the queue is closed.
    pub(super) async fn first(&self) -> bool {
        loop {
            {
                let queue = self.queue.lock();
                if queue.is_closed {
                    return false;
                }
                if !queue.calls.is_empty() {
                    return true;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// When the first of the calls times out; now if there is none.
    pub(super) fn earliest_deadline(&self) -> Instant {
        self.queue.lock().earliest_deadline().unwrap_or_else(Instant::now)
    }

    /// Waits for a permit until the first of the calls times out, or the queue is empty or closed.
    pub(super) async fn permit(&self) -> Option<SendPermit> {
        let mut permit = pin!(Arc::clone(&self.permits).acquire_owned());
        loop {
            let deadline = {
                let queue = self.queue.lock();
                queue.earliest_deadline().filter(|_| !queue.is_closed)?
            };
            tokio::select! {
                biased;
                permit = &mut permit => return permit.ok(),
                () = sleep_until(deadline) => return None,
                () = self.arrived.notified() => {}
            }
        }
    }

    /// Ends the task that drains the queue. Returns the calls that are left.
    pub(super) fn close(&self) -> Vec<QueuedCall> {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        self.arrived.notify_one();
        std::mem::take(&mut queue.calls).into()
    }
}

/// A batch in flight.
pub(super) struct SentBatch {
    pub(super) batch: Batch,
    pub(super) sent: Instant,
    /// The span of the call, if it is sampled.
    pub(super) span: Option<Box<CallSpan>>,
    reply: ReplyFuture,
}

type ReplyFuture = Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send>>;

impl SentBatch {
    /// Sends `command` for `batch` before this returns, if the connection can take it.
    pub(super) fn send(shard: &Arc<RedisShard>, batch: Batch, command: Cmd, sent: Instant) -> Self {
        Self { batch, sent, span: None, reply: send(shard, command) }
    }

    /// The batch with the span of its call.
    pub(super) fn with_span(self, span: Option<Box<CallSpan>>) -> Self {
        Self { span, ..self }
    }

    /// The same batch, by another command.
    pub(super) fn resend(&mut self, shard: &Arc<RedisShard>, command: Cmd) {
        self.reply = send(shard, command);
    }

    /// Waits for the reply until `deadline`.
    pub(super) async fn reply_until(&mut self, deadline: Instant) -> Option<Result<Value, Failure>> {
        timeout_at(deadline, &mut self.reply).await.ok()
    }
}

fn send(shard: &Arc<RedisShard>, command: Cmd) -> ReplyFuture {
    let mut reply: ReplyFuture = Box::pin(shard.start(command));
    // Polled once: the command is then queued in the connection, which writes it now, and not when its own task is
    // scheduled. The caller polls the future again.
    match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Box::pin(std::future::ready(result)),
        Poll::Pending => {
            shard.write_now();
            reply
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_takes_what_fits_and_at_least_one() {
        let room = BatchLimits { clients: 4, work_ns: 100 };
        for (works_ns, count) in [
            (&[][..], 0),
            (&[25, 25, 25, 25, 25], 4),
            (&[40, 40, 40], 2),
            (&[60, 40, 1], 2),
            (&[500, 1], 1),
            (&[u32::MAX, u32::MAX], 1),
            (&[1, u32::MAX], 1),
        ] {
            assert_eq!(room.count(works_ns.iter().copied()), count, "{works_ns:?}");
        }
    }
}
