//! Turns the table of algorithms into code: `algorithms!` makes of its rows the enum [`Algorithm`], the enum [`Meter`], and
//! one exhaustive match for everything in which algorithms differ.
//!
//! The module of a row provides, for the numbers of the row:
//!
//! | item | what it is |
//! |---|---|
//! | `step` | one request against a cell |
//! | `lifetime_us` | the longest time that a state can matter |
//! | `re_anchor` | the cell, moved to the present if the clock has jumped |
//! | `apply_reports` | the state after nodes have reported tokens as spent or returned |
//! | `epoch` | the time in which tokens are taken, as reports name it |
//! | `credit_lifetime_us` | how long tokens taken now can be spent |
//! | `unit` | the number that one token is, of what the script counts as available |
//! | `SCRIPT` | its part of the script |
//!
//! The compiler names each item that is missing.

use super::{Algorithm, Bucket, LimitStep, Meter, StateCell, Window, token_bucket};
use crate::time::StoreTime;

/// How the state of a key is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// In a [`StateCell`].
    Cell,
    /// As a log of all requests, in a list of its own.
    Log,
    /// As slots that requests hold until they end. Where their end is not known, as a log.
    InFlight,
}

/// The numbers of a limit, whatever its algorithm.
#[derive(Clone, Copy, Debug)]
pub enum MeterNumbers<'a> {
    /// A capacity and a rate.
    Bucket(&'a Bucket),
    /// A count per window.
    Window(&'a Window),
}

/// What a row that ends with `leased` expands to.
pub(super) const fn leased() -> bool {
    true
}

macro_rules! algorithms {
    ($(
        $(#[$meta:meta])*
        $variant:ident($numbers:ident) in $module:ident, kept as $kind:ident $(, $leased:ident)?;
    )*) => {
        /// Which algorithm a limit runs.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum Algorithm {
            $($(#[$meta])* $variant,)*
        }

        impl Algorithm {
            /// All of them, in the order of the table.
            pub const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];

            /// The name used in YAML, metrics and explanations.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($module),)*
                }
            }

            /// Whether the limit is a count per window rather than a capacity with a rate.
            pub fn counts_windows(self) -> bool {
                match self {
                    $(Self::$variant => $numbers::COUNTS_WINDOWS,)*
                }
            }

            /// How states are kept.
            #[inline]
            pub fn state_kind(self) -> StateKind {
                match self {
                    $(Self::$variant => StateKind::$kind,)*
                }
            }

            /// Whether nodes may take tokens ahead of requests. Only where the row says `leased`: what is lent must
            /// then end with its epoch or its window, in the module and in the script.
            pub fn is_leased(self) -> bool {
                match self {
                    $(Self::$variant => false $(|| dispatch::$leased())?,)*
                }
            }

            /// Its part of the script, or the script of its own.
            pub(crate) fn script(self) -> &'static str {
                match self {
                    $(Self::$variant => $module::SCRIPT,)*
                }
            }
        }

        /// The algorithm of a limit with its numbers: all that a step needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Meter {
            $(
                #[doc = concat!("See [`Algorithm::", stringify!($variant), "`].")]
                $variant($numbers),
            )*
        }

        impl Meter {
            /// The meter of a limit of this size, and the window that headers show, in microseconds.
            pub(crate) fn new(
                algorithm: Algorithm,
                quota: u32,
                size: &LimitSize,
            ) -> Result<(Self, u64), LimitError> {
                match algorithm {
                    $(Algorithm::$variant => {
                        let (numbers, window_us) = $numbers::new(algorithm, quota, size)?;
                        Ok((Self::$variant(numbers), window_us))
                    })*
                }
            }

            /// The algorithm.
            #[inline]
            pub fn algorithm(&self) -> Algorithm {
                match self {
                    $(Self::$variant(_) => Algorithm::$variant,)*
                }
            }

            /// The numbers.
            #[inline]
            pub fn numbers(&self) -> MeterNumbers<'_> {
                match self {
                    $(Self::$variant(numbers) => MeterNumbers::$numbers(numbers),)*
                }
            }

            /// The longest time that a state can matter: until full, or the windows it counts.
            pub fn lifetime_us(&self) -> u64 {
                match self {
                    $(Self::$variant(numbers) => $module::lifetime_us(numbers),)*
                }
            }

            /// What names the time in which tokens are taken, so that they can be returned to where they came from: for
            /// buckets the epoch, for windows the number of the window, for logs the instant of the entry.
            pub fn epoch(&self, now: StoreTime) -> u32 {
                match self {
                    $(Self::$variant(numbers) => $module::epoch(numbers, now),)*
                }
            }

            /// How long after `now` tokens taken then may be spent without asking: as long as the store counts them as
            /// lent, or until their window ends.
            pub fn credit_lifetime_us(&self, now: StoreTime) -> u64 {
                match self {
                    $(Self::$variant(numbers) => $module::credit_lifetime_us(numbers, now),)*
                }
            }

            /// How much of what the script counts as available one token is.
            pub(crate) fn unit(&self) -> u64 {
                match self {
                    $(Self::$variant(numbers) => $module::unit(numbers),)*
                }
            }

            /// `cell` moved to the present, if it lies so far ahead that the clock must have jumped.
            pub(crate) fn re_anchor(&self, cell: StateCell, now: StoreTime) -> Option<StateCell> {
                match self {
                    $(Self::$variant(numbers) => $module::re_anchor(numbers, cell, now),)*
                }
            }

            /// See [`StoredState::apply_reports`].
            pub(crate) fn apply_reports(&self, state: &mut StoredState, now: StoreTime, reports: &[LeaseReport]) {
                match self {
                    $(Self::$variant(numbers) => $module::apply_reports(numbers, state, now, reports),)*
                }
            }

            /// The step of any algorithm, apart from [`Meter::step`]: a step of the default is then inlined where it is
            /// taken. State and step are passed in places of their own, so that those of the default can stay in
            /// registers.
            #[inline(never)]
            fn step_of_any(&self, cell: &Option<StateCell>, now: StoreTime, cost: u32) -> (LimitStep,) {
                let step = match self {
                    $(Self::$variant(numbers) => $module::step(numbers, *cell, now, cost),)*
                };
                (step,)
            }
        }
    };
}

impl Algorithm {
    /// Those that the script of limits charges. Slots in flight have a script of their own.
    pub fn scripted() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|algorithm| algorithm.state_kind() != StateKind::InFlight)
    }

    /// By which a call names the algorithm to the script, which comes from the same node: it need not stay the same.
    /// Requests in flight whose end is not known are charged as a log.
    pub(crate) fn code(self) -> u8 {
        match self.state_kind() {
            StateKind::Cell | StateKind::Log => self as u8 + 1,
            StateKind::InFlight => Self::SlidingWindowLog.code(),
        }
    }
}

impl Meter {
    /// The bucket, if it is one.
    #[inline]
    pub fn bucket(&self) -> Option<&Bucket> {
        match self.numbers() {
            MeterNumbers::Bucket(bucket) => Some(bucket),
            MeterNumbers::Window(_) => None,
        }
    }

    /// The window, if it counts in windows.
    #[inline]
    pub fn window(&self) -> Option<&Window> {
        match self.numbers() {
            MeterNumbers::Bucket(_) => None,
            MeterNumbers::Window(window) => Some(window),
        }
    }

    /// Whether it is kept as a log rather than in a cell.
    #[inline]
    pub fn is_log(&self) -> bool {
        self.algorithm().state_kind() != StateKind::Cell
    }

    /// The most that can be admitted at once.
    #[inline]
    pub fn quota(&self) -> u32 {
        match self.numbers() {
            MeterNumbers::Bucket(bucket) => bucket.capacity,
            MeterNumbers::Window(window) => window.limit,
        }
    }

    /// One step on a cell. `cost` must lie between 1 and [`Meter::quota`]. A log, which has no cell, answers
    /// as one that has seen nothing.
    #[inline]
    pub fn step(&self, cell: Option<StateCell>, now: StoreTime, cost: u32) -> LimitStep {
        debug_assert!(cost >= 1 && cost <= self.quota(), "a cost above the capacity is refused before");
        if let Self::TokenBucket(bucket) = self {
            return token_bucket::step(bucket, cell, now, cost);
        }
        let own = cell;
        self.step_of_any(&own, now, cost).0
    }

    /// How many whole tokens come in within `us`.
    pub fn inflow(&self, us: u64) -> u32 {
        let tokens = match self.numbers() {
            MeterNumbers::Bucket(bucket) => {
                u128::from(us / bucket.tick_us) * u128::from(bucket.amount) / u128::from(bucket.period)
            }
            MeterNumbers::Window(window) => {
                u128::from(window.limit) * u128::from(us) / u128::from(window.span_us())
            }
        };
        tokens.min(self.quota().into()) as u32
    }
}
