//! Answers of a shared store, honest and damaged. What a store can truthfully answer is always taken; of anything
//! else, what is taken never grants more than was asked for, and can be computed with.

use crate::sample::{Bucket, NOW_US, SECOND_US, Window, at, bucket, window};
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate_core::algorithm::{Algorithm, StateKind};
use tollgate_core::lending::{EPOCH_US, LeaseReport, LentTokens, Prefetch, StoredState};
use tollgate_core::limit::Limit;
use tollgate_core::script::{
    ChargeCall, ChargeReply, ReplyError, ReplyState, RequestRun, ScriptCall, ScriptReply,
};
use tollgate_core::state_address::StateField;
use tollgate_core::time::StoreTime;
use tollgate_core::virtual_store::VirtualStore;

/// A client with one to three limits, at a store of its own.
struct Client {
    rng: fastrand::Rng,
    now_us: u64,
    limits: Vec<Kept>,
    store: VirtualStore<()>,
}

struct Kept {
    numbers: Numbers,
    limit: Limit,
    field: StateField,
    enforced: bool,
    /// What was last taken ahead or held, and its epoch.
    taken: (u32, u32),
}

/// The numbers of a limit, which an edit of its rule changes.
#[derive(Clone, Copy)]
enum Numbers {
    Bucket(Algorithm, Bucket),
    Window(Algorithm, Window),
    Log(Algorithm, Window),
}

impl Numbers {
    fn draw(rng: &mut fastrand::Rng) -> Self {
        let algorithms: Vec<Algorithm> = Algorithm::scripted().collect();
        let algorithm = algorithms[rng.usize(..algorithms.len())];
        match algorithm.state_kind() {
            StateKind::Log | StateKind::InFlight => Self::Log(algorithm, Window::draw_for_log(rng)),
            StateKind::Cell if algorithm.counts_windows() => Self::Window(algorithm, Window::draw(rng)),
            StateKind::Cell => Self::Bucket(algorithm, Bucket::draw(rng)),
        }
    }

    fn edited(self, rng: &mut fastrand::Rng) -> Self {
        match self {
            Self::Bucket(algorithm, bucket) => Self::Bucket(algorithm, bucket.edited(rng)),
            Self::Window(algorithm, window) => Self::Window(algorithm, window.edited(rng)),
            Self::Log(algorithm, _) => Self::Log(algorithm, Window::draw_for_log(rng)),
        }
    }

    fn limit(self) -> Limit {
        match self {
            Self::Bucket(algorithm, bucket) => bucket.limit(algorithm),
            Self::Window(algorithm, window) => window.limit(algorithm),
            Self::Log(algorithm, window) => window.limit(algorithm),
        }
    }
}

impl Client {
    fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kept = |rng: &mut fastrand::Rng, number: u64| {
            let numbers = Numbers::draw(rng);
            let field = StateField::new(number << 40, None);
            Kept { numbers, limit: numbers.limit(), field, enforced: rng.u8(0..4) > 0, taken: (0, 0) }
        };
        let limits = (1..=rng.u64(1..=3)).map(|number| kept(&mut rng, number)).collect();
        let now_us = NOW_US + rng.u64(0..1 << 40);
        Self { rng, now_us, limits, store: VirtualStore::default() }
    }

    /// The next question, at its time: clocks go on, tremble and jump, and rules are edited.
    fn ask(&mut self) -> ScriptCall {
        let rng = &mut self.rng;
        let life_us = self.limits[rng.usize(..self.limits.len())].limit.lifetime_us;
        let forward_us = match rng.u8(0..6) {
            0 | 1 => 0,
            2 => rng.u64(0..=life_us / 16),
            3 => rng.u64(0..=life_us),
            4 => rng.u64(0..=2 * EPOCH_US),
            _ => EPOCH_US - self.now_us % EPOCH_US,
        };
        let back_us = match rng.u8(0..30) {
            0 | 1 => rng.u64(0..=life_us / 4),
            2 => rng.u64(0..=3 * SECOND_US),
            3 => rng.u64(0..=3 * life_us),
            4 => 20 * life_us,
            _ => 0,
        };
        self.now_us = (self.now_us + forward_us).saturating_sub(back_us).max(NOW_US / 2);
        if rng.u8(0..20) == 0 {
            let edited = rng.usize(..self.limits.len());
            let kept = &mut self.limits[edited];
            kept.numbers = kept.numbers.edited(rng);
            kept.limit = kept.numbers.limit();
        }
        let most = self.limits.iter().map(|kept| kept.limit.quota).min().unwrap();
        let run = |rng: &mut fastrand::Rng| {
            let cost = if rng.bool() { rng.u32(1..=most) } else { rng.u32(1..=most.min(3)) };
            RequestRun { repeats: [0, 1, 1, 2, 5, 20][rng.usize(..6)], cost }
        };
        let runs = (0..[0, 1, 1, 1, 2, 3][rng.usize(..6)]).map(|_| run(rng)).collect();
        let now_us = self.now_us;
        ScriptCall { runs, charges: self.limits.iter().map(|kept| kept.ask(rng, now_us)).collect() }
    }

    fn answer(&mut self, ask: &ScriptCall) -> ScriptReply {
        let answer = self.store.charge(&(), ask, at(self.now_us));
        for ((kept, charge), found) in self.limits.iter_mut().zip(&ask.charges).zip(&answer.charges) {
            let epoch = match &found.state {
                ReplyState::Stored(account) if account.lent.total() > 0 => account.lent.epoch,
                _ => charge.meter.epoch(at(self.now_us)),
            };
            kept.taken = (epoch, found.lent.max(1));
        }
        answer
    }
}

impl Kept {
    fn ask(&self, rng: &mut fastrand::Rng, now_us: u64) -> ChargeCall {
        let (meter, quota) = (*self.limit.meter(), self.limit.quota);
        let report = |rng: &mut fastrand::Rng| {
            let (epoch, taken) = self.taken;
            let epoch = [epoch, epoch, meter.epoch(at(now_us)), rng.u32(..)][rng.usize(..4)];
            let amount = |rng: &mut fastrand::Rng| [0, rng.u32(0..=taken), u32::MAX][rng.usize(..3)];
            LeaseReport { epoch, spent: amount(rng), returned: amount(rng) }
        };
        let prefetch = match rng.u8(0..3) {
            0 => {
                let lent_limit = [quota / 100, quota, u32::MAX][rng.usize(..3)];
                Prefetch { want: rng.u32(1..=quota), share: rng.u32(1..=4), lent_limit }
            }
            _ => Prefetch::NONE,
        };
        let reports = if rng.u8(0..4) == 0 { rng.usize(1..=3) } else { 0 };
        ChargeCall {
            meter,
            field: self.field,
            enforced: self.enforced,
            as_lent: rng.u8(0..3) == 0,
            prefetch,
            reports: (0..reports).map(|_| report(rng)).collect(),
        }
    }
}

/// Without the epoch of nothing lent, which is not written.
fn plainly(mut answer: ScriptReply) -> ScriptReply {
    for charge in &mut answer.charges {
        if let ReplyState::Stored(account) = &mut charge.state
            && account.lent.total() == 0
        {
            account.lent = LentTokens::default();
        }
    }
    answer
}

#[test]
fn every_honest_answer_is_taken_as_it_was_given() {
    let (mut refused, mut lent, mut held) = (0, 0, 0);
    for seed in 0..600 {
        let mut client = Client::draw(seed);
        for round in 0..60 {
            let ask = client.ask();
            let answer = client.answer(&ask);
            let found = ScriptReply::decode(&ask, at(client.now_us), &answer.encode(&ask));
            let context = format!("seed {seed}, round {round} at {}: {ask:?}", client.now_us);
            refused +=
                usize::from(answer.admitted.iter().zip(&ask.runs).any(|(some, run)| *some < run.repeats));
            lent += usize::from(answer.charges.iter().any(|charge| charge.lent > 0));
            held += usize::from(
                ask.charges.iter().any(|charge| charge.as_lent && charge.meter.bucket().is_some()),
            );
            assert_eq!(found, Ok(plainly(answer)), "{context}");
        }
    }
    assert!(refused > 5_000 && lent > 1_000 && held > 5_000, "{refused} refused, {lent} lent, {held} held");
}

/// What is wrong with the answer to three requests against a limit of `algorithm` that wants five tokens ahead, after
/// `spoil` has had its way with it.
fn wrong_with(algorithm: Algorithm, spoil: fn(&mut ScriptReply)) -> &'static str {
    let limit = match algorithm {
        _ if algorithm.counts_windows() => window(100, 60 * SECOND_US, 1).limit(algorithm),
        _ => bucket(100, 10, 1, 1).limit(algorithm),
    };
    let charge = |enforced| ChargeCall {
        meter: *limit.meter(),
        field: StateField::new(u64::from(enforced) << 40, None),
        enforced,
        as_lent: true,
        prefetch: Prefetch::new(5, 1),
        reports: Default::default(),
    };
    let ask = ScriptCall {
        runs: [RequestRun { repeats: 3, cost: 1 }].into_iter().collect(),
        charges: [charge(true), charge(false)].into_iter().collect(),
    };
    let mut answer = VirtualStore::default().charge(&(), &ask, at(NOW_US));
    assert_eq!(ScriptReply::decode(&ask, at(NOW_US), &answer.encode(&ask)), Ok(answer.clone()));
    spoil(&mut answer);
    match ScriptReply::decode(&ask, answer.now, &answer.encode(&ask)) {
        Err(ReplyError::Impossible(what)) => what,
        other => panic!("{other:?}"),
    }
}

fn account(answer: &mut ScriptReply) -> &mut StoredState {
    match &mut answer.charges[0].state {
        ReplyState::Stored(account) => account,
        ReplyState::Log(_) => panic!("a log"),
    }
}

#[test]
fn an_answer_that_cannot_be_true_says_what_is_wrong() {
    use Algorithm::{FixedWindow, SlidingWindowLog, TokenBucket};
    type Row = (Algorithm, fn(&mut ScriptReply), &'static str);
    let table: [Row; 15] = [
        (TokenBucket, |answer| answer.now = at(0), "a time out of range"),
        (TokenBucket, |answer| answer.now = at(1 << 52), "a time out of range"),
        (TokenBucket, |answer| answer.admitted[0] = 4, "more requests admitted than sent"),
        (TokenBucket, |answer| answer.charges[1].counted[0] = 4, "more requests counted than admitted"),
        (
            FixedWindow,
            |answer| answer.charges[1].counted[0] = 2,
            "a request not counted although there is room for it",
        ),
        (FixedWindow, |answer| answer.charges[0].lent = 6, "more tokens lent than requested"),
        (FixedWindow, |answer| answer.admitted[0] = 2, "more tokens lent than requested"),
        (TokenBucket, |answer| account(answer).lent.current = 7, "lent tokens missing in the state"),
        (TokenBucket, |answer| account(answer).lent.epoch -= 1, "an epoch that has ended"),
        (TokenBucket, |answer| account(answer).lent.epoch += 4, "an epoch too far in the future"),
        (
            TokenBucket,
            |answer| account(answer).lent.previous = u32::MAX,
            "more lent tokens than can be counted",
        ),
        (FixedWindow, |answer| account(answer).lent.current = 1, "lent tokens in the state of a window"),
        (
            TokenBucket,
            |answer| account(answer).cell.as_mut().unwrap().instant += 25 * SECOND_US,
            "a state too far in the future",
        ),
        (
            SlidingWindowLog,
            |answer| {
                let ReplyState::Log(standings) = &mut answer.charges[0].state else { panic!("no log") };
                standings[0].remaining = 101;
            },
            "a log status out of range",
        ),
        (
            SlidingWindowLog,
            |answer| (answer.admitted[0], answer.charges[1].counted[0]) = (2, 2),
            "a request refused although there is room for it",
        ),
    ];
    for (algorithm, spoil, what) in table {
        assert_eq!(wrong_with(algorithm, spoil), what, "{algorithm:?}");
    }
}

/// One way to damage an answer.
#[derive(Clone, Copy, Debug, bolero::TypeGenerator)]
enum Damage {
    Flip {
        at: u16,
        bit: u8,
    },
    Set {
        at: u16,
        value: u8,
    },
    /// A number of one to seven bytes becomes nothing, or as large as it can be.
    Extreme {
        at: u16,
        bytes: u8,
        is_largest: bool,
    },
    Cut {
        at: u16,
    },
    Append {
        value: u8,
    },
}

impl Damage {
    fn apply(self, bytes: &mut Vec<u8>) {
        let place = |at: u16| usize::from(at) % bytes.len().max(1);
        match self {
            Self::Append { value } => bytes.push(value),
            _ if bytes.is_empty() => {}
            Self::Flip { at, bit } => {
                let at = place(at);
                bytes[at] ^= 1 << (bit % 8);
            }
            Self::Set { at, value } => {
                let at = place(at);
                bytes[at] = value;
            }
            Self::Extreme { at, bytes: length, is_largest } => {
                let at = place(at);
                let end = (at + 1 + usize::from(length) % 7).min(bytes.len());
                bytes[at..end].fill(if is_largest { u8::MAX } else { 0 });
            }
            Self::Cut { at } => {
                let at = place(at);
                bytes.truncate(at);
            }
        }
    }
}

/// What an answer must be to be taken, said once more and in other words.
fn assert_sound(ask: &ScriptCall, answer: &ScriptReply) {
    assert!(answer.now > at(0) && answer.now < at(1 << 52), "{answer:?}");
    assert_eq!((answer.admitted.len(), answer.charges.len()), (ask.runs.len(), ask.charges.len()));
    let all_pass = ask.runs.iter().zip(&answer.admitted).all(|(run, passing)| *passing == run.repeats);
    for (number, (run, passing)) in ask.runs.iter().zip(&answer.admitted).enumerate() {
        assert!(*passing <= run.repeats, "{answer:?}");
        let refuses = |(charge, found): (&ChargeCall, &ChargeReply)| {
            let refuses = match &found.state {
                ReplyState::Stored(account) => !account.step(&charge.meter, answer.now, run.cost).admitted,
                ReplyState::Log(standings) => standings[number].retry_after_us > 0,
            };
            charge.enforced && refuses
        };
        let is_refused = ask.charges.iter().zip(&answer.charges).any(refuses);
        assert!(*passing == run.repeats || is_refused, "{ask:?}: no limit refuses {run:?}, {answer:?}");
    }
    for (charge, found) in ask.charges.iter().zip(&answer.charges) {
        assert_noted(ask, answer, charge, found);
        assert!(found.lent <= charge.prefetch.want && (found.lent == 0 || all_pass), "{answer:?}");
        assert_eq!(found.counted.len(), if charge.enforced { 0 } else { ask.runs.len() });
        assert!(found.counted.iter().zip(&answer.admitted).all(|(counted, passing)| counted <= passing));
        match &found.state {
            ReplyState::Stored(account) => {
                assert!(!charge.meter.is_log());
                let furthest = answer.now + 2 * charge.meter.lifetime_us() + 2 * EPOCH_US;
                assert!(account.cell.is_none_or(|cell| cell.instant <= furthest), "{account:?}");
                let epochs = u64::from(account.lent.epoch).checked_sub(answer.now.as_us() / EPOCH_US);
                assert!(account.lent.total() == 0 || epochs.is_some_and(|ahead| ahead <= 3), "{account:?}");
                compute_with(account, charge, ask, answer.now);
            }
            ReplyState::Log(standings) => {
                assert!(charge.meter.is_log());
                assert!(standings.iter().all(|standing| standing.remaining <= charge.meter.quota()));
                let longest_us = 2 * charge.meter.lifetime_us() + 2 * EPOCH_US;
                assert!(standings.iter().all(|standing| standing.retry_after_us <= longest_us));
            }
        }
    }
}

/// What a call lends of a bucket, or holds, is noted beside it.
fn assert_noted(ask: &ScriptCall, answer: &ScriptReply, charge: &ChargeCall, found: &ChargeReply) {
    let (ReplyState::Stored(account), Some(_)) = (&found.state, charge.meter.bucket()) else { return };
    let counted = if charge.enforced { &answer.admitted } else { &found.counted };
    let counts = counted.iter().zip(&ask.runs).filter(|_| charge.as_lent);
    let held: u64 = counts.map(|(count, run)| u64::from(*count) * u64::from(run.cost)).sum();
    assert!(held + u64::from(found.lent) <= account.lent.current.into(), "{answer:?}");
    assert!(account.lent.current.checked_add(account.lent.previous).is_some(), "{answer:?}");
}

/// All that a node ever works out from a state, now and at any time after it. It must not panic, and it must not
/// promise what the limit does not have.
fn compute_with(account: &StoredState, charge: &ChargeCall, ask: &ScriptCall, now: StoreTime) {
    let (meter, quota) = (&charge.meter, charge.meter.quota());
    for later_us in [0, 1, SECOND_US, EPOCH_US, meter.lifetime_us(), 1 << 50] {
        let then = now + later_us;
        let mut moved = *account;
        moved.apply_reports(meter, then, &charge.reports);
        for account in [account, &moved] {
            assert!(account.remaining_and_reset(meter, then).0 <= quota);
            for cost in ask.runs.iter().map(|run| run.cost).chain([1, quota]) {
                let step = account.step(meter, then, cost);
                // Twice as far ahead as a state may lie, and what is lent.
                let longest_us = 8 * (meter.lifetime_us() + EPOCH_US);
                assert!(
                    step.remaining <= quota && step.retry_after_us <= longest_us,
                    "{account:?}: {step:?}"
                );
                assert!(step.admitted || step.retry_after_us > 0, "{account:?}: {step:?}");
            }
        }
    }
}

#[test]
fn a_damaged_answer_is_an_error_or_can_be_true() {
    let (taken, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    type Input = (u16, u8, Option<(i64, u8)>, [Damage; 3], u8);
    let input = bolero::check!().with_iterations(60_000).with_type::<Input>();
    input.for_each(|(seed, rounds, step, damages, count)| {
        let mut client = Client::draw((*seed).into());
        for _ in 0..rounds % 8 {
            let ask = client.ask();
            client.answer(&ask);
        }
        let ask = client.ask();
        let mut bytes = client.answer(&ask).encode(&ask);
        damages.iter().take(usize::from(count % 4)).for_each(|damage| damage.apply(&mut bytes));
        // Of every magnitude, so that it may also be a little.
        let step_us = step.map_or(0, |(step, magnitude)| step >> (magnitude % 64));
        let now_us = client.now_us.saturating_add_signed(step_us);
        match ScriptReply::decode(&ask, at(now_us), &bytes) {
            Ok(answer) => {
                taken.fetch_add(1, Ordering::Relaxed);
                assert_sound(&ask, &answer);
            }
            Err(ReplyError::Refused(_) | ReplyError::Malformed | ReplyError::Impossible(_)) => {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let (taken, failed) = (taken.into_inner(), failed.into_inner());
    assert!(taken > 5_000 && failed > 20_000, "{taken} taken, {failed} failed");
}

#[test]
fn random_bytes_are_an_error_or_can_be_true() {
    bolero::check!().with_iterations(20_000).with_type::<(u16, bool, Vec<u8>)>().for_each(
        |(seed, is_marked, bytes)| {
            let mut client = Client::draw((*seed).into());
            let ask = client.ask();
            let mut bytes = bytes.clone();
            if *is_marked && let Some(first) = bytes.first_mut() {
                *first = if *first % 2 == 0 { b'+' } else { b'=' };
            }
            if let Ok(answer) = ScriptReply::decode(&ask, at(client.now_us), &bytes) {
                assert_sound(&ask, &answer);
            }
        },
    );
}
