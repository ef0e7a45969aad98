//! The tests of rule sources and of the admin listener, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A failed precondition ends the test.

mod admin;
mod admin_access;
mod admin_bodies;
mod admin_emergency;
mod admin_fixture;
mod admin_grants;
mod admin_keys;
mod admin_lists;
mod admin_node;
mod admin_outage;
mod admin_ownership;
mod admin_rules;
mod admin_tokens;
mod broken_content;
#[allow(dead_code, reason = "the tests of the layer share it")]
#[path = "../../../http/tests/suite/client.rs"]
mod client;
mod control_plane_rules;
mod embedded_repository;
mod file_changes;
mod file_watcher;
mod first_load;
mod fleet_node;
mod followed_file;
mod followers;
mod irregular_files;
mod killed_publisher;
mod last_good_rules;
mod live_fleet;
mod openapi;
mod operated_node;
mod reload_under_load;
mod repository;
mod repository_fleet;
mod repository_losses;
mod repository_rules;
mod rule_sources;
mod rule_tests;
