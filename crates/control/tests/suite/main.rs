//! The tests of rule sources, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A failed precondition ends the test.

mod broken_content;
mod file_changes;
mod file_watcher;
mod first_load;
mod followed_file;
mod irregular_files;
mod last_good_rules;
mod reload_under_load;
mod rule_sources;
mod rule_tests;
