//! Cooldowns over a shared store are those over the embedded one.

use crate::penalties::{RULES, cooldowns_grow_hold_and_are_forgotten};
use crate::setting::Setting;
use tollgate_testbed::Server;

#[test]
fn cooldowns_are_the_same_over_a_shared_store() {
    let server = Server::start(&[]);
    cooldowns_grow_hold_and_are_forgotten(&Setting::on_redis(&server.url(), "penalty:", RULES));
}
