//! The tests of the core as one binary: it links once, and its modules run in parallel.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot continue fails at once.

mod answers;
mod counting;
mod diffs;
mod doors;
mod edit_laws;
mod edits;
mod epochs;
mod exceptions;
mod explain;
mod import_envoy;
mod import_envoy_wildcards;
mod import_nginx;
mod import_nginx_answers;
mod import_nginx_keys;
mod laws;
mod lending;
mod limits;
mod lists;
mod mutations;
mod numbers;
mod operator_edits;
mod oracle;
mod paths;
mod penalties;
mod previews;
mod rule_errors;
mod rule_files;
mod rule_tests;
mod sample;
mod selection;
mod shared_counts;
mod worked_examples;
