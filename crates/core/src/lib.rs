//! Algorithms, limits and rules of the Tollgate rate limiter, as pure functions.
//!
//! This crate compiles rule files, selects the rules that match a request, and runs the algorithms. It reads no clock, does
//! no I/O, is not async and draws no random numbers: time and seeds are parameters. Every decision can therefore be
//! reproduced in a test. The crate `tollgate-limiter` adds stores, a clock and concurrency.
//!
//! ```
//! use tollgate_core::decision::Outcome;
//! use tollgate_core::request::Request;
//! use tollgate_core::rules::{self, VirtualNode};
//!
//! let file = "
//! rules:
//!   - { id: search, endpoint: /search, key: user, limit: 2/s }
//! ";
//! // An error is a report of all errors, with line, column and hint.
//! let loaded = rules::load("rules.yaml", file)?;
//!
//! // A virtual node decides as a real one, at any time in microseconds.
//! let mut node = VirtualNode::default();
//! let request = Request { user: Some("ann"), endpoint: "/search", ..Request::default() };
//! for _ in 0..2 {
//!     assert!(matches!(node.check(&loaded, &request, 0), Ok(Outcome::Admitted(_))));
//! }
//! let Ok(Outcome::Limited(status)) = node.check(&loaded, &request, 0) else { panic!() };
//! assert_eq!(loaded.rules.rule_of(status.limit).id, "search");
//! assert_eq!(status.wait_us(), Some(500_000));
//! assert!(matches!(node.check(&loaded, &request, 500_000), Ok(Outcome::Admitted(_))));
//! # Ok::<(), tollgate_core::diagnostic::DiagnosticReport>(())
//! ```
//!
//! # Items to start with
//!
//! - [`rules::load`] compiles a rule file to [`rules::LoadedRules`]: a [`rules::RuleSet`], the
//!   [`rules::lists::AccessLists`], test cases and warnings. The file format is [`rules::written`].
//! - [`request::Request`] is a request; its endpoint is in the form of [`path::endpoint`].
//! - [`rules::RuleSet::charge`] lists the [`rules::Charge`]s of a request: a limit and a key each.
//! - [`limit::Limit::step_state`] runs one step of an [`algorithm`] on the state of one key.
//! - [`decision::OutcomeFold`] folds the steps of all charges into a [`decision::Outcome`].
//! - [`rules::explain`] and [`rules::run_tests`] are behind `tollgate rules explain` and `tollgate rules test`.
//!
//! A shared store runs the same algorithms as a Redis [`script`]: [`lending`] is the arithmetic of leased tokens,
//! [`state_address`] the key layout, [`heartbeat`] the count of live nodes, and [`virtual_store`] runs the calls without a
//! server.

pub mod algorithm;
pub mod decision;
pub mod diagnostic;
pub mod document;
pub mod heartbeat;
pub mod key;
pub mod lending;
pub mod limit;
pub mod path;
pub mod penalty;
pub mod rate;
pub mod request;
pub mod rules;
pub mod script;
pub mod state_address;
pub mod virtual_store;
