//! A flood of ten million unique keys against a memory cap of 64 MB: a limited client stays limited, and a client
//! within its limit is served.

use crate::measurement::{megabytes, report_at_most, resident_bytes};
use crate::workload::limiter;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use tollgate_limiter::{Check, Limiter, Outcome, Request};

const RULES: &str = "rules: [{ id: api, limit: 100/min }]";
const CAP: usize = 64 << 20;
const ATTACKERS: u64 = 10_000_000;

pub fn run() {
    println!(
        "attack: {} M unique keys against a cap of {:.0} MB",
        ATTACKERS / 1_000_000,
        megabytes(CAP as u64)
    );
    let limiter = limiter(RULES, CAP);
    let before = resident_bytes();
    let visitor = IpAddr::from(Ipv4Addr::new(198, 51, 100, 7));
    let abuser_is_limited = || !passes(&limiter, "sk_abuser", visitor);
    while !abuser_is_limited() {}

    let (mut peak, mut false_rejections, mut escapes, mut visits) = (0, 0u64, 0u64, 0u64);
    let start = limiter.clock().now();
    let mut next_visit = start;
    let mut abuser_tokens = 0.0;
    let mut key = String::new();
    for number in 0..ATTACKERS {
        key.clear();
        let _ = write!(key, "sk_flood_{number:012}");
        // The flood comes from one large network.
        let from =
            IpAddr::from(Ipv4Addr::from_bits(0x2d00_0000 | (number as u32).wrapping_mul(2_654_435_761) >> 8));
        passes(&limiter, &key, from);
        if number % 1_000 == 0 {
            let now = limiter.clock().now();
            // A regular client at 1.25 per second, within its 100 per minute.
            if now >= next_visit {
                next_visit = now + 800_000;
                visits += 1;
                false_rejections += u64::from(!passes(&limiter, "sk_regular", visitor));
            }
            // The abuser gets its refill and no more.
            escapes += u64::from(!abuser_is_limited());
            abuser_tokens = now.since(start) as f64 / 1e6 * 100.0 / 60.0;
        }
        if number % 100_000 == 0 {
            peak = peak.max(resident_bytes().saturating_sub(before));
        }
    }
    let usage = limiter.store().usage();
    println!(
        "  {} states in {:.0} MB; {} of the flood shared overflow cells; {visits} requests of the regular client",
        usage.states,
        megabytes(usage.bytes as u64),
        usage.overflowed
    );
    report_at_most("growth of resident memory × the cap", peak as f64 / CAP as f64, 1.1);
    report_at_most("abusive client: admitted − its refill", escapes as f64 - abuser_tokens, 1.0);
    report_at_most("regular client: false refusals", false_rejections as f64, 0.0);
}

fn passes(limiter: &Limiter, key: &str, ip: IpAddr) -> bool {
    let request = Request { api_key: Some(key), ip: Some(ip), ..Request::default() };
    let decision = limiter.check(&request).ok().and_then(Check::now);
    matches!(decision.map(|decision| decision.outcome), Some(Outcome::Admitted(_)))
}
