//! The text of the script: constants that Rust and Lua share, written here from those of Rust, and then the Lua files.

use super::{
    CLOCK_TOLERANCE_US, CORRECTED_TIME, CORRECTION_BIAS_US, GIVEN_TIME, LENT_BYTES, LIMIT_BYTES, NARROW,
    NARROW_BYTES, WIDE, WIDE_BYTES,
};
use crate::algorithm::sliding_window_log::RETURN_DEPTH;
use crate::algorithm::{Algorithm, bucket, window};
use crate::heartbeat::SLEW;
use crate::lending::{EPOCH_US, EPOCHS};
use crate::state_address;
use std::fmt::Write;
use std::sync::LazyLock;

/// The tables in which each algorithm puts its functions, see `definitions.lua`.
const FUNCTION_TABLES: [&str; 4] = ["open", "apply_report", "close", "log_status"];

static SOURCE: LazyLock<String> = LazyLock::new(|| {
    let main = [include_str!("plain_bucket.lua"), include_str!("call_time.lua"), include_str!("main.lua")];
    joined(&main)
});

static RESET_SOURCE: LazyLock<String> =
    LazyLock::new(|| joined(&[include_str!("call_time.lua"), include_str!("reset.lua")]));

static REFUND_SOURCE: LazyLock<String> =
    LazyLock::new(|| joined(&[include_str!("call_time.lua"), include_str!("refund.lua")]));

/// What all scripts about states have in common, and then `main`.
fn joined(main: &[&str]) -> String {
    let mut source = constants();
    source.push_str(include_str!("definitions.lua"));
    source.push_str(bucket::SCRIPT);
    source.push_str(window::SCRIPT);
    for algorithm in Algorithm::scripted() {
        source.push_str(algorithm.script());
    }
    source.push_str(include_str!("state.lua"));
    source.push_str(include_str!("charge.lua"));
    main.iter().for_each(|part| source.push_str(part));
    source
}

/// The script. In a cluster, [`CLUSTER_HEADER`](super::CLUSTER_HEADER) comes before it.
pub fn source() -> &'static str {
    &SOURCE
}

/// The script that lets states start fresh: `reset.lua`.
pub fn reset_source() -> &'static str {
    &RESET_SOURCE
}

/// The script that gives tokens back: `refund.lua`.
pub fn refund_source() -> &'static str {
    &REFUND_SOURCE
}

fn constants() -> String {
    let shared = [
        ("EPOCH_US", EPOCH_US),
        ("EPOCHS", EPOCHS.into()),
        ("CLOCK_TOLERANCE_US", CLOCK_TOLERANCE_US),
        ("CORRECTION_BIAS_US", CORRECTION_BIAS_US as u64),
        ("GIVEN_TIME", GIVEN_TIME.into()),
        ("CORRECTED_TIME", CORRECTED_TIME.into()),
        ("SLEW", SLEW),
        ("WIDE", WIDE),
        ("WIDE_BYTES", WIDE_BYTES as u64),
        ("NARROW", NARROW),
        ("NARROW_BYTES", NARROW_BYTES as u64),
        ("LENT_BYTES", LENT_BYTES as u64),
        ("LIMIT_BYTES", LIMIT_BYTES as u64),
        ("LIMIT_FIELD_BYTES", state_address::LIMIT_BYTES as u64),
        ("RETURN_DEPTH", RETURN_DEPTH as u64),
    ];
    let mut lua = String::new();
    let mut define = |name: &str, value: &str| {
        writeln!(lua, "local {name} = {value}").expect("a string takes all that is written");
    };
    for (name, value) in shared {
        define(name, &value.to_string());
    }
    for algorithm in Algorithm::scripted() {
        define(&algorithm.name().to_uppercase(), &algorithm.code().to_string());
    }
    let empty = format!("{{ {} }}", ["false"; Algorithm::ALL.len()].join(", "));
    for table in FUNCTION_TABLES {
        define(table, &empty);
    }
    lua
}
