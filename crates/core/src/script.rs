//! The script that a shared Redis runs, its arguments and its replies.
//!
//! One script call serves many clients, and charges each request all or nothing. It returns states: the node computes
//! waits and remainders from a state with the same steps that the embedded store runs.
//! The part of each algorithm is beside its `.rs`, and the rest is `script/*.lua`; `source.rs` joins them.

mod encoded_reply;
mod source;
mod validation;
pub mod work;

use crate::algorithm::{MeterNumbers, StateCell, StateKind};
use crate::heartbeat::ClockCorrection;
use crate::lending::{EPOCH_US, LeaseReport, LentTokens, Prefetch, StoredState};
use crate::limit::Meter;
use crate::state_address::StateField;
use crate::time::StoreTime;
use smallvec::SmallVec;
pub use source::{refund_source, reset_source, source};
pub(crate) use validation::LATEST_US;

/// Lets one call serve clients of several slots of one server. Requires Redis 7.0.
pub const CLUSTER_HEADER: &str = "#!lua flags=allow-cross-slot-keys\n";

/// The formats of a state: with a count of four bytes, and with one of two, which nearly always suffices.
const WIDE: u64 = 1;
const NARROW: u64 = 2;
const WIDE_BYTES: usize = 19;
const NARROW_BYTES: usize = 17;
const LENT_BYTES: usize = 12;
/// A limit in a call, without its field.
const LIMIT_BYTES: usize = 36;
/// No state expires while tokens of it are lent, which takes two epochs at most. The expiry is renewed when the
/// instant of the state enters another quarter of the lifetime; the instant of a GCRA state lies up to half the
/// lifetime ahead, so the renewal may be three quarters of the lifetime old when tokens are lent. A quarter of
/// this must be two epochs.
const SHORTEST_TTL_MS: u64 = 4 * 2 * EPOCH_US / 1_000;
const LOG_EXTRA_MS: u64 = 10_000;

/// How many runs of equal requests, or limits, fit into one call of a client.
pub const MOST_PARTS: usize = 255;

/// The call of one client: requests, each of which is charged against all of the limits or none.
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
    /// What to lease if all requests are admitted.
    pub prefetch: Prefetch,
    /// What became of tokens that were leased earlier.
    pub reports: SmallVec<[LeaseReport; 2]>,
}

/// The reply to the call of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptReply {
    /// The time at the store.
    pub now: StoreTime,
    /// How many of each run are admitted.
    pub admitted: SmallVec<[u32; 2]>,
    /// The reply of each limit.
    pub charges: SmallVec<[ChargeReply; 2]>,
}

/// The reply of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeReply {
    /// How many of each run it had room for; empty for a limit that can refuse.
    pub counted: SmallVec<[u32; 2]>,
    /// How many tokens are leased to the node.
    pub lent: u32,
    /// The state after the call.
    pub state: ReplyState,
}

/// The state of a limit after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyState {
    /// The state.
    Stored(StoredState),
    /// A log stays at the store. For each run, the status of one more request of its cost.
    Log(SmallVec<[RequestStatus; 2]>),
}

/// What is left of a state, and how one more request would stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestStatus {
    /// What is left.
    pub remaining: u32,
    /// How long it would wait.
    pub retry_after_us: u64,
    /// The time until nothing is used.
    pub reset_after_us: u64,
}

/// Why a reply cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The script failed for this client, with a message.
    Refused(String),
    /// It ends too early, or is in an unknown format.
    Malformed,
    /// It cannot be a reply to the call, and why.
    Impossible(&'static str),
}

impl std::fmt::Display for ReplyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Malformed => f.write_str("the reply of the store is in an unknown format"),
            Self::Impossible(what) => write!(f, "the reply of the store is invalid: {what}"),
        }
    }
}

/// How many clients one call can serve.
pub const MOST_CLIENTS: usize = 255;

/// How many of the last calls are compared with the next one.
const COMPARED_CALLS: usize = 8;

/// How far a server's clock may be from what a node expects before a call changes nothing.
pub const CLOCK_TOLERANCE_US: u64 = 500_000;
/// Added to a correction, so that the number that is sent is never negative.
const CORRECTION_BIAS_US: i64 = 1 << 51;
const SERVER_TIME: u8 = 0;
const GIVEN_TIME: u8 = 1;
const CORRECTED_TIME: u8 = 2;
/// Sent if the expected time is not known.
const UNKNOWN_TIME_US: u64 = 0;

/// The time by which a call is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTime {
    /// That of the server's clock.
    Server,
    /// The same, corrected. A call that finds it further than [`CLOCK_TOLERANCE_US`] from
    /// the expected time changes nothing, and returns the time alone.
    Corrected {
        /// What is added to the server's time.
        correction: ClockCorrection,
        /// When the call was sent, by that time, if it is known.
        expected: Option<StoreTime>,
    },
    /// This one, for tests.
    Given(StoreTime),
}

impl CallTime {
    fn header(self, repeats_keys: bool) -> Vec<u8> {
        let (mode, first, correction) = match self {
            Self::Server => (SERVER_TIME, 0, ClockCorrection::default()),
            Self::Given(now) => (GIVEN_TIME, now.as_us(), ClockCorrection::default()),
            Self::Corrected { correction, expected } => {
                (CORRECTED_TIME, expected.map_or(UNKNOWN_TIME_US, StoreTime::as_us), correction)
            }
        };
        let mut header = Vec::with_capacity(22);
        uint(&mut header, first, 7);
        header.push(u8::from(repeats_keys) | mode << 1);
        let agreed_us = correction.agreed_us.clamp(-CORRECTION_BIAS_US, CORRECTION_BIAS_US);
        uint(&mut header, (agreed_us + CORRECTION_BIAS_US) as u64, 7);
        uint(&mut header, correction.since.as_us(), 7);
        header
    }
}

/// The arguments of a script call, without the keys: the time, and whether the keys are repeated at the end; a byte for
/// each client that names its call; and the calls. Equal calls of many clients are sent and read once.
pub fn arguments<'a>(
    time: CallTime,
    repeats_keys: bool,
    calls: impl Iterator<Item = &'a ScriptCall>,
) -> Vec<Vec<u8>> {
    let mut arguments = vec![time.header(repeats_keys), Vec::new()];
    let mut encoded = Vec::new();
    for call in calls {
        encoded.clear();
        call.encode(&mut encoded);
        let known = arguments.iter().enumerate().skip(2).rev().take(COMPARED_CALLS);
        let same = { known }.find(|(_, argument)| **argument == encoded).map(|(index, _)| index);
        let index = same.unwrap_or(arguments.len());
        if same.is_none() {
            arguments.push(encoded.clone());
        }
        arguments[1].push((index - 1) as u8);
    }
    arguments
}

/// The arguments of the scripts that change states without a request ([`reset_source`], [`refund_source`]): the limits of
/// `calls`.
pub fn state_arguments<'a>(time: CallTime, calls: impl Iterator<Item = &'a ScriptCall>) -> Vec<Vec<u8>> {
    let encoded = calls.map(|call| {
        let mut encoded = Vec::new();
        call.encode(&mut encoded);
        encoded
    });
    std::iter::once(time.header(false)).chain(encoded).collect()
}

/// The keys besides the client's own that the script uses for `call`: the lists of its logs, see `charge.lua`.
pub fn log_keys<'a>(key: &'a [u8], call: &'a ScriptCall) -> impl Iterator<Item = Vec<u8>> + 'a {
    let logs = call.charges.iter().filter(|charge| charge.meter.is_log());
    logs.map(move |charge| [key, b":", charge.field.as_bytes()].concat())
}

/// The time in the first element of a reply.
pub fn read_time(bytes: &[u8]) -> Result<StoreTime, ReplyError> {
    ReplyReader(bytes).uint(7).map(StoreTime::from_us)
}

impl ScriptCall {
    /// Writes it in the format that `charge.lua` reads.
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
    /// Whether it is a token bucket that can refuse, without leases and reports: see `plain_bucket.lua`.
    fn is_plain(&self) -> bool {
        let is_bucket = matches!(self.meter, Meter::TokenBucket(_));
        is_bucket && self.enforced && !self.as_lent && self.prefetch.want == 0 && self.reports.is_empty()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        // A log lends nothing, but requests that another limit refused are returned to it.
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
    /// Reads and validates the reply of the script to `call` at `now`.
    pub fn decode(call: &ScriptCall, now: StoreTime, bytes: &[u8]) -> Result<Self, ReplyError> {
        let mut reader = match bytes.split_first() {
            Some((b'+', rest)) => ReplyReader(rest),
            Some((b'=', state)) => return Self::of_all_admitted(call, now, state),
            Some((b'-', why)) => return Err(ReplyError::Refused(String::from_utf8_lossy(why).into_owned())),
            _ => return Err(ReplyError::Malformed),
        };
        let mut admitted = SmallVec::new();
        let mut charges: SmallVec<[ChargeReply; 2]> = call.charges.iter().map(ChargeReply::empty).collect();
        for _ in &call.runs {
            admitted.push(reader.uint(4)? as u32);
            for (charge, reply) in call.charges.iter().zip(&mut charges) {
                if !charge.enforced {
                    reply.counted.push(reader.uint(4)? as u32);
                }
                if let ReplyState::Log(statuses) = &mut reply.state {
                    statuses.push(RequestStatus {
                        remaining: reader.uint(4)? as u32,
                        retry_after_us: reader.uint(7)?,
                        reset_after_us: reader.uint(7)?,
                    });
                }
            }
        }
        for reply in &mut charges {
            if let ReplyState::Stored(state) = &mut reply.state {
                reply.lent = reader.uint(4)? as u32;
                let length = reader.uint(1)? as usize;
                *state = read_state(reader.take(length)?)?;
            }
        }
        match reader.0.is_empty() {
            true => Self { now, admitted, charges }.validated(call),
            false => Err(ReplyError::Malformed),
        }
    }
}

impl ScriptReply {
    /// The reply to a call with one plain token bucket, all requests of which are admitted.
    fn of_all_admitted(call: &ScriptCall, now: StoreTime, state: &[u8]) -> Result<Self, ReplyError> {
        let ([charge], [_]) = (&*call.charges, &*call.runs) else { return Err(ReplyError::Malformed) };
        if !charge.is_plain() {
            return Err(ReplyError::Malformed);
        }
        let state = ReplyState::Stored(read_state(state)?);
        let charge = ChargeReply { state, ..ChargeReply::empty(charge) };
        let admitted = call.runs.iter().map(|run| run.repeats).collect();
        Self { now, admitted, charges: SmallVec::from_iter([charge]) }.validated(call)
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

impl ReplyState {
    /// Reads and validates what `refund.lua` returns at `now` about the only limit of `call`.
    pub fn decode_refund(call: &ScriptCall, now: StoreTime, bytes: &[u8]) -> Result<Self, ReplyError> {
        let [charge] = &*call.charges else { return Err(ReplyError::Malformed) };
        let mut reply = ChargeReply::empty(charge);
        match &mut reply.state {
            Self::Stored(state) => *state = read_state(bytes)?,
            Self::Log(statuses) => {
                let mut reader = ReplyReader(bytes);
                statuses.push(RequestStatus {
                    remaining: reader.uint(4)? as u32,
                    retry_after_us: reader.uint(7)?,
                    reset_after_us: reader.uint(7)?,
                });
            }
        }
        // Nothing is taken, so the reply is validated like one to a call without requests.
        let asked = ScriptCall { runs: SmallVec::new(), charges: call.charges.clone() };
        let reply = ScriptReply { now, admitted: SmallVec::new(), charges: SmallVec::from_iter([reply]) };
        let mut charges = reply.validated(&asked)?.charges;
        charges.pop().map(|charge| charge.state).ok_or(ReplyError::Malformed)
    }
}

/// Reads a state: a format, the class of its lifetime, the cell, and what is lent if anything is.
fn read_state(bytes: &[u8]) -> Result<StoredState, ReplyError> {
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
        instant: StoreTime::from_us(reader.uint(7)?),
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

/// After what time without a write a state expires: twice the time to full, or twice the window; for a log its window
/// and ten seconds.
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

/// The lifetime in quarters of a power of two of microseconds, rounded up. A state has it, so that the time at which it can
/// be dropped follows from the state alone, and a change of the rule shows that the expiry has to be renewed.
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
