//! The tests of the `tollgate` binary, run as a process; as one test binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A failed precondition ends the test.

mod admin;
mod admin_api;
mod admin_attack;
mod alerts;
mod api_description;
mod browser;
mod certificate_reload;
mod closed_output;
mod control_fleet;
mod demo;
mod door_warnings;
mod emergency;
mod envoy;
mod fleet_totals;
mod followers;
mod forward_auth;
mod gateway;
mod http_client;
mod import;
mod irregular_files;
mod killed_node;
mod last_good_rules;
mod log_format;
mod nginx_import;
mod process;
mod published_rules;
mod repository;
mod resp;
mod rule_reload;
mod rules;
mod secrets;
mod serve;
mod settings;
mod shared_store;
mod shutdown;
mod signals;
mod simulate;
mod sticky_routing;
mod store_outage_restart;
mod telemetry;
