//! The script, its twin and the embedded algorithms say the same, step by step, on a clock that goes on,
//! trembles and jumps, while rules are edited, tokens are taken ahead or held, and nodes report right and wrong.
//!
//! `TOLLGATE_GROUPS=1000` walks further, see docs/redis.md.

use super::draw::Numbers;
use super::{RequestRun, SECOND_US, START_US, ScriptCall, Scripted, answers, at, charge};
use redis::Value;
use tollgate_core::algorithm::{Algorithm, StateKind};
use tollgate_core::lending::{EPOCH_US, LeaseReport, LentTokens, Prefetch, StoredState};
use tollgate_core::limit::{Limit, LimitState, Meter};
use tollgate_core::script::{ReplyState, ScriptReply};
use tollgate_core::state_address::StateField;
use tollgate_core::time::StoreTime;
use tollgate_core::virtual_store::VirtualStore;

/// Without a campaign.
const GROUPS: u64 = 12;
const CLIENTS: usize = 20;
const ROUNDS: usize = 100;
/// Expiry runs on the server's own clock, which these walks leave far behind.
const LONG_MS: &str = "3600000";

#[test]
fn every_algorithm_agrees() {
    std::thread::scope(|scope| {
        for algorithm in Algorithm::scripted() {
            let name = algorithm.name().to_owned();
            std::thread::Builder::new().name(name).spawn_scoped(scope, move || walk(algorithm)).unwrap();
        }
    });
}

/// What a walk has met, so that it cannot pass by meeting nothing.
#[derive(Debug, Default)]
struct Met {
    steps: u64,
    passed: u64,
    refused: u64,
    lends: u64,
    held: u64,
    returned_to_logs: u64,
    lent_refusals: u64,
    embedded: u64,
    promises: u64,
    lent_promises: u64,
    dropped: u64,
    ticks_us: std::collections::BTreeSet<u64>,
}

fn walk(algorithm: Algorithm) {
    let mut scripted = Scripted::start();
    let mut met = Met::default();
    let groups = std::env::var("TOLLGATE_GROUPS").map_or(GROUPS, |groups| groups.parse().unwrap());
    // No two walks have the same numbers.
    let first = (algorithm as u64) << 32;
    for seed in first..first + groups {
        Group::new(algorithm, seed).walk(&mut scripted, &mut met);
    }
    assert!(met.steps >= 20_000 && met.embedded >= 5_000, "{met:?}");
    assert!(met.passed >= 5_000 && met.refused >= 5_000 && met.promises >= 200, "{met:?}");
    assert_eq!(met.ticks_us.len(), 3, "{met:?}");
    if algorithm.is_leased() {
        assert!(met.lends >= 1_000 && met.dropped >= 10, "{met:?}");
    }
    if algorithm.state_kind() == StateKind::Log {
        assert!(met.returned_to_logs >= 100, "{met:?}");
    }
    if !algorithm.counts_windows() {
        assert!(met.lent_refusals >= 100 && met.lent_promises >= 20 && met.held >= 1_000, "{met:?}");
    }
}

/// Clients that share a clock, and a call to the script each time it moves.
struct Group {
    seed: u64,
    rng: fastrand::Rng,
    now_us: u64,
    newest_us: u64,
    clients: Vec<Client>,
    twin: VirtualStore<usize>,
    /// What some client was promised: its request is refused one microsecond earlier, and passes then.
    promise: Option<Promise>,
}

struct Client {
    key: String,
    limits: Vec<Kept>,
    /// Asks for one request at a time, takes nothing ahead, and is walked by the embedded algorithm too.
    plain: bool,
    embedded: Option<LimitState>,
}

struct Kept {
    numbers: Numbers,
    limit: Limit,
    field: StateField,
    enforced: bool,
    /// Taken ahead, and when.
    taken: (u32, u32),
    /// The numbers that the state may have been written by: those of its last write, and, if the clock was back since, those
    /// by which it may have been moved to the present.
    written_by: Vec<Meter>,
}

struct Promise {
    client: usize,
    cost: u32,
    at_us: u64,
    lent: bool,
}

impl Group {
    fn new(algorithm: Algorithm, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let base = Numbers::draw(&mut rng, algorithm);
        let clients = (0..CLIENTS).map(|number| Client::draw(&mut rng, base, seed, number)).collect();
        let now_us = START_US + rng.u64(0..1 << 40);
        Self { seed, rng, now_us, newest_us: now_us, clients, twin: VirtualStore::default(), promise: None }
    }

    fn walk(mut self, scripted: &mut Scripted, met: &mut Met) {
        for round in 0..ROUNDS {
            self.move_clock();
            let asks: Vec<ScriptCall> = (0..CLIENTS).map(|number| self.ask(number)).collect();
            let asked: Vec<(&str, &ScriptCall)> =
                self.clients.iter().map(|client| client.key.as_str()).zip(&asks).collect();
            let mut pipeline = redis::pipe();
            pipeline.add_command(scripted.command(self.now_us, &asked));
            for client in &self.clients {
                pipeline.cmd("PEXPIRE").arg(&client.key).arg(LONG_MS).cmd("HKEYS").arg(&client.key);
            }
            let mut values: Vec<Value> = pipeline.query(&mut scripted.connection).unwrap();
            let rest = values.split_off(1);
            let found = answers(&asked, values.remove(0));
            for (number, answer) in found.into_iter().enumerate() {
                let context = format!("seed {}, round {round}, client {number}", self.seed);
                let answer = answer.unwrap_or_else(|error| panic!("{context}: {error}"));
                let fields = redis::from_redis_value(rest[2 * number + 1].clone()).unwrap();
                self.compare(number, &asks[number], answer, &context, met);
                self.let_go(number, &asks[number], fields, &context, met);
            }
        }
    }

    fn move_clock(&mut self) {
        let rng = &mut self.rng;
        if let Some(promise) = &self.promise {
            // One microsecond before, and then at it; unless that is past already.
            self.now_us = if self.now_us + 1 < promise.at_us { promise.at_us - 1 } else { promise.at_us };
            self.newest_us = self.newest_us.max(self.now_us);
            return;
        }
        let client = &self.clients[rng.usize(..CLIENTS)];
        let limit = &client.limits[rng.usize(..client.limits.len())].limit;
        let (life_us, epoch_us) = (limit.lifetime_us, EPOCH_US);
        let next_epoch_us = epoch_us - self.now_us % epoch_us;
        let forward_us = match rng.u8(0..9) {
            0 | 1 => 0,
            2 => rng.u64(0..=3),
            3 | 4 => rng.u64(0..=life_us / 16),
            5 => rng.u64(0..=life_us),
            6 => rng.u64(0..=2 * epoch_us),
            7 => next_epoch_us + rng.u64(0..=1) * epoch_us,
            _ => next_epoch_us - 1,
        };
        let back_us = match rng.u8(0..40) {
            0..=2 => rng.u64(0..=life_us / 4),
            3 => rng.u64(0..=3 * SECOND_US),
            4 => rng.u64(0..=3 * life_us),
            5 => 20 * life_us,
            _ => 0,
        };
        // Never so far back that the clock would stand before all time.
        self.now_us = (self.now_us + forward_us).saturating_sub(back_us).max(START_US / 2);
        self.newest_us = self.newest_us.max(self.now_us);
    }

    fn ask(&mut self, number: usize) -> ScriptCall {
        let Self { rng, now_us, clients, promise, .. } = self;
        let client = &mut clients[number];
        let promised = promise.as_ref().filter(|promise| promise.client == number);
        let quiet = client.plain || promised.is_some();
        if promised.is_none() && rng.u8(0..40) == 0 {
            client.edit(rng);
        }
        let most = client.limits.iter().map(|kept| kept.limit.quota).min().unwrap();
        let mut cost = || match rng.u8(0..3) {
            0 => rng.u32(1..=most),
            1 => rng.u32(1..=most.min(1 + most / 4)),
            _ => rng.u32(1..=most.min(3)),
        };
        let first = promised.map_or_else(&mut cost, |promise| promise.cost);
        let mut runs = vec![RequestRun { repeats: 1, cost: first }];
        if !quiet {
            runs[0].repeats = [0, 1, 1, 2, 5, 40][rng.usize(..6)];
            for _ in 0..rng.usize(0..3) {
                runs.push(RequestRun { repeats: rng.u32(0..=3), cost: rng.u32(1..=most.min(20)) });
            }
            // Some have nothing to ask, only to tell.
            if rng.u8(0..16) == 0 {
                runs.clear();
            }
        }
        let charges = client.limits.iter_mut().map(|kept| {
            let mut charge = charge(&kept.limit, kept.field);
            charge.enforced = kept.enforced;
            charge.as_lent = !quiet && rng.u8(0..3) == 0;
            if !quiet && rng.u8(0..3) == 0 {
                let (want, quota) = (rng.u32(1..=kept.limit.quota), kept.limit.quota);
                let lent_limit = [quota / 100, quota / 2, quota, u32::MAX][rng.usize(..4)];
                charge.prefetch = Prefetch { want, share: rng.u32(1..=4), lent_limit };
            }
            if !quiet && rng.u8(0..4) == 0 {
                charge.reports = (0..rng.usize(1..=3)).map(|_| kept.report(rng, *now_us)).collect();
            }
            charge
        });
        ScriptCall { charges: charges.collect(), runs: runs.into_iter().collect() }
    }

    fn compare(
        &mut self,
        number: usize,
        ask: &ScriptCall,
        answer: ScriptReply,
        context: &str,
        met: &mut Met,
    ) {
        let now_us = self.now_us;
        let answer = plainly(answer);
        let client = &mut self.clients[number];
        let twin = plainly(self.twin.charge(&number, ask, at(now_us)));
        let limits = || client.limits.iter().map(|kept| &kept.limit).collect::<Vec<_>>();
        assert_eq!(answer, twin, "{context} at {now_us}: {ask:?} of {:?}", limits());
        met.steps += 1;
        met.passed += u64::from(answer.admitted.iter().any(|passing| *passing > 0));
        let first = ask.runs.first().zip(answer.admitted.first());
        let refused = first.is_some_and(|(run, passing)| *passing < run.repeats);
        met.refused += u64::from(refused);
        for ((kept, charge), asked) in client.limits.iter_mut().zip(&answer.charges).zip(&ask.charges) {
            met.ticks_us.insert(kept.tick_us());
            met.lends += u64::from(charge.lent > 0);
            let counted = if asked.enforced { &answer.admitted } else { &charge.counted };
            let held = counted.iter().zip(&ask.runs).map(|(count, run)| count * run.cost).sum::<u32>();
            if held + charge.lent > 0 || !asked.reports.is_empty() {
                kept.written_by = vec![asked.meter];
            } else if now_us < self.newest_us && !kept.written_by.contains(&asked.meter) {
                kept.written_by.push(asked.meter);
            }
            let is_held = held > 0 && (asked.as_lent || asked.meter.bucket().is_none());
            met.held += u64::from(is_held && asked.meter.bucket().is_some());
            let is_logged = kept.limit.meter().is_log();
            met.returned_to_logs += u64::from(
                is_logged
                    && asked.reports.iter().any(|report| report.epoch == kept.taken.0 && report.returned > 0),
            );
            if charge.lent > 0 || is_held {
                let epoch = match &charge.state {
                    ReplyState::Stored(account) if account.lent.total() > 0 => account.lent.epoch,
                    _ => kept.limit.meter().epoch(at(now_us)),
                };
                kept.taken = (epoch, charge.lent + if is_held { held } else { 0 });
            }
        }
        if client.plain {
            client.compare_embedded(now_us, ask.runs[0].cost, &answer, context);
            met.embedded += 1;
        }
        let lent = ask.charges.iter().zip(&answer.charges).any(|(_, charge)| match &charge.state {
            ReplyState::Stored(account) => account.lent.total() > 0,
            ReplyState::Log(_) => false,
        });
        met.lent_refusals += u64::from(refused && lent);
        match self.promise.take() {
            Some(promise) if promise.client == number => {
                assert_eq!(refused, now_us < promise.at_us, "{context}: promised {}", promise.at_us);
                if refused {
                    self.promise = Some(promise);
                } else {
                    met.promises += 1;
                    met.lent_promises += u64::from(promise.lent);
                }
            }
            // One in a while, and gladly while something is lent.
            None if refused && ask.runs.len() == 1 && self.rng.u8(0..if lent { 4 } else { 12 }) == 0 => {
                let cost = ask.runs[0].cost;
                let wait_us = wait_us(ask, &answer, cost);
                // Those with a limit of 20 years would outrun the others.
                if wait_us < 400 * 86_400 * SECOND_US {
                    self.promise = Some(Promise { client: number, cost, at_us: now_us + wait_us, lent });
                }
            }
            other => self.promise = other,
        }
    }

    /// Tells the twin which states the script has let go of, each of which must be as good as a fresh one, whatever the clock did: by
    /// the numbers that it was written by. Those of an edit since then may give it a longer life, but the script knows a state's
    /// age by what was written with it, and nothing was charged by the new numbers yet.
    fn let_go(
        &mut self,
        number: usize,
        ask: &ScriptCall,
        fields: Vec<Vec<u8>>,
        context: &str,
        met: &mut Met,
    ) {
        let now = at(self.now_us);
        for (kept, charge) in self.clients[number].limits.iter_mut().zip(&ask.charges) {
            let is_log = charge.meter.is_log();
            if is_log || fields.iter().any(|field| field == charge.field.as_bytes()) {
                continue;
            }
            if let Some(account) = self.twin.remove_state(&number, charge.field) {
                met.dropped += 1;
                // By its last edit it may have had a longer life, and promised a longer wait.
                self.promise = self.promise.take().filter(|promise| promise.client != number);
                let is_fresh = |meter: &Meter| {
                    let mut present = account;
                    present.apply_reports(meter, now, &[]);
                    present.remaining_and_reset(meter, now) == (meter.quota(), 0)
                };
                assert!(
                    kept.written_by.iter().any(is_fresh),
                    "{context}: {account:?} was dropped at {}, written by {:?}",
                    self.now_us,
                    kept.written_by
                );
                kept.written_by.clear();
            }
        }
    }
}

impl Client {
    fn draw(rng: &mut fastrand::Rng, base: Numbers, seed: u64, number: usize) -> Self {
        let plain = number < CLIENTS / 4;
        // A quarter is walked by the embedded algorithm too, a quarter has one limit, the others several.
        let several = if number < CLIENTS / 2 { 1 } else { rng.usize(2..=4) };
        let limits = (0..several).map(|index| {
            let algorithms: Vec<Algorithm> = Algorithm::scripted().collect();
            let other = algorithms[rng.usize(..algorithms.len())];
            let numbers = if index == 0 { base } else { base.of(other, rng) };
            let numbers = if rng.bool() { numbers.edited(rng) } else { numbers };
            let route = rng.bool().then(|| rng.u64(..));
            let field = StateField::new((index as u64 + 1) << 40 | rng.u64(..) << 48, route);
            let enforced = plain || rng.u8(0..4) > 0;
            let (limit, written_by) = (numbers.limit(), Vec::new());
            Kept { numbers, limit, field, enforced, taken: (0, 0), written_by }
        });
        let limits = limits.collect();
        Self { key: format!("walk:{{{seed}-{number}}}"), limits, plain, embedded: None }
    }

    fn edit(&mut self, rng: &mut fastrand::Rng) {
        let index = rng.usize(..self.limits.len());
        let kept = &mut self.limits[index];
        kept.numbers = kept.numbers.edited(rng);
        kept.limit = kept.numbers.limit();
    }

    fn compare_embedded(&mut self, now_us: u64, cost: u32, answer: &ScriptReply, context: &str) {
        let limit = &self.limits[0].limit;
        let (step, next) = limit.step_state(self.embedded.as_ref(), at(now_us), cost);
        self.embedded = next.or_else(|| self.embedded.take());
        assert_eq!(step.admitted, answer.admitted[0] == 1, "{context} at {now_us}: {limit:?}");
        let (standing, cell) = match &answer.charges[0].state {
            ReplyState::Stored(account) => {
                let (remaining, reset_after_us) = account.remaining_and_reset(limit.meter(), at(now_us));
                let retry_after_us = match step.admitted {
                    true => 0,
                    false => account.step(limit.meter(), at(now_us), cost).retry_after_us,
                };
                ((remaining, reset_after_us, retry_after_us), account.cell)
            }
            // What it tells of the wait is that of one more request.
            ReplyState::Log(standings) => {
                let standing = standings[0];
                let retry_after_us = if step.admitted { 0 } else { standing.retry_after_us };
                ((standing.remaining, standing.reset_after_us, retry_after_us), None)
            }
        };
        let context = format!("{context} at {now_us}: {cost} under {limit:?}");
        if let Some(LimitState::Cell(embedded)) = self.embedded {
            assert_eq!(cell, Some(embedded), "{context}");
        }
        let embedded = (step.remaining, step.reset_after_us, step.retry_after_us);
        assert_eq!(standing, embedded, "remaining, reset and retry; {context}");
    }
}

impl Kept {
    /// What a node might tell: tokens that it took, tokens that no node took, and of epochs long past.
    fn report(&self, rng: &mut fastrand::Rng, now_us: u64) -> LeaseReport {
        let present = self.limit.meter().epoch(at(now_us));
        let (taken_at, taken) = self.taken;
        let amount = |rng: &mut fastrand::Rng| match rng.u8(0..20) {
            0 => u32::MAX,
            1..=3 => rng.u32(0..=self.limit.quota),
            4..=11 => rng.u32(0..=taken),
            _ => 0,
        };
        let epoch = match rng.u8(0..8) {
            0 => present,
            1 => present.wrapping_sub(1),
            2 => present.wrapping_sub(2),
            3 => present.wrapping_add(1),
            4 => rng.u32(..),
            _ => taken_at,
        };
        LeaseReport { epoch, spent: amount(rng), returned: amount(rng) }
    }

    fn tick_us(&self) -> u64 {
        let meter = self.limit.meter();
        meter.bucket().map(|bucket| bucket.tick_us).or(meter.window().map(|window| window.tick_us)).unwrap()
    }
}

/// Until every limit that can refuse has room for `cost`, if no node spends or reports.
fn wait_us(ask: &ScriptCall, answer: &ScriptReply, cost: u32) -> u64 {
    let waits = ask.charges.iter().zip(&answer.charges).filter(|(charge, _)| charge.enforced);
    let waits = waits.map(|(charge, found)| match &found.state {
        ReplyState::Stored(account) => wait_without_reports(account, &charge.meter, answer.now, cost),
        ReplyState::Log(standings) => standings[0].retry_after_us,
    });
    waits.max().unwrap_or(0)
}

/// Lent tokens hold back the refill until their epochs end.
fn wait_without_reports(account: &StoredState, meter: &Meter, now: StoreTime, cost: u32) -> u64 {
    let (mut then, mut then_time) = (*account, now);
    let mut step = then.step(meter, now, cost);
    for epochs in [1, 2] {
        let end = at((u64::from(account.lent.epoch) + epochs) * EPOCH_US);
        let fits = u64::from(then.lent.total()) + u64::from(cost) <= u64::from(meter.quota());
        let is_held_back = then.lent.total() > 0 && !(fits && then_time + step.retry_after_us <= end);
        if !step.admitted && is_held_back && end > then_time {
            then.apply_reports(meter, end, &[]);
            then_time = end;
            step = then.step(meter, end, cost);
        }
    }
    (then_time + step.retry_after_us).since(now)
}

/// Where nothing is lent, no second is remembered in which it was.
fn plainly(mut answer: ScriptReply) -> ScriptReply {
    for charge in &mut answer.charges {
        if let ReplyState::Stored(StoredState { lent, .. }) = &mut charge.state
            && lent.total() == 0
        {
            *lent = LentTokens::default();
        }
    }
    answer
}
