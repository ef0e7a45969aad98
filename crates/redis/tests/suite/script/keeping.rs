//! What the server keeps: how long, how much for one client, and what it does not understand.

use super::{SECOND_US, START_US, Scripted, ask, at, charge};
use smallvec::smallvec;
use tollgate_core::algorithm::{Algorithm, StateKind};
use tollgate_core::lending::{EPOCH_US, LeaseReport, Prefetch, StoredState};
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::script::{self, ReplyError, ReplyState, RequestRun, ScriptCall};
use tollgate_core::state_address::StateField;

const MOST_FIELDS: u64 = 500;
const DAY_US: u64 = 86_400 * SECOND_US;

fn limit(algorithm: Algorithm, capacity: u64, window_us: u64) -> Limit {
    Limit::new(
        "kept",
        algorithm,
        LimitSize { capacity: Some(capacity), rate: None, window_us: Some(window_us) },
    )
    .unwrap()
}

fn per_second(capacity: u64) -> Limit {
    limit(Algorithm::TokenBucket, capacity, SECOND_US)
}

fn field(number: u64) -> StateField {
    StateField::new(number << 40, None)
}

fn route(number: u64, route: u64) -> StateField {
    StateField::new(number << 40, Some(route << 32))
}

impl Scripted {
    fn pttl_ms(&mut self, key: &[u8]) -> i64 {
        self.query(&[b"PTTL", key])
    }

    fn hlen(&mut self, key: &str) -> u64 {
        self.query(&[b"HLEN", key.as_bytes()])
    }
}

fn remaining(scripted: &mut Scripted, now_us: u64, key: &str, limit: &Limit, field: StateField) -> u32 {
    let answer = scripted.charge_one(now_us, key, &ask(limit, field, 1));
    match answer.charges[0].state {
        ReplyState::Stored(account) => account.remaining_and_reset(limit.meter(), at(now_us)).0,
        ReplyState::Log(_) => panic!("{limit:?} is kept as a log"),
    }
}

/// Most of `whole` milliseconds; the server's clock has gone on since they were given.
fn nearly(whole_ms: i64) -> std::ops::RangeInclusive<i64> {
    whole_ms - 3_000..=whole_ms
}

#[test]
fn an_expiry_only_grows() {
    let mut scripted = Scripted::start();
    let day = limit(Algorithm::TokenBucket, 250, DAY_US);
    let second = per_second(10);
    let longest_ms = 2 * 86_400_000;
    scripted.charge_one(START_US, "{c}", &ask(&second, field(1), 1));
    assert!(nearly(16_000).contains(&scripted.pttl_ms(b"{c}")), "two seconds would forget what is lent");
    scripted.charge_one(START_US, "{c}", &ask(&day, field(2), 1));
    assert!(nearly(longest_ms).contains(&scripted.pttl_ms(b"{c}")));
    // Each of these looks after the expiry, for each is in another quarter of its life.
    for later in 1..20 {
        scripted.charge_one(START_US + later * SECOND_US, "{c}", &ask(&second, field(1), 1));
    }
    assert!(nearly(longest_ms).contains(&scripted.pttl_ms(b"{c}")));
    assert_eq!(scripted.hlen("{c}"), 2, "a state that still limits was dropped");
}

/// In one half of its life at the latest a state that is written renews its expiry: so it lasts as long as
/// it limits, and is not looked after at each write.
#[test]
fn an_expiry_is_renewed_in_time_and_not_more_often() {
    let mut scripted = Scripted::start();
    let minute = limit(Algorithm::TokenBucket, 60, 60 * SECOND_US);
    let aligned_us = START_US - START_US % (60 * SECOND_US);
    scripted.charge_one(aligned_us, "{c}", &ask(&minute, field(1), 1));
    for (later_s, renews) in [(1, false), (15, false), (29, false), (30, true), (45, false), (61, true)] {
        let _: bool = scripted.query(&[b"PEXPIRE", b"{c}", b"100000"]);
        scripted.charge_one(aligned_us + later_s * SECOND_US, "{c}", &ask(&minute, field(1), 1));
        let left_ms = scripted.pttl_ms(b"{c}");
        assert_eq!(left_ms > 100_000, renews, "{left_ms} ms are left after {later_s} s");
    }
}

#[test]
fn no_key_lives_for_ever_or_longer_than_it_has_to() {
    let mut scripted = Scripted::start();
    for window_us in [1_000, SECOND_US, 60 * SECOND_US, 30 * DAY_US] {
        for algorithm in Algorithm::scripted() {
            let limit = limit(algorithm, 10, window_us);
            let key = format!("{{{algorithm:?}{window_us}}}");
            scripted.charge_one(START_US, &key, &ask(&limit, field(1), 3));
            let window_ms = window_us.div_ceil(1_000) as i64;
            let keys: Vec<Vec<u8>> = scripted.query(&[b"KEYS", format!("{key}*").as_bytes()]);
            assert_eq!(keys.len(), 1, "{limit:?}");
            let expected_ms = match algorithm.state_kind() {
                StateKind::Log | StateKind::InFlight => window_ms + 10_000,
                StateKind::Cell => (2 * window_ms).max(16_000),
            };
            assert_eq!(script::ttl_ms(limit.meter()) as i64, expected_ms);
            let left_ms = scripted.pttl_ms(&keys[0]);
            assert!(nearly(expected_ms).contains(&left_ms), "{left_ms} ms for {limit:?}");
        }
    }
    // A refusal writes nothing, a clock that jumps back writes, and so does a report: none without expiry.
    let log = limit(Algorithm::SlidingWindowLog, 10, SECOND_US);
    for (key, limit) in [("{log}", &log), ("{bucket}", &per_second(10))] {
        for now_us in [START_US, START_US, START_US - DAY_US] {
            scripted.charge_one(now_us, key, &ask(limit, field(1), 10));
        }
    }
    let mut reported = ask(&per_second(10), field(1), 1);
    reported.runs[0].repeats = 0;
    reported.charges[0].reports = smallvec![Default::default()];
    scripted.charge_one(START_US, "{reported}", &reported);
    let keys: Vec<Vec<u8>> = scripted.query(&[b"KEYS", b"*"]);
    for key in keys {
        assert!(scripted.pttl_ms(&key) > 0, "{}", String::from_utf8_lossy(&key));
    }
}

/// A rule that is edited to a longer life finds the expiry of the shorter one.
#[test]
fn an_edited_rule_renews_the_expiry() {
    let mut scripted = Scripted::start();
    scripted.charge_one(START_US, "{c}", &ask(&per_second(10), field(1), 1));
    let hour = limit(Algorithm::TokenBucket, 10, 3_600 * SECOND_US);
    scripted.charge_one(START_US, "{c}", &ask(&hour, field(1), 1));
    assert!(nearly(7_200_000).contains(&scripted.pttl_ms(b"{c}")));
}

#[test]
fn too_many_routes_of_one_client_count_together() {
    let mut scripted = Scripted::start();
    let (ten, twenty) =
        (limit(Algorithm::TokenBucket, 10, DAY_US), limit(Algorithm::FixedWindow, 20, 30 * DAY_US));
    for number in 0..MOST_FIELDS {
        assert_eq!(remaining(&mut scripted, START_US, "{c}", &ten, route(1, number)), 9);
    }
    assert_eq!(scripted.hlen("{c}"), MOST_FIELDS);
    // What is there stays by itself; what is new shares one count, each limit its own.
    assert_eq!(remaining(&mut scripted, START_US, "{c}", &ten, route(1, 7)), 8);
    assert_eq!(remaining(&mut scripted, START_US, "{c}", &ten, route(1, 1_000)), 9);
    assert_eq!(remaining(&mut scripted, START_US, "{c}", &ten, route(1, 2_000)), 8);
    assert_eq!(remaining(&mut scripted, START_US, "{c}", &twenty, route(2, 1_000)), 19);
    assert_eq!(remaining(&mut scripted, START_US, "{c}", &twenty, route(2, 3_000)), 18);
    assert_eq!(remaining(&mut scripted, START_US, "{c}", &ten, route(1, 3_000)), 7);
    assert_eq!(scripted.hlen("{c}"), MOST_FIELDS + 2);
    // A limit that does not count by route is one of few, and always has a field.
    assert_eq!(remaining(&mut scripted, START_US, "{c}", &ten, field(3)), 9);
    assert_eq!(scripted.hlen("{c}"), MOST_FIELDS + 3);
    // Another client is not concerned.
    assert_eq!(remaining(&mut scripted, START_US, "{d}", &ten, route(1, 1_000)), 9);
}

/// Each write that looks after the expiry also looks at two fields, and drops what equals a fresh state.
#[test]
fn stale_states_are_dropped_by_and_by() {
    let mut scripted = Scripted::start();
    let (second, day) = (per_second(10), limit(Algorithm::TokenBucket, 250, DAY_US));
    for number in 0..100 {
        scripted.charge_one(START_US, "{c}", &ask(&second, route(1, number), 1));
    }
    for number in 0..10 {
        scripted.charge_one(START_US, "{c}", &ask(&day, route(2, number), 1));
    }
    assert_eq!(scripted.hlen("{c}"), 110);
    for later in 3..1_000 {
        scripted.charge_one(START_US + later * SECOND_US, "{c}", &ask(&second, route(1, 0), 1));
    }
    assert_eq!(scripted.hlen("{c}"), 11, "one second's state that is written, and ten of a day");
}

/// What is lent holds back the refill until its epochs end. Before the bucket has been refilled since, its client would find tokens
/// in a fresh one that a node has spent just now.
#[test]
fn a_state_is_kept_until_it_has_refilled_what_was_lent() {
    let mut scripted = Scripted::start();
    let second = per_second(10);
    let start_us = START_US - START_US % EPOCH_US;
    for (after_us, fields) in [(500_000, 2), (5_000_000, 1)] {
        let key = format!("{{lent-{after_us}}}");
        let mut lent = ask(&second, field(1), 10);
        lent.charges[0].as_lent = true;
        scripted.charge_one(start_us, &key, &lent);
        // The first write of a field looks at the others.
        let now_us = start_us + 2 * EPOCH_US + after_us;
        scripted.charge_one(now_us, &key, &ask(&second, field(2), 1));
        assert_eq!(scripted.hlen(&key), fields, "{after_us} µs after the epochs of what was lent");
    }
}

#[test]
fn a_state_in_an_unknown_format_is_an_error_of_its_client_alone() {
    let mut scripted = Scripted::start();
    let ten = limit(Algorithm::TokenBucket, 10, DAY_US);
    let log = limit(Algorithm::SlidingWindowLog, 10, DAY_US);
    let strange: &[&[u8]] = &[&[3; 19], &[0; 19], &[3], &[1, 2, 3], &[2, 2], b""];
    for (number, value) in strange.iter().enumerate() {
        let key = format!("{{c{number}}}");
        // It has another limit, which must not be spent, and a log, which must not be moved.
        let both = ScriptCall {
            runs: smallvec![RequestRun { repeats: 1, cost: 1 }],
            charges: smallvec![charge(&ten, field(1)), charge(&log, field(3)), charge(&ten, field(2))],
        };
        scripted.charge_one(START_US, &key, &both);
        let _: i64 = scripted.query(&[b"HSET", key.as_bytes(), field(2).as_bytes(), value]);
        let list = [key.as_bytes(), b":", field(3).as_bytes()].concat();
        let dump = |scripted: &mut Scripted| -> (Vec<u8>, Vec<u8>) {
            (scripted.query(&[b"DUMP", key.as_bytes()]), scripted.query(&[b"DUMP", &list]))
        };
        let before = dump(&mut scripted);
        let one = ask(&ten, field(1), 1);
        let jumped_us = START_US - 100 * DAY_US;
        let answers = scripted.charge(jumped_us, &[("{a}", &one), (key.as_str(), &both), ("{b}", &one)]);
        assert!(matches!(&answers[1], Err(ReplyError::Refused(why)) if !why.is_empty()), "{answers:?}");
        assert_eq!(dump(&mut scripted), before, "{value:?}");
        for served in [&answers[0], &answers[2]] {
            assert_eq!(served.as_ref().unwrap().admitted[0], 1);
        }
        let format = answers[1].as_ref().unwrap_err().to_string();
        assert!(value.len() < 19 || format.contains("format"), "{format}");
    }
}

/// A count is kept in two bytes while it fits.
#[test]
fn a_count_may_outgrow_its_width() {
    let mut scripted = Scripted::start();
    let many = limit(Algorithm::FixedWindow, 100_000, 30 * DAY_US);
    scripted.charge_one(START_US, "{c}", &ask(&many, field(1), 65_534));
    for (left, bytes) in [(34_465, 17), (34_464, 19), (34_463, 19)] {
        assert_eq!(remaining(&mut scripted, START_US, "{c}", &many, field(1)), left);
        assert_eq!(scripted.query::<u64>(&[b"HSTRLEN", b"{c}", field(1).as_bytes()]), bytes);
    }
}

/// Sampling comes across values that it cannot read: it leaves them, and the request is served.
#[test]
fn what_is_not_understood_is_not_dropped_either() {
    let mut scripted = Scripted::start();
    let ten = per_second(10);
    let strange: [&[u8]; 4] = [&[3; 19], b"", &[1, 2, 3], &[0; 40]];
    for (number, value) in strange.into_iter().enumerate() {
        let _: i64 = scripted.query(&[b"HSET", b"{c}", field(10 + number as u64).as_bytes(), value]);
    }
    for later in 0..200 {
        let answer = scripted.charge_one(START_US + later * 10 * SECOND_US, "{c}", &ask(&ten, field(1), 1));
        assert_eq!(answer.admitted[0], 1);
    }
    assert_eq!(scripted.hlen("{c}"), 5);
}

#[test]
fn a_key_of_another_kind_is_an_error_of_its_client_alone() {
    let mut scripted = Scripted::start();
    let ten = per_second(10);
    let _: String = scripted.query(&[b"SET", b"{c}", b"text"]);
    let one = ask(&ten, field(1), 1);
    let answers = scripted.charge(START_US, &[("{c}", &one), ("{d}", &one)]);
    assert!(matches!(&answers[0], Err(ReplyError::Refused(why)) if why.contains("WRONGTYPE")), "{answers:?}");
    assert_eq!(answers[1].as_ref().unwrap().admitted[0], 1);
}

/// Without a time in the header it is the server's own, and both tell the same one.
#[test]
fn the_server_tells_its_own_time() {
    let mut scripted = Scripted::start();
    let one = ask(&per_second(10), field(1), 1);
    let mut command = redis::cmd("EVALSHA");
    command.arg(&scripted.digest).arg(1).arg("{c}").arg(script::arguments(
        script::CallTime::Server,
        false,
        [&one].into_iter(),
    ));
    let time_us = |scripted: &mut Scripted| {
        let (seconds, micros): (u64, u64) = scripted.query(&[b"TIME"]);
        seconds * SECOND_US + micros
    };
    let before_us = time_us(&mut scripted);
    let parts: Vec<Vec<u8>> = command.query(&mut scripted.connection).unwrap();
    let told_us = script::read_time(&parts[0]).unwrap().as_us();
    assert!(before_us <= told_us && told_us <= time_us(&mut scripted));
    assert_eq!(scripted.server.cli(&["EXISTS", "{c}"]), "1");
}

/// The start of the window and the end of a wait are found wherever in a long log they lie.
#[test]
fn every_entry_of_a_long_log_is_found() {
    const ENTRIES: u64 = 100;
    const WINDOW_US: u64 = 1_000 * SECOND_US;
    let mut scripted = Scripted::start();
    let log = limit(Algorithm::SlidingWindowLog, ENTRIES, WINDOW_US);
    for number in 0..ENTRIES {
        scripted.charge_one(START_US + number * SECOND_US, "{c}", &ask(&log, field(1), 1));
    }
    let mut standing = |now_us: u64, cost: u32| {
        let runs = smallvec![RequestRun { repeats: 0, cost }];
        let asked = ScriptCall { runs, charges: smallvec![charge(&log, field(1))] };
        match &scripted.charge_one(now_us, "{c}", &asked).charges[0].state {
            ReplyState::Log(standings) => standings[0],
            ReplyState::Stored(_) => panic!("{log:?} is not kept as a log"),
        }
    };
    let now_us = START_US + ENTRIES * SECOND_US;
    for cost in 1..=ENTRIES as u32 {
        let last_to_leave_us = START_US + u64::from(cost - 1) * SECOND_US;
        let standing = standing(now_us, cost);
        assert_eq!((standing.remaining, standing.retry_after_us), (0, last_to_leave_us + WINDOW_US - now_us));
    }
    for gone in 0..=ENTRIES {
        let now_us = START_US + WINDOW_US + gone * SECOND_US - 1;
        assert_eq!(standing(now_us, 1).remaining, gone as u32, "just before the next leaves");
    }
}

/// A key under one limit, on virtual time: its expiry comes nearer as the test says.
struct Aging {
    key: String,
    limit: Limit,
    now_us: u64,
    /// What the server would say; none without the key.
    left_ms: Option<u64>,
    /// The last reply, and when it came.
    account: StoredState,
    /// How often the key expired, and the most that was lent at once.
    expired: u32,
    most_lent: u32,
}

impl Aging {
    /// Time passes. A key that expires on the way must be like a fresh one at that instant, with nothing lent.
    fn pass(&mut self, scripted: &mut Scripted, ms: u64) {
        if let Some(left_ms) = self.left_ms {
            if left_ms <= ms {
                let then_us = self.now_us + left_ms * 1_000;
                self.assert_fresh(then_us);
                let _: i64 = scripted.query(&[b"DEL", self.key.as_bytes()]);
                self.left_ms = None;
                self.expired += 1;
            } else {
                self.left_ms = Some(left_ms - ms);
            }
        }
        self.now_us += ms * 1_000;
    }

    fn assert_fresh(&self, then_us: u64) {
        let meter = self.limit.meter();
        let mut account = self.account;
        account.apply_reports(meter, at(then_us), &[]);
        let (available, _) = account.remaining_and_reset(meter, at(then_us));
        assert!(
            account.lent.total() == 0 && available == meter.quota(),
            "{} expires {} µs after the last answer with {:?}",
            self.key,
            then_us - self.now_us,
            account
        );
    }

    /// One call. The server's own clock must not count: the expiry is set before, and only a renewal changes it.
    fn charge(&mut self, scripted: &mut Scripted, asked: &ScriptCall) -> u32 {
        if let Some(left_ms) = self.left_ms {
            let _: i64 = scripted.query(&[b"PEXPIRE", self.key.as_bytes(), left_ms.to_string().as_bytes()]);
        }
        let answer = scripted.charge_one(self.now_us, &self.key, asked);
        let left_ms = scripted.pttl_ms(self.key.as_bytes());
        if left_ms > self.left_ms.map_or(-1, |left_ms| left_ms as i64) {
            self.left_ms = Some(script::ttl_ms(self.limit.meter()));
        }
        let ReplyState::Stored(account) = answer.charges[0].state else { panic!("{answer:?}") };
        self.account = account;
        self.most_lent = self.most_lent.max(account.lent.total());
        answer.admitted.iter().sum()
    }
}

/// What a node could ask for: a few requests or a burst, held or not, with something ahead, and reports of tokens
/// that were lent before.
fn any_ask(rng: &mut fastrand::Rng, aging: &Aging) -> ScriptCall {
    let quota = aging.limit.quota;
    let cost = if rng.u8(..4) == 0 { rng.u32(1..=quota) } else { rng.u32(1..=3) };
    let mut one = charge(&aging.limit, field(1));
    one.as_lent = rng.bool();
    if rng.bool() {
        one.prefetch = Prefetch::new(rng.u32(1..=quota), rng.u32(1..=3));
    }
    if rng.u8(..3) == 0 {
        let epoch = aging.limit.meter().epoch(at(aging.now_us)) - rng.u32(..2);
        one.reports.push(LeaseReport {
            epoch,
            spent: rng.u32(..=quota / 4),
            returned: rng.u32(..=quota / 4),
        });
    }
    ScriptCall { runs: smallvec![RequestRun { repeats: rng.u32(0..3), cost }], charges: smallvec![one] }
}

/// Idle for a moment, for about as long as it takes to fill, as tokens are lent, or as a key lives.
fn any_idle_ms(rng: &mut fastrand::Rng, fill_ms: u64) -> u64 {
    match rng.u8(..8) {
        0..4 => rng.u64(1..100),
        4 => rng.u64(1..=fill_ms),
        5 => rng.u64(1..=2 * EPOCH_US / 1_000),
        6 => fill_ms + rng.u64(..=fill_ms),
        _ => rng.u64(8_000..24_000),
    }
}

#[test]
fn no_key_expires_while_tokens_are_lent_or_it_still_limits() {
    let mut scripted = Scripted::start();
    let mut rng = fastrand::Rng::with_seed(11);
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.is_leased()) {
        let (mut expired, mut most_lent) = (0, 0);
        for fill_s in 1..=10 {
            let limit = limit(algorithm, 100, fill_s * SECOND_US);
            let mut aging = Aging {
                key: format!("{{{algorithm:?}-{fill_s}}}"),
                limit,
                now_us: START_US,
                left_ms: None,
                account: StoredState::default(),
                expired: 0,
                most_lent: 0,
            };
            for _ in 0..60 {
                for _ in 0..4 {
                    let asked = any_ask(&mut rng, &aging);
                    aging.charge(&mut scripted, &asked);
                    aging.pass(&mut scripted, any_idle_ms(&mut rng, fill_s * 1_000));
                }
                // A burst, and later a loan that does not renew the expiry: the worst case of a state whose instant
                // lies ahead.
                aging.charge(&mut scripted, &ask(&aging.limit, field(1), 100));
                aging.pass(&mut scripted, rng.u64(fill_s * 500..fill_s * 1_500));
                let mut loan = ask(&aging.limit, field(1), 1);
                loan.charges[0].prefetch = Prefetch::new(rng.u32(1..=5), 1);
                aging.charge(&mut scripted, &loan);
                aging.pass(&mut scripted, rng.u64(100..20_000));
            }
            expired += aging.expired;
            most_lent = most_lent.max(aging.most_lent);
        }
        println!("{algorithm:?}: expired {expired} times, {most_lent} lent at most");
        assert!(expired > 20, "{algorithm:?}: expired {expired} times");
        assert!(most_lent > 50 || algorithm.counts_windows());
    }
}
