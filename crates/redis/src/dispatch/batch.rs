//! Calls that are sent together. Their waiters receive a verdict also if a batch is dropped.

use super::StoreCore;
use crate::VerdictSender;
use crate::lease::{Executed, PendingGroupId, StoreCall};
use std::sync::Arc;
use tokio::time::Instant;

/// A call that is queued or in flight.
#[derive(Debug)]
pub(crate) struct QueuedCall {
    pub(super) call: StoreCall<VerdictSender>,
    /// When its waiters time out.
    pub(crate) deadline: Instant,
    /// How long the script takes for it, by estimate.
    pub(crate) work_ns: u32,
    /// Whether its waiters have timed out.
    pub(super) is_overdue: bool,
    pub(super) hops: u32,
}

impl QueuedCall {
    pub(super) fn new(call: StoreCall<VerdictSender>, deadline: Instant) -> Self {
        let work_ns = call.ask.work_ns();
        Self { call, deadline, work_ns, is_overdue: false, hops: 0 }
    }
}

/// Calls that are sent together, until each is concluded.
///
/// Other requests wait behind each of them. So if a batch is dropped with calls that are not concluded, by a panic or with
/// its task, all of these fail and the failure policy decides.
pub(crate) struct Batch {
    core: Arc<StoreCore>,
    calls: std::vec::IntoIter<QueuedCall>,
    /// The group of the call that is being concluded.
    concluding: Option<PendingGroupId>,
    /// How many of those that are pending it stands for.
    pending: usize,
}

impl Batch {
    /// Of calls that were counted as pending.
    pub(super) fn new(core: &Arc<StoreCore>, calls: Vec<QueuedCall>) -> Self {
        let pending = calls.len();
        Self { core: Arc::clone(core), calls: calls.into_iter(), concluding: None, pending }
    }

    /// Of one call, which is counted from now on.
    pub(super) fn of_one(core: &Arc<StoreCore>, queued: QueuedCall) -> Self {
        core.queues.add_pending();
        Self::new(core, vec![queued])
    }

    pub(super) fn calls(&self) -> &[QueuedCall] {
        self.calls.as_slice()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Removes the calls that have timed out at `now`, if there are any.
    pub(super) fn take_late(&mut self, now: Instant) -> Option<Self> {
        if self.calls().iter().all(|queued| queued.deadline > now) {
            return None;
        }
        let calls = std::mem::take(&mut self.calls);
        let (late, timely): (Vec<_>, Vec<_>) = calls.partition(|queued| queued.deadline <= now);
        self.calls = timely.into_iter();
        self.pending -= late.len();
        Some(Self::new(&self.core, late))
    }

    /// When the next waiters time out.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waited_for = self.calls().iter().filter(|queued| !queued.is_overdue);
        waited_for.map(|queued| queued.deadline).min()
    }

    /// Fails the waiters that have timed out; their calls continue.
    pub(super) fn time_out_due(&mut self) {
        let now = Instant::now();
        let calls = self.calls.as_mut_slice().iter_mut();
        for queued in calls.filter(|queued| !queued.is_overdue && queued.deadline <= now) {
            queued.is_overdue = true;
            self.core.leases.time_out(&mut queued.call);
        }
    }

    /// A shutdown does not wait for it any more.
    pub(super) fn stop_counting(&mut self) {
        self.core.queues.remove_pending(std::mem::take(&mut self.pending));
    }

    /// Applies `each` to each call in turn.
    pub(super) fn conclude(mut self, mut each: impl FnMut(QueuedCall)) {
        for queued in self.calls.by_ref() {
            self.concluding = (!queued.is_overdue).then(|| queued.call.group_id());
            each(queued);
        }
        self.concluding = None;
    }

    /// Fails all calls.
    pub(super) fn give_up(self, executed: Executed) {
        let core = Arc::clone(&self.core);
        self.conclude(|queued| core.leases.fail(queued.call, executed));
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.stop_counting();
        let leases = &self.core.leases;
        let mut left = 0;
        if let Some(group) = self.concluding.take() {
            leases.fail_group(group);
            left += 1;
        }
        // Overdue calls have no waiters, and another call for the same group may be in flight.
        for queued in self.calls.by_ref().filter(|queued| !queued.is_overdue) {
            // The store may have executed it.
            leases.fail(queued.call, Executed::Maybe);
            left += 1;
        }
        if left > 0 && std::thread::panicking() {
            tracing::error!(calls = left, "calls to the store lost in a panic; failure policies apply");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Failure;
    use crate::lease::{LeaseCheck, Verdict};
    use crate::shard_queue::ShardQueue;
    use crate::{RedisSettings, RedisStore, StoreErrorKind, VerdictReceiver};
    use redis::Value;
    use std::pin::pin;
    use std::sync::atomic::Ordering;
    use std::task::{Context, Waker};
    use std::time::Duration;
    use tokio::time::timeout;
    use tollgate_core::algorithm::Algorithm;
    use tollgate_core::key::StateKey;
    use tollgate_core::lending::EPOCH_US;
    use tollgate_core::limit::{Limit, LimitSize};
    use tollgate_core::rate::Rate;
    use tollgate_core::rules::{LeaseTiming, LimitId, OverLimitEffect};
    use tollgate_core::state_address::{StateAddress, StateField};
    use tollgate_limiter::{Clock, OwnedCharge, Passed, Steps};
    use tollgate_testbed::PATIENCE;

    /// An unreachable store: these tests need none.
    async fn store() -> RedisStore {
        let url = "redis+unix:///nowhere/redis.sock".parse().unwrap();
        RedisStore::open(&url, RedisSettings::default(), Clock::system()).await.unwrap()
    }

    fn charge(client: u64) -> OwnedCharge {
        let size = LimitSize { capacity: Some(10), rate: Rate::per(10, 1_000_000), window_us: None };
        OwnedCharge {
            id: LimitId::NONE,
            key: StateKey::from_bits(client),
            client,
            meter: *Limit::new("a", Algorithm::TokenBucket, size).unwrap().meter(),
            enforced: true,
            over: OverLimitEffect::default(),
            leased: true,
            leasing: LeaseTiming::default(),
            denies_on_failure: false,
        }
    }

    fn address(client: u64) -> StateAddress {
        StateAddress { key: format!("client-{client}"), field: StateField::new(1, None) }
    }

    /// A request of `client`: what is to be sent for it, if it is the first, and where it waits.
    fn ask(core: &StoreCore, client: u64) -> (Option<QueuedCall>, VerdictReceiver) {
        let mut receivers = Vec::new();
        let waiter = || {
            let (sender, receiver) = VerdictSender::new();
            receivers.push(receiver);
            sender
        };
        let now = core.lease_time();
        let check = core.leases.check(
            &[charge(client)],
            1,
            1,
            now,
            |_| Some(address(client)),
            waiter,
            &mut Steps::new(),
        );
        let LeaseCheck::Pending(asked) = check else {
            panic!("nothing is known of it");
        };
        let deadline = Instant::now() + PATIENCE;
        let call = asked.calls.into_iter().next();
        let queued = call.map(|call| QueuedCall::new(call, deadline));
        (queued, receivers.remove(0))
    }

    /// Counted as if they had been queued.
    fn batch(core: &Arc<StoreCore>, calls: impl IntoIterator<Item = Option<QueuedCall>>) -> Batch {
        let calls: Vec<QueuedCall> = calls.into_iter().flatten().collect();
        calls.iter().for_each(|_| core.queues.add_pending());
        Batch::new(core, calls)
    }

    async fn assert_failed(receivers: impl IntoIterator<Item = VerdictReceiver>) {
        for receiver in receivers {
            let verdict = timeout(PATIENCE, receiver).await.expect("no waiter waits for ever");
            assert_eq!(verdict.unwrap_or(Verdict::Failed), Verdict::Failed);
        }
    }

    #[tokio::test]
    async fn panic_in_flight_fails_all_waiters() {
        let store = store().await;
        let core = store.core();
        let ((first, one), (none, behind), (other, two)) = (ask(core, 1), ask(core, 1), ask(core, 2));
        assert!(none.is_none(), "it waits behind the first");
        let batch = batch(core, [first, other]);
        let task = tokio::spawn(async move {
            let _on_its_way = batch;
            panic!("a panic in a test");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert_failed([one, behind, two]).await;
        assert_eq!(core.queues.pending.load(Ordering::Acquire), 0);
        assert!(ask(core, 1).0.is_some(), "the next one is sent");
        assert!(ask(core, 2).0.is_some(), "the next one is sent");
    }

    #[tokio::test]
    async fn panic_while_applying_a_reply_fails_all_waiters() {
        let store = store().await;
        let core = store.core();
        let ((first, one), (_, behind), (other, two)) = (ask(core, 1), ask(core, 1), ask(core, 2));
        let batch = batch(core, [first, other]);
        let task = tokio::spawn(async move { batch.conclude(|_| panic!("a panic in a test")) });
        assert!(task.await.unwrap_err().is_panic());
        assert_failed([one, behind, two]).await;
        assert_eq!(core.queues.pending.load(Ordering::Acquire), 0);
        assert!(ask(core, 1).0.is_some(), "the next one is sent");
    }

    #[tokio::test]
    async fn an_invalid_answer_fails_its_own_call_only() {
        let store = store().await;
        let core = store.core();
        let time = 1_700_000_000_000_000_u64.to_be_bytes()[1..].to_vec();
        // Of one request; nothing is lent, and the state is a fresh one.
        let passing = |count: u32| [b"+", &count.to_be_bytes()[..], &[0; 5]].concat();
        let lending = [b"+", &[0, 0, 0, 1, 0, 0, 0, 9, 0][..]].concat();
        let noise = vec![255; 300];
        let invalid = [
            passing(2),
            passing(u32::MAX),
            passing(0),
            lending,
            b"".to_vec(),
            b"+".to_vec(),
            b"=\x02".to_vec(),
            noise,
        ];
        for (round, invalid) in invalid.into_iter().enumerate() {
            let clients = [1, 2, 3].map(|client| client + 10 * round as u64);
            let [(first, one), (second, two), (third, three)] = clients.map(|client| ask(core, client));
            let answers = [time.clone(), passing(1), invalid, passing(1)].map(Value::BulkString);
            let shard = core.servers.shard_of(b"");
            let answer = Value::Array(answers.to_vec());
            core.finish(&shard, batch(core, [first, second, third]), Ok(answer));
            for receiver in [one, three] {
                let verdict = timeout(PATIENCE, receiver).await.unwrap().unwrap();
                let Verdict::Served { steps, .. } = verdict else { panic!("round {round}: {verdict:?}") };
                assert!(steps[0].admitted, "round {round}");
            }
            assert_failed([two]).await;
            assert_eq!(store.errors(StoreErrorKind::InvalidAnswer), round as u64 + 1);
            assert!(ask(core, clients[1]).0.is_some(), "the next one is sent");
        }
        assert_eq!(core.queues.pending.load(Ordering::Acquire), 0);
    }

    /// A request is charged as lent under one limit, and the other refuses it: its token is returned.
    fn returning_call(core: &Arc<StoreCore>, client: u64) -> (OwnedCharge, QueuedCall) {
        const NOW_US: u64 = 1_700_000_000_000_000;
        let charges = [client, client + 1].map(|client| OwnedCharge { leased: false, ..charge(client) });
        let mut receivers = Vec::new();
        let waiter = || {
            let (sender, receiver) = VerdictSender::new();
            receivers.push(receiver);
            sender
        };
        let address = |index: usize| Some(address(charges[index].client));
        let now = core.lease_time();
        let check = core.leases.check(&charges, 1, 1, now, address, waiter, &mut Steps::new());
        let LeaseCheck::Pending(asked) = check else { panic!("nothing is known of it") };
        let deadline = Instant::now() + PATIENCE;
        let mut calls = asked.calls.into_iter().map(|call| Some(QueuedCall::new(call, deadline)));
        // Nine tokens are left, and one is lent in the present epoch.
        let epoch = (NOW_US / EPOCH_US) as u32;
        let state = [&[2, 80][..], &NOW_US.to_be_bytes()[1..], &[0, 0], &[0, 9], &[0; 4]].concat();
        let lent = [&epoch.to_be_bytes()[..], &[0, 0, 0, 1], &[0; 4]].concat();
        let reply = [b"+", &[0, 0, 0, 1][..], &[0; 4], &[29], &state, &lent].concat();
        let answer =
            Value::Array([NOW_US.to_be_bytes()[1..].to_vec(), reply].map(Value::BulkString).to_vec());
        core.finish(&core.servers.shard_of(b""), batch(core, [calls.next().flatten()]), Ok(answer));
        batch(core, [calls.next().flatten()]).give_up(Executed::No);
        let verdict = receivers.remove(0).try_recv().expect("answered");
        let Verdict::Served { reserved, .. } = verdict else { panic!("{verdict:?}") };
        let reserved = std::iter::once((0, reserved[0].expect("taken as lent"))).collect();
        let mut calls = core.leases.resolve(&charges, &reserved, Passed::No, core.lease_time(), address);
        let call = calls.pop().expect("a report");
        assert_eq!(call.ask.charges[0].reports[0].returned, 1);
        (charges[0], QueuedCall::new(call, deadline))
    }

    #[tokio::test]
    async fn tokens_are_returned_again_only_if_the_call_was_certainly_not_executed() {
        let store = store().await;
        let core = store.core();
        let time = 1_700_000_000_000_000_u64.to_be_bytes()[1..].to_vec();
        let inside = |text: &str| {
            let answers = [time.clone(), text.as_bytes().to_vec()].map(Value::BulkString);
            Ok(Value::Array(answers.to_vec()))
        };
        let oom = || "OOM command not allowed when used memory > 'maxmemory'.".to_owned();
        let cases = [
            // A script may fail after it has written.
            (inside("-ERR value is not an integer"), 0),
            (inside(&format!("-{}", oom())), 0),
            (inside("-NOPERM this user has no permissions to run the 'pexpire' command"), 0),
            (inside("no reply"), 0),
            (Err(Failure::Other("ERR Error running script".to_owned())), 0),
            (Err(Failure::Lost), 0),
            // These come before the script begins.
            (Err(Failure::OutOfMemory(oom())), 1),
            (Err(Failure::ReadOnly), 1),
            (Err(Failure::Unavailable), 1),
        ];
        for (round, (result, returned)) in cases.into_iter().enumerate() {
            let case = format!("{result:?}");
            let (charge, queued) = returning_call(core, 1 + 2 * round as u64);
            core.finish(&core.servers.shard_of(b""), batch(core, [Some(queued)]), result);
            let now = core.lease_time();
            let reports = core.leases.pending_reports(charge.client, charge.key, &charge.meter, now);
            assert_eq!(reports.iter().map(|report| report.returned).sum::<u32>(), returned, "{case}");
        }
        assert_eq!(core.queues.pending.load(Ordering::Acquire), 0);
    }

    /// A request that has waited behind another call of its client times out before those that are queued already.
    #[tokio::test(start_paused = true)]
    async fn the_queue_waits_for_the_earliest_deadline() {
        let store = store().await;
        let core = store.core();
        let queue = ShardQueue::new();
        let queued = |client, ms| {
            let call = ask(core, client).0.expect("a call");
            QueuedCall { deadline: Instant::now() + Duration::from_millis(ms), ..call }
        };
        queue.push(queued(1, 80));
        let permits = [queue.permit().await, queue.permit().await, queue.permit().await];
        assert!(permits.iter().all(Option::is_some), "three calls are in flight");
        let begin = Instant::now();
        let mut waiting = pin!(queue.permit());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        queue.push(queued(2, 30));
        queue.push(queued(3, 60));
        assert!(waiting.await.is_none());
        assert_eq!(begin.elapsed().as_millis(), 30);
        let late = queue.pop_late();
        assert_eq!(late.iter().map(|queued| &*queued.call.key).collect::<Vec<_>>(), ["client-2"]);
        assert_eq!(queue.waiting(), 2);
        // A permit that is free is taken at once, also if a deadline has passed.
        drop(permits);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert!(queue.permit().await.is_some());
        assert_eq!(queue.pop_late().len(), 2);
    }

    #[tokio::test]
    async fn the_queue_of_a_shard_that_is_gone_is_closed_and_its_calls_fail() {
        let store = store().await;
        let core = store.core();
        let gone = core.servers.shard_of(b"").not_in_the_map(99);
        // The drain task does not run before this one waits.
        for client in 1..=3 {
            let (queued, mut receiver) = ask(core, client);
            core.queues.add_pending();
            core.open_queue(&gone, queued.expect("a call"));
            assert!(receiver.try_recv().is_err(), "it waits");
            core.close_queues();
            assert!(matches!(receiver.try_recv(), Ok(Verdict::Failed)));
        }
        assert!(core.queues.by_shard.read().is_empty());
        assert_eq!(core.queues.pending.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn overdue_call_does_not_affect_later_calls() {
        let store = store().await;
        let core = store.core();
        let (first, one) = ask(core, 1);
        let mut late = batch(core, [first.map(|queued| QueuedCall { deadline: Instant::now(), ..queued })]);
        late.time_out_due();
        assert_failed([one]).await;
        let (second, mut two) = ask(core, 1);
        let (_, mut behind) = ask(core, 1);
        let under_way = batch(core, [second]);
        drop(late);
        assert!(two.try_recv().is_err() && behind.try_recv().is_err(), "they wait on");
        under_way.give_up(Executed::Maybe);
        assert_failed([two, behind]).await;
    }
}
