//! Tests of the doors over real connections, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot continue fails at once.

mod auth;
mod batch;
mod bypass;
mod check;
#[allow(dead_code, reason = "the tests of the accept loop share it")]
#[path = "../../../http/tests/suite/client.rs"]
mod client;
mod drain;
mod fixture;
mod malformed;
mod real_time;
mod resp;
mod resp_fixture;
mod resp_outage;
mod rls;
mod rls_deadlines;
mod rls_fixture;
mod rls_fuzz;
mod rls_outage;
mod rls_stated_limits;
mod routes;
mod unavailable;
