//! Calls with different limits or numbers for one key.

use super::*;
use std::cell::RefCell;
use std::rc::Rc;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::lending::Prefetch;
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::rate::Rate;
use tollgate_core::rules::{LeaseTiming, LimitId, OverLimitEffect};
use tollgate_core::script::work;
use tollgate_core::state_address::StateField;
use tollgate_core::time::StoreTime;
use tollgate_core::virtual_store::VirtualStore;

const SECOND_US: u64 = 1_000_000;
const HOUR_US: u64 = 3_600 * SECOND_US;
/// An hour of the clock begins.
const NOON_US: u64 = 1_794_916_800 * SECOND_US;

/// Requests state their limits: the next may state other numbers for the same key.
const RULES: u32 = 1 << 31;

type Verdicts = Rc<RefCell<Vec<Verdict>>>;

/// Appends the verdict to those that the test reads.
#[derive(Clone, Default)]
struct RecordingWaiter(Verdicts);

impl Waiter for RecordingWaiter {
    fn deliver(self, verdict: Verdict) -> bool {
        self.0.borrow_mut().push(verdict);
        true
    }
}

/// A node and its store.
struct TableFixture {
    table: LeaseTable<RecordingWaiter>,
    store: VirtualStore<Arc<str>>,
    now: BootTime,
    verdicts: RecordingWaiter,
}

impl TableFixture {
    fn new(nodes: u32) -> Self {
        let table = LeaseTable::new(LeaseSettings::default());
        table.set_nodes(nodes);
        Self {
            table,
            store: VirtualStore::default(),
            now: BootTime::from_us(SECOND_US),
            verdicts: RecordingWaiter::default(),
        }
    }

    fn store_time(&self) -> StoreTime {
        StoreTime::from_us(NOON_US + self.now.as_us())
    }

    /// The calls of a request that the store has to be asked about.
    fn calls(&self, charges: &[OwnedCharge], cost: u32) -> Vec<StoreCall<RecordingWaiter>> {
        self.calls_for(charges, cost, "client")
    }

    fn calls_for(&self, charges: &[OwnedCharge], cost: u32, key: &str) -> Vec<StoreCall<RecordingWaiter>> {
        let address = |index: usize| {
            let charge: &OwnedCharge = &charges[index];
            let field = StateField::new(charge.key.as_bits(), None);
            Some(StateAddress { key: format!("{key}-{}", charge.client), field })
        };
        let waiter = || self.verdicts.clone();
        match self.table.check(charges, cost, RULES, self.now, address, waiter, &mut Steps::new()) {
            LeaseCheck::Pending(pending) => pending.calls.into_vec(),
            LeaseCheck::Decided => Vec::new(),
        }
    }

    /// Executes the calls of one request, and those that follow.
    fn request(&mut self, charges: &[OwnedCharge]) {
        let mut calls = self.calls(charges, 1);
        while let Some(call) = calls.pop() {
            calls.extend(self.execute(call));
        }
    }

    /// Returns all credit to the store.
    fn return_all(&mut self) {
        let mut calls = Vec::new();
        self.table.return_all(self.now, |call| calls.push(call));
        for call in calls {
            self.execute(call);
        }
    }

    /// The store executes `call`, and the table applies the reply. Returns the next call.
    fn execute(&mut self, call: StoreCall<RecordingWaiter>) -> Option<StoreCall<RecordingWaiter>> {
        let reply = self.store.charge(&call.key, &call.ask, self.store_time());
        self.table.apply_reply(call, &reply, self.now)
    }

    fn credit(&self) -> u64 {
        self.table.usage(self.now).1
    }
}

fn window(id: &str, limit: u64, window_us: u64) -> Limit {
    let size = LimitSize { capacity: Some(limit), rate: None, window_us: Some(window_us) };
    Limit::new(id, Algorithm::FixedWindow, size).unwrap()
}

fn charge(limit: &Limit, client: u64, key: u64) -> OwnedCharge {
    OwnedCharge {
        id: LimitId::NONE,
        key: StateKey::from_bits(key),
        client,
        meter: *limit.meter(),
        enforced: true,
        over: OverLimitEffect::default(),
        leased: true,
        leasing: LeaseTiming::default(),
        denies_on_failure: false,
    }
}

fn bucket(capacity: u32, per_minute: u32) -> Limit {
    let rate = Rate::per(per_minute.into(), 60 * SECOND_US);
    Limit::new(
        "bucket",
        Algorithm::TokenBucket,
        LimitSize { capacity: Some(capacity.into()), rate, window_us: None },
    )
    .unwrap()
}

#[test]
fn calls_with_different_limits_take_ahead_once() {
    let mut fixture = TableFixture::new(2);
    let hourly = charge(&window("hourly", 100_000, HOUR_US), 1, 1);
    let route = |number: u64| OwnedCharge {
        leased: false,
        ..charge(&window("route", 50, SECOND_US), 1, 100 + number)
    };
    for _ in 0..2_000 {
        fixture.now += 1_000;
        fixture.request(&[hourly]);
    }
    fixture.return_all();
    assert_eq!(fixture.credit(), 0);
    let calls: Vec<_> = (0..20).flat_map(|number| fixture.calls(&[hourly, route(number)], 1)).collect();
    assert_eq!(calls.len(), 20, "none waits for another");
    for call in calls {
        fixture.execute(call);
    }
    assert_eq!(fixture.credit(), 500, "1 % of the limit, for two nodes");
    // The reply has come: the next call takes ahead again.
    fixture.return_all();
    let call = fixture.calls(&[hourly, route(0)], 1).remove(0);
    assert_eq!(call.ask.charges[0].prefetch.want, 500);
}

#[test]
fn a_call_that_failed_does_not_keep_others_from_taking_ahead() {
    let mut fixture = TableFixture::new(1);
    let minutely = charge(&bucket(1_000, 1_000), 1, 1);
    for _ in 0..100 {
        fixture.now += 1_000;
        fixture.request(&[minutely]);
    }
    fixture.return_all();
    for (executed, wants) in [(Executed::No, 10), (Executed::Maybe, 0)] {
        let call = fixture.calls(&[minutely], 1).remove(0);
        assert_eq!(call.ask.charges[0].prefetch.want, 10);
        fixture.table.fail(call, executed);
        let call = fixture.calls(&[minutely], 1).remove(0);
        assert_eq!(call.ask.charges[0].prefetch.want, wants, "{executed:?}: tokens may have been lent");
        fixture.table.fail(call, Executed::No);
        fixture.now += 990_000;
        let rate = (0..10).map(|_| fixture.calls(&[minutely], 1));
        rate.flatten().for_each(|call| fixture.table.fail(call, Executed::No));
        fixture.now += 10_000;
    }
}

#[test]
fn a_call_takes_ahead_by_the_numbers_of_its_own_limit() {
    let mut fixture = TableFixture::new(1);
    let (plain, vip) = (charge(&bucket(90, 90), 1, 1), charge(&bucket(10_000, 10_000), 1, 1));
    for _ in 0..60 {
        fixture.now += 10_000;
        fixture.request(&[plain]);
    }
    let first = fixture.calls(&[plain], 1).remove(0);
    assert!(fixture.calls(&[plain], 1).is_empty(), "it waits behind the first");
    let other = fixture.calls(&[vip], 1).remove(0);
    let next = fixture.execute(first).expect("the call of the second");
    assert_eq!(next.ask.charges[0].prefetch, Prefetch::NONE);
    fixture.execute(next);
    fixture.execute(other);
}

/// A request is charged under one version of a limit, and its other limit refuses it after a request of another version.
#[test]
fn tokens_are_returned_although_the_numbers_have_changed_meanwhile() {
    for is_back in [false, true] {
        let mut fixture = TableFixture::new(1);
        let daily = |limit| OwnedCharge { leased: false, ..charge(&window("daily", limit, HOUR_US), 1, 1) };
        let (plain, vip) = (daily(100), daily(1_000));
        let user = OwnedCharge { leased: false, ..charge(&window("user", 1, HOUR_US), 2, 2) };
        fixture.request(&[user]);
        let verdicts = fixture.verdicts.0.clone();
        for _ in 0..40 {
            verdicts.borrow_mut().clear();
            // Only the reply of the other limit is known to refuse.
            fixture.table.forget(&[user]);
            let calls = fixture.calls(&[plain, user], 1);
            assert_eq!(calls.len(), 2);
            let of_vip = fixture.calls(&[vip], 1).remove(0);
            calls.into_iter().for_each(|call| drop(fixture.execute(call)));
            let served: Vec<_> = verdicts.borrow().clone();
            let [Verdict::Served { reserved, .. }, Verdict::Served { steps, .. }] = &served[..] else {
                panic!("{served:?}");
            };
            assert!(!steps[0].admitted);
            let reserved = ReservedTokens::from_iter([(0, reserved[0].expect("taken as lent"))]);
            if is_back {
                fixture
                    .calls(&[plain], 0)
                    .into_iter()
                    .for_each(|call| fixture.table.fail(call, Executed::No));
            }
            fixture.table.fail(of_vip, Executed::No);
            let address = |_| None;
            let calls = fixture.table.resolve(&[plain, user], &reserved, Passed::No, fixture.now, address);
            calls.into_iter().for_each(|call| drop(fixture.execute(call)));
        }
        verdicts.borrow_mut().clear();
        fixture.return_all();
        for _ in 0..150 {
            fixture.now += 1_000_000;
            fixture.request(&[plain]);
        }
        let admits =
            |verdict: &&Verdict| matches!(verdict, Verdict::Served { steps, .. } if steps[0].admitted);
        assert_eq!(verdicts.borrow().iter().filter(admits).count(), 100, "numbers are back: {is_back}");
    }
}

#[test]
fn states_with_new_addresses_begin_without_what_was_known() {
    let mut fixture = TableFixture::new(1);
    let hourly = charge(&window("hourly", 100_000, HOUR_US), 1, 1);
    let use_it = |fixture: &mut TableFixture, key: &str| {
        for _ in 0..100 {
            fixture.now += 1_000;
            let calls = fixture.calls_for(&[hourly], 1, key);
            calls.into_iter().for_each(|call| assert!(fixture.execute(call).is_none()));
        }
        assert!(fixture.credit() > 0, "{key}");
    };
    use_it(&mut fixture, "client");
    fixture.table.drop_credit(|_| true);
    let old = [(); 2].map(|()| {
        fixture.now += 1_000;
        fixture.calls(&[hourly, charge(&window("other", 9, SECOND_US), 1, fixture.now.as_us())], 1).remove(0)
    });
    let old_alone = fixture.calls(&[hourly], 1).remove(0);
    assert!(fixture.calls(&[hourly], 1).is_empty(), "it waits behind the call");
    fixture.verdicts.0.borrow_mut().clear();

    fixture.table.forget_states();
    assert_eq!(*fixture.verdicts.0.borrow(), [Verdict::Failed], "of the one that waited");
    let new = fixture.calls_for(&[hourly], 1, "renamed").remove(0);
    assert!(new.ask.charges[0].reports.is_empty());
    assert!(fixture.calls_for(&[hourly], 1, "renamed").is_empty(), "it waits behind the call");
    let [old_answered, old_failed] = old;
    assert!(fixture.execute(old_answered).is_none());
    fixture.table.fail(old_failed, Executed::No);
    assert!(fixture.execute(old_alone).is_none());
    assert_eq!(*fixture.verdicts.0.borrow(), [(); 4].map(|()| Verdict::Failed));
    assert_eq!(fixture.credit(), 0, "what was lent at the old address is not spent");
    fixture.verdicts.0.borrow_mut().clear();
    let behind = fixture.execute(new);
    behind.into_iter().for_each(|call| assert!(fixture.execute(call).is_none()));
    let served = fixture.verdicts.0.borrow().iter().filter(|verdict| **verdict != Verdict::Failed).count();
    assert_eq!(served, 2, "with the request that has waited on");
    use_it(&mut fixture, "renamed");
    let mut reported = Vec::new();
    fixture.table.return_all(fixture.now, |call| reported.push(call.key.to_string()));
    assert_eq!(reported, ["renamed-1"]);
}

#[test]
fn a_call_for_one_client_is_bounded_by_its_time_at_the_server() {
    let mut fixture = TableFixture::new(1);
    let limits = [1, 2, 3].map(|key| {
        let size = LimitSize { capacity: Some(1_000), rate: None, window_us: Some(60 * SECOND_US) };
        charge(&Limit::new("log", Algorithm::SlidingWindowLog, size).unwrap(), 1, key)
    });
    let mut call = fixture.calls(&limits, 1).pop();
    for number in 0..300 {
        assert!(fixture.calls(&limits, 1 + number % 2).is_empty(), "it waits behind the first");
    }
    let mut calls = 0;
    while let Some(next) = call {
        let work_ns = next.ask.work_ns();
        assert!(work_ns <= work::CLIENTS_NS, "{work_ns} ns, {} runs", next.ask.runs.len());
        calls += 1;
        call = fixture.execute(next);
    }
    assert_eq!(fixture.verdicts.0.borrow().len(), 301, "in {calls} calls");
    assert!(calls > 2 && calls < 20, "{calls} calls");
}
