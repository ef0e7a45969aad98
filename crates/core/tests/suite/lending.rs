//! What holds when nodes take tokens ahead, or hold them for requests that another limit may still refuse: whether
//! they spend them, return them, report late, out of order or never, or crash, the level and what is held elsewhere
//! never exceed the capacity, and no interval admits more than the capacity and what flowed in it.

use crate::laws::Ledger;
use crate::sample::{Bucket, NOW_US, SECOND_US, Window, at, bucket, buckets, window, windows};
use tollgate_core::algorithm::Algorithm;
use tollgate_core::lending::{EPOCH_US, LeaseReport, Prefetch, StoredState};
use tollgate_core::limit::{Limit, Meter};

const NODES: usize = 4;

/// A shared account and the nodes that take from it, on one virtual clock.
struct Fleet {
    rng: fastrand::Rng,
    meter: Meter,
    now_us: u64,
    account: StoredState,
    nodes: [Vec<Credit>; NODES],
    /// Reports on their way, and when they arrive.
    underway: Vec<(u64, LeaseReport)>,
    /// What was admitted, and when.
    admitted: Vec<(u64, u32)>,
    met: Met,
}

/// So that no test passes by meeting nothing.
#[derive(Debug, Default)]
struct Met {
    lends: u32,
    spends: u32,
    reports: u32,
    deaths: u32,
    bursts: u32,
    waits: u32,
    holds: u32,
    commits: u32,
    returns: u32,
}

/// Taken ahead at once, or for one request whose other limits are not decided yet.
#[derive(Clone, Copy)]
struct Credit {
    epoch: u32,
    left: u32,
    until_us: u64,
    spent: u32,
    is_held: bool,
}

impl Fleet {
    fn new(limit: &Limit, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let now_us = NOW_US + rng.u64(0..1 << 40);
        Self {
            rng,
            meter: *limit.meter(),
            now_us,
            account: StoredState::default(),
            nodes: Default::default(),
            underway: Vec::new(),
            admitted: Vec::new(),
            met: Met::default(),
        }
    }

    /// Lets time pass and something happen.
    fn act(&mut self) {
        self.let_time_pass();
        let node = self.rng.usize(..NODES);
        match self.rng.u8(0..16) {
            0..=4 => self.ask(node),
            5..=8 => self.spend(node),
            9 | 10 => self.tell(node),
            11 => self.bring_back(node),
            12 => {
                self.nodes[node].clear();
                self.met.deaths += 1;
            }
            13 => self.hold(node),
            14 => (0..NODES).for_each(|node| self.resolve(node)),
            _ => self.burst(),
        }
    }

    fn let_time_pass(&mut self) {
        let rng = &mut self.rng;
        let next_epoch_us = EPOCH_US - self.now_us % EPOCH_US;
        let life_us = self.meter.lifetime_us();
        let then_us = self.now_us
            + match rng.u8(0..10) {
                0..=2 => 0,
                3 => rng.u64(0..=1_000),
                4 => rng.u64(0..=SECOND_US / 4),
                5 => rng.u64(0..=2 * EPOCH_US),
                6 => next_epoch_us - 1,
                7 => next_epoch_us,
                8 => rng.u64(0..=life_us.min(10 * SECOND_US)),
                _ => rng.u64(0..=life_us),
            };
        self.underway.sort_by_key(|(at_us, _)| *at_us);
        let arrived = self.underway.partition_point(|(at_us, _)| *at_us <= then_us);
        for (at_us, report) in self.underway.drain(..arrived) {
            self.account.apply_reports(&self.meter, at(at_us.max(self.now_us)), &[report]);
            self.met.reports += 1;
        }
        self.now_us = then_us;
        for credit in &mut self.nodes.iter_mut().flatten() {
            // Dead, but what was spent of it may still be told.
            if credit.until_us <= then_us {
                credit.left = 0;
            }
        }
    }

    /// A request at the store, with a wish for more.
    fn ask(&mut self, node: usize) {
        let Self { rng, meter, account, now_us, .. } = self;
        account.apply_reports(meter, at(*now_us), &[]);
        let cost = rng.u32(1..=meter.quota().min(1 + meter.quota() / 4));
        let step = account.step(meter, at(*now_us), cost);
        if !step.admitted {
            return self.check_wait(cost, step.retry_after_us);
        }
        account.take(meter, at(*now_us), cost);
        let lends =
            account.lend(meter, at(*now_us), &Prefetch::new(rng.u32(0..=meter.quota()), rng.u32(1..=3)));
        self.admitted.push((self.now_us, cost));
        if lends > 0 {
            let epoch = self.meter.epoch(at(self.now_us));
            let until_us = self.now_us + self.meter.credit_lifetime_us(at(self.now_us));
            self.nodes[node].push(Credit { epoch, left: lends, until_us, spent: 0, is_held: false });
            self.met.lends += 1;
        }
    }

    fn spend(&mut self, node: usize) {
        for credit in &mut self.nodes[node] {
            if credit.left > 0 {
                // A held request passes whole.
                let is_whole = credit.is_held || self.rng.bool();
                let cost = if is_whole { credit.left } else { self.rng.u32(1..=credit.left) };
                self.met.commits += u32::from(credit.is_held);
                credit.left -= cost;
                credit.spent += cost;
                self.admitted.push((self.now_us, cost));
                self.met.spends += 1;
            }
        }
    }

    /// Tells what was spent, sooner or later.
    fn tell(&mut self, node: usize) {
        let mut reports = Vec::new();
        for credit in &mut self.nodes[node] {
            reports.push(LeaseReport { epoch: credit.epoch, spent: credit.spent, ..LeaseReport::default() });
            credit.spent = 0;
        }
        self.nodes[node].retain(|credit| credit.left > 0);
        self.send(reports);
    }

    fn bring_back(&mut self, node: usize) {
        let mut reports = Vec::new();
        for credit in &mut self.nodes[node] {
            let returned = if credit.is_held { credit.left } else { self.rng.u32(0..=credit.left) };
            self.met.returns += u32::from(credit.is_held && returned > 0);
            credit.left -= returned;
            reports.push(LeaseReport { epoch: credit.epoch, returned, ..LeaseReport::default() });
        }
        self.send(reports);
    }

    /// A request takes its tokens, and does not know yet whether its other limits admit it.
    fn hold(&mut self, node: usize) {
        let Self { rng, meter, account, now_us, .. } = self;
        account.apply_reports(meter, at(*now_us), &[]);
        let available = account.available(meter, at(*now_us));
        if available == 0 {
            return;
        }
        let cost = rng.u32(1..=available);
        account.take_as_lent(meter, at(*now_us), cost);
        let (epoch, until_us) = (meter.epoch(at(*now_us)), *now_us + meter.credit_lifetime_us(at(*now_us)));
        self.nodes[node].push(Credit { epoch, left: cost, until_us, spent: 0, is_held: true });
        self.met.holds += 1;
    }

    /// The other limits have decided: each held request passes, or returns its tokens. The report may be lost.
    fn resolve(&mut self, node: usize) {
        let mut reports = Vec::new();
        for credit in self.nodes[node].iter_mut().filter(|credit| credit.is_held && credit.left > 0) {
            let (epoch, cost) = (credit.epoch, std::mem::take(&mut credit.left));
            if self.rng.bool() {
                self.admitted.push((self.now_us, cost));
                reports.push(LeaseReport { epoch, spent: cost, returned: 0 });
                self.met.commits += 1;
            } else {
                reports.push(LeaseReport { epoch, spent: 0, returned: cost });
                self.met.returns += 1;
            }
        }
        reports.retain(|_| self.rng.u8(0..4) > 0);
        self.send(reports);
    }

    fn send(&mut self, reports: Vec<LeaseReport>) {
        for report in reports {
            let late_us = [0, 50_000, SECOND_US, 20 * SECOND_US][self.rng.usize(..4)];
            self.underway.push((self.now_us + self.rng.u64(0..=late_us), report));
        }
    }

    /// Everybody spends everything that there is, here and at the nodes.
    fn burst(&mut self) {
        (0..NODES).for_each(|node| self.spend(node));
        self.account.apply_reports(&self.meter, at(self.now_us), &[]);
        let all = self.account.available(&self.meter, at(self.now_us));
        if all > 0 {
            self.account.take(&self.meter, at(self.now_us), all);
            self.admitted.push((self.now_us, all));
            self.met.bursts += 1;
        }
    }

    /// A promised wait is exact if nobody spends or reports meanwhile, also while something is lent.
    /// The wait is exact if all that is lent is reported as spent now. Without a report it is longer by at most the time until that
    /// expires.
    fn check_wait(&mut self, cost: u32, wait_us: u64) {
        let admits = |reports: &[LeaseReport], at_us| {
            let mut account = self.account;
            account.apply_reports(&self.meter, at(self.now_us), reports);
            account.apply_reports(&self.meter, at(at_us), &[]);
            account.step(&self.meter, at(at_us), cost).admitted
        };
        let lent = self.account.lent;
        let spent = |epoch, spent| LeaseReport { epoch, spent, returned: 0 };
        let mut reports = vec![spent(lent.epoch, lent.current)];
        reports.extend(lent.epoch.checked_sub(1).map(|epoch| spent(epoch, lent.previous)));
        let (context, then_us) = (format!("{:?} {:?}", self.meter, self.account), self.now_us + wait_us);
        assert!(wait_us > 0 && !admits(&reports, then_us - 1), "{cost} passes before {then_us}: {context}");
        assert!(admits(&reports, then_us), "{cost} does not pass at {then_us}: {context}");
        let latest_us = then_us + 2 * EPOCH_US;
        assert!(admits(&[], latest_us), "{cost} does not pass at {latest_us} without a report: {context}");
        self.met.waits += u32::from(self.account.lent.total() > 0);
    }

    /// What could be spent at this moment.
    fn at_hand(&self) -> u64 {
        let mut account = self.account;
        account.apply_reports(&self.meter, at(self.now_us), &[]);
        let held: u64 = self.nodes.iter().flatten().map(|credit| u64::from(credit.left)).sum();
        held + u64::from(account.available(&self.meter, at(self.now_us)))
    }
}

/// The numbers that lending is made for, some that fill within two epochs, some that take longer, and any others.
fn draw(rng: &mut fastrand::Rng) -> Bucket {
    match rng.u8(0..5) {
        0 => Bucket::draw(rng),
        4 => bucket(rng.u32(50..=200), rng.u64(1..=5), 1, 1),
        1 => bucket(rng.u32(1..=100), rng.u64(1..=30), 1, 1),
        2 => bucket(rng.u32(10..=1_000), rng.u64(100..=2_000), 1, 1),
        _ => bucket(100, 10, 1, 1),
    }
}

#[test]
fn buckets_that_lend_never_admit_more_than_their_capacity_and_what_flows() {
    for algorithm in buckets() {
        let mut met = Met::default();
        for seed in 0..400 {
            let rule = draw(&mut fastrand::Rng::with_seed(seed));
            let mut fleet = Fleet::new(&rule.limit(algorithm), seed);
            let mut ledger = Ledger::new(rule);
            for index in 0..300 {
                fleet.act();
                let context = format!("seed {seed}, step {index}: {algorithm:?} {rule:?}");
                assert!(fleet.at_hand() <= rule.capacity.into(), "{} at hand; {context}", fleet.at_hand());
                fleet.admitted.drain(..).for_each(|(at_us, cost)| ledger.admit(at_us, cost));
                assert!(ledger.holds(), "{context}");
            }
            met.add(&fleet.met);
        }
        met.assert_plenty();
        assert!(met.waits > 1_000, "{met:?}");
    }
}

#[test]
fn windows_that_lend_never_admit_more_than_their_limit() {
    for algorithm in windows().filter(|algorithm| algorithm.is_leased()) {
        let mut met = Met::default();
        for seed in 0..600 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let rule = if rng.bool() {
                Window::draw(rng)
            } else {
                window(rng.u32(1..=100), rng.u64(1..=10) * SECOND_US, 1)
            };
            let mut fleet = Fleet::new(&rule.limit(algorithm), seed);
            let (mut start_us, mut used) = (0, 0);
            for index in 0..300 {
                fleet.act();
                for (at_us, cost) in fleet.admitted.drain(..) {
                    let window_us = at_us - at_us % rule.window_us;
                    used = if window_us == start_us { used } else { 0 } + u64::from(cost);
                    start_us = window_us;
                    assert!(used <= rule.limit.into(), "{used}; seed {seed}, step {index}: {rule:?}");
                }
            }
            met.add(&fleet.met);
        }
        met.assert_plenty();
    }
}

/// As the account's essay tells it.
#[test]
fn the_worked_example() {
    let rule = bucket(100, 5, 1, 1);
    for algorithm in buckets() {
        let limit = rule.limit(algorithm);
        let (meter, start_us) = (limit.meter(), NOW_US - NOW_US % EPOCH_US);
        let mut account = StoredState::default();
        account.apply_reports(meter, at(start_us), &[]);
        account.take(meter, at(start_us), 1);
        assert_eq!(account.lend(meter, at(start_us), &Prefetch::new(20, 1)), 20);
        assert_eq!(account.available(meter, at(start_us)), 79);
        let almost_us = start_us + 2 * EPOCH_US - 1;
        let mut untold = account;
        untold.apply_reports(meter, at(almost_us), &[]);
        assert_eq!(untold.available(meter, at(almost_us)), 80, "the refill stops short of what is lent");
        let spent = LeaseReport { epoch: meter.epoch(at(start_us)), spent: 20, ..LeaseReport::default() };
        account.apply_reports(meter, at(start_us + EPOCH_US), &[spent]);
        assert_eq!(account.available(meter, at(start_us + EPOCH_US)), 80);
        assert_eq!(account.available(meter, at(almost_us)), 89, "once told, the refill goes on");
        assert_eq!(account.available(meter, at(start_us + 3 * EPOCH_US)), 100);
        let forgotten_us = start_us + 3 * EPOCH_US;
        untold.apply_reports(meter, at(forgotten_us), &[]);
        assert_eq!(untold.available(meter, at(forgotten_us)), 90, "after two epochs it is forgotten");
    }
}

/// What comes back after its epoch has been forgotten stays away: it was refilled meanwhile.
#[test]
fn what_comes_back_too_late_stays_away() {
    for algorithm in buckets() {
        let limit = bucket(10, 5, 1, 1).limit(algorithm);
        let (meter, start_us) = (limit.meter(), NOW_US - NOW_US % EPOCH_US);
        let epoch = meter.epoch(at(start_us));
        for (later, back) in [(1, 4), (2, 0)] {
            let report = LeaseReport { epoch, returned: 4, ..LeaseReport::default() };
            for is_held in [false, true] {
                let mut account = StoredState::default();
                account.apply_reports(meter, at(start_us), &[]);
                match is_held {
                    true => account.take_as_lent(meter, at(start_us), 4),
                    false => assert_eq!(account.lend(meter, at(start_us), &Prefetch::new(4, 1)), 4),
                }
                let now_us = start_us + later * EPOCH_US;
                account.apply_reports(meter, at(now_us), &[]);
                let all = account.available(meter, at(now_us));
                account.take(meter, at(now_us), all);
                account.apply_reports(meter, at(now_us), &[report]);
                assert_eq!(
                    account.available(meter, at(now_us)),
                    back,
                    "{algorithm:?} after {later} epochs: {is_held}"
                );
            }
        }
    }
}

/// A capacity below what is lent stops the refill until that is told or forgotten, and no longer.
#[test]
fn a_capacity_lowered_below_what_is_lent_is_no_debt() {
    for algorithm in buckets() {
        let (wide, narrow) = (bucket(100, 10, 1, 1).limit(algorithm), bucket(5, 10, 1, 1).limit(algorithm));
        let start_us = NOW_US - NOW_US % EPOCH_US;
        let mut account = StoredState::default();
        account.apply_reports(wide.meter(), at(start_us), &[]);
        assert_eq!(account.lend(wide.meter(), at(start_us), &Prefetch::new(50, 1)), 50);
        // A theoretical arrival time is waited for; it lies five seconds ahead.
        let forgotten_us = start_us + if algorithm == Algorithm::Gcra { 5 } else { 4 } * SECOND_US;
        for now_us in [start_us + EPOCH_US, start_us + 3 * EPOCH_US / 2, forgotten_us + SECOND_US / 2] {
            account.apply_reports(narrow.meter(), at(now_us), &[]);
        }
        let all = account.available(narrow.meter(), at(forgotten_us + SECOND_US / 2));
        assert_eq!(all, 5, "{algorithm:?}: {account:?}");
    }
}

/// A node that tells of more than there can be breaks nothing.
#[test]
fn absurd_reports_are_bounded() {
    let most = u32::MAX;
    for algorithm in buckets() {
        for rule in
            [bucket(6, 1, 5_184_000, 1_000_000), bucket(most, 1_000_000_000, 1, 1), bucket(3, 1, 4_000, 1)]
        {
            let limit = rule.limit(algorithm);
            let meter = limit.meter();
            let mut account = StoredState::default();
            account.take(meter, at(NOW_US), rule.capacity);
            let epoch = meter.epoch(at(NOW_US));
            let never_lent = LeaseReport { epoch, returned: most, ..LeaseReport::default() };
            account.apply_reports(meter, at(NOW_US), &[never_lent]);
            assert_eq!(account.available(meter, at(NOW_US)), 0, "{limit:?}");
            let absurd = LeaseReport { epoch, spent: most, returned: most };
            account.apply_reports(meter, at(NOW_US), &[absurd, absurd]);
            assert_eq!(account.available(meter, at(NOW_US)), 0, "{limit:?}");
        }
    }
}

impl Met {
    fn add(&mut self, other: &Self) {
        self.lends += other.lends;
        self.spends += other.spends;
        self.reports += other.reports;
        self.deaths += other.deaths;
        self.bursts += other.bursts;
        self.waits += other.waits;
        self.holds += other.holds;
        self.commits += other.commits;
        self.returns += other.returns;
    }

    fn assert_plenty(&self) {
        let taken = [self.lends, self.spends, self.holds, self.commits, self.returns];
        let each = [self.reports, self.deaths, self.bursts].into_iter().chain(taken);
        assert!({ each }.all(|count| count > 300), "{self:?}");
    }
}

/// A refund undoes a step at the same instant, and never raises a state above a fresh one.
#[test]
fn a_refund_gives_back_what_was_taken_and_no_more() {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut limits = vec![window(100, 10 * SECOND_US, 1).limit(Algorithm::FixedWindow)];
    for algorithm in buckets() {
        limits.extend((0..20).map(|_| Bucket::draw(&mut rng).limit(algorithm)));
    }
    for limit in limits {
        let meter = limit.meter();
        let mut state = StoredState::default();
        let mut now_us = NOW_US;
        for _ in 0..200 {
            now_us += rng.u64(0..SECOND_US);
            let now = at(now_us);
            state.apply_reports(meter, now, &[]);
            let available = state.available(meter, now);
            let tokens = rng.u32(0..=available);
            let before = state;
            state.take(meter, now, tokens);
            assert_eq!(state.available(meter, now), available - tokens);
            if rng.bool() {
                state.refund(meter, now, tokens);
                assert_eq!(state.available(meter, now), available, "{meter:?} {before:?}");
            }
            let mut more = state;
            more.refund(meter, now, u32::MAX);
            assert_eq!((more.available(meter, now), more.lent.total()), (meter.quota(), 0));
        }
    }
}
