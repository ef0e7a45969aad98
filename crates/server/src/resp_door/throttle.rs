//! `CL.THROTTLE key max_burst count period [quantity]`: a limit that the command states, with the reply of redis-cell.
//!
//! The limit is GCRA with a capacity of `max_burst` + 1 and a rate of `count` in `period` seconds. The reply is five
//! integers: whether it is limited, the limit, what remains, the seconds to wait (−1 if it is not limited, or no wait
//! helps), and the seconds until nothing is used. Like redis-cell, a part of a second counts as a whole one from a
//! millisecond on.
//!
//! A quantity of 0 takes nothing and is never limited; a negative one gives tokens back, never above the limit.

use super::encode;
use std::str::FromStr;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::LimitSize;
use tollgate_core::rate::{Rate, SECOND_US};
use tollgate_limiter::{
    Check, Decision, Door, InvalidRequest, Limiter, Outcome, PartsCheck, Request, RequestLimit, RequestPart,
    TokenOperation,
};

/// A part of a second below this is dropped.
const MILLISECOND_US: u64 = 1_000;

/// The arguments of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleCommand<'a> {
    key: &'a str,
    limit: u64,
    size: LimitSize,
    quantity: i64,
}

/// A decision that has been made, or is waited for.
#[derive(Debug)]
pub enum ThrottleCheck<'l> {
    /// Of a command that takes tokens.
    Take(Check<'l>),
    /// Of one that looks, or gives tokens back.
    Parts(PartsCheck<'l>),
}

impl<'a> ThrottleCommand<'a> {
    /// Parses the arguments after the name. The error is that of the reply.
    pub fn parse(arguments: &[&'a [u8]]) -> Result<Self, String> {
        let (key, max_burst, count, period, quantity) = match arguments {
            [key, max_burst, count, period] => (*key, max_burst, count, period, None),
            [key, max_burst, count, period, quantity] => (*key, max_burst, count, period, Some(quantity)),
            _ => return Err("ERR usage: CL.THROTTLE key max_burst count period [quantity]".to_owned()),
        };
        let key = std::str::from_utf8(key).map_err(|_| "ERR the key is not valid UTF-8".to_owned())?;
        let max_burst: u64 = number(max_burst, "max_burst")?;
        let (count, period): (u64, u64) = (number(count, "count")?, number(period, "period")?);
        let quantity = quantity.map_or(Ok(1), |quantity| number(quantity, "quantity"))?;
        let limit = max_burst.saturating_add(1);
        let period_us = period.checked_mul(SECOND_US).ok_or_else(|| out_of_range("period"))?;
        let rate = Rate::per(count, period_us).ok_or("ERR count and period must be at least 1")?;
        let size = LimitSize { capacity: Some(limit), rate: Some(rate), window_us: None };
        Ok(Self { key, limit, size, quantity })
    }

    /// Starts the check. If more is asked for than the limit holds, it only looks: no wait helps.
    pub fn check<'l>(&self, limiter: &'l Limiter) -> Result<ThrottleCheck<'l>, InvalidRequest> {
        let limit = RequestLimit { key: self.key, algorithm: Algorithm::Gcra, size: self.size };
        let cost = self.quantity.unsigned_abs();
        if self.quantity > 0 && cost <= self.limit {
            let request = Request { cost, door: Door::Resp, ..Request::default() };
            return limiter.check_limit(&request, &limit).map(ThrottleCheck::Take);
        }
        let (operation, cost) =
            if self.quantity < 0 { (TokenOperation::Refund, cost) } else { (TokenOperation::Look, 1) };
        let request = Request { cost, door: Door::Resp, ..Request::default() };
        let part = RequestPart { request, operation, limit: Some(limit) };
        limiter.check_parts(&[part]).map(ThrottleCheck::Parts).map_err(|invalid| invalid.error)
    }

    /// The same without the key, which the reply does not need.
    pub fn without_key(&self) -> ThrottleCommand<'static> {
        ThrottleCommand { key: "", ..*self }
    }

    /// Appends the reply to this command with this decision.
    pub fn reply(&self, decision: &Decision, out: &mut Vec<u8>) {
        if decision.store_unavailable {
            return encode::error(out, super::STORE_UNAVAILABLE);
        }
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let never = self.quantity > 0 && self.quantity.unsigned_abs() > self.limit;
        let (limited, status) = match decision.outcome {
            Outcome::Admitted(status) => (never, Some(status)),
            // What is only looked for is not limited.
            Outcome::Limited(status) => (self.quantity > 0, Some(status)),
            Outcome::Denied => (true, None),
            Outcome::Unlimited => (false, None),
        };
        let wait_us = status.filter(|_| limited && !never).and_then(|status| status.wait_us());
        let remaining = match status {
            // What the store would say is not known.
            _ if decision.degraded => -1,
            Some(status) => status.remaining.into(),
            None if limited => 0,
            None => limit,
        };
        let reset_after_us = status.map_or(0, |status| status.reset_after_us);
        encode::array(out, 5);
        encode::integer(out, limited.into());
        encode::integer(out, limit);
        encode::integer(out, remaining);
        encode::integer(out, wait_us.map_or(-1, seconds));
        encode::integer(out, seconds(reset_after_us));
    }
}

/// Microseconds as redis-cell shows them.
fn seconds(us: u64) -> i64 {
    let part = u64::from(us % SECOND_US >= MILLISECOND_US);
    (us / SECOND_US + part) as i64
}

fn number<T: FromStr>(argument: &[u8], name: &str) -> Result<T, String> {
    let text = std::str::from_utf8(argument).unwrap_or_default();
    text.parse().map_err(|_| out_of_range(name))
}

fn out_of_range(name: &str) -> String {
    format!("ERR {name} is not an integer or out of range")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_second_count_from_a_millisecond_on() {
        let cases = [
            (0, 0),
            (1, 0),
            (999, 0),
            (1_000, 1),
            (999_999, 1),
            (1_000_000, 1),
            (1_000_999, 1),
            (1_001_000, 2),
            (59_999_999, 60),
        ];
        for (us, expected) in cases {
            assert_eq!(seconds(us), expected, "{us}");
        }
    }

    #[test]
    fn arguments_out_of_range_are_errors() {
        let parse = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            ThrottleCommand::parse(&words).map(|_| ()).unwrap_err()
        };
        for (line, error) in [
            ("k 1 1", "ERR usage: CL.THROTTLE key max_burst count period [quantity]"),
            ("k 1 1 1 1 1", "ERR usage: CL.THROTTLE key max_burst count period [quantity]"),
            ("k -1 1 1", "ERR max_burst is not an integer or out of range"),
            ("k x 1 1", "ERR max_burst is not an integer or out of range"),
            ("k 1 0 1", "ERR count and period must be at least 1"),
            ("k 1 1 0", "ERR count and period must be at least 1"),
            ("k 1 1 99999999999999", "ERR period is not an integer or out of range"),
            ("k 1 1 1 1.5", "ERR quantity is not an integer or out of range"),
        ] {
            assert_eq!(parse(line), error, "{line}");
        }
        assert!(ThrottleCommand::parse(&[b"\xff", b"1", b"1", b"1"]).is_err(), "not UTF-8");
        assert!(
            ThrottleCommand::parse(&[b"", b"18446744073709551615", b"1", b"1", b"-9223372036854775808"])
                .is_ok()
        );
    }
}
