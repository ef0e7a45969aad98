//! The script that a shared Redis runs, and what goes in and comes out of it.
//!
//! One call serves many clients; each is all or nothing. The script answers states rather than sentences: the
//! node works out waits and remainders from a state with the very steps that the embedded store runs.
//! `script/*.lua` are the frame, and each algorithm's part is beside its `.rs`; `source.rs` puts them together.

mod source;
mod validation;
pub mod work;
mod written;

use crate::algorithm::{MeterNumbers, StateCell, StateKind};
use crate::heartbeat::ClockCorrection;
use crate::lending::{EPOCH_US, LeaseReport, LentTokens, Prefetch, StoredState};
use crate::limit::Meter;
use crate::state_address::StateField;
use smallvec::SmallVec;
pub use source::source;
pub(crate) use validation::LATEST_US;

/// Lets one call serve clients of several slots of one server. Redis knows it from 7.0 on.
pub const CLUSTER_HEADER: &str = "#!lua flags=allow-cross-slot-keys\n";

/// The formats of a state: with a count of four bytes, and with one of two, which nearly always does.
const WIDE: u64 = 1;
const NARROW: u64 = 2;
const WIDE_BYTES: usize = 19;
const NARROW_BYTES: usize = 17;
const LENT_BYTES: usize = 12;
/// The numbers of a limit in a call.
const LIMIT_BYTES: usize = 36;
/// No state expires while tokens of it are lent, which takes two epochs at most. The expiry is renewed when the
/// instant of the state enters another quarter of the lifetime; the instant of a GCRA state lies up to half the
/// lifetime ahead, so the renewal may be three quarters of the lifetime old when tokens are lent. A quarter of
/// this must be two epochs.
const SHORTEST_TTL_MS: u64 = 4 * 2 * EPOCH_US / 1_000;
const LOG_EXTRA_MS: u64 = 10_000;

/// How many runs of equal requests, or limits, fit into one ask.
pub const MOST_PARTS: usize = 255;

/// What one client asks for: requests, each to be charged against all of the limits or none.
#[derive(Clone, Debug, Default)]
pub struct ScriptCall {
    /// The requests in order, equal ones together.
    pub runs: SmallVec<[RequestRun; 2]>,
    /// The limits.
    pub charges: SmallVec<[ChargeCall; 2]>,
}

/// Requests of the same cost, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRun {
    /// How many.
    pub repeats: u32,
    /// What each costs.
    pub cost: u32,
}

/// One limit of a [`ScriptCall`].
#[derive(Clone, Debug)]
pub struct ChargeCall {
    /// The limit.
    pub meter: Meter,
    /// Its field.
    pub field: StateField,
    /// Whether it can refuse.
    pub enforced: bool,
    /// Whether the requests' own tokens are taken as lent, because they may still be returned.
    pub as_lent: bool,
    /// What to take ahead if all requests pass.
    pub prefetch: Prefetch,
    /// What became of tokens that were taken earlier.
    pub reports: SmallVec<[LeaseReport; 2]>,
}

/// What one client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// The time at the store.
    pub now_us: u64,
    /// How many of each run pass.
    pub admitted: SmallVec<[u32; 2]>,
    /// What each limit says.
    pub charges: SmallVec<[ChargeReply; 2]>,
}

/// What one limit says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeReply {
    /// How many of each run it had room for; told only of one that cannot refuse.
    pub counted: SmallVec<[u32; 2]>,
    /// Taken ahead.
    pub lent: u32,
    /// How things stand after all.
    pub state: ReplyState,
}

/// How things stand with a limit after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyState {
    /// The state.
    Stored(StoredState),
    /// A log stays at the store. For each run: how one more request of its cost would stand.
    Log(SmallVec<[LogStatus; 2]>),
}

/// How one more request stands with a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// What is left.
    pub remaining: u32,
    /// How long it would wait.
    pub retry_after_us: u64,
    /// Until nothing is used.
    pub reset_after_us: u64,
}

/// Why an answer cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The script refused this client and said why.
    Refused(String),
    /// It ends too early, or is in a format that is not known here.
    Malformed,
    /// It cannot be an answer to what was asked, and why.
    Impossible(&'static str),
}

impl std::fmt::Display for ReplyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Malformed => f.write_str("the store's answer is not in a known format"),
            Self::Impossible(what) => write!(f, "the store's answer cannot be true: {what}"),
        }
    }
}

/// How many clients one call can serve.
pub const MOST_CLIENTS: usize = 255;

/// How many different asks are looked through for one that is the same.
const LOOKED_THROUGH: usize = 8;

/// How far a server's clock may be from what a node expects before a call changes nothing.
pub const CLOCK_TOLERANCE_US: u64 = 500_000;
/// Added to a correction, so that what is sent is never negative.
const CORRECTION_BIAS_US: i64 = 1 << 51;

/// The time by which a call is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTime {
    /// That of the server's clock.
    Server,
    /// The same, corrected. A call that finds it further than [`CLOCK_TOLERANCE_US`] from
    /// what is expected changes nothing, and answers the time alone.
    Corrected {
        /// What is added to the server's time.
        correction: ClockCorrection,
        /// When the call was sent, by that time; 0 if it is not known.
        expected_us: u64,
    },
    /// This one, for tests.
    Given(u64),
}

impl CallTime {
    fn header(self, repeats_keys: bool) -> Vec<u8> {
        let (mode, first, correction) = match self {
            Self::Server => (0, 0, ClockCorrection::default()),
            Self::Given(us) => (1, us, ClockCorrection::default()),
            Self::Corrected { correction, expected_us } => (2, expected_us, correction),
        };
        let mut header = Vec::with_capacity(22);
        uint(&mut header, first, 7);
        header.push(u8::from(repeats_keys) | mode << 1);
        let agreed_us = correction.agreed_us.clamp(-CORRECTION_BIAS_US, CORRECTION_BIAS_US);
        uint(&mut header, (agreed_us + CORRECTION_BIAS_US) as u64, 7);
        uint(&mut header, correction.since_us, 7);
        header
    }
}

/// The arguments of a call, without the keys: the time, and whether the keys are repeated behind all; a byte for each
/// client that tells which ask is its; and the asks. Many clients ask for the same, which then is sent and read once.
pub fn arguments<'a>(
    time: CallTime,
    repeats_keys: bool,
    asks: impl Iterator<Item = &'a ScriptCall>,
) -> Vec<Vec<u8>> {
    let mut arguments = vec![time.header(repeats_keys), Vec::new()];
    let mut written = Vec::new();
    for ask in asks {
        written.clear();
        ask.encode(&mut written);
        let known = arguments.iter().enumerate().skip(2).rev().take(LOOKED_THROUGH);
        let same = { known }.find(|(_, argument)| **argument == written).map(|(index, _)| index);
        let index = same.unwrap_or(arguments.len());
        if same.is_none() {
            arguments.push(written.clone());
        }
        arguments[1].push((index - 1) as u8);
    }
    arguments
}

/// The keys besides the client's own that the script touches for `ask`: the lists of its logs, see `charge.lua`.
pub fn log_keys<'a>(key: &'a [u8], ask: &'a ScriptCall) -> impl Iterator<Item = Vec<u8>> + 'a {
    let logs = ask.charges.iter().filter(|charge| charge.meter.is_log());
    logs.map(move |charge| [key, b":", charge.field.as_bytes()].concat())
}

/// The time in the first element of an answer.
pub fn read_time(bytes: &[u8]) -> Result<u64, ReplyError> {
    ReplyReader(bytes).uint(7)
}

impl ScriptCall {
    /// Writes it as the script reads it.
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.charges.len() as u8);
        out.push(self.runs.len() as u8);
        for run in &self.runs {
            out.extend(run.repeats.to_be_bytes());
            out.extend(run.cost.to_be_bytes());
        }
        for charge in &self.charges {
            charge.encode(out);
        }
    }
}

impl ChargeCall {
    /// Whether it is a token bucket that can refuse, of which nothing is taken ahead and nothing reported.
    fn is_plain(&self) -> bool {
        let is_bucket = matches!(self.meter, Meter::TokenBucket(_));
        is_bucket && self.enforced && !self.as_lent && self.prefetch.want == 0 && self.reports.is_empty()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        // A log lends nothing, but it takes back what it counted for a request that another limit refused.
        let wants = self.prefetch.want > 0 && !self.meter.is_log();
        let reports = !self.reports.is_empty();
        let as_lent = self.as_lent && self.meter.bucket().is_some();
        let flags = u8::from(!self.enforced)
            | u8::from(wants) << 1
            | u8::from(reports) << 2
            | u8::from(as_lent) << 3
            | u8::from(self.meter.is_log()) << 4;
        let start = out.len();
        out.extend([self.meter.algorithm().code(), flags, class(&self.meter)]);
        uint(out, ttl_ms(&self.meter), 5);
        let (capacity, amount, tick_us, grain, span) = match self.meter.numbers() {
            MeterNumbers::Bucket(bucket) => {
                (bucket.capacity, bucket.amount, bucket.tick_us, bucket.grain, bucket.span)
            }
            MeterNumbers::Window(window) => (window.limit, 0, window.tick_us, 0, window.span),
        };
        out.extend(capacity.to_be_bytes());
        out.extend(amount.to_be_bytes());
        uint(out, self.meter.unit(), 7);
        out.extend((tick_us as u32).to_be_bytes());
        out.extend(grain.to_be_bytes());
        uint(out, span, 7);
        debug_assert_eq!(out.len() - start, LIMIT_BYTES);
        let field = self.field.as_bytes();
        out.push(field.len() as u8);
        out.extend(field);
        if wants {
            for part in [self.prefetch.want, self.prefetch.share.max(1), self.prefetch.lent_limit] {
                out.extend(part.to_be_bytes());
            }
        }
        if reports {
            out.push(self.reports.len() as u8);
            for report in &self.reports {
                for part in [report.epoch, report.spent, report.returned] {
                    out.extend(part.to_be_bytes());
                }
            }
        }
    }
}

impl ScriptReply {
    /// What the script answers to `ask` at `now_us`.
    pub fn decode(ask: &ScriptCall, now_us: u64, bytes: &[u8]) -> Result<Self, ReplyError> {
        let mut reader = match bytes.split_first() {
            Some((b'+', rest)) => ReplyReader(rest),
            Some((b'=', state)) => return Self::of_all_passed(ask, now_us, state),
            Some((b'-', why)) => return Err(ReplyError::Refused(String::from_utf8_lossy(why).into_owned())),
            _ => return Err(ReplyError::Malformed),
        };
        let mut passing = SmallVec::new();
        let mut charges: SmallVec<[ChargeReply; 2]> = ask.charges.iter().map(ChargeReply::empty).collect();
        for _ in &ask.runs {
            passing.push(reader.uint(4)? as u32);
            for (charge, answer) in ask.charges.iter().zip(&mut charges) {
                if !charge.enforced {
                    answer.counted.push(reader.uint(4)? as u32);
                }
                if let ReplyState::Log(standings) = &mut answer.state {
                    standings.push(LogStatus {
                        remaining: reader.uint(4)? as u32,
                        retry_after_us: reader.uint(7)?,
                        reset_after_us: reader.uint(7)?,
                    });
                }
            }
        }
        for answer in &mut charges {
            if let ReplyState::Stored(account) = &mut answer.state {
                answer.lent = reader.uint(4)? as u32;
                let length = reader.uint(1)? as usize;
                *account = read_account(reader.take(length)?)?;
            }
        }
        match reader.0.is_empty() {
            true => Self { now_us, admitted: passing, charges }.validated(ask),
            false => Err(ReplyError::Malformed),
        }
    }
}

impl ScriptReply {
    /// The answer to an ask of one plain token bucket, all of which passed.
    fn of_all_passed(ask: &ScriptCall, now_us: u64, state: &[u8]) -> Result<Self, ReplyError> {
        let ([charge], [_]) = (&*ask.charges, &*ask.runs) else { return Err(ReplyError::Malformed) };
        if !charge.is_plain() {
            return Err(ReplyError::Malformed);
        }
        let state = ReplyState::Stored(read_account(state)?);
        let charge = ChargeReply { state, ..ChargeReply::empty(charge) };
        let passing = ask.runs.iter().map(|run| run.repeats).collect();
        Self { now_us, admitted: passing, charges: SmallVec::from_iter([charge]) }.validated(ask)
    }
}

impl ChargeReply {
    pub(crate) fn empty(charge: &ChargeCall) -> Self {
        let state = match charge.meter.algorithm().state_kind() {
            StateKind::Cell => ReplyState::Stored(StoredState::default()),
            StateKind::Log | StateKind::InFlight => ReplyState::Log(SmallVec::new()),
        };
        Self { counted: SmallVec::new(), lent: 0, state }
    }
}

/// A state as it is kept: a format, the class of its lifetime, the cell, and what is lent if anything is.
fn read_account(bytes: &[u8]) -> Result<StoredState, ReplyError> {
    if bytes.is_empty() {
        return Ok(StoredState::default());
    }
    let mut reader = ReplyReader(bytes);
    let (count_bytes, cell_bytes) = match reader.uint(1)? {
        WIDE => (4, WIDE_BYTES),
        NARROW => (2, NARROW_BYTES),
        _ => return Err(ReplyError::Malformed),
    };
    if ![cell_bytes, cell_bytes + LENT_BYTES].contains(&bytes.len()) {
        return Err(ReplyError::Malformed);
    }
    let _class = reader.uint(1)?;
    let cell = StateCell {
        instant_us: reader.uint(7)?,
        grain: reader.uint(2)? as u16,
        major: reader.uint(count_bytes)? as u32,
        minor: reader.uint(4)? as u32,
    };
    let mut lent = LentTokens::default();
    if !reader.0.is_empty() {
        lent = LentTokens {
            epoch: reader.uint(4)? as u32,
            current: reader.uint(4)? as u32,
            previous: reader.uint(4)? as u32,
        };
    }
    Ok(StoredState { cell: Some(cell), lent })
}

/// How long a state lives without being touched: twice the time to full, or twice the window; a log as long
/// as its window and a little more.
pub fn ttl_ms(meter: &Meter) -> u64 {
    let span_us = match meter.numbers() {
        MeterNumbers::Bucket(bucket) => bucket.span_us(),
        MeterNumbers::Window(window) => window.span_us(),
    };
    let span_ms = span_us.div_ceil(1_000);
    match meter.algorithm().state_kind() {
        StateKind::Cell => (2 * span_ms).max(SHORTEST_TTL_MS),
        StateKind::Log | StateKind::InFlight => span_ms + LOG_EXTRA_MS,
    }
}

/// The lifetime in quarters of a power of two of microseconds, rounded up: so a state alone tells when it can
/// go, and a change of the rule shows that its expiry has to be looked after.
fn class(meter: &Meter) -> u8 {
    let lifetime_us = meter.lifetime_us().max(2 * EPOCH_US);
    (4.0 * (lifetime_us as f64).log2()).ceil().clamp(0.0, 255.0) as u8
}

fn uint(out: &mut Vec<u8>, value: u64, bytes: usize) {
    out.extend(&value.to_be_bytes()[8 - bytes..]);
}

struct ReplyReader<'a>(&'a [u8]);

impl<'a> ReplyReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ReplyError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ReplyError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn uint(&mut self, bytes: usize) -> Result<u64, ReplyError> {
        Ok(self.take(bytes)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}
