//! Estimates how long the script takes for a call of a client, so that one script call does not block the server for long.
//!
//! Redis runs one script at a time, and all other commands wait. So a script call is bounded by the sum of these
//! estimates rather than by the number of its clients: four limits take eight times as long as one token bucket. The
//! numbers were measured on one core of Redis 7.0 with states that are not in the processor's caches, and
//! `tollgate-bench redis work` prints them beside what this machine takes.

use super::{ChargeCall, MOST_PARTS, ScriptCall};

/// How long one script call may take, by estimate: everything else that the server does waits for it, and for the calls
/// behind it on the same connection, three in all. Longer calls delay others, and hardly do more a second: beside a saturating
/// node, the p99 of a PING was 1.7 to 2.7 ms with 0.4 ms, 0.7 to 1.1 ms with 0.25 ms, and 0.5 to 0.6 ms with 0.2 ms.
const LONGEST_CALL_NS: u32 = 200_000;

/// A script call before its first client.
pub const CALL_NS: u32 = 15_000;

/// How long the clients of one script call may take together.
pub const CLIENTS_NS: u32 = LONGEST_CALL_NS - CALL_NS;

/// One token bucket without leases and reports, see `plain_bucket.lua`.
const PLAIN_BUCKET_NS: u32 = 3_000;
/// One other limit, and requests of one cost: `charge_one` in `charge.lua`.
const ONE_LIMIT_NS: u32 = 4_500;
const LEASE_NS: u32 = 1_000;
const REPORT_NS: u32 = 1_000;

/// All other calls: `charge_several`.
const CLIENT_NS: u32 = 6_000;
const LIMIT_NS: u32 = 4_500;
const LOG_NS: u32 = 13_000;
const RUN_NS: u32 = 700;
const LIMIT_OF_RUN_NS: u32 = 300;
const LOG_OF_RUN_NS: u32 = 2_000;
/// A return is searched for among the newest entries of a log, and those behind it are rewritten.
const LOG_RETURN_NS: u32 = 30_000;

impl ScriptCall {
    /// How long the script takes for it, in nanoseconds.
    pub fn work_ns(&self) -> u32 {
        match &*self.charges {
            [charge] if self.runs.len() <= 1 && charge.enforced && !charge.meter.is_log() => {
                charge.work_alone_ns()
            }
            charges => {
                let charges_ns: u32 =
                    charges.iter().map(|charge| charge.work_ns(self.runs.len() as u32)).sum();
                CLIENT_NS + RUN_NS * self.runs.len() as u32 + charges_ns
            }
        }
    }
}

/// How many runs of different costs one call for a client has time for, under the limits of `charges`. One always is.
pub fn most_runs(charges: &[ChargeCall]) -> usize {
    let run_ns = RUN_NS + charges.iter().map(ChargeCall::run_ns).sum::<u32>();
    let without_runs_ns = CLIENT_NS + charges.iter().map(|charge| charge.work_ns(0)).sum::<u32>();
    let runs = CLIENTS_NS.saturating_sub(without_runs_ns) / run_ns;
    (runs as usize).clamp(1, MOST_PARTS)
}

impl ChargeCall {
    fn work_alone_ns(&self) -> u32 {
        let is_leased = self.prefetch.want > 0 || self.as_lent;
        let limit_ns = if self.is_plain() { PLAIN_BUCKET_NS } else { ONE_LIMIT_NS };
        limit_ns + LEASE_NS * u32::from(is_leased) + REPORT_NS * self.reports.len() as u32
    }

    fn work_ns(&self, runs: u32) -> u32 {
        let reports = self.reports.len() as u32;
        let (limit_ns, report_ns) =
            if self.meter.is_log() { (LOG_NS, LOG_RETURN_NS) } else { (LIMIT_NS, REPORT_NS) };
        limit_ns + self.run_ns() * runs + report_ns * reports
    }

    fn run_ns(&self) -> u32 {
        if self.meter.is_log() { LOG_OF_RUN_NS } else { LIMIT_OF_RUN_NS }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RequestRun;
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::lending::{LeaseReport, Prefetch};
    use crate::limit::{Limit, LimitSize};
    use crate::state_address::StateField;

    fn call(algorithm: Algorithm, charges: usize, runs: u32) -> ScriptCall {
        let size = LimitSize { capacity: Some(1_000), rate: None, window_us: Some(60_000_000) };
        let limit = Limit::new("plan", algorithm, size).unwrap();
        let charge = |number| ChargeCall {
            meter: *limit.meter(),
            field: StateField::new(number, None),
            enforced: true,
            as_lent: false,
            prefetch: Prefetch::NONE,
            reports: Default::default(),
        };
        let runs = (1..=runs).map(|cost| RequestRun { repeats: 1, cost });
        ScriptCall { runs: runs.collect(), charges: (0..charges as u64).map(charge).collect() }
    }

    #[test]
    fn more_to_do_takes_longer() {
        let bucket = |charges, runs| call(Algorithm::TokenBucket, charges, runs).work_ns();
        let log = |charges, runs| call(Algorithm::SlidingWindowLog, charges, runs).work_ns();
        let other = call(Algorithm::FixedWindow, 1, 1).work_ns();
        let rising = [bucket(1, 1), other, bucket(1, 2), bucket(2, 1), log(1, 1), bucket(4, 1), log(4, 1)];
        assert!(rising.is_sorted_by(|less, more| less < more), "{rising:?}");
        assert!(bucket(4, 1) >= 8 * bucket(1, 1), "{} and {}", bucket(4, 1), bucket(1, 1));
    }

    #[test]
    fn runs_of_different_costs_are_as_many_as_there_is_time_for() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingWindowLog] {
            for limits in [1, 2, 4, 8] {
                let most = most_runs(&call(algorithm, limits, 0).charges);
                let work_ns = |runs: usize| call(algorithm, limits, runs as u32).work_ns();
                assert!(most > 1 && work_ns(most) <= CLIENTS_NS, "{algorithm:?}, {limits} limits: {most}");
                let is_more_too_long = most == MOST_PARTS || work_ns(most + 1) > CLIENTS_NS;
                assert!(is_more_too_long, "{algorithm:?}, {limits} limits: {most}");
            }
        }
        assert_eq!(most_runs(&call(Algorithm::SlidingWindowLog, MOST_PARTS, 0).charges), 1);
    }

    #[test]
    fn reports_take_time_too_and_the_most_fits_into_the_number() {
        let reporting = |algorithm, reports| {
            let mut call = call(algorithm, 1, 1);
            let report = LeaseReport { epoch: 1, spent: 1, returned: 1 };
            call.charges[0].reports = std::iter::repeat_n(report, reports).collect();
            call.work_ns()
        };
        for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingWindowLog] {
            assert!(reporting(algorithm, 2) > reporting(algorithm, 1));
            assert!(reporting(algorithm, 1) > call(algorithm, 1, 1).work_ns());
        }
        let mut most = call(Algorithm::SlidingWindowLog, super::super::MOST_PARTS, 255);
        for charge in &mut most.charges {
            charge.reports = std::iter::repeat_n(LeaseReport::default(), 8).collect();
        }
        assert!(most.work_ns() > 255 * LOG_RETURN_NS);
    }
}
