//! Exact rates, and the short way to write a limit: `100/min`.

use crate::time::UnixTime;
use std::fmt;
use std::time::Duration;

/// Microseconds in a second.
pub const SECOND_US: u64 = 1_000_000;

/// So many per second, as a reduced fraction: `1.67` is 167/100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    numerator: u64,
    denominator: u64,
}

impl Rate {
    /// `amount` every `period_us` microseconds; none if either is 0 or the fraction is too fine.
    pub fn per(amount: u64, period_us: u64) -> Option<Self> {
        Self::reduced(u128::from(amount) * u128::from(SECOND_US), u128::from(period_us))
    }

    /// The decimal `text` per second, exactly as written; none if it is not a positive decimal number.
    pub fn from_decimal(text: &str) -> Option<Self> {
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.len() + fraction.len() > 18 || exponent.unsigned_abs() > 18 || whole.is_empty() {
            return None;
        }
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let value: u128 = format!("{whole}{fraction}").parse().ok()?;
        let shift = exponent - fraction.len() as i32;
        let power = 10u128.pow(shift.unsigned_abs());
        if shift >= 0 { Self::reduced(value.checked_mul(power)?, 1) } else { Self::reduced(value, power) }
    }

    /// This many times the rate; none if the fraction becomes too fine.
    pub fn times(self, factor: u32) -> Option<Self> {
        Self::reduced(u128::from(self.numerator) * u128::from(factor), u128::from(self.denominator))
    }

    /// The rate as (amount, period in ticks of `tick_us`), reduced.
    pub fn per_ticks(self, tick_us: u64) -> (u128, u128) {
        let amount = u128::from(self.numerator) * u128::from(tick_us);
        let period = u128::from(self.denominator) * u128::from(SECOND_US);
        let divisor = gcd(amount, period);
        (amount / divisor, period / divisor)
    }

    /// How long `amount` takes at this rate, rounded up.
    pub fn time_for_us(self, amount: u64) -> u64 {
        let us = (u128::from(amount) * u128::from(self.denominator))
            .saturating_mul(u128::from(SECOND_US))
            .div_ceil(u128::from(self.numerator));
        u64::try_from(us).unwrap_or(u64::MAX)
    }

    fn reduced(numerator: u128, denominator: u128) -> Option<Self> {
        if numerator == 0 || denominator == 0 {
            return None;
        }
        let divisor = gcd(numerator, denominator);
        Some(Self {
            numerator: u64::try_from(numerator / divisor).ok()?,
            denominator: u64::try_from(denominator / divisor).ok()?,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.numerator as f64 / self.denominator as f64;
        if per_second >= 0.1 {
            write!(f, "{}/s", trimmed(per_second))
        } else if per_second * 3600.0 >= 1.0 {
            write!(f, "{}/h", trimmed(per_second * 3600.0))
        } else {
            write!(f, "{}/day", trimmed(per_second * 86400.0))
        }
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A limit in short: so many per so long, as in `100/min`, `10/s`, `5/15min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitShorthand {
    /// How many.
    pub amount: u64,
    /// Per how long.
    pub period_us: u64,
}

/// Why a text is not a [`LimitShorthand`]. `Display` is a message and a hint with `; ` between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitShorthandError {
    /// There is no `/`.
    NoPeriod(String),
    /// The part before the `/` is not a whole number.
    Amount(String),
    /// The part after the `/` is not a duration.
    Period(String),
}

impl fmt::Display for LimitShorthandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeriod(text) => write!(f, "`{text}` has no period; write it like `100/min` or `10/s`"),
            Self::Amount(text) => {
                write!(f, "`{text}` does not start with a whole number of requests; write it like `100/min`")
            }
            Self::Period(text) => write!(f, "`{text}` does not end with a period; use s, min, h or day"),
        }
    }
}

impl std::error::Error for LimitShorthandError {}

impl LimitShorthand {
    /// Parses a text such as `100/min`.
    pub fn parse(text: &str) -> Result<Self, LimitShorthandError> {
        let (amount, period) =
            text.split_once('/').ok_or_else(|| LimitShorthandError::NoPeriod(text.to_owned()))?;
        let amount = amount.trim().replace('_', "").parse();
        let amount: u64 = amount.map_err(|_| LimitShorthandError::Amount(text.to_owned()))?;
        let period_us = parse_period_us(period.trim());
        let period_us = period_us.ok_or_else(|| LimitShorthandError::Period(text.to_owned()))?;
        Ok(Self { amount, period_us })
    }
}

fn parse_period_us(text: &str) -> Option<u64> {
    // Only a unit may do without its number: `100/` and `100/.5` say nothing clear.
    let first = text.chars().next()?;
    if first.is_ascii_digit() {
        parse_duration_us(text).ok()
    } else if first.is_alphabetic() {
        parse_duration_us(&format!("1{text}")).ok()
    } else {
        None
    }
}

/// Why a text is not a duration. `Display` is a message and a hint with `; ` between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurationTextError {
    /// Not a number with a unit.
    Invalid(String),
    /// Too long for 64 bits of microseconds.
    TooLong(String),
}

impl fmt::Display for DurationTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) => {
                write!(f, "`{text}` is not a duration; write it like 60, 1.5s, 90s, 5min, 1h or 1day")
            }
            Self::TooLong(text) => write!(f, "`{text}` is too long"),
        }
    }
}

impl std::error::Error for DurationTextError {}

/// Parses a duration such as `90s`, `1.5s`, `2min`, `1h 30m` or a plain number of seconds.
pub fn parse_duration_us(text: &str) -> Result<u64, DurationTextError> {
    let text = text.trim();
    let unreadable = || DurationTextError::Invalid(text.to_owned());
    let out_of_range = || DurationTextError::TooLong(text.to_owned());
    // A decimal number of seconds is parsed exactly here, all other forms by humantime.
    let seconds = text.strip_suffix('s').map_or(text, str::trim_end);
    if !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
        if fraction.len() > 6 || fraction.contains('.') || whole.is_empty() {
            return Err(unreadable());
        }
        let whole: u64 = whole.parse().map_err(|_| out_of_range())?;
        let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| unreadable())?;
        return whole.checked_mul(SECOND_US).and_then(|us| us.checked_add(fraction)).ok_or_else(out_of_range);
    }
    let duration = humantime::parse_duration(text).map_err(|_| unreadable())?;
    u64::try_from(duration.as_micros()).map_err(|_| out_of_range())
}

/// A duration as people write it: `1s`, `1min`, `90s`, `598.803ms`. It reads back as itself.
pub fn duration_text(us: u64) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000, "day"),
        (3_600_000_000, "h"),
        (60_000_000, "min"),
        (SECOND_US, "s"),
        (1_000, "ms"),
        (1, "us"),
    ];
    if us == 0 {
        return "0s".to_owned();
    }
    if let Some((size, unit)) = UNITS.into_iter().take(4).find(|(size, _)| us.is_multiple_of(*size)) {
        return format!("{}{unit}", us / size);
    }
    let (size, unit) = if us >= SECOND_US {
        UNITS[3]
    } else if us >= 1_000 {
        UNITS[4]
    } else {
        UNITS[5]
    };
    let digits = size.ilog10() as usize;
    let text = format!("{}.{:0digits$}", us / size, us % size);
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A number with its thousands separated.
///
/// ```
/// # use tollgate_core::rate::grouped;
/// assert_eq!((grouped(999), grouped(1_234_567)), ("999".to_owned(), "1,234,567".to_owned()));
/// ```
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time as `2026-12-31T23:59:59Z`, rounded up to the second.
pub fn rfc3339(time: UnixTime) -> String {
    // Beyond the year 9999 there is no such text; no clock is there.
    const LAST_SECOND: u64 = 253_402_300_799;
    let seconds = time.as_us().div_ceil(SECOND_US).min(LAST_SECOND);
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}
