//! The embedded store decides as the virtual node does.

use crate::conformance::key_states::{resets_end_cooldowns, walk_readings, walk_resets};
use crate::conformance::setting::Setting;
use crate::conformance::walks::{
    TOGETHER, walk_a_clock_that_goes_back, walk_changing_rules, walk_everything, walk_the_shipped_files,
};

#[test]
fn the_shipped_rule_files() {
    walk_the_shipped_files(&Setting::new, 9_000);
}

#[test]
fn one_of_everything() {
    walk_everything(&Setting::new, 20_000);
}

#[test]
fn rules_that_change() {
    walk_changing_rules(&Setting::new, 20_000);
}

#[test]
fn a_clock_that_goes_back() {
    walk_a_clock_that_goes_back(&Setting::new, 40, &TOGETHER);
}

/// With [`Limiter::refuse`](tollgate_limiter::Limiter::refuse) before every check the decisions are the same.
#[test]
fn refusing_first() {
    walk_the_shipped_files(&Setting::refusing_first, 3_000);
    walk_everything(&Setting::refusing_first, 20_000);
    walk_changing_rules(&Setting::refusing_first, 8_000);
    walk_a_clock_that_goes_back(&Setting::refusing_first, 20, &TOGETHER);
}

#[test]
fn readings_agree_with_the_next_check() {
    walk_readings(&Setting::new, 20_000);
}

#[test]
fn a_client_starts_fresh_after_a_reset() {
    walk_resets(&Setting::new);
    resets_end_cooldowns(&Setting::new);
}
